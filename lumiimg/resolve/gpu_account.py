"""What the GPU of a machine makes of the code that the jobs of an image call."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.gpu.source import GpuCodeError
from lumiimg.host.container_view import variable_of
from lumiimg.image import Image, ImageError
from lumiimg.resolve.gpu_code import gpu_code_of
from lumiimg.resolve.gpu_verdict import OVERRIDE, XNACK, GpuVerdict, gpu_of, gpu_verdicts, taken_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumiimg.catalog.sites import Site
    from lumiimg.host.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GpuAccount:
    """What the GPU of a machine makes of the code of an image."""

    gpu: str
    """As a process of a job finds it: `gfx90a:sramecc+:xnack-`."""
    machine: str
    """The site, or the node that was seen, whose GPU it is."""
    parts: tuple[GpuVerdict, ...]
    """By component, those first that each job calls."""
    taken_for: str | None = None
    """The processor for which a variable has the runtime take the GPU, where that is another."""

    @property
    def processor(self) -> str:
        """Its name without modes."""
        return self.gpu.partition(":")[0]

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        return f"{self.processor}, the GPU of {self.machine}"


def account_of_gpu(
    image: Image,
    environment: Mapping[str, str],
    loaded: Iterable[str],
    site: Site | None,
    snapshot: Snapshot | None = None,
) -> GpuAccount | None:
    """Return the account for the GPU of a machine; None where none of AMD's is known.

    What was seen on a node counts more than what is believed of its site. `loaded`: the files of a job's process, as
    its loader found them. Raises ImageError where the image cannot be read.
    """
    if snapshot is not None and snapshot.gpu is not None:
        processor, machine = snapshot.gpu, snapshot.host
    elif site is not None and site.arch is not None:
        processor, machine = site.arch, site.name
    else:
        return None
    try:
        gpu = gpu_of(processor, variable_of(XNACK, image, environment))
    except GpuCodeError:
        return None
    files: set[str] = set()
    for path in loaded:
        with contextlib.suppress(OSError, ImageError):  # of the host
            files.add(image.root.resolve(path))
    parts = gpu_verdicts(gpu_code_of(image.root), gpu, frozenset(files))
    override = taken_for(processor, variable_of(OVERRIDE, image, environment))
    return GpuAccount(str(gpu), machine, parts, override)
