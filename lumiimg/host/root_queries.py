"""Small queries on a root file system, which may lack what is searched."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.image import Obstacle, RootFileSystem

_MAX_TEXT_BYTES = 1 << 20
_MAX_MATCHES = 512
_MAX_LINKS = 8
"""Number of links in a loop that a message names."""


def read_text(root: RootFileSystem, path: str) -> str | None:
    """Return the beginning of a file, also in /proc and /sys, where files report a size of 0; None without one."""
    try:
        with contextlib.closing(root.open(path)) as file:
            return file.read_at(0, _MAX_TEXT_BYTES).decode("utf-8", "replace")
    except (OSError, BadInputError):
        return None


def read_word(root: RootFileSystem, path: str) -> str | None:
    """Return the first line of a file, stripped; None where that is empty."""
    lines = (read_text(root, path) or "").splitlines()
    return (lines[0].strip() or None) if lines else None


def names_in(root: RootFileSystem, directory: str) -> list[str]:
    """Return the names in a directory, sorted; none where it cannot be read."""
    try:
        return [entry.name for entry in root.list_dir(directory)]
    except (OSError, BadInputError):
        return []


def matches(root: RootFileSystem, pattern: str) -> list[str]:
    """Return the existing paths that match a pattern, sorted; `*` and `[…]` match within one name."""
    found = [""]
    for part in pattern.strip("/").split("/"):
        if "*" in part or "[" in part:
            found = [
                f"{above}/{name}"
                for above in found
                for name in fnmatch.filter(names_in(root, above or "/"), part)
                if not name.startswith(".")
            ][:_MAX_MATCHES]
        else:
            found = [f"{above}/{part}" for above in found]
    return [path for path in found if root.exists(path)]


def by_version(name: str) -> tuple[int, ...]:
    """Return a sort key in which 1.9 comes before 1.22."""
    return tuple(int(number[:18]) for number in re.findall("[0-9]+", name))


def loop_at(root: RootFileSystem, path: str) -> str | None:
    """Return a sentence about a loop of links along a path; None without one."""
    loop = root.link_loop(path)
    return f"{' → '.join(loop[:_MAX_LINKS])} is a loop of links" if loop else None


def denied_files(root: RootFileSystem, denied: Iterable[str], names: Iterable[str]) -> dict[str, Obstacle]:
    """Return the files with these names in the folders where a loader was denied a path, and what keeps users out.

    A process tries a folder that it cannot enter once, whatever the name (glibc elf/dl-load.c, `nonexisting`).
    """
    folders = dict.fromkeys(path.rpartition("/")[0] for path in denied)
    paths = (f"{folder}/{name.rpartition('/')[2]}" for name in dict.fromkeys(names) for folder in folders)
    obstacles = {path: root.obstacle(path) for path in paths}
    return {path: obstacle for path, obstacle in obstacles.items() if obstacle is not None}
