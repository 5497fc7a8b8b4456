"""Faults of an image that files alone show and that are not about the network: a job meets them all the same.

None of them is an obstacle to the answer of a check; each comes with what it does, and what to do.
"""

from __future__ import annotations

import contextlib
import re
from itertools import islice
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from lumiimg.check.registry import Findings
from lumiimg.elf.facts import exported_symbols, undefined_symbols
from lumiimg.elf.loader import Process
from lumiimg.elf.system import facts_at
from lumiimg.errors import BadInputError
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.gpu.cuda import is_in_the_way
from lumiimg.host.container_view import variable_of
from lumiimg.host.root_queries import names_in, read_text
from lumiimg.image.programs import search_path
from lumiimg.image.tree import FileKind
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.process import StaticResult
    from lumiimg.elf.reader import RangeReader
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.host.job_process import JobProcess
    from lumiimg.image import Image, RootFileSystem

_LIBMPI = re.compile(r"libmpi\.so\.(?:12|40)")
_COPIES = re.compile(r"HIP_VISIBLE_DEVICES=[\"']?\$\{?ROCR_VISIBLE_DEVICES")
_HOME = re.compile(r"~|\$\{?HOME\b|/root(?:/|$)|/home(?:/|$)|/users(?:/|$)")
_OF_SCRIPTS = ("/", "/.singularity.d/env", "/docker", "/etc/profile.d", "/opt", "/scripts")
"""Beside those of PATH."""
_LARGEST_SCRIPT_BYTES = 64 << 10
_MOST_SCRIPTS = 3000
_MOST_WORDS = 64
_SHOWN = 8
_DIST_INFO = re.compile(r"([A-Za-z0-9._]{1,128})-([A-Za-z0-9.+!_]{1,64})\.dist-info")
_MODULE = re.compile(r".+\.(?:cpython-3[0-9]+[^/]*|abi3)\.so")
_OLD_NUMPY, _NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_MOST_MODULES = 2000
_LARGEST_MODULE_BYTES = 4 << 20
_MOST_READ_BYTES = 64 << 20


def find_faults(context: ImageInContext, static: StaticResult) -> tuple[Finding, ...]:
    """Return what was found in an image whose path is known. Raises BadInputError where it cannot be read."""
    found, image, job = Findings(Level.STATIC), context.image, static.job
    facts = own_table(__package__, "faults.toml")
    _judge_caches(image, context.read_by_engine, facts["caches"]["variables"], found)
    _judge_tools(image, facts["tools"]["names"], found)
    _judge_entrypoint(image, facts["entrypoint"]["variables"], found)
    _judge_scripts(image, found)
    if job is not None and job.package is not None:  # else there is no folder of packages that counts
        packages = job.package.rpartition("/")[0]
        _judge_mpi(image.root, context.inside.settings, job, packages, found)
        _judge_python(image.root, packages, tuple(facts["c10"]["prefixes"]), found)
    return tuple(found.found)


def _judge_caches(image: Image, environment: Mapping[str, str], variables: list[str], found: Findings) -> None:
    """Judge the variables that the image itself sets: what a user sets is the user's to know."""
    own = {name: image.environment[name] for name in variables if name in image.environment}
    in_force = {name: value for name, value in own.items() if variable_of(name, image, environment) == value}
    homes = {name: f"{name}={value}" for name, value in in_force.items() if _HOME.match(value)}
    if homes:
        names = {"variable": next(iter(homes)), "value": in_force[next(iter(homes))]}
        lines = tuple(homes.values())[:_SHOWN]
        found.add(Code.IMAGE_CACHES_IN_HOME, Severity.INFO, names=names, evidence=lines)


def _judge_tools(image: Image, tools: list[str], found: Findings) -> None:
    for name in tools:
        real: dict[str, str] = {}
        for path in (f"{folder}/{name}" for folder in search_path(image)):
            with contextlib.suppress(OSError, BadInputError):
                real.setdefault(image.root.resolve(path), path)
        if len(real) > 1:
            first, *others = real.values()
            names, lines = {"tool": name, "times": str(len(real)), "other": others[0]}, tuple(others[:_SHOWN])
            found.add(Code.IMAGE_SHADOWED_TOOL, Severity.INFO, names=names, where=first, evidence=lines)


def _of_entrypoint(image: Image) -> Iterator[tuple[str, str]]:
    """Yield the files that the words of the entrypoint name, by path or on PATH, with their texts."""
    words = " ".join(image.entrypoint).split()  # of ["/bin/sh", "-c", "/start.sh serve"], too
    for name in words[:_MOST_WORDS]:
        for path in [name] if name.startswith("/") else [f"{folder}/{name}" for folder in search_path(image)]:
            if "\0" not in path and image.root.is_file(path):
                yield path, read_text(image.root, path) or ""
                break


def _judge_entrypoint(image: Image, variables: list[str], found: Findings) -> None:
    """Judge what `singularity exec` skips: the entrypoint of the OCI image, or that this one was made of."""
    scripts = ((path, text) for path, text in _of_entrypoint(image) if text.startswith("#!"))
    path, text = next(scripts, ("", ""))
    sets = list(dict.fromkeys(re.findall(rf"\b({'|'.join(variables)})=", text)))
    if sets:
        names = {"variable": sets[0], "path": path, "variables": ", ".join(sets)}
        found.add(Code.IMAGE_ENTRYPOINT, Severity.INFO, names=names, where=path)


def _judge_scripts(image: Image, found: Findings) -> None:
    """Judge the scripts: one list of GPUs, given to two filters, leaves none where a job has a part of a node."""
    copying = [path for path in _scripts(image) if _COPIES.search(read_text(image.root, path) or "")]
    if copying:
        found.add(Code.IMAGE_HIP_DEVICES, Severity.INFO, where=copying[0], evidence=tuple(copying[1:_SHOWN]))


def _scripts(image: Image) -> Iterator[str]:
    """Yield small files that are, or may be, scripts of a shell that jobs run or source."""
    root, left = image.root, _MOST_SCRIPTS
    for folder in dict.fromkeys((*search_path(image), *_OF_SCRIPTS)):
        for name in names_in(root, folder or "/"):
            path = f"{folder.rstrip('/')}/{name}"
            with contextlib.suppress(OSError, BadInputError):
                stat = root.stat(path)
                is_small = stat.kind is FileKind.FILE and stat.size_bytes <= _LARGEST_SCRIPT_BYTES
                if is_small and left and (name.endswith(".sh") or _is_script(root, path)):
                    left -= 1
                    yield path


def _is_script(root: RootFileSystem, path: str) -> bool:
    with contextlib.closing(root.open(path)) as file:
        return file.read_at(0, 2) == b"#!"


def _judge_mpi(root: RootFileSystem, settings: LoaderSettings, job: JobProcess, packages: str, found: Findings) -> None:
    """Judge whether mpi4py and the framework load in either order: of two files of one soname the first one stays."""
    named = (name for name in names_in(root, f"{packages}/mpi4py") if name.startswith("MPI.") and name.endswith(".so"))
    module = next((f"{packages}/mpi4py/{name}" for name in named), None)
    if module is None or not job.opens:
        return
    processes: dict[str, Process] = {}
    errors: dict[str, list[str]] = {}
    libraries: dict[str, str] = {}
    for first, paths in (("mpi4py", (module, *job.opens)), (str(job.framework), (*job.opens, module))):
        process = processes[first] = Process(root, settings)
        errors[first] = list(process.start(job.program).errors)
        for path in paths:
            errors[first] += process.dlopen(path).errors
        of_mpi = [item.path for item in process.objects if _LIBMPI.fullmatch(item.path.rpartition("/")[2])]
        if len(of_mpi) != 1:
            return
        libraries[first] = of_mpi[0]
    offered = {path: _symbols_of(root, path) for path in libraries.values()}
    every = frozenset[str]().union(*offered.values())
    for first, process in processes.items():
        lacking = every - offered[libraries[first]]
        for item in process.objects if lacking else ():
            if any(map(_LIBMPI.fullmatch, item.facts.needed)) and (
                asked := lacking & _symbols_of(root, item.path, _asked)
            ):
                errors[first].append(f"{item.path}: undefined symbol: {min(asked)}")
    dying = [first for first, lines in errors.items() if lines]
    if len(offered) > 1 and dying:
        names = {"framework": str(job.framework), "files": " and ".join(sorted(offered)), "first": dying[0]}
        lines = tuple(line for first in dying for line in errors[first])[:_SHOWN]
        reason = "one-order" if len(dying) == 1 else None
        found.add(Code.IMAGE_TWO_MPI, Severity.INFO, reason=reason, names=names, where=module, evidence=lines)


def _judge_python(root: RootFileSystem, packages: str, of_c10: tuple[str, ...], found: Findings) -> None:
    """Judge the distributions beside the framework of a job, and their modules."""
    infos = filter(None, map(_DIST_INFO.fullmatch, names_in(root, packages)))
    versions: dict[str, str] = {canonicalize_name(info[1]): info[2] for info in infos}
    wrong = sorted(f"{name} {of}" for name, of in versions.items() if is_in_the_way(name, of))
    if wrong:
        names, lines = {"packages": ", ".join(wrong[:3])}, tuple(wrong[:_SHOWN])
        found.add(Code.IMAGE_CUDA_PACKAGES, Severity.INFO, names=names, where=packages, evidence=lines)
    modules = list(islice(_modules(root, packages), _MOST_MODULES))
    lacking = dict(_of_other_torch(root, f"{packages}/torch/lib/libc10.so", modules, of_c10))
    if lacking:
        lines = tuple(f"{path}: undefined symbol: {symbol}" for path, symbol in lacking.items())
        names, where = {"first": lines[0]}, next(iter(lacking))
        found.add(Code.IMAGE_OTHER_TORCH, Severity.INFO, names=names, where=where, evidence=lines[:_SHOWN])
    numpy = versions.get("numpy", "")
    if numpy.partition(".")[0].isdecimal() and int(numpy.partition(".")[0]) >= 2:
        lines = tuple(f"{path}: compiled with NumPy 1" for path in _of_numpy_1(root, modules))
        if lines:
            names = {"version": numpy, "first": lines[0]}
            found.add(Code.IMAGE_NUMPY, Severity.INFO, names=names, evidence=lines[:_SHOWN])


def _modules(root: RootFileSystem, folder: str) -> Iterator[str]:
    """Yield the compiled modules beside torch and NumPy."""
    own = (f"{folder}/torch/", f"{folder}/numpy/", f"{folder}/numpy.libs/")
    for path, _ in root.walk(folder):
        if path.endswith(".so") and not path.startswith(own):
            yield path


def _of_other_torch(
    root: RootFileSystem, c10: str, modules: list[str], prefixes: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the modules that ask for what the image's libc10 does not have, each with the first such symbol."""
    offered = _symbols_of(root, c10)
    for path in modules if offered else ():
        facts = facts_at(root, path)
        if facts is not None and "libc10.so" in facts.needed:
            lacking = [name for name in _symbols_of(root, path, _asked) - offered if name.startswith(prefixes)]
            if lacking:
                yield path, min(lacking)


def _of_numpy_1(root: RootFileSystem, modules: list[str]) -> Iterator[str]:
    left = _MOST_READ_BYTES
    for path in filter(_MODULE.fullmatch, modules):
        with contextlib.suppress(OSError, BadInputError), contextlib.closing(root.open(path)) as file:
            if file.size <= min(_LARGEST_MODULE_BYTES, left):
                left -= file.size
                data = file.read_at(0, file.size)
                if _OLD_NUMPY in data and _NEW_NUMPY not in data:
                    yield path


def _asked(file: RangeReader) -> frozenset[str]:
    return frozenset(symbol.name for symbol in undefined_symbols(file))


def _symbols_of(
    root: RootFileSystem, path: str, read: Callable[[RangeReader], frozenset[str]] = exported_symbols
) -> frozenset[str]:
    """Return the symbols that a file defines for others, or what else is read of it; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, BadInputError), contextlib.closing(root.open(path)) as file:
        return read(file)
    return frozenset()
