"""The compiled modules among the Python packages of an image: what they were built for, and what MPI they bring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.elf.loader import Process
from lumiimg.elf.system import exported_at, facts_at, read_what_is_there, wanted_at
from lumiimg.host.root_queries import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.host.job_process import JobProcess
    from lumiimg.image import RootFileSystem
    from lumiimg.inventory.components import Inventory

_MODULE = re.compile(r".+\.(?:cpython-3[0-9]+[^/]*|abi3)\.so")
_OLD_NUMPY, _NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_LIBMPI = re.compile(r"libmpi\.so\.(?:12|40)")
_MOST_MODULES = 2000
_LARGEST_MODULE_BYTES = 4 << 20
_MOST_READ_BYTES = 64 << 20


def modules_in(contents: Inventory, folder: str) -> list[str]:
    """Return the compiled modules of a folder, beside torch and NumPy; of very many, the first."""
    own = ("torch/", "numpy/", "numpy.libs/")
    at = len(contents.image.root.resolve_where_possible(folder)) + 1
    found = (path for path in contents.libraries_in(folder) if not path.startswith(own, at))
    return list(islice(found, _MOST_MODULES))


def of_other_torch(root: RootFileSystem, c10: str, modules: Sequence[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the modules that ask for what the image's libc10 does not have, each with the first such symbol."""
    offered = exported_at(root, c10)
    found: dict[str, str] = {}
    for path in modules if offered else ():
        facts = facts_at(root, path)
        if facts is not None and "libc10.so" in facts.needed:
            lacking = [name for name in wanted_at(root, path) - offered if name.startswith(prefixes)]
            found |= {path: min(lacking)} if lacking else {}
    return found


def of_numpy_1(root: RootFileSystem, modules: Sequence[str]) -> Iterator[str]:
    """Yield the modules that were compiled with NumPy 1; large ones are not read."""
    left = _MOST_READ_BYTES
    for path in filter(_MODULE.fullmatch, modules):
        data = read_what_is_there(root, path, min(_LARGEST_MODULE_BYTES, left))
        left -= len(data)
        if _OLD_NUMPY in data and _NEW_NUMPY not in data:
            yield path


@dataclass(frozen=True, slots=True)
class MpiClash:
    """Two libraries of MPI under one soname: of these, the process keeps the one that came first."""

    module: str
    """That of mpi4py, with its path."""
    files: tuple[str, ...]
    errors: Mapping[str, tuple[str, ...]]
    """What the loader says, by what is imported first; of orders that it ends."""


def mpi_clash(root: RootFileSystem, settings: LoaderSettings, job: JobProcess, packages: str) -> MpiClash | None:
    """Return what keeps mpi4py and the framework of a job from being imported in either order."""
    names = (name for name in names_in(root, f"{packages}/mpi4py") if name.startswith("MPI.") and name.endswith(".so"))
    module = next((f"{packages}/mpi4py/{name}" for name in names), None)
    if module is None or not job.opens:
        return None
    orders = {"mpi4py": (module, *job.opens), str(job.framework): (*job.opens, module)}
    processes: dict[str, Process] = {}
    errors: dict[str, list[str]] = {}
    libraries: dict[str, str] = {}
    for first, paths in orders.items():
        process = processes[first] = Process(root, settings)
        errors[first] = list(process.start(job.program).errors)
        for path in paths:
            errors[first] += process.dlopen(path).errors
        of_mpi = [loaded.path for loaded in process.objects if _LIBMPI.fullmatch(loaded.path.rpartition("/")[2])]
        if len(of_mpi) != 1:
            return None
        [libraries[first]] = of_mpi
    offered = {path: exported_at(root, path) for path in libraries.values()}
    every = frozenset[str]().union(*offered.values())
    for first, process in processes.items():
        absent = every - offered[libraries[first]]
        users = [each.path for each in process.objects if any(map(_LIBMPI.fullmatch, each.facts.needed))]
        lacking = {path: absent & wanted_at(root, path) for path in users} if absent else {}
        errors[first] += [f"{path}: undefined symbol: {min(names)}" for path, names in lacking.items() if names]
    ending = {first: tuple(lines) for first, lines in errors.items() if lines}
    return MpiClash(module, tuple(sorted(offered)), ending) if len(offered) > 1 and ending else None
