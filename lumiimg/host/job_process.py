"""The process of a job: the program that it starts, and what that opens before RCCL looks for its net plugin.

A program decides where a library is found: its DT_RPATH comes before LD_LIBRARY_PATH for every library of the process
that has no RUNPATH of its own (glibc elf/dl-load.c), and what is loaded already is not searched again.
Sources: torch/__init__.py (_load_global_deps, then torch._C); torch/_rocm_init.py and rocm_sdk (what TheRock's wheels
open first); jax_plugins/xla_rocm*/__init__.py; vllm/utils (find_nccl_library: VLLM_NCCL_SO_PATH, else librccl.so.1).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import Process, facts_at
from lumiimg.fabric.path import LIBRCCL
from lumiimg.host.communicator import CommunicatorLibrary, asked_of, linked_with
from lumiimg.host.container_view import TO_ENGINE, see_inside, variable_of
from lumiimg.host.root_queries import matches, names_in, read_text
from lumiimg.image import DEFAULT_PATH, Image, ImageError, RootFileSystem
from lumiimg.inventory.python import Interpreter, NoPythonError, find_program, read_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.elf import LoadedObject, LoaderConfig, LoadResult

PYTHONS = ("python", "python3")
"""By which jobs start it."""
_MODULE = re.compile(r"_C\.(?:(?:cpython-3[0-9]+[^/]*|abi3)\.)?so")
_PRELOADED = re.compile(r"preload_shortnames\s*=\s*\[([^\]]*)\]")
_OF_PYTHON = ("PATH", "PYTHONHOME", "PYTHONPATH")
_ENVIRONMENT = re.compile(r"(.*)/lib(?:64)?/python3[^/]*/")
_MOST_TORCHES = 8
_OF_GPUS = ("libtorch_hip.so", "libtorch_cuda.so")
_OF_JAX = "xla_rocm_plugin.so"


@dataclass(frozen=True, slots=True)
class JobProcess:
    """What is started, and what is opened in it, in this order."""

    program: str
    """Path in the image; a library where no program is known: then the process begins with that."""
    is_program: bool = True
    """Whether the kernel starts it."""
    opens: tuple[str, ...] = ()
    """Paths that its imports give to dlopen."""
    opens_for_all: tuple[str, ...] = ()
    """Those of them that are opened with RTLD_GLOBAL: all that comes later sees their symbols."""
    imports: str | None = None
    """Module whose import opens these."""
    is_python: bool = False
    """Whether the program is a Python: then it opens what jobs of Python open."""
    asks: tuple[str, ...] = ()
    """Names by which it then opens RCCL, the first that is there; none where RCCL comes along with what it opens."""
    framework: str | None = None
    """`torch`, `jax`, `vllm`: whose RCCL it is."""
    package: str | None = None
    """Folder of that framework."""

    @property
    def title(self) -> str:
        """Return who it is, for a sentence."""
        return f"{self.framework} of {self.program}" if self.framework else self.program


@dataclass(frozen=True, slots=True)
class Begun:
    """A process up to its RCCL."""

    process: Process
    outcome: LoadResult
    """Of the last load: the one that failed, where one did; what comes after it is not tried."""
    rccl: LoadedObject | None
    caller: LoadedObject | None = None
    """The library whose call RCCL answers, where that is known."""

    @property
    def failed(self) -> LoadResult | None:
        """The load that failed, where that is why there is no RCCL."""
        return self.outcome if self.rccl is None and self.outcome.errors else None


def begin(root: RootFileSystem, settings: LoaderConfig, job: JobProcess) -> Begun:
    """Model the process of a job up to its RCCL."""
    process = Process(root, settings)
    outcome = process.start(job.program, exec_start=job.is_program)
    if not job.is_program and not job.framework:
        return _begun(process, outcome, asked_of)
    for path in job.opens:
        if outcome.errors:
            return Begun(process, outcome, None)
        outcome = process.dlopen(path, rtld_global=path in job.opens_for_all)
    started, linked = outcome, _begun(process, outcome, linked_with)
    if outcome.errors or not job.asks or (not job.framework and linked.caller is not None):
        return linked
    for name in job.asks:
        outcome = process.dlopen(name)
        if not outcome.finds_nothing(name):
            return _begun(process, outcome, asked_of)
    return Begun(process, started, None)


def _begun(
    process: Process, outcome: LoadResult, answering: Callable[[Process, LoadedObject], CommunicatorLibrary]
) -> Begun:
    """Return a process whose last load is a program or library; `answering` says what its call comes to."""
    if outcome.errors or outcome.root is None:
        return Begun(process, outcome, None)
    library = answering(process, outcome.root)
    return Begun(process, outcome, library.loaded, library.caller)


def loaded_in_jobs(image: Image) -> frozenset[str]:
    """Return the files, without links, that the jobs of an image load up to their RCCL, by the image alone."""
    settings, found = see_inside(image, {}).settings, set[str]()
    for job in jobs_of(image, {}).processes:
        for loaded in begin(image.root, settings, job).process.objects:
            with contextlib.suppress(OSError, ImageError):
                found.add(image.root.resolve(loaded.path))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """The processes of an image that have an RCCL, or may have one."""

    processes: tuple[JobProcess, ...]
    """The one that counts first; none where no program is known."""
    note: str | None = None
    """What a person should know of how it was found, or why there is none."""
    is_open: bool = False
    """Whether another process may be the one: the Python on PATH is none, or does not import the torch beside it."""
    hidden: str | None = None
    """The program of a job where the image has it, and the engine mounts something over it."""


def jobs_of(image: Image, environment: Mapping[str, str], program: str | None = None) -> JobProcesses:
    """Return what jobs of an image start: `program`, by its path or name, else the Python on the image's PATH.

    `environment` is the user's. Raises BadInputError for a program that is not in the image.
    """
    root = image.root
    told = {
        name: value for name, value in environment.items() if name.startswith(TO_ENGINE)
    }  # PATH gets in no other way
    variables = {name: value for name in _OF_PYTHON if (value := variable_of(name, image, told)) is not None}
    folders = [folder for folder in variables.get("PATH", DEFAULT_PATH).split(":") if folder.startswith("/")]
    named = variable_of("VLLM_NCCL_SO_PATH", image, environment)
    names = (program,) if program else PYTHONS
    path = next((path for name in names if (path := _find(root, name, folders))), None)
    if path is None:
        hidden = next((path for name in names if (path := _find(image.unmounted, name, folders))), None)
        if hidden:
            return JobProcesses((), f"{hidden} is in the image, and not in the container", hidden=hidden)
        if program:
            raise BadInputError(
                "no program of this name is in the image, or nobody may run it",
                where=f"--program {program}",
                hint="give its path as it is in the container",
            )
        why = _no_python(root, folders)
        return _other_torch(root, variables, named, why) or JobProcesses((), why)
    facts = facts_at(root, path)
    if facts is not None and not facts.is_dynamic:
        return JobProcesses((), f"{path} is static: what it opens does not show in its file", is_open=True)
    try:
        python = read_python(root, path, variables)
    except NoPythonError as error:
        if program and facts is not None:
            return JobProcesses((JobProcess(path, asks=LIBRCCL),))
        other = _other_torch(root, variables, named, str(error)) or JobProcesses((), str(error))
        return replace(other, is_open=True)
    plain = JobProcess(path, is_python=True, asks=LIBRCCL)
    found = tuple(_frameworks(root, python, named))
    if found or program or python.doubt:
        return JobProcesses(found or (plain,), python.doubt, is_open=python.doubt is not None)
    return _other_torch(root, variables, named, f"{path} has no torch and no jax") or JobProcesses((plain,))


def _find(root: RootFileSystem, name: str, folders: Sequence[str]) -> str | None:
    if "/" in name:
        folder, _, name = name.rpartition("/")
        folders = (folder,) if folder.startswith("/") else ()
    found = find_program(root, name, folders)
    return found.path if found else None


def _no_python(root: RootFileSystem, folders: Sequence[str]) -> str:
    """Return why no Python is found: a link of an environment may lead nowhere."""
    for path in (f"{folder}/{name}" for folder in folders for name in PYTHONS):
        with contextlib.suppress(OSError, BadInputError):
            return f"{path} is a link that leads nowhere in the image: {root.readlink(path)}"
    return "no python is on the image's PATH"


def _other_torch(
    root: RootFileSystem, variables: Mapping[str, str], named: str | None, why: str
) -> JobProcesses | None:
    """Return the process of a torch that the Python on PATH does not import: its environment may not be activated."""
    found = list(islice(root.find((*_OF_GPUS, _OF_JAX)), _MOST_TORCHES))
    libraries = [library for library in found if not library.endswith(f"/{_OF_JAX}")]
    beside: list[str] = []
    for library in libraries:
        prefix = _ENVIRONMENT.match(library)
        path = next((path for name in PYTHONS if prefix and (path := _find(root, name, (f"{prefix[1]}/bin",)))), None)
        if path is None:
            continue
        beside.append(path)
        with contextlib.suppress(NoPythonError):
            python = read_python(root, path, variables)
            if processes := tuple(_frameworks(root, python, named)):
                return JobProcesses(
                    processes, f"{why}; this is about {path}, which a job must name, or put first on PATH"
                )
    for library in libraries:
        package = library.rpartition("/lib/")[0]
        alone = JobProcess(library, is_program=False, framework="torch", package=package)
        if beside:
            why += f", and {beside[0]} does not import it"
        return JobProcesses((alone,), f"{why}; this is about the libraries of {package} alone", is_open=True)
    return JobProcesses((), f"{why}, which would open {found[0]}", is_open=True) if found else None


def _frameworks(root: RootFileSystem, python: Interpreter, named: str | None) -> Iterator[JobProcess]:
    """Yield the process of each framework that a Python imports first; `named` is VLLM_NCCL_SO_PATH."""
    plain = JobProcess(python.path, is_python=True)
    torch = next(filter(None, (_torch(root, python, folder) for folder in python.folders)), None)
    if torch is not None:
        package, before, own = torch
        process = replace(
            plain, opens=(*before, *own), opens_for_all=before, imports="torch", framework="torch", package=package
        )
        if not any(root.is_file(f"{package}/lib/{file}") for file in _OF_GPUS):
            # for CPUs alone: RCCL is for whatever else asks for it
            yield replace(process, asks=LIBRCCL, framework=None)
            return
        yield process
        if vllm := next((f"{folder}/vllm" for folder in python.folders if root.is_dir(f"{folder}/vllm")), None):
            yield replace(process, asks=(named or LIBRCCL[0],), framework="vllm", package=vllm)
    for folder in python.folders:
        plugins = matches(root, f"{folder}/jax_plugins/xla_rocm*/{_OF_JAX}")
        if plugins:
            yield replace(plain, opens=(plugins[-1],), framework="jax", package=plugins[-1].rpartition("/")[0])
            return


def _torch(
    root: RootFileSystem, python: Interpreter, folder: str
) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """Return (folder of the torch in one of Python's folders, what its import opens for all, what for itself).

    None where there is none.
    """
    package = f"{folder}/torch"
    if not root.is_dir(f"{package}/lib"):
        return None
    modules = [name for name in names_in(root, package) if _MODULE.fullmatch(name)]
    version = re.search(r"/python3\.([0-9]+)", folder)
    own = [name for name in modules if version and f"cpython-3{version[1]}-" in name] or modules
    before = (*_preloaded(root, python, f"{package}/_rocm_init.py"), f"{package}/lib/libtorch_global_deps.so")
    before = tuple(path for path in before if root.is_file(path))
    opens = (f"{package}/{own[0]}",) if own else tuple(matches(root, f"{package}/lib/libtorch_hip.so"))
    return (package, before, opens) if before or opens else None


def _preloaded(root: RootFileSystem, python: Interpreter, path: str) -> Iterator[str]:
    """Yield the libraries that wheels of TheRock open before torch's own: by short names, in rocm_sdk's packages."""
    named = _PRELOADED.search(read_text(root, path) or "")
    for short in re.findall(r"[\"']([A-Za-z0-9_-]+)[\"']", named[1] if named else ""):
        for folder in python.folders:
            lib = [*matches(root, f"{folder}/_rocm_sdk_core/lib"), *matches(root, f"{folder}/_rocm_sdk_libraries*/lib")]
            files = (f"{place}/{name}" for place in lib for name in names_in(root, place))
            wanted = re.compile(rf"lib{re.escape(short)}\.so[0-9.]*", re.IGNORECASE)
            if found := next((file for file in files if wanted.fullmatch(file.rpartition("/")[2])), None):
                yield found
                break
