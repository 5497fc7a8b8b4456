"""After a layer that is compiled for a GPU: what it put in has code for that GPU. On the node it is too late."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from lumiimg.errors import FailedError
from lumiimg.gpu.rule import GpuFit, node_gpu
from lumiimg.gpu.source import GpuCodeError
from lumiimg.image import open_image
from lumiimg.resolve.gpu_code import GpuCode, gpu_code_of
from lumiimg.resolve.gpu_verdict import gpu_verdicts

_SHOWN = 4


def require_gpu_code(layer: str, gpus: Collection[str], result: Path, below: Path | None = None) -> str | None:
    """Raise FailedError where a layer has GPU code, and none that one of its GPUs takes; return a note, or None.

    `result`: what the layer put in; where it is the whole image, `below` is that without the layer. A layer without any
    GPU code is noted only: it may compile when it is called, as Triton does.
    """
    if not gpus:
        return None
    code = _code(result)
    if below is not None:
        before = {(file.path, file.bundles) for file in _code(below).files}
        code = GpuCode(tuple(file for file in code.files if (file.path, file.bundles) not in before), ())
    if not code.files:
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
                hint="does its post.sh pass ARCH to the compiler (PYTORCH_ROCM_ARCH, GPU_TARGETS, …)?",
            )
    return None


def _code(path: Path) -> GpuCode:
    with open_image(path) as image:
        return gpu_code_of(image.root)
