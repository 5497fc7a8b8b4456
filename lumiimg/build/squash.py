"""File systems of an image: made by mksquashfs, the same bytes for the same files, and taken apart by unsquashfs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from lumiimg.errors import FailedError, MissingHereError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.build.capabilities import BuildMachine
    from lumiimg.engine.process import Completed

COMPRESSIONS = {
    "zstd": ("-comp", "zstd", "-Xcompression-level", "3"),
    "gzip": ("-comp", "gzip", "-Xcompression-level", "4"),
}
"""For files of 300 MB, in seconds of the processor and MB: zstd -3 1.3 and 93.4, gzip -4 3.7 and 93.4, gzip -9 15.8 and
91.7, which is the engines' default (mksquashfs 4.7.5, a Debian 12)."""
_FULL = re.compile(r"out of space on output|No space left on device")
"""What mksquashfs says of a full disk. Source: squashfs-tools mksquashfs.c, write_bytes."""
# what overlayfs and fuse-overlayfs note down about their own work
_OWN_XATTRS = r"^(trusted|user)\.(overlay|fuseoverlayfs)\."


def compression_for(engine: str | None) -> str:
    """Return how images for an engine are compressed; a site gives its name.

    SingularityCE takes no zstd, up to 4.5.1 (`pkg/image/squashfs.go`; seen with 4.1.3).
    """
    return "gzip" if (engine or "").startswith("SingularityCE") else "zstd"


def squash(
    machine: BuildMachine,
    folder: Path,
    target: Path,
    *,
    offset: int = 0,
    compression: str = "zstd",
    within: Callable[[list[str | Path]], Completed],
) -> None:
    """Write `folder` as a squashfs into `target`, `offset` bytes behind its beginning; `within` runs the program.

    Raises MissingHereError without mksquashfs, FailedError if it fails.
    """
    if machine.mksquashfs is None:
        raise MissingHereError(
            "mksquashfs is not on PATH", hint="install squashfs-tools, or load the site's module of it"
        )
    argv: list[str | Path] = [machine.mksquashfs, folder, target, "-noappend", "-no-progress", "-quiet"]
    argv += COMPRESSIONS[compression]
    argv += ["-processors", str(len(os.sched_getaffinity(0)))]
    # Debian 12 and Ubuntu 22.04 have an older one; userns_helper.py takes them off layers
    argv += ["-xattrs-exclude", _OWN_XATTRS] if _is_at_least(machine.mksquashfs_version, (4, 6)) else []
    argv += ["-offset", str(offset)] if offset else []
    argv += [] if machine.maps_ids else ["-all-root"]
    # engines mount their own /dev over it, and leave what an image has there out of a SIF
    argv += ["-wildcards", "-e", "dev/*"]
    completed = within(argv)
    if not completed.ok and _FULL.search(completed.output):
        raise FailedError(
            "No space left on device", where=str(target.parent), hint="free some room, or write elsewhere"
        )
    if not completed.ok:
        raise FailedError(f"mksquashfs: {one_line(completed.last_line)[:300]}", where=str(target))


def _is_at_least(version: str, wanted: tuple[int, int]) -> bool:
    found = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return found is None or (int(found[1]), int(found[2])) >= wanted
