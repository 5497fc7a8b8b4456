"""The processes that jobs of an image start and that may contain an RCCL."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import facts_at
from lumiimg.fabric.path import LIBRCCL
from lumiimg.host.container_view import TO_ENGINE, variable_of, view_of_container
from lumiimg.host.engine_rules import hidden_files
from lumiimg.host.frameworks import JAX_PLUGIN, TORCH_LIBRARIES, ctypes_process, framework_processes
from lumiimg.host.job_process import JobProcess, OpenQuestion, begin
from lumiimg.host.python_build import NoPythonError
from lumiimg.host.python_process import STARTING, start_process
from lumiimg.host.root_queries import loop_at
from lumiimg.image import DEFAULT_PATH, Image, ImageError, RootFileSystem
from lumiimg.inventory.python import find_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PYTHONS = ("python", "python3")
"""Names by which jobs start Python."""
_ENVIRONMENT = re.compile(r"(.*)/lib(?:64)?/python3[^/]*/")
_MAX_TORCHES = 8


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """The processes of an image that have an RCCL, or may have one."""

    processes: tuple[JobProcess, ...]
    """The processes, the decisive one first; empty where no program is known."""
    note: str | None = None
    """Remark on how they were found, or why there are none."""
    is_open: bool = False
    """Whether jobs may start another process: `python` on PATH is not a Python, or does not import the torch found."""
    hidden: str | None = None
    """Program or library of a job that the image has, and that something mounted by the engine hides."""

    @property
    def questions(self) -> tuple[OpenQuestion, ...]:
        """Questions that files leave open about any of them."""
        return tuple(dict.fromkeys(question for job in self.processes for question in job.questions))


def loaded_in_jobs(image: Image) -> frozenset[str]:
    """Return the files, with links resolved, that jobs load up to their RCCL, judged by the image alone."""
    settings, found = view_of_container(image, {}).settings, set[str]()
    for job in jobs_of(image, {}).processes:
        for loaded in begin(image.root, settings, job).process.objects:
            with contextlib.suppress(OSError, ImageError):
                found.add(image.root.resolve(loaded.path))
    return frozenset(found)


def jobs_of(image: Image, environment: Mapping[str, str], program: str | None = None) -> JobProcesses:
    """Return the processes of an image's jobs: `program`, by path or name, else the Python on the image's PATH.

    `environment` is the user's. Raises BadInputError for a program that is not in the image.
    """
    root, variables = image.root, variables_inside(image, environment)
    folders = [folder for folder in variables.get("PATH", DEFAULT_PATH).split(":") if folder.startswith("/")]
    names = (program,) if program else PYTHONS
    path = next((path for name in names if (path := _find(root, name, folders))), None)
    if path is None:
        hidden = next((path for name in names if (path := _find(image.unmounted, name, folders))), None)
        if hidden:
            return JobProcesses((), f"{hidden} is in the image, but not in the container", hidden=hidden)
        if program:
            raise BadInputError(
                "no program of this name is in the image, or it is not executable",
                where=f"--program {program}",
                hint="give its path in the container",
            )
        why = _no_python(root, folders)
        return _other_torch(root, variables, why) or JobProcesses((), why)
    facts = facts_at(root.for_root(), path)
    if facts is not None and not facts.is_dynamic:
        return JobProcesses((), f"{path} is static: its file does not show what it opens", is_open=True)
    try:
        python = start_process(root, path, variables)
    except NoPythonError as error:
        if program and facts is not None:
            return JobProcesses((JobProcess(path, asks=LIBRCCL),))
        other = _other_torch(root, variables, str(error)) or JobProcesses((), str(error))
        return replace(other, is_open=True)
    if python.failure is not None:
        cause = next((name for name in STARTING if name in variables and _starts(root, path, variables, name)), None)
        return JobProcesses((replace(python.plain, failure=replace(python.failure, variable=cause)),))
    plain = ctypes_process(python)
    found = tuple(framework_processes(python))
    if found or program or python.questions:
        return JobProcesses(found or (plain,))
    why = f"{path} has no torch and no jax"
    if processes := _other_torch(root, variables, why):
        return processes
    hidden = next((library for _, library in hidden_files(image, (*TORCH_LIBRARIES, JAX_PLUGIN))), None)
    note = f"{why}; {hidden} is in the image, but not in the container" if hidden else None
    return JobProcesses((plain,), note, is_open=hidden is not None)


def _starts(root: RootFileSystem, path: str, variables: Mapping[str, str], without: str) -> bool:
    """Whether a Python starts without one of its variables."""
    with contextlib.suppress(NoPythonError):
        others = {name: value for name, value in variables.items() if name != without}
        return start_process(root, path, others).failure is None
    return False


def variables_inside(image: Image, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process in the container, which does not get PATH from the user's shell.

    The user may have the engine add to the image's PATH, or replace it (apptainer 99-runtimevars.sh).
    """
    names = {*image.environment, *environment}
    names |= {name.removeprefix(prefix) for name in environment for prefix in TO_ENGINE if name.startswith(prefix)}
    given = {name: value for name, value in environment.items() if name != "PATH"}
    found = {name: variable_of(name, image, given) for name in names}
    variables = {name: value for name, value in found.items() if value is not None}
    if not any(environment.get(f"{prefix}PATH") for prefix in TO_ENGINE):
        first, last = (
            next((environment[prefix + name] for prefix in TO_ENGINE if environment.get(prefix + name)), None)
            for name in ("PREPEND_PATH", "APPEND_PATH")
        )
        if first or last:
            variables["PATH"] = ":".join(filter(None, (first, variables.get("PATH"), last)))
    return variables


def _find(root: RootFileSystem, name: str, folders: Sequence[str]) -> str | None:
    if "/" in name:
        folder, _, name = name.rpartition("/")
        folders = (folder,) if folder.startswith("/") else ()
    if (found := find_program(root, name, folders)) is not None:
        return found.path
    # a file that nobody may run still counts where nothing else has the name
    return next((path for folder in folders if root.is_file(path := f"{folder}/{name}")), None)


def _no_python(root: RootFileSystem, folders: Sequence[str]) -> str:
    """Return why no Python is found: a link of an environment may be broken."""
    for path in (f"{folder}/{name}" for folder in folders for name in PYTHONS):
        if loop := loop_at(root, path):
            return loop
        with contextlib.suppress(OSError, BadInputError):
            target = root.readlink(path)
            try:
                root.resolve(path)
            except PermissionError as error:
                return f"{path} is a link to {target}, and only its owner may enter {error.filename}"
            except OSError:
                return f"{path} is a broken link in the image: {target}"
    return "no python is on the image's PATH"


def _other_torch(root: RootFileSystem, variables: Mapping[str, str], why: str) -> JobProcesses | None:
    """Return the process of a torch that the Python on PATH does not import: its environment may not be activated."""
    found = list(islice(root.for_root().find((*TORCH_LIBRARIES, JAX_PLUGIN)), _MAX_TORCHES))
    libraries = [library for library in found if not library.endswith(f"/{JAX_PLUGIN}")]
    pythons: list[str] = []
    for library in libraries:
        prefix = _ENVIRONMENT.match(library)
        path = next((path for name in PYTHONS if prefix and (path := _find(root, name, (f"{prefix[1]}/bin",)))), None)
        if path is None:
            continue
        pythons.append(path)
        with contextlib.suppress(NoPythonError):
            python = start_process(root, path, variables)
            if python.failure is None and (processes := tuple(framework_processes(python))):
                return JobProcesses(
                    processes, f"{why}; this is about {path}, which jobs must name or put first on PATH"
                )
    for library in libraries:
        package = library.rpartition("/lib/")[0]
        alone = JobProcess(library, is_program=False, framework="torch", package=package)
        if pythons:
            why += f", and {pythons[0]} does not import it"
            alone = replace(alone, program=pythons[0], is_program=True, is_python=True, opens=(library,))
        return JobProcesses((alone,), f"{why}; this is about the libraries of {package} only", is_open=True)
    return JobProcesses((), f"{why}, which would open {found[0]}", is_open=True) if found else None
