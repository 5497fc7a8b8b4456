"""How frameworks want to be started: frameworks.toml, typed."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - `decode` reads the types of the fields
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from lumiimg.catalog.launch import Jobs  # noqa: TC001 - `decode` reads the types of the fields
from lumiimg.catalog.needs import version_of
from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml

if TYPE_CHECKING:
    from lumiimg.resolve.stack import Stack

_LAUNCHERS = ("torchrun", "deepspeed", "srun", "mpirun", "mpiexec")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
_DASH_M = re.compile(r"-[bBdEiIOPqsSuvx]*m(.*)", re.DOTALL)
"""Also behind other letters, and with the module in the same word: `-um x`, `-mx` (python(1))."""


@dataclass(frozen=True, slots=True)
class FrameworkVariable:
    """A variable that a framework wants."""

    name: str
    value: str
    nodes: Jobs
    because: str
    source: str
    scheduler: str | None = None
    """That it is for; None: any."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One way to start a program."""

    name: str
    """As for --framework."""
    title: str
    tasks: Literal["gpu", "node"]
    """For what the scheduler starts a task."""
    gpus: Literal["all", "own", "hip"]
    """What a task sees: `all` of the node, its `own` only, or as `hip` numbers them."""
    because: str
    source: str
    torchrun: bool = False
    ray: Literal["never", "several", "always"] = "never"
    """When it runs on a Ray cluster; `several`: on several nodes."""
    variable: tuple[FrameworkVariable, ...] = ()

    @property
    def task_a_gpu(self) -> bool:
        """Whether the scheduler starts a task for each GPU; else one for each node."""
        return self.tasks == "gpu"

    @property
    def has_helpers(self) -> bool:
        """Whether helpers of the collective library run beside the ranks; any other program has all its cores."""
        return self.name != "plain"

    def wants_ray(self, nodes: int) -> bool:
        """Whether a job of this number of nodes runs on a Ray cluster."""
        return self.ray == "always" or (self.ray == "several" and nodes > 1)


@dataclass(frozen=True, slots=True)
class FrameworkCache:
    """A folder that stays from job to job, by the variable that names it."""

    name: str
    folder: str
    """Below the one for all caches."""
    source: str
    date: dt.date
    framework: str | None = None
    """Whose it is; None: of all that have models."""


@dataclass(frozen=True, slots=True)
class VllmFeature:
    """The version from which on vLLM has something."""

    version: str
    what: str
    source: str
    date: dt.date

    def is_in(self, stack: Stack) -> bool:
        """Whether the vLLM of an image has it, by its version."""
        vllm = version_of(stack.version("vllm") or "")
        return vllm is not None and vllm >= Version(self.version)


@dataclass(frozen=True, slots=True)
class FrameworkFacts:
    """All of frameworks.toml."""

    framework: tuple[Framework, ...]
    cache: tuple[FrameworkCache, ...]
    since: Mapping[str, VllmFeature]


@cache
def facts() -> FrameworkFacts:
    """Return what is known of frameworks."""
    return decode(package_toml(__package__, "frameworks.toml"), FrameworkFacts)


@cache
def frameworks() -> dict[str, Framework]:
    """Return all by name."""
    return {entry.name: entry for entry in facts().framework}


def launcher_of(command: Sequence[str]) -> str | None:
    """Return what of a command starts ranks, which a job does itself; None where nothing does."""
    program, *rest = (program_of(command), *command[1:])
    if program in _LAUNCHERS:
        return program
    if program == "accelerate" and rest[:1] == ["launch"]:
        return "accelerate launch"
    module = module_of(command)
    return f"python -m {module}" if module in _MODULES else None


def module_of(command: Sequence[str]) -> str | None:
    """Return the module that a command runs by `python -m`; None where it runs anything else."""
    if not program_of(command).startswith("python"):
        return None
    words = iter(command[1:])
    for word in words:
        if (found := _DASH_M.fullmatch(word)) is not None:
            return found[1] or next(words, None)
        if not word.startswith("-") or word in ("-", "-c"):
            return None  # a script, or the text of one
    return None


def framework_of(command: Sequence[str], *, has_torch: bool) -> tuple[Framework, str]:
    """Return the framework of a command that nobody named one for, and why."""
    if program_of(command) == "vllm" or is_vllm_server(command):
        return frameworks()["vllm"], "the command starts vLLM"
    if has_torch:
        return frameworks()["ddp"], "the image has torch; --framework names another"
    return frameworks()["plain"], "the image has no torch; --framework names another"


def is_vllm_server(command: Sequence[str]) -> bool:
    """Whether a command starts a server of vLLM by `python -m`."""
    return (module_of(command) or "").startswith("vllm.entrypoints.")


def program_of(command: Sequence[str]) -> str:
    """Return the name of the program that a command starts."""
    return command[0].rpartition("/")[2]
