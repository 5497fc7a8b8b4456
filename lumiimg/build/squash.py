"""File systems of an image, by mksquashfs, or by lumiimg without it: the same bytes for the same files."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from lumiimg.build.layer_build import HELPER
from lumiimg.engine.engine import PACKED
from lumiimg.errors import FailedError, MissingHereError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.build.build_host import BuildHost
    from lumiimg.engine.process import Completed

_FULL = re.compile(r"out of space on output|No space left on device")
"""What mksquashfs says of a full disk. Source: squashfs-tools mksquashfs.c, write_bytes."""
# what overlayfs and fuse-overlayfs note down about their own work
_OWN_XATTRS = r"^(trusted|user)\.(overlay|fuseoverlayfs)\."


def squash(
    machine: BuildHost,
    folder: Path,
    target: Path,
    *,
    offset: int = 0,
    within: Callable[[list[str | Path]], Completed],
) -> None:
    """Write `folder` as a squashfs into `target`, `offset` bytes behind its beginning; `within` runs the program.

    Raises FailedError if it fails.
    """
    program = machine.program("mksquashfs")
    if program is None:
        command = "pack" if machine.maps_ids else "pack-as-root"
        completed = within([*HELPER, command, folder, target, str(offset)])
        if not completed.ok:
            raise _failure("packing", completed, target)
        return
    # Debian 12 and Ubuntu 22.04 have an older one; changes.py takes them off layers
    options = ["-xattrs-exclude", _OWN_XATTRS] if _is_at_least(machine.mksquashfs_version, (4, 6)) else []
    options += ["-offset", str(offset)] if offset else []
    options += [] if machine.maps_ids else ["-all-root"]
    # engines mount their own /dev over it, and leave what an image has there out of a SIF
    pack(program, folder, target, *options, "-wildcards", "-e", "dev/*", within=within)


def pack(
    program: Path | None, folder: Path, target: Path, *options: str, within: Callable[[list[str | Path]], Completed]
) -> None:
    """Write a folder as a squashfs by the mksquashfs that is `program`. Raises as `squash` does."""
    if program is None:
        raise MissingHereError(
            "mksquashfs is not on PATH", hint="install squashfs-tools, or load the site's module of it"
        )
    argv: list[str | Path] = [program, folder, target, "-noappend", "-no-progress", "-quiet"]
    completed = within([*argv, *PACKED, "-processors", str(len(os.sched_getaffinity(0))), *options])
    if not completed.ok:
        raise _failure("mksquashfs", completed, target)


def _failure(what: str, completed: Completed, target: Path) -> FailedError:
    if _FULL.search(completed.output):
        return FailedError(
            "No space left on device", where=str(target.parent), hint="free some space, or write elsewhere"
        )
    return FailedError(f"{what}: {one_line(completed.last_line)[:300]}", where=str(target))


def _is_at_least(version: str, wanted: tuple[int, int]) -> bool:
    found = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return found is None or (int(found[1]), int(found[2])) >= wanted
