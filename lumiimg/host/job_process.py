"""The process of a job: its program, and what that opens before RCCL searches for its net plugin.

The program affects where a library is found: its DT_RPATH precedes LD_LIBRARY_PATH for every library of the process
without a RUNPATH of its own (glibc elf/dl-load.c), and a library that is loaded already is not searched for again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.elf import Process
from lumiimg.host.communicator import rccl_by_dlsym, rccl_by_linking

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.elf import LoadedObject, LoaderConfig, LoadResult
    from lumiimg.image import RootFileSystem


class QuestionKind(StrEnum):
    """Subject of a question that files leave open."""

    CODE = "code"
    """Actions of Python code that are not followed."""
    FILES = "files"
    """Files that differ from those of their package."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question about a process that its files cannot answer, and the running process can."""

    kind: QuestionKind
    file: str
    what: str
    """The action that is not followed, or the difference: "imports ctypes"."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that code sets in its process; with value None, one that it removes."""

    name: str
    value: str | None
    file: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a process does not reach its RCCL, though its libraries may load."""

    what: str
    """A sentence without a full stop."""
    where: str | None = None
    variable: str | None = None
    """Variable that keeps a Python from starting: without it, it starts."""


@dataclass(frozen=True, slots=True)
class JobProcess:
    """A program to start, and what is opened in its process, in this order."""

    program: str
    """Path in the image; where no program is known, the library that the process begins with."""
    is_program: bool = True
    """Whether the kernel starts it."""
    opens: tuple[str, ...] = ()
    """Paths that its imports pass to dlopen."""
    opens_global: tuple[str, ...] = ()
    """Those of `opens` with RTLD_GLOBAL: everything loaded later sees their symbols."""
    is_lazy: bool = False
    """Whether these are opened with RTLD_LAZY: functions that are only called need not be defined."""
    imports: str | None = None
    """Module whose import opens these."""
    is_python: bool = False
    """Whether the program is a Python: then it opens what Python jobs open."""
    asks: tuple[str, ...] = ()
    """Names by which it then opens RCCL, the first that exists; empty where what it opens loads RCCL, too."""
    framework: str | None = None
    """Framework that the RCCL belongs to: `torch`, `jax`, `vllm`."""
    package: str | None = None
    """Folder of the framework."""
    is_optional: bool = False
    """Whether jobs can do without it where it has no RCCL."""
    built_for: str | None = None
    """What a framework without RCCL is built for: `CUDA`, `CPUs`."""
    failure: Failure | None = None
    sets: tuple[Setting, ...] = ()
    """Variables that start-up code sets; the last setting of a variable counts."""
    questions: tuple[OpenQuestion, ...] = ()
    reads: tuple[str, ...] = ()
    """Files, other than libraries, that Python opens."""

    @property
    def title(self) -> str:
        """Return the name of the process for a sentence."""
        return f"{self.framework} of {self.program}" if self.framework else self.program

    @property
    def failing(self) -> str:
        """Return a clause saying that it does not reach its RCCL."""
        module = self.imports or self.framework
        return f"`import {module}` of {self.program} fails" if module else f"{self.program} cannot start"


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process modelled up to its RCCL."""

    process: Process
    outcome: LoadResult
    """Result of the last load, which is the failed one where one failed: later loads are not tried."""
    rccl: LoadedObject | None
    caller: LoadedObject | None = None
    """Library whose call RCCL answers, where that is known."""

    @property
    def failed(self) -> LoadResult | None:
        """The failed load, where it is the reason that there is no RCCL."""
        return self.outcome if self.rccl is None and self.outcome.errors else None


def begin(root: RootFileSystem, settings: LoaderConfig, job: JobProcess) -> StartedProcess:
    """Model the process of a job up to its RCCL."""
    process = Process(root, settings)
    outcome = begun = process.start(job.program, exec_start=job.is_program)
    if not job.is_program and not job.framework:
        return _after_load(process, outcome, rccl_by_dlsym)
    for path in job.opens:
        if outcome.errors:
            return StartedProcess(process, outcome, None)
        outcome = process.dlopen(path, rtld_global=path in job.opens_global)
    if job.failure is not None or outcome.errors:
        return StartedProcess(process, outcome, None)
    started = outcome if job.framework else begun  # the first library that a script opens does not call RCCL
    linked = _after_load(process, started, rccl_by_linking)
    if not job.asks or (not job.framework and linked.caller is not None):
        return linked
    for name in job.asks:
        outcome = process.dlopen(name)
        if not outcome.finds_nothing(name):
            return _after_load(process, outcome, rccl_by_dlsym)
    return StartedProcess(process, started, None)


def _after_load(
    process: Process,
    outcome: LoadResult,
    find_rccl: Callable[[Process, LoadedObject], tuple[LoadedObject | None, LoadedObject | None]],
) -> StartedProcess:
    """Return the process after a load; `find_rccl` finds the library that answers the RCCL call, and its caller."""
    if outcome.errors or outcome.root is None:
        return StartedProcess(process, outcome, None)
    return StartedProcess(process, outcome, *find_rccl(process, outcome.root))
