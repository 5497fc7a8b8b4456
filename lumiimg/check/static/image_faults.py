"""Faults of an image that files alone show and that are not about the network: a job meets them all the same.

None of them is an obstacle to the answer of a check; each comes with what it does, and what to do.
"""

from __future__ import annotations

import contextlib
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Iterator, Mapping

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.result import StaticResult
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
    found, image = Findings(Level.STATIC), context.image
    facts = own_table(__package__, "faults.toml")
    _judge_caches(image, context.read_by_engine, facts, found)
    _judge_tools(image, facts, found)
    _judge_entrypoint(image, facts, found)
    _judge_scripts(image, found)
    if static.job is not None:
        _judge_mpi(image.root, context.inside.settings, static.job, found)
    _judge_python(image, static.job, facts, found)
    return tuple(found.found)


def _judge_caches(image: Image, environment: Mapping[str, str], facts: Mapping[str, Any], found: Findings) -> None:
    """Judge the variables that the image itself sets: what a user sets is the user's to know."""
    own = {name: image.environment[name] for name in facts["caches"]["variables"] if name in image.environment}
    told = {name: value for name, value in own.items() if variable_of(name, image, environment) == value}
    homes = [f"{name}={value}" for name, value in told.items() if _HOME.match(value)]
    if homes:
        what = f"the image puts caches into a home: {homes[0]}"
        lines = tuple(homes[:_SHOWN])
        names = {"variable": homes[0].partition("=")[0]}
        found.add(Code.IMAGE_CACHES_IN_HOME, Severity.INFO, what, names=names, evidence=lines)


def _judge_tools(image: Image, facts: Mapping[str, Any], found: Findings) -> None:
    root = image.root
    for name in facts["tools"]["names"]:
        real: dict[str, str] = {}
        for folder in search_path(image):
            with contextlib.suppress(OSError, BadInputError):
                real.setdefault(root.resolve(f"{folder}/{name}"), f"{folder}/{name}")
        if len(real) > 1:
            first, *others = real.values()
            what = f"{name} is on PATH {len(real)} times: a job gets {first}"
            lines = tuple(others[:_SHOWN])
            names = {"other": others[0]}
            found.add(Code.IMAGE_SHADOWED_TOOL, Severity.INFO, what, names=names, where=first, evidence=lines)


def _of_entrypoint(image: Image) -> Iterator[tuple[str, str]]:
    """Yield the files that the words of the entrypoint name, by path or on PATH, with their texts."""
    words = " ".join(image.entrypoint).split()  # of ["/bin/sh", "-c", "/start.sh serve"], too
    for name in words[:_MOST_WORDS]:
        for path in [name] if name.startswith("/") else [f"{folder}/{name}" for folder in search_path(image)]:
            if "\0" not in path and image.root.is_file(path):
                yield path, read_text(image.root, path) or ""
                break


def _judge_entrypoint(image: Image, facts: Mapping[str, Any], found: Findings) -> None:
    """Judge what `singularity exec` skips: the entrypoint of the OCI image, or that this one was made of."""
    scripts = ((path, text) for path, text in _of_entrypoint(image) if text.startswith("#!"))
    path, text = next(scripts, ("", ""))
    names = "|".join(facts["entrypoint"]["variables"])
    sets = list(dict.fromkeys(re.findall(rf"\b({names})=", text)))
    if sets:
        what = f"the OCI entrypoint {path} sets {', '.join(sets)}, and `exec` does not run it"
        found.add(Code.IMAGE_ENTRYPOINT, Severity.INFO, what, names={"variable": sets[0], "path": path}, where=path)


def _judge_scripts(image: Image, found: Findings) -> None:
    """Judge the scripts: one list of GPUs, given to two filters, leaves none where a job has a part of a node."""
    copying = [path for path in _scripts(image) if _COPIES.search(read_text(image.root, path) or "")]
    if copying:
        what = f"{copying[0]} copies ROCR_VISIBLE_DEVICES into HIP_VISIBLE_DEVICES"
        found.add(Code.IMAGE_HIP_DEVICES, Severity.INFO, what, where=copying[0], evidence=tuple(copying[1:_SHOWN]))


def _scripts(image: Image) -> Iterator[str]:
    """Yield small files that are, or may be, scripts of a shell that jobs run or source."""
    root = image.root
    folders = dict.fromkeys((*search_path(image), *_OF_SCRIPTS))
    left = _MOST_SCRIPTS
    for folder in folders:
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


def _judge_mpi(root: RootFileSystem, settings: LoaderSettings, job: JobProcess, found: Findings) -> None:
    """Judge whether mpi4py and the framework load in either order: of two files of one soname the first one stays."""
    packages = job.package.rpartition("/")[0] if job.package else None
    module = next((f"{packages}/mpi4py/{n}" for n in names_in(root, f"{packages}/mpi4py") if _is_mpi(n)), None)
    if packages is None or module is None or not job.opens:
        return
    orders = {"mpi4py": (module, *job.opens), str(job.framework): (*job.opens, module)}
    processes: dict[str, Process] = {}
    errors: dict[str, list[str]] = {}
    for first, paths in orders.items():
        process = processes[first] = Process(root, settings)
        errors[first] = list(process.start(job.program).errors)
        for path in paths:
            errors[first] += process.dlopen(path).errors
    libraries = {
        first: [item.path for item in process.objects if _LIBMPI.fullmatch(item.path.rpartition("/")[2])]
        for first, process in processes.items()
    }
    if any(len(paths) != 1 for paths in libraries.values()):
        return
    offered = {paths[0]: _offered_by(root, paths[0]) for paths in libraries.values()}
    every = frozenset[str]().union(*offered.values())
    for first, process in processes.items():
        lacking = every - offered[libraries[first][0]]
        for item in process.objects if lacking else ():
            if any(map(_LIBMPI.fullmatch, item.facts.needed)) and (names := lacking & _asked_by(root, item.path)):
                errors[first].append(f"{item.path}: undefined symbol: {min(names)}")
    got = offered.keys()
    dying = [first for first, told in errors.items() if told]
    if len(got) > 1 and dying:
        dies = f": with {dying[0]} imported first, it ends" if len(dying) == 1 else ""
        found.add(
            Code.IMAGE_TWO_MPI,
            Severity.INFO,
            f"mpi4py and {job.framework} bring two libraries of one name: {' and '.join(sorted(got))}{dies}",
            names={"framework": str(job.framework)},
            where=module,
            evidence=tuple(line for first in dying for line in errors[first])[:_SHOWN],
        )


def _is_mpi(name: str) -> bool:
    return name.startswith("MPI.") and name.endswith(".so")


def _judge_python(image: Image, job: JobProcess | None, facts: Mapping[str, Any], found: Findings) -> None:
    """Judge the distributions beside the framework of a job; without one there is no folder that counts."""
    folder = job.package.rpartition("/")[0] if job and job.package else None
    if folder is None:
        return
    root = image.root
    names = names_in(root, folder)
    infos = filter(None, map(_DIST_INFO.fullmatch, names))
    versions: dict[str, str] = {canonicalize_name(info[1]): info[2] for info in infos}
    _judge_cuda(versions, folder, found)
    modules = list(islice(_modules(root, folder), _MOST_MODULES))
    _judge_torch(root, folder, modules, facts, found)
    if "numpy" in versions and _major(versions["numpy"]) >= 2:
        _judge_numpy(root, modules, versions["numpy"], found)


def _major(version: str) -> int:
    return int(version.partition(".")[0]) if version.partition(".")[0].isdecimal() else 0


def _judge_cuda(versions: Mapping[str, str], folder: str, found: Findings) -> None:
    wrong = sorted(f"{name} {of}" for name, of in versions.items() if is_in_the_way(name, of))
    if wrong:
        what = f"packages for NVIDIA's GPUs are among those for ROCm: {', '.join(wrong[:3])}"
        found.add(Code.IMAGE_CUDA_PACKAGES, Severity.INFO, what, where=folder, evidence=tuple(wrong[:_SHOWN]))


def _modules(root: RootFileSystem, folder: str) -> Iterator[str]:
    """Yield the compiled modules beside torch and NumPy."""
    own = (f"{folder}/torch/", f"{folder}/numpy/", f"{folder}/numpy.libs/")
    for path, _ in root.walk(folder):
        if path.endswith(".so") and not path.startswith(own):
            yield path


def _judge_torch(
    root: RootFileSystem, folder: str, modules: list[str], facts: Mapping[str, Any], found: Findings
) -> None:
    lines: list[str] = []
    where = None
    prefixes = tuple(facts["c10"]["prefixes"])
    offered = (
        _offered_by(root, f"{folder}/torch/lib/libc10.so") if root.is_file(f"{folder}/torch/lib/libc10.so") else None
    )
    for path in modules if offered else ():
        of_module = facts_at(root, path)
        if of_module is None or "libc10.so" not in of_module.needed:
            continue
        lacking = [name for name in _asked_by(root, path) if name.startswith(prefixes) and name not in (offered or ())]
        if lacking:
            where = where or path
            lines.append(f"{path}: undefined symbol: {min(lacking)}")
    if lines:
        what = f"built for another torch: {lines[0]}"
        found.add(Code.IMAGE_OTHER_TORCH, Severity.INFO, what, where=where, evidence=tuple(lines[:_SHOWN]))


def _judge_numpy(root: RootFileSystem, modules: list[str], version: str, found: Findings) -> None:
    lines: list[str] = []
    left = _MOST_READ_BYTES
    for path in modules:
        if not _MODULE.fullmatch(path):
            continue
        with contextlib.suppress(OSError, BadInputError), contextlib.closing(root.open(path)) as file:
            if file.size <= min(_LARGEST_MODULE_BYTES, left):
                left -= file.size
                data = file.read_at(0, file.size)
                if _OLD_NUMPY in data and _NEW_NUMPY not in data:
                    lines.append(f"{path}: compiled with NumPy 1")
    if lines:
        what = f"for NumPy 1, but the image has NumPy {version}: {lines[0]}"
        found.add(Code.IMAGE_NUMPY, Severity.INFO, what, evidence=tuple(lines[:_SHOWN]))


def _offered_by(root: RootFileSystem, path: str) -> frozenset[str]:
    """Return the symbols that a file defines for others; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, BadInputError), contextlib.closing(root.open(path)) as file:
        return exported_symbols(file)
    return frozenset()


def _asked_by(root: RootFileSystem, path: str) -> frozenset[str]:
    """Return the symbols that a file asks others for; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, BadInputError), contextlib.closing(root.open(path)) as file:
        return frozenset(symbol.name for symbol in undefined_symbols(file))
    return frozenset()
