"""In which files two images differ."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.folder import FolderTree
from lumiimg.image.inode_metadata import as_of_folder, device_of, tells_details, xattrs_of
from lumiimg.image.tree import FileKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from lumiimg.image.root import RootFileSystem

_CHUNK_BYTES = 1 << 20
COMPARED = ("modes", "owners", "content", "hard links", "times")
DETAILS = ("device numbers", "extended attributes")
"""What the trees of archives do not tell."""


@dataclass(frozen=True, slots=True)
class FileDifference:
    """One path that is not the same in both."""

    path: str
    """In the images."""
    what: str
    """`only in the first`, `only in the second`, `kind`, `link`, `mode`, `owner`, `device`, `content`, `hard links`,
    `extended attributes`, `time`.
    """


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two file systems."""

    root: RootFileSystem
    kinds: Mapping[str, FileKind]
    """Of every path."""
    linked: Mapping[str, tuple[str, ...]]
    """All names of an inode, by each of them, where it has several; directories have one."""


def compared(first: RootFileSystem, second: RootFileSystem) -> tuple[str, ...]:
    """Return what of two file systems can be compared."""
    return (*COMPARED, *DETAILS) if tells_details(first.tree) and tells_details(second.tree) else COMPARED


def compare(first: RootFileSystem, second: RootFileSystem) -> Iterator[FileDifference]:
    """Yield the paths in which two file systems differ, in order, each with what differs first.

    Raises OSError where a folder of this machine, or a file in it, may not be read.
    """
    one, other = _side(first), _side(second)
    with_details = tells_details(first.tree) and tells_details(second.tree)
    for path in sorted({*one.kinds, *other.kinds}):
        if path not in other.kinds:
            yield FileDifference(path, "only in the first")
        elif path not in one.kinds:
            yield FileDifference(path, "only in the second")
        elif what := _difference(path, one, other, with_details=with_details):
            yield FileDifference(path, what)


def _side(root: RootFileSystem) -> _Side:
    kinds = {"/": FileKind.DIRECTORY}
    names: dict[Hashable, list[str]] = {}
    for path, kind in root.walk():
        kinds[path] = kind
        if kind is FileKind.DIRECTORY:
            if isinstance(root.tree, FolderTree):
                root.list_dir(path)  # a walk passes over what may not be read
        elif (seen := root.stat(path, follow=False)).links > 1:
            names.setdefault(seen.identity, []).append(path)
    groups = (tuple(sorted(group)) for group in names.values() if len(group) > 1)
    return _Side(root, kinds, {path: group for group in groups for path in group})


def _difference(path: str, one: _Side, other: _Side, *, with_details: bool) -> str:
    first, second = one.root, other.root
    before, after = first.stat(path, follow=False), second.stat(path, follow=False)
    if before.kind != after.kind:
        return "kind"
    if before.kind is FileKind.SYMLINK and first.readlink(path) != second.readlink(path):
        return "link"
    if before.permissions != after.permissions:
        return "mode"
    if (before.uid, before.gid) != (after.uid, after.gid):
        return "owner"
    if with_details and before.kind is FileKind.DEVICE and device_of(first.node(path)) != device_of(second.node(path)):
        return "device"
    if before.kind is FileKind.FILE and (
        before.size_bytes != after.size_bytes or not _is_same_content(path, first, second)
    ):
        return "content"
    if one.linked.get(path) != other.linked.get(path):
        return "hard links"
    if with_details and not _has_same_xattrs(path, first, second):
        return "extended attributes"
    return "time" if before.mtime_s != after.mtime_s else ""


def _is_same_content(path: str, first: RootFileSystem, second: RootFileSystem) -> bool:
    """Tell whether two files of one size hold the same."""
    with contextlib.closing(first.open(path)) as one, contextlib.closing(second.open(path)) as other:
        offset = 0
        while chunk := one.read_at(offset, _CHUNK_BYTES):
            if chunk != other.read_at(offset, len(chunk)):
                return False
            offset += len(chunk)
    return True


def _has_same_xattrs(path: str, first: RootFileSystem, second: RootFileSystem) -> bool:
    before, after = (xattrs_of(root.tree, root.node(path)) for root in (first, second))
    if isinstance(first.tree, FolderTree) or isinstance(second.tree, FolderTree):
        before, after = as_of_folder(before), as_of_folder(after)
    return before == after
