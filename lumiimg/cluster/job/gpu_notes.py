"""What the GPU code of an image means for its jobs, in the words of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.gpu import GpuFit, role_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.inventory.gpu_fit import GpuAccount


def notes_of_gpu(account: GpuAccount | None) -> Iterator[str]:
    """Yield what the GPU code of an image means for its jobs."""
    if account is None:
        return
    gpu = f"{account.processor}, the GPU of {account.machine},"
    for part in account.parts:
        if part.needed and part.fit is GpuFit.NO:
            yield f"this job will fail: no code for {gpu} in {part.component} ({part.has}): {part.without}"
        elif part.needed and part.fit is GpuFit.XNACK:
            yield f"this job will fail unless it sets HSA_XNACK=1: {part.component} has code for {gpu} only for that"
        elif part.needed and part.fit is GpuFit.UNKNOWN:
            yield f"whether {part.component} has code for {gpu} is not known: {part.why}"
        elif part.fit is GpuFit.NO and not role_of(part.component).harmless:
            yield f"no code for {gpu} in {part.component} ({part.has}): {part.without}"
