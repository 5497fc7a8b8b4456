"""Compare two images file by file.

Compared are the extended attributes that a program in a container can see: file capabilities and user attributes.
Others come from the machine that built the image or are visible only to root (SELinux labels, overlay marks; xattr(7)).
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.tree import FileKind, FileStat

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from lumiimg.image.root import RootFileSystem

_CHUNK_BYTES = 1 << 20
_COMPARED_XATTR = re.compile(rb"security\.capability|user\.(?!overlay\.|fuseoverlayfs\.).*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileDifference:
    """One path that differs between the two images."""

    path: str
    """Path in the images."""
    what: str
    """The first difference: `only in the first`, `only in the second`, `kind`, `link`, `mode`, `owner`, `device`,
    `content`, `hard links`, `extended attributes`, `time`.
    """


@dataclass(frozen=True, slots=True)
class ImageDiff:
    """The files in which two images differ."""

    files: tuple[FileDifference, ...]
    """Differences, sorted by path; empty if there are none."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two file systems."""

    root: RootFileSystem
    stats: Mapping[str, FileStat]
    """Attributes of every path."""
    linked: Mapping[str, tuple[str, ...]]
    """For each path of an inode with several names, all of its names; directories have only one."""


def compare(
    first: RootFileSystem, second: RootFileSystem, compared: Callable[[int, int | None], None] = lambda *_: None
) -> ImageDiff:
    """Return the paths in which two file systems differ, each with its first difference.

    `compared` is called with the number of paths compared and the total number.

    Raises OSError if a folder of this machine, or a file in it, may not be read.
    """
    one, other = _side(first), _side(second)
    paths, found = sorted({*one.stats, *other.stats}), []
    for number, path in enumerate(paths):
        compared(number, len(paths))
        if what := next(_differences(path, one, other), ""):
            found.append(FileDifference(path, what))
    return ImageDiff(tuple(found))


def _side(root: RootFileSystem) -> _Side:
    stats = {"/": root.stat("/"), **dict(root.stats())}
    names: dict[Hashable, list[str]] = {}
    for path, seen in sorted(stats.items()):
        if seen.kind is FileKind.DIRECTORY:
            root.list_dir(path)  # raises OSError; a walk skips unreadable directories
        elif seen.links > 1:
            names.setdefault(seen.identity, []).append(path)
    groups = (tuple(group) for group in names.values() if len(group) > 1)
    return _Side(root, stats, {path: group for group in groups for path in group})


def _differences(path: str, one: _Side, other: _Side) -> Iterator[str]:
    """Yield the differences, of which only the first is used."""
    before, after = one.stats.get(path), other.stats.get(path)
    if before is None or after is None:
        yield "only in the second" if before is None else "only in the first"
        return
    if before.kind != after.kind:
        yield "kind"
    if before.kind is FileKind.SYMLINK and one.root.readlink(path) != other.root.readlink(path):
        yield "link"
    if before.permissions != after.permissions:
        yield "mode"
    if (before.uid, before.gid) != (after.uid, after.gid):
        yield "owner"
    if before.kind is FileKind.DEVICE and before.device != after.device:
        yield "device"
    if before.kind is FileKind.FILE and not (
        before.size_bytes == after.size_bytes and _is_same_content(path, one.root, other.root)
    ):
        yield "content"
    if one.linked.get(path) != other.linked.get(path):
        yield "hard links"
    if _xattrs(path, one.root) != _xattrs(path, other.root):
        yield "extended attributes"
    if before.mtime_s != after.mtime_s:
        yield "time"


def _is_same_content(path: str, first: RootFileSystem, second: RootFileSystem) -> bool:
    with closing(first.open(path)) as one, closing(second.open(path)) as other:
        starts = range(0, one.size, _CHUNK_BYTES)
        return all(one.read_at(start, _CHUNK_BYTES) == other.read_at(start, _CHUNK_BYTES) for start in starts)


def _xattrs(path: str, root: RootFileSystem) -> dict[bytes, bytes]:
    found = root.xattrs(path) or {}
    return {name: value for name, value in found.items() if _COMPARED_XATTR.fullmatch(name)}
