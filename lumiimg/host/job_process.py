"""The process of a job: the program that it starts, and what that opens before RCCL looks for its net plugin.

A program decides where a library is found: its DT_RPATH comes before LD_LIBRARY_PATH for every library of the process
that has no RUNPATH of its own (glibc elf/dl-load.c), and what is loaded already is not searched again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.elf import Process
from lumiimg.host.communicator import asked_of, linked_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.elf import LoadedObject, LoaderConfig, LoadResult
    from lumiimg.image import RootFileSystem


class QuestionKind(StrEnum):
    """What a question that files leave open is about."""

    CODE = "code"
    """What Python code does that is not followed."""
    FILES = "files"
    """Files that are not those of their package."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """What files cannot say of a process, and the process itself can."""

    kind: QuestionKind
    file: str
    what: str
    """What is not followed, or differs: "imports ctypes"."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that code sets in its process; None: that it takes away."""

    name: str
    value: str | None
    file: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a process does not reach its RCCL, though its libraries may load."""

    what: str
    """A sentence without an end."""
    where: str | None = None
    variable: str | None = None
    """The variable without which a Python starts."""


@dataclass(frozen=True, slots=True)
class JobProcess:
    """What is started, and what is opened in it, in this order."""

    program: str
    """Path in the image; a library where no program is known: then the process begins with that."""
    is_program: bool = True
    """Whether the kernel starts it."""
    opens: tuple[str, ...] = ()
    """Paths that its imports give to dlopen."""
    opens_global: tuple[str, ...] = ()
    """Those of them that are opened with RTLD_GLOBAL: all that comes later sees their symbols."""
    is_lazy: bool = False
    """Whether these are opened with RTLD_LAZY: what is only called need not be defined."""
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
    is_optional: bool = False
    """Whether jobs do without it where it has no RCCL."""
    built_for: str | None = None
    """What a framework is built for that uses no RCCL: `CUDA`, `CPUs`."""
    failure: Failure | None = None
    sets: tuple[Setting, ...] = ()
    """What code that runs at the start sets; of two settings of one variable the later one counts."""
    questions: tuple[OpenQuestion, ...] = ()
    reads: tuple[str, ...] = ()
    """Files that Python opens beside libraries."""

    @property
    def title(self) -> str:
        """Return who it is, for a sentence."""
        return f"{self.framework} of {self.program}" if self.framework else self.program

    @property
    def failing(self) -> str:
        """Return that it does not reach its RCCL, for a sentence."""
        module = self.imports or self.framework
        return f"`import {module}` of {self.program} fails" if module else f"{self.program} cannot start"


@dataclass(frozen=True, slots=True)
class StartedProcess:
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


def begin(root: RootFileSystem, settings: LoaderConfig, job: JobProcess) -> StartedProcess:
    """Model the process of a job up to its RCCL."""
    process = Process(root, settings)
    outcome = begun = process.start(job.program, exec_start=job.is_program)
    if not job.is_program and not job.framework:
        return _begun(process, outcome, asked_of)
    for path in job.opens:
        if outcome.errors:
            return StartedProcess(process, outcome, None)
        outcome = process.dlopen(path, rtld_global=path in job.opens_global)
    if job.failure is not None or outcome.errors:
        return StartedProcess(process, outcome, None)
    started = outcome if job.framework else begun  # what a script opens first is none that calls RCCL
    linked = _begun(process, started, linked_with)
    if not job.asks or (not job.framework and linked.caller is not None):
        return linked
    for name in job.asks:
        outcome = process.dlopen(name)
        if not outcome.finds_nothing(name):
            return _begun(process, outcome, asked_of)
    return StartedProcess(process, started, None)


def _begun(
    process: Process,
    outcome: LoadResult,
    answering: Callable[[Process, LoadedObject], tuple[LoadedObject | None, LoadedObject | None]],
) -> StartedProcess:
    """Return a process whose last load is a program or library; `answering` says what its call comes to."""
    if outcome.errors or outcome.root is None:
        return StartedProcess(process, outcome, None)
    return StartedProcess(process, outcome, *answering(process, outcome.root))
