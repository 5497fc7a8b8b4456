"""In which files two images differ.

A folder of this machine has extended attributes of the machine, too (labels of SELinux, marks of overlays), and does
not show all to everybody: of it only file capabilities and what users set are compared (xattr(7)).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.folder import FolderTree
from lumiimg.image.tree import FileKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from lumiimg.image.root import RootFileSystem

_CHUNK_BYTES = 1 << 20
_OF_FOLDERS = re.compile(rb"security\.capability|user\.(?!overlay\.|fuseoverlayfs\.).*", re.DOTALL)
COMPARED = ("modes", "owners", "content", "hard links", "times")
DETAILS = ("device numbers", "extended attributes")
"""What the layers of archives do not have."""


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
class ImageDiff:
    """In which files two images differ."""

    files: tuple[FileDifference, ...]
    """By path; empty where there is no difference."""
    compared: tuple[str, ...]
    """What was compared of each file, as both images have it."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two file systems."""

    root: RootFileSystem
    kinds: Mapping[str, FileKind]
    """Of every path."""
    linked: Mapping[str, tuple[str, ...]]
    """All names of an inode, by each of them, where it has several; directories have one."""


def compare(first: RootFileSystem, second: RootFileSystem) -> ImageDiff:
    """Return the paths in which two file systems differ, each with what differs first.

    Raises OSError where a folder of this machine, or a file in it, may not be read.
    """
    with_details = all(root.xattrs("/") is not None for root in (first, second))
    files = _differences(_side(first), _side(second), with_details=with_details)
    return ImageDiff(tuple(files), (*COMPARED, *DETAILS) if with_details else COMPARED)


def _differences(one: _Side, other: _Side, *, with_details: bool) -> Iterator[FileDifference]:
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
    if with_details and before.kind is FileKind.DEVICE and before.device != after.device:
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
    with contextlib.closing(first.open(path)) as one, contextlib.closing(second.open(path)) as other:
        offset = 0
        while chunk := one.read_at(offset, _CHUNK_BYTES):
            if chunk != other.read_at(offset, len(chunk)):
                return False
            offset += len(chunk)
    return True


def _has_same_xattrs(path: str, first: RootFileSystem, second: RootFileSystem) -> bool:
    before, after = first.xattrs(path) or {}, second.xattrs(path) or {}
    if isinstance(first.tree, FolderTree) or isinstance(second.tree, FolderTree):
        before, after = _as_of_folder(before), _as_of_folder(after)
    return before == after


def _as_of_folder(xattrs: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return those that would be taken of a folder of this machine."""
    return {name: value for name, value in xattrs.items() if _OF_FOLDERS.fullmatch(name)}
