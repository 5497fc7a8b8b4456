"""What an image comes to once it is unpacked, asked before that: a few megabytes can hold terabytes of zeros."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from lumiimg.core.errors import MissingHereError
from lumiimg.core.text import size
from lumiimg.image.image import open_image
from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

# Images of real software are packed to a half or a fifth; below the first gigabyte no disk is in danger.
_FREE_BYTES = 1 << 30
_MAX_RATIO = 100
_NAME_BYTES = 4096
"""What a name takes at least: millions of them, each of an empty file, fill a disk too."""
_SPARE_BYTES = 256 << 20
"""What is left free on the disk."""


def require_room(path: Path, folder: Path) -> None:
    """Raise before an image is unpacked into a folder, where that would be too much; holes count as zeros, and what an
    overlay of it hides as well.

    ImageError for more than real software comes to, MissingHereError for more than is free on the disk.
    """
    if path.is_dir():
        return  # it is copied as it lies there
    most_bytes = _FREE_BYTES + _MAX_RATIO * path.stat().st_size
    needed_bytes = 0
    counted: set[Hashable] = set()
    with open_image(path) as image:
        for root, (_, seen) in ((each, found) for each in image.layers for found in each.stats()):
            needed_bytes += _NAME_BYTES
            if seen.kind is FileKind.FILE and (root, seen.identity) not in counted:
                needed_bytes += seen.size_bytes
                if seen.links > 1:
                    counted.add((root, seen.identity))
            if needed_bytes > most_bytes:
                what = f"unpacks to more than {_MAX_RATIO} times its size"
                raise ImageError(what, where=str(path), hint="if that is right: unpack it, and name the folder")
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    free_bytes = shutil.disk_usage(there).free
    if needed_bytes + _SPARE_BYTES > free_bytes:
        raise MissingHereError(
            f"unpacks to {size(needed_bytes)}, and {size(free_bytes)} are free in {there}",
            where=str(path),
            hint="LUMIIMG_CACHE and TMPDIR name folders on other disks",
        )
