"""Small looks at a root file system that may or may not have what is looked for."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.image import FileKind, FileStat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.image import RootFileSystem

_MAX_TEXT_BYTES = 1 << 20
_MAX_MATCHES = 512
_READ, _SEARCH = 0o4, 0o1


def read_text(root: RootFileSystem, path: str) -> str | None:
    """Return the beginning of a file, also of /proc and /sys, whose files say that they are empty; None without it."""
    try:
        with contextlib.closing(root.open(path)) as file:
            return file.read_at(0, _MAX_TEXT_BYTES).decode("utf-8", "replace")
    except (OSError, BadInputError):
        return None


def read_word(root: RootFileSystem, path: str) -> str | None:
    """Return the first line of a file without blanks around it; None where that is nothing."""
    lines = (read_text(root, path) or "").splitlines()
    return (lines[0].strip() or None) if lines else None


def names_in(root: RootFileSystem, directory: str) -> list[str]:
    """Return the names in a directory, sorted; none where it cannot be read."""
    try:
        return [entry.name for entry in root.list_dir(directory)]
    except (OSError, BadInputError):
        return []


def matches(root: RootFileSystem, pattern: str) -> list[str]:
    """Return the paths that exist for a pattern in which `*` and `[…]` stand for parts of one name, sorted."""
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


def unreadable_files(root: RootFileSystem, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield, of files that the user may not read, (the file, what is in the way: itself, or a folder on the way to it).

    The user is that of this process; root asks for people who are not root, and own nothing of the image. What is not
    there is left out. Modes count in a container, too: measured with Apptainer 1.4 without privilege, on squashfs
    (squashfuse) and on a folder. The mode of the root folder does not count in squashfs.
    """
    for path in paths:
        with contextlib.suppress(BadInputError):
            closed = (here for here, found in root.lookup_steps(path) if not _may_use(found))
            if (here := next(closed, None)) is not None:
                yield path, here


def stranger_can_reach(root: RootFileSystem, path: str) -> bool:
    """Whether stat(2) finds something there for a user who is not root and owns nothing of the image."""
    return _stranger_may(root, path, 0)


def stranger_can_read(root: RootFileSystem, path: str) -> bool:
    """Whether open(2) for reading works there for a user who is not root and owns nothing of the image."""
    return _stranger_may(root, path, _READ)


def stranger_can_list(root: RootFileSystem, path: str) -> bool:
    """Whether a user who is not root and owns nothing of the image gets the names in a folder: opendir(3)."""
    return root.is_dir(path) and _stranger_may(root, path, _READ)


def _stranger_may(root: RootFileSystem, path: str, right: int) -> bool:
    """Whether what a path leads to gives a right to everybody, and all folders on the way let everybody through."""
    try:
        found = root.stat(path)
        steps = root.lookup_steps(path)
    except (OSError, BadInputError):
        return False
    way = steps[:-1] if steps and steps[-1][1].identity == found.identity else steps
    passes = all(step.permissions & _SEARCH for _, step in way if step.kind is FileKind.DIRECTORY)
    return passes and found.permissions & right == right


def _may_use(found: FileStat) -> bool:
    """Whether the user may read or enter what is there: as owner, else by a group, else as everybody (inode(7))."""
    right = _SEARCH if found.kind is FileKind.DIRECTORY else _READ
    user = os.geteuid()
    if user and found.uid == user:
        right <<= 6
    elif user and found.gid in {os.getegid(), *os.getgroups()}:
        right <<= 3
    return found.kind is FileKind.SYMLINK or bool(found.permissions & right)
