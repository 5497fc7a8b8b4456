"""What a job adds to a server of vLLM where its user has not said it: parallel sizes, and who reaches it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.cluster.job.frameworks import facts, is_vllm_server, program_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.cluster.job.request import Shape
    from lumiimg.resolve.stack import Stack

_TENSOR, _PIPELINE = "--tensor-parallel-size", "--pipeline-parallel-size"
_EXECUTOR = "--distributed-executor-backend"
_SIZES = {_TENSOR: "-tp", _PIPELINE: "-pp", "--data-parallel-size": "-dp"}
"""With their short forms (vLLM docs, `vllm serve`). Their product is the number of GPUs: who says one, says all."""
_CONFIG = "--config"
"""A file in which any of them may be, and a word of the command line comes over it."""


def with_parallel_options(
    command: tuple[str, ...], shape: Shape, *, by_ray: bool
) -> tuple[tuple[str, ...], str | None]:
    """Return a command with the parallel sizes of a job, or as it was, and why so; `by_ray`: Ray connects its nodes."""
    sizes = {_TENSOR: f"{shape.gpus}"} | ({_PIPELINE: f"{shape.nodes}"} if shape.nodes > 1 else {})
    wanted = sizes | ({_EXECUTOR: "ray" if by_ray else "mp"} if shape.nodes > 1 else {})
    options = " ".join(f"{name} {value}" for name, value in wanted.items())
    if not _serves(command):
        what = "`vllm serve` or `python -m vllm.entrypoints…`"
        return command, f"the command is not {what}: it must pass the sizes of the job to vLLM itself ({options})"
    said = _options(command)
    if _says(said, _CONFIG):
        return command, f"--config may hold the parallel sizes, so none is set; the job has {options}"
    if any(_says(said, name, short) for name, short in _SIZES.items()):
        wanted = {name: value for name, value in wanted.items() if name not in _SIZES}
    words = (word for name, value in wanted.items() if not _says(said, name) for word in (name, value))
    return (*command, *words), None


class ServingPlace(StrEnum):
    """Where a server of vLLM is reached."""

    SOCKET = "socket"
    """In a folder of the user's alone."""
    KEY = "key"
    """On a port, with a key that the job makes."""

    @property
    def note(self) -> str:
        """What is to be said of who reaches the server."""
        if self is ServingPlace.SOCKET:
            return (
                "vLLM serves on a socket that only you can use (its output names it); with --port N, on a port "
                "with a key"
            )
        return (
            "vLLM serves on a port that others reach, too, so clients need the key: vllm.key in the folder of the job"
        )


_SOCKET, _KEY = "--uds", "--api-key"


def serving_of(command: tuple[str, ...], stack: Stack) -> ServingPlace | None:
    """Return how a server of vLLM is kept to its user; None where the user says it, or none is started.

    By default it listens on a port, which is open to all who reach the node.
    """
    if not _serves(command):
        return None
    said = _options(command)
    if any(_says(said, name) for name in (_SOCKET, _KEY, _CONFIG)):
        return None
    wants_port = any(_says(said, name) for name in ("--host", "--port"))
    has_socket = facts().since["socket"].is_in(stack)
    return ServingPlace.SOCKET if has_socket and not wants_port else ServingPlace.KEY


def _options(command: Iterable[str]) -> set[str]:
    return {word.partition("=")[0].replace("_", "-") for word in command if word.startswith("-")}


def _says(said: set[str], name: str, short: str = "") -> bool:
    """Whether an option is among words, whole, by its short form, or cut short, as argparse takes it."""
    return short in said or any(len(word) > len("--x") and name.startswith(word) for word in said)


def _serves(command: tuple[str, ...]) -> bool:
    """Whether a command is a server of vLLM, with its options: `vllm serve`, `python -m vllm.entrypoints…`."""
    return command[1:2] == ("serve",) if program_of(command) == "vllm" else is_vllm_server(command)


def lacks_ray(stack: Stack) -> bool:
    """Whether an image has a vLLM that can connect nodes, and no Ray, on which it no longer depends from 0.18 on."""
    return facts().since["nodes"].is_in(stack) and "ray" not in stack.offers
