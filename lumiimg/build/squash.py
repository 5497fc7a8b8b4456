"""File systems of an image, by mksquashfs, or by lumiimg without it: the same bytes for the same files."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from lumiimg.build.layer_build import HELPER
from lumiimg.core.errors import FailedError, one_line
from lumiimg.engine.engine import PACKED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.build.build_host import BuildHost
    from lumiimg.engine.process import Completed

    Within = Callable[[list[str | Path]], Completed]

_FULL = re.compile(r"out of space on output|No space left on device")
"""What mksquashfs says of a full disk. Source: squashfs-tools mksquashfs.c, write_bytes."""


def squash(machine: BuildHost, folder: Path, target: Path, *, offset: int = 0, within: Within) -> None:
    """Write `folder` as a squashfs into `target`, `offset` bytes behind its beginning; `within` runs the program.

    Raises FailedError if it fails.
    """
    if (program := machine.program("mksquashfs")) is None:
        command = "pack" if machine.maps_ids else "pack-as-root"
        _require("packing", within([*HELPER, command, folder, target, str(offset)]), target)
        return
    options = ["-offset", str(offset)] if offset else []
    options += [] if machine.maps_ids else ["-all-root"]
    # engines mount their own /dev over it, and leave what an image has there out of a SIF
    pack(program, folder, target, *options, "-wildcards", "-e", "dev/*", within=within)


def pack(program: Path, folder: Path, target: Path, *options: str, within: Within) -> None:
    """Write a folder as a squashfs by the mksquashfs that is `program`. Raises as `squash` does."""
    argv: list[str | Path] = [program, folder, target, "-noappend", "-no-progress", "-quiet"]
    argv += [*PACKED, "-processors", str(len(os.sched_getaffinity(0))), *options]
    _require("mksquashfs", within(argv), target)


def _require(what: str, completed: Completed, target: Path) -> None:
    if completed.ok:
        return
    if _FULL.search(completed.output):
        where, hint = str(target.parent), "free some space, or write elsewhere"
        raise FailedError("No space left on device", where=where, hint=hint)
    raise FailedError(f"{what}: {one_line(completed.last_line)[:300]}", where=str(target))
