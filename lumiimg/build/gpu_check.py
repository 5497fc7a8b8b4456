"""After a layer: what was compiled for a GPU, or came in wheels, has code for the GPU. On the node it is too late."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from lumiimg.errors import FailedError
from lumiimg.gpu.rule import GpuFit, node_gpu
from lumiimg.gpu.source import GpuCodeError
from lumiimg.image import open_image
from lumiimg.inventory.gpu_code import GpuCode, read_gpu_code
from lumiimg.inventory.gpu_fit import gpu_verdicts

_SHOWN = 4


def require_gpu_code(layer: str, gpus: Collection[str], result: Path, *, of_wheels: str | None = None) -> str | None:
    """Raise FailedError where a layer has GPU code, and none that one of its GPUs takes; return a note, or None.

    `gpus`: what the layer is compiled for; `of_wheels`: what its wheels are to have code for, in what each job calls.
    `result`: what the layer put in. A layer without any GPU code is noted only: it may compile when it is called, as
    Triton does.
    """
    if not gpus and of_wheels is None:
        return None
    with open_image(result) as image:
        code = read_gpu_code(image.root)
    if gpus and not code.files:
        return f"{layer} was compiled for {', '.join(gpus)}, and installed no GPU code that can be read"
    for gpu in gpus:
        try:
            verdicts = gpu_verdicts(code, node_gpu(gpu))
        except GpuCodeError:
            continue  # a name that no compiler takes either
        lacking = [one for one in verdicts if one.fit is GpuFit.NO]
        if any(one.needed for one in lacking) or len(lacking) == len(verdicts):
            shown = ", ".join(f"{one.component} ({one.has})" for one in lacking[:_SHOWN])
            raise FailedError(
                f"layer {layer}: it was compiled for {gpu}, and has no code for it: {shown}",
                hint="does its post.sh pass ARCH to the compiler (PYTORCH_ROCM_ARCH, GPU_TARGETS, …)? Its releases, "
                f"and where their wheels come from: lumiimg show {layer}",
            )
    if not gpus and of_wheels is not None:
        _require_in_wheels(layer, of_wheels, code)
    return None


def _require_in_wheels(layer: str, gpu: str, code: GpuCode) -> None:
    lacking = [one for one in gpu_verdicts(code, node_gpu(gpu)) if one.fit is GpuFit.NO and one.needed]
    if lacking:
        shown = ", ".join(f"{one.component} ({one.has})" for one in lacking[:_SHOWN])
        raise FailedError(
            f"layer {layer}: its wheels have no code for {gpu}: {shown}",
            hint=f"the releases of this layer, and where their wheels come from: lumiimg show {layer}",
        )
