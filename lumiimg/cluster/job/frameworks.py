"""How frameworks want to be started: frameworks.toml, typed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from lumiimg.host.codec import decode
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.cluster.job.shape import Shape

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
_TENSOR, _PIPELINE = "--tensor-parallel-size", "--pipeline-parallel-size"
_EXECUTOR = "--distributed-executor-backend"
_SIZES = {_TENSOR: "-tp", _PIPELINE: "-pp", "--data-parallel-size": "-dp"}
"""With their short forms (vLLM docs, `vllm serve`). Their product is the number of GPUs: who says one, says all."""
_CONFIG = "--config"
"""A file in which any of them may be, and a word of the command line comes over it."""


@dataclass(frozen=True, slots=True)
class FrameworkVariable:
    """A variable that a framework wants."""

    name: str
    value: str
    nodes: Literal["any", "several"]
    because: str
    source: str
    scheduler: str | None = None
    """That it is for; None: any."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One way to start a program."""

    name: str
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

    def wants_ray(self, nodes: int) -> bool:
        """Whether a job of this number of nodes runs on a Ray cluster."""
        return self.ray == "always" or (self.ray == "several" and nodes > 1)


@cache
def frameworks() -> dict[str, Framework]:
    """Return all by name."""
    entries = decode(tuple[Framework, ...], own_table(__package__, "frameworks.toml")["framework"])
    return {entry.name: entry for entry in entries}


def launcher_of(command: Sequence[str]) -> str | None:
    """Return what of a command starts ranks, which a job does itself; None where nothing does."""
    program, *rest = (_program(command), *command[1:])
    if program in _LAUNCHERS:
        return program
    if program == "accelerate" and rest[:1] == ["launch"]:
        return "accelerate launch"
    module = module_of(command)
    return f"python -m {module}" if module in _MODULES else None


def module_of(command: Sequence[str]) -> str | None:
    """Return the module that a command runs by `python -m`; None where it runs anything else."""
    if not _program(command).startswith("python"):
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
    if _program(command) == "vllm" or _is_vllm_server(command):
        return frameworks()["vllm"], "the command starts vLLM"
    if has_torch:
        return frameworks()["ddp"], "the image has torch; --framework names another"
    return frameworks()["plain"], "the image has no torch; --framework names another"


# -- what vLLM is given of the shape of a job, where the command is vLLM's own and its user has not said it --


def told_of_vllm(command: tuple[str, ...], shape: Shape, *, by_ray: bool) -> tuple[tuple[str, ...], str | None]:
    """Return a command with the parallel sizes of a job, or as it was, and why so; `by_ray`: Ray connects its nodes."""
    sizes = {_TENSOR: f"{shape.gpus}"} | ({_PIPELINE: f"{shape.nodes}"} if shape.nodes > 1 else {})
    wanted = sizes | ({_EXECUTOR: "ray" if by_ray else "mp"} if shape.nodes > 1 else {})
    options = " ".join(f"{name} {value}" for name, value in wanted.items())
    if not _serves(command):
        what = "`vllm serve` or `python -m vllm.entrypoints…`"
        return command, f"the command is not {what}: it must pass the sizes of the job to vLLM itself ({options})"
    said = {word.partition("=")[0].replace("_", "-") for word in command if word.startswith("-")}
    if _says(said, _CONFIG):
        return command, f"--config may hold the parallel sizes, so none is set; the job has {options}"
    if any(_says(said, name, short) for name, short in _SIZES.items()):
        wanted = {name: value for name, value in wanted.items() if name not in _SIZES}
    words = (word for name, value in wanted.items() if not _says(said, name) for word in (name, value))
    return (*command, *words), None


def _says(said: set[str], name: str, short: str = "") -> bool:
    """Tell whether an option is among words, whole, by its short form, or cut short, as argparse takes it."""
    return short in said or any(len(word) > len("--x") and name.startswith(word) for word in said)


def _serves(command: tuple[str, ...]) -> bool:
    """Tell whether a command is a server of vLLM, with its options: `vllm serve`, `python -m vllm.entrypoints…`."""
    return command[1:2] == ("serve",) if _program(command) == "vllm" else _is_vllm_server(command)


def _is_vllm_server(command: Sequence[str]) -> bool:
    return (module_of(command) or "").startswith("vllm.entrypoints.")


def _program(command: Sequence[str]) -> str:
    return command[0].rpartition("/")[2]
