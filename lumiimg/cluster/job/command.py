"""What a job's command reveals: the launcher of its ranks, its framework, and options that a vLLM server lacks."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.cluster.job.facts import Framework, facts, framework_named
from lumiimg.core.findings import Remedy
from lumiimg.resolve.stack import Stack, is_met

if TYPE_CHECKING:
    from lumiimg.cluster.job.shape import Shape

_LAUNCHERS = ("torchrun", "deepspeed", "srun", "mpirun", "mpiexec")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
_DASH_M = re.compile(r"-[bBdEiIOPqsSuvx]*m(.*)", re.DOTALL)
"""Also after other letters, and with the module in the same word: `-um x`, `-mx` (python(1))."""
_TENSOR, _PIPELINE = "--tensor-parallel-size", "--pipeline-parallel-size"
_EXECUTOR = "--distributed-executor-backend"
_SIZES = {_TENSOR: "-tp", _PIPELINE: "-pp", "--data-parallel-size": "-dp"}
"""With short forms (vLLM docs, `vllm serve`). Their product is the number of GPUs: a command sets all or none."""
_CONFIG = "--config"
"""A file that may set any of these options; the command line overrides it."""


def launcher_of(command: tuple[str, ...]) -> str | None:
    """Return the launcher in a command, which would start ranks as the job itself does; None if it has none."""
    program = _program_of(command)
    if program in _LAUNCHERS:
        return program
    if program == "accelerate" and command[1:2] == ("launch",):
        return "accelerate launch"
    module = _module_of(command)
    return f"python -m {module}" if module in _MODULES else None


def framework_of(command: tuple[str, ...], *, has_torch: bool) -> tuple[Framework, str]:
    """Return the framework of a command for which none was named, and why."""
    if _program_of(command) == "vllm" or _serves(command):
        return framework_named("vllm"), "the command starts vLLM"
    if has_torch:
        return framework_named("ddp"), "the image has torch; --framework selects another"
    return framework_named("plain"), "the image has no torch; --framework selects another"


def _program_of(command: tuple[str, ...]) -> str:
    return command[0].rpartition("/")[2]


def _module_of(command: tuple[str, ...]) -> str | None:
    """Return the module that a command runs with `python -m`; None if it runs anything else."""
    if not _program_of(command).startswith("python"):
        return None
    words = iter(command[1:])
    for word in words:
        if (found := _DASH_M.fullmatch(word)) is not None:
            return found[1] or next(words, None)
        if not word.startswith("-") or word in ("-", "-c"):
            return None  # a script, or the text of one
    return None


# -- vLLM --


class ServingPlace(StrEnum):
    """Where clients reach a vLLM server."""

    SOCKET = "socket"
    """In a folder that only the user can access."""
    KEY = "key"
    """On a port, with a key that the job generates."""

    @property
    def note(self) -> str:
        """A note on who can reach the server."""
        if self is ServingPlace.SOCKET:
            return (
                "vLLM serves on a socket that only you can use; with --port N, on a port with a key "
                "(docs/howto/serve.md; the job prints this with its number)"
            )
        return (
            "vLLM serves on a port that others can reach, so clients need the key: vllm.key in the job's folder "
            "(docs/howto/serve.md; the job prints this with its number and node)"
        )


def clients_of(
    place: ServingPlace, command: tuple[str, ...], folder: str | None, shape: Shape, *, site: str, is_slurm: bool
) -> tuple[Remedy, ...]:
    """Return the commands with which a client reaches a vLLM server, in terms of the job script's variables.

    `folder`: the folder of the socket, on the first node.
    """
    if place is ServingPlace.SOCKET:
        first = " -N1 -n1 -w $MASTER_ADDR" if shape.nodes > 1 else ""
        there = f"srun --overlap --jobid=$SLURM_JOB_ID{first}" if is_slurm else "ssh $MASTER_ADDR"
        asked = f"{there} curl --unix-socket {folder}/vllm http://localhost/v1/models"
        return (Remedy(command=asked, where=f"on {site}"),)
    port = _port_of(command)
    # through a file: other users of a login node see the arguments of a command
    bearer = "@<(sed 's/^/Authorization: Bearer /' \"$LUMIIMG_JOB/vllm.key\")"
    return (
        Remedy(command=f"curl -H {bearer} http://$MASTER_ADDR:{port}/v1/models", where=f"on {site}"),
        Remedy(f"on a laptop, for base_url http://localhost:{port}/v1", f"ssh -N -L {port}:$MASTER_ADDR:{port} {site}"),
    )


def _port_of(command: tuple[str, ...]) -> str:
    """Return the port passed to vLLM, or its default (vLLM docs, `vllm serve`)."""
    said: list[str] = re.findall(r"(?<!\S)--port[ =](\d+)(?!\S)", " ".join(command))
    return said[-1] if said else "8000"


def with_parallel_options(
    command: tuple[str, ...], shape: Shape, *, by_ray: bool
) -> tuple[tuple[str, ...], str | None]:
    """Return a command with the job's parallel sizes, or unchanged, and why; `by_ray`: Ray connects the nodes."""
    wanted = {_TENSOR: f"{shape.gpus}"}
    if shape.nodes > 1:
        wanted |= {_PIPELINE: f"{shape.nodes}", _EXECUTOR: "ray" if by_ray else "mp"}
    options = " ".join(f"{name} {value}" for name, value in wanted.items())
    if not _serves(command):
        what = "`vllm serve` or `python -m vllm.entrypoints…`"
        return command, f"the command is not {what}: it must itself pass the job's sizes to vLLM ({options})"
    if _has_option(command, _CONFIG):
        return command, f"--config may contain the parallel sizes, so none are set; the job has {options}"
    if any(_has_option(command, name, short) for name, short in _SIZES.items()):
        wanted = {name: value for name, value in wanted.items() if name not in _SIZES}
    words = (word for name, value in wanted.items() if not _has_option(command, name) for word in (name, value))
    return (*command, *words), None


def serving_of(command: tuple[str, ...], stack: Stack) -> ServingPlace | None:
    """Return how access to a vLLM server is restricted to its user; None if the command sets that, or starts none.

    By default vLLM listens on a port, which is open to everyone who can reach the node.
    """
    if not _serves(command) or any(_has_option(command, name) for name in ("--uds", "--api-key", _CONFIG)):
        return None
    wants_port = any(_has_option(command, name) for name in ("--host", "--port"))
    has_socket = is_met(facts().since["socket"].need, stack)
    return ServingPlace.SOCKET if has_socket and not wants_port else ServingPlace.KEY


def lacks_ray(stack: Stack) -> bool:
    """Whether an image has a vLLM that can connect nodes, but not Ray, which vLLM no longer depends on from 0.18."""
    return is_met(facts().since["nodes"].need, stack) and "ray" not in stack.offers


def _serves(command: tuple[str, ...]) -> bool:
    """Whether a command starts a vLLM server, whose options it takes: `vllm serve`, `python -m vllm.entrypoints…`."""
    if _program_of(command) == "vllm":
        return command[1:2] == ("serve",)
    return (_module_of(command) or "").startswith("vllm.entrypoints.")


def _has_option(command: tuple[str, ...], name: str, short: str = "") -> bool:
    """Whether a command has an option: in full, in its short form, or abbreviated as argparse allows."""
    said = {word.partition("=")[0].replace("_", "-") for word in command if word.startswith("-")}
    return short in said or any(len(word) > len("--x") and name.startswith(word) for word in said)
