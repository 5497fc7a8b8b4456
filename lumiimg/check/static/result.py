"""What the files of an image say: the path as far as it is known, and the findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.elf.objects import FoundBy  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.fabric.names import part_of
from lumiimg.fabric.path import FabricPath, Part
from lumiimg.findings import Finding  # noqa: TC001 - as above
from lumiimg.host.job_process import JobProcess  # noqa: TC001 - as above

if TYPE_CHECKING:
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject
    from lumiimg.image import RootFileSystem


def files_of(root: RootFileSystem, process: Process) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what /proc/self/maps would list for a process, without links: (at first, what libfabric opens then)."""
    later = {loaded for loaded in process.objects if _is_opened_by_libfabric(loaded)}
    files = [(loaded in later, root.resolve(process.settings.absolute(loaded.path))) for loaded in process.objects]
    return tuple(file for is_later, file in files if not is_later), tuple(file for is_later, file in files if is_later)


def _is_opened_by_libfabric(loaded: LoadedObject) -> bool:
    here: LoadedObject | None = loaded
    while here is not None:
        above = here.requested_by
        if here.by_dlopen and above is not None and part_of(above.path) is Part.LIBFABRIC:
            return True
        here = above
    return False


@dataclass(frozen=True, slots=True)
class StaticResult:
    """What the files say."""

    path: FabricPath = field(default_factory=FabricPath)
    loader: str | None = None
    """Path of the image's ld.so."""
    plugin_found_by: FoundBy | None = None
    job: JobProcess | None = None
    """The process that has the RCCL; None without one."""
    opened: tuple[str, ...] = ()
    """Libraries of that process when RCCL has opened its plugin, without links."""
    opened_by_libfabric: tuple[str, ...] = ()
    """And those that libfabric opens then: its provider, ROCr."""
    provider_path: str | None = None
    """FI_PROVIDER_PATH as it is in the container."""
    findings: tuple[Finding, ...] = ()
