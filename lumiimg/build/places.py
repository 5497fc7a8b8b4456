"""Where a build writes: the image, the log beside it, the folder of definitions; what it does not write over; room."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lumiimg.build.provenance import is_ours
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.files import read_beginning, refuse_bad_name
from lumiimg.core.text import size

_IN_MEMORY = {"tmpfs", "ramfs"}
_LEAST_BYTES = 256 << 20
"""What a build writes besides its layers: downloads, the engine's own copies."""


def log_path(output: Path) -> Path:
    """Return where the engine's output of a build goes."""
    return output.with_name(output.name + ".log")


def refuse_output(output: Path, *, force: bool, may_be_the_same: bool) -> None:
    """Refuse what would be lost, before anything is fetched or written. Raises BadInputError.

    `may_be_the_same`: an image of lumiimg may be the very one that is asked for; the builder sees.
    """
    refuse_bad_name(output)
    if output.is_dir():
        raise BadInputError("is a folder", where=str(output), hint="-o names the image file")
    if not output.parent.is_dir():
        raise BadInputError("no such folder", where=str(output.parent), hint="make it first")
    if output.exists() and not output.is_file():
        raise BadInputError("is not a file, and would be replaced by one", where=str(output))
    if output.exists() and not force and not (may_be_the_same and is_ours(output)):
        raise BadInputError("exists already", where=str(output), hint="--force replaces it")
    log = log_path(output)
    refuse_bad_name(log)
    if log.exists() and not log.is_file():
        raise BadInputError("is not a file, and the log would be written there", where=str(log), hint="remove it")
    if log.exists() and not force and read_beginning(log, 3) not in {b"== ", b""}:
        raise BadInputError("exists already, and is not a build log", where=str(log), hint="--force replaces it")


def refuse_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder for definitions in which something is. Raises BadInputError."""
    if folder.exists() and not folder.is_dir():
        raise BadInputError("is not a folder", where=str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise BadInputError("is not empty", where=str(folder), hint="--force writes into it anyway")


# -- room --


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
    return FreeSpace(there, shutil.disk_usage(there).free, _file_system(there) in _IN_MEMORY)


def require_room(folder: Path, known_bytes: int) -> None:
    """Raise FailedError where a build that writes so much would run out of room: early, and with what to do."""
    room, needed_bytes = room_at(folder), known_bytes + _LEAST_BYTES
    if room.free_bytes < needed_bytes:
        place = "in memory (it is a tmpfs)" if room.in_memory else "free"
        raise FailedError(
            f"the build needs about {size(needed_bytes)}, and {size(room.free_bytes)} are {place}",
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
