"""Which files of an image a user of it may not read: their modes count in the container, too.

Measured with Apptainer 1.4 without privilege, on squashfs (squashfuse) and on a folder: a file of root with mode 0600,
and one in a folder of root with mode 0700, are "Permission denied"; one of the user's own, or of a group of his, is
read; the mode of the root folder does not count in squashfs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lumiimg.image.tree import FileKind, FileStat, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.image.root import RootFileSystem

_READ, _SEARCH = 0o4, 0o1
_SET_ID = {0o4000: "setuid", 0o2000: "setgid"}


def barred(root: RootFileSystem, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield, of files that the user may not read, (the file, what is in the way: itself, or a folder on the way to it).

    The user is that of this process; root asks for people who are not root, and own nothing of the image. What
    is not there is left out.
    """
    for path in paths:
        try:
            way = root.way(path)
        except ImageError:
            continue
        for here, found in way:
            right = _SEARCH if found.kind is FileKind.DIRECTORY else _READ
            if found.kind is not FileKind.SYMLINK and not _may(found, right):
                yield path, here
                break


def set_id(root: RootFileSystem, path: str) -> str | None:
    """Return `setuid` or `setgid` for a program that may run with another's rights; None for any other."""
    try:
        found = root.stat(path)
    except (OSError, ImageError):
        return None
    return next((word for bit, word in _SET_ID.items() if found.permissions & bit), None)


def _may(found: FileStat, right: int) -> bool:
    """Whether the user has a right: as owner, else by a group, else as everybody has it (inode(7))."""
    user = os.geteuid()
    if user and found.uid == user:
        return bool(found.permissions >> 6 & right)
    if user and found.gid in {os.getegid(), *os.getgroups()}:
        return bool(found.permissions >> 3 & right)
    return bool(found.permissions & right)
