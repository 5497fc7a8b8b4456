"""In which files two images differ.

A folder of this machine has extended attributes of the machine, too (labels of SELinux, marks of overlays), and does
not show all to everybody: of it only file capabilities and what users set are compared (xattr(7)).
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.image.folder import FolderNode, FolderTree
from lumiimg.image.squashfs.inodes import Inode
from lumiimg.image.squashfs.tree import SquashfsTree
from lumiimg.image.stack import StackedNode, StackedTree
from lumiimg.image.tree import FileKind, Tree, TreeNode

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from lumiimg.image.root import RootFileSystem

_CHUNK_BYTES = 1 << 20
_OF_FOLDERS = re.compile(rb"security\.capability|user\.(?!overlay\.|fuseoverlayfs\.).*", re.DOTALL)
COMPARED = ("modes", "owners", "content", "hard links", "times")
DETAILS = ("device numbers", "extended attributes")
_DETAILED = SquashfsTree | StackedTree | FolderTree
"""Trees that have the details; those of archives have not."""


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
    with_details = all(isinstance(root.tree, _DETAILED) for root in (first, second))
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
    if (
        with_details
        and before.kind is FileKind.DEVICE
        and _device_of(first.node(path)) != _device_of(second.node(path))
    ):
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
    before, after = (_xattrs_of(root.tree, root.node(path)) for root in (first, second))
    if isinstance(first.tree, FolderTree) or isinstance(second.tree, FolderTree):
        before, after = _as_of_folder(before), _as_of_folder(after)
    return before == after


def _device_of(node: TreeNode) -> tuple[str, int, int]:
    """Return `b` or `c`, major and minor number of a device."""
    match node:
        case StackedNode():
            return _device_of(node.parts[0].node)
        case FolderNode(status=status):
            return "b" if node.is_block else "c", os.major(status.st_rdev), os.minor(status.st_rdev)
        case Inode(device=device):
            # kernel `include/linux/kdev_t.h`, new_decode_dev
            return "b" if node.is_block else "c", device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
    raise TypeError(node)


def _xattrs_of(tree: Tree[Any], node: TreeNode) -> Mapping[bytes, bytes]:
    """Return the extended attributes of an inode, with those of `tree` a folder of this machine only some."""
    match tree, node:
        case StackedTree(), StackedNode():
            return tree.xattrs(node)
        case FolderTree(), FolderNode(path=path):
            found: dict[bytes, bytes] = {}
            with contextlib.suppress(OSError):  # a file system without them, or a file that may not be read
                for name in map(os.fsencode, os.listxattr(path, follow_symlinks=False)):
                    if _OF_FOLDERS.fullmatch(name):
                        found[name] = os.getxattr(path, name, follow_symlinks=False)
            return found
        case SquashfsTree(), Inode():
            return tree.xattrs(node)
    raise TypeError(tree)


def _as_of_folder(xattrs: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return those that would be taken of a folder of this machine."""
    return {name: value for name, value in xattrs.items() if _OF_FOLDERS.fullmatch(name)}
