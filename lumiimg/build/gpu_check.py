"""After a layer: what was compiled for a GPU, or came in wheels, has code for the GPU. On the node it is too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError
from lumiimg.gpu import GpuCodeError, GpuFit, node_gpu
from lumiimg.image import open_image
from lumiimg.inventory.components import Inventory
from lumiimg.inventory.gpu_fit import component_fits

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_SHOWN = 4
_OF_COMPILERS = "PYTORCH_ROCM_ARCH, GPU_TARGETS"


def require_gpu_code(layer: str, gpus: Collection[str], result: Path, *, of_wheels: str | None = None) -> str | None:
    """Raise FailedError where a layer has GPU code, and none that one of its GPUs takes; return a note, or None.

    `gpus`: what the layer is compiled for; `of_wheels`: what its wheels are to have code for, in what each job calls.
    `result`: what the layer put in. A layer without any GPU code is noted only: it may compile when it is called, as
    Triton does.
    """
    wanted = gpus or ([of_wheels] if of_wheels is not None else [])
    if not wanted:
        return None
    with open_image(result) as image:
        code = Inventory(image).gpu_code
    if gpus and not code.files:
        return f"{layer} was compiled for {', '.join(gpus)}, and installed no GPU code that can be read"
    for gpu in wanted:
        try:
            verdicts = component_fits(code, node_gpu(gpu))
        except GpuCodeError:
            continue  # a name that no compiler takes either
        lacking = [one for one in verdicts if one.fit is GpuFit.NO and (gpus or one.needed)]
        if any(one.needed for one in lacking) or (gpus and len(lacking) == len(verdicts)):
            shown = ", ".join(f"{one.component} ({one.has})" for one in lacking[:_SHOWN])
            what = f"its wheels have no code for {gpu}"
            hint = f"its releases, and where their wheels come from: lumiimg show {layer}"
            if gpus:
                what = f"it was compiled for {gpu}, and has no code for it"
                hint = f"see that its post.sh passes ARCH to the compiler ({_OF_COMPILERS}, …); {hint}"
            raise FailedError(f"layer {layer}: {what}: {shown}", hint=hint)
    return None
