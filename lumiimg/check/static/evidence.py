"""What the files of an image say: the path as far as it is known, and the findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from lumiimg.elf.objects import FoundBy  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.fabric.path import FabricPath
from lumiimg.findings import Finding  # noqa: TC001 - as above


@dataclass(frozen=True, slots=True)
class StaticResult:
    """What the files say."""

    path: FabricPath = field(default_factory=FabricPath)
    loader: str | None = None
    """Path of the image's ld.so."""
    plugin_found_by: FoundBy | None = None
    start: str | None = None
    """Path of the file whose process has RCCL: itself, or torch's library that needs it."""
    provider_path: str | None = None
    """FI_PROVIDER_PATH as it is in the container."""
    findings: tuple[Finding, ...] = ()
