"""How frameworks want to be started: frameworks.toml, typed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.toml_table import Table, read_toml

if TYPE_CHECKING:
    from collections.abc import Sequence

_TABLE = Path(__file__).with_name("frameworks.toml")
_LAUNCHERS = ("torchrun", "deepspeed", "srun", "mpirun", "mpiexec")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
_DASH_M = re.compile(r"-[bBdEiIOPqsSuvx]*m(.*)", re.DOTALL)
"""Also behind other letters, and with the module in the same word: `-um x`, `-mx` (python(1))."""
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class FrameworkVariable:
    """A variable that a framework wants."""

    name: str
    value: str
    nodes: str
    """`any`, or `several`: of the jobs that it is for."""
    scheduler: str | None
    """That it is for; None: any."""
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Framework:
    """One way to start a program."""

    name: str
    title: str
    task_a_gpu: bool
    """Whether the scheduler starts a task for each GPU; else one for each node."""
    gpus: str
    """What a task sees: `all` of the node, its `own` only, or as `hip` numbers them."""
    torchrun: bool
    """Whether torchrun can start the ranks."""
    ray: str
    """When it runs on a Ray cluster: `never`, on `several` nodes, `always`."""
    variables: tuple[FrameworkVariable, ...]
    because: str
    source: str

    def wants_ray(self, nodes: int) -> bool:
        """Whether a job of so many nodes runs on a Ray cluster."""
        return self.ray == "always" or (self.ray == "several" and nodes > 1)


@cache
def frameworks() -> dict[str, Framework]:
    """Return all by name."""
    table = Table(read_toml(_TABLE), _TABLE)
    found = [_framework(entry) for entry in table.tables("framework")]
    table.finish()
    return {framework.name: framework for framework in found}


def _framework(entry: Table) -> Framework:
    return Framework(
        name=entry.string("name"),
        title=entry.string("title"),
        task_a_gpu=entry.choice("tasks", ("gpu", "node")) == "gpu",
        gpus=entry.choice("gpus", ("all", "own", "hip")),
        torchrun=entry.flag("torchrun"),
        ray=entry.optional_string("ray") or "never",
        variables=tuple(
            FrameworkVariable(
                variable.string("name"),
                variable.string("value"),
                variable.choice("nodes", ("any", "several")),
                variable.optional_string("scheduler"),
                variable.string("because"),
                variable.string("source"),
            )
            for variable in entry.tables("variable")
        ),
        because=entry.string("because"),
        source=entry.string("source"),
    )


def launcher_of(command: Sequence[str]) -> str | None:
    """Return what of a command starts ranks, which a job does itself; None where nothing does."""
    program, *rest = (command[0].rpartition("/")[2], *command[1:])
    if program in _LAUNCHERS:
        return program
    if program == "accelerate" and rest[:1] == ["launch"]:
        return "accelerate launch"
    module = module_of(command)
    return f"python -m {module}" if module in _MODULES else None


def module_of(command: Sequence[str]) -> str | None:
    """Return the module that a command runs by `python -m`; None where it runs anything else."""
    if not command[0].rpartition("/")[2].startswith("python"):
        return None
    words = iter(command[1:])
    for word in words:
        if (found := _DASH_M.fullmatch(word)) is not None:
            return found[1] or next(words, None)
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-") or word in ("-", "-c"):
            return None  # a script, or the text of one
    return None


def framework_of(command: Sequence[str], *, has_torch: bool) -> tuple[Framework, str]:
    """Return the framework of a command that nobody named one for, and why."""
    is_vllm = command[0].rpartition("/")[2] == "vllm" or (module_of(command) or "").startswith("vllm.entrypoints.")
    if is_vllm:
        return frameworks()["vllm"], "the command starts vLLM"
    if has_torch:
        return frameworks()["ddp"], "the image has torch; --framework names another"
    return frameworks()["plain"], "the image has no torch; --framework names another"
