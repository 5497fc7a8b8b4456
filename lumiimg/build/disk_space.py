"""Room to build in: on disk, and in memory where a temporary folder lies there."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lumiimg.errors import FailedError
from lumiimg.wording import size

_IN_MEMORY = {"tmpfs", "ramfs"}
LEAST_BYTES = 256 << 20
"""What a build writes besides its layers: downloads, the engine's own copies."""


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What is left at a place."""

    folder: Path
    """Where."""
    free_bytes: int
    """That are left."""
    in_memory: bool
    """Whether what is written there counts as memory."""


def room_at(folder: Path) -> FreeSpace:
    """Return what is left where `folder` is, or will be. Raises FailedError if nothing of its path is there."""
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
    if there is None:
        raise FailedError("cannot be read", where=str(folder))
    kind = _file_system(there)
    free = shutil.disk_usage(there).free
    memory = _memory_bytes()
    if kind in _IN_MEMORY and memory is not None:
        free = min(free, memory)
    return FreeSpace(there, free, kind in _IN_MEMORY)


def require(room: FreeSpace, needed_bytes: int, what: str) -> None:
    """Raise FailedError where a build would run out of room: early, and with what to do."""
    if room.free_bytes >= needed_bytes:
        return
    place = "in memory (it is a tmpfs)" if room.in_memory else "free"
    raise FailedError(
        f"{what} needs about {size(needed_bytes)}, and {size(room.free_bytes)} are {place}",
        where=str(room.folder),
        hint="LUMIIMG_CACHE moves the cache and its scratch: on LUMI, /scratch/project_XXX/$USER/lumiimg; "
        "`lumiimg cache prune --keep 0` empties it",
    )


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder. Source: proc_pid_mountinfo(5)."""
    try:
        device = folder.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == wanted:
                return rest.split()[0]
    except (OSError, IndexError):
        pass
    return ""


def _memory_bytes() -> int | None:
    """Return the memory that is available. Source: proc_meminfo(5)."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
