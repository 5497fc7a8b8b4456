"""What vLLM is told of the shape of a job, where the command is vLLM's own and its user has not said it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.cluster.job.frameworks import module_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.cluster.job.shape import Shape

_TENSOR, _PIPELINE = "--tensor-parallel-size", "--pipeline-parallel-size"
_EXECUTOR = "--distributed-executor-backend"
_SIZES = {_TENSOR: "-tp", _PIPELINE: "-pp", "--data-parallel-size": "-dp"}
"""With their short forms (vLLM docs, `vllm serve`). Their product is the number of GPUs: who says one, says all."""
_CONFIG = "--config"
"""A file in which any of them may be, and a word of the command line comes over it."""


def serves(command: Sequence[str]) -> bool:
    """Tell whether a command is a server of vLLM, with its options: `vllm serve`, `python -m vllm.entrypoints…`."""
    if command[0].rpartition("/")[2] == "vllm":
        return tuple(command[1:2]) == ("serve",)
    return (module_of(command) or "").startswith("vllm.entrypoints.")


def told(command: tuple[str, ...], shape: Shape) -> tuple[tuple[str, ...], str | None]:
    """Return a command with the parallel sizes of a job, or as it was, and why so."""
    sizes = {_TENSOR: f"{shape.gpus}"} | ({_PIPELINE: f"{shape.nodes}"} if shape.nodes > 1 else {})
    wanted = sizes | ({_EXECUTOR: "ray"} if shape.nodes > 1 else {})
    options = " ".join(f"{name} {value}" for name, value in wanted.items())
    if not serves(command):
        what = "`vllm serve` or `python -m vllm.entrypoints…`"
        return command, f"the command is no {what}: it must tell vLLM itself what the job has ({options})"
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
