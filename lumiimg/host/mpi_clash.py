"""Two MPIs in one process of Python: mpi4py and the framework of a job, imported in either order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.elf import Process, exported_at, wanted_at
from lumiimg.host.root_queries import names_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.elf import LoaderConfig
    from lumiimg.host.job_process import JobProcess
    from lumiimg.image import RootFileSystem

_LIBMPI = re.compile(r"libmpi\.so\.(?:12|40)")


@dataclass(frozen=True, slots=True)
class MpiClash:
    """Two libraries of MPI under one soname: of these, the process keeps the one that came first."""

    module: str
    """That of mpi4py, with its path."""
    files: tuple[str, ...]
    errors: Mapping[str, tuple[str, ...]]
    """What the loader says, by what is imported first; of orders that it ends."""


def mpi_clash(root: RootFileSystem, settings: LoaderConfig, job: JobProcess, packages: str) -> MpiClash | None:
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
