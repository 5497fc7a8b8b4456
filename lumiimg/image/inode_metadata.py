"""What only some trees can tell of an inode: the number of a device, extended attributes.

A folder of this machine has attributes of the machine, too (labels of SELinux, marks of overlays), and does not show
all to everybody: of it only file capabilities and what users set are taken (xattr(7)).
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from lumiimg.image.folder import FolderNode, FolderTree
from lumiimg.image.squashfs.inodes import Inode
from lumiimg.image.squashfs.tree import SquashfsTree
from lumiimg.image.stack import StackedNode, StackedTree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.image.tree import Tree, TreeNode

_OF_OVERLAYS = re.compile(rb"(trusted|user)\.(overlay|fuseoverlayfs)\.")
"""Marks that nobody sees in what they are laid over."""
_OF_FOLDERS = re.compile(rb"security\.capability|user\.(?!overlay\.|fuseoverlayfs\.).*", re.DOTALL)


def tells_details(tree: Tree[Any]) -> bool:
    """Tell whether a tree has what the functions below ask for; those of archives have not."""
    return isinstance(tree, SquashfsTree | StackedTree | FolderTree)


def device_of(node: TreeNode) -> tuple[str, int, int]:
    """Return `b` or `c`, major and minor number of a device."""
    match node:
        case StackedNode():
            return device_of(node.parts[0].node)
        case FolderNode(status=status):
            return "b" if node.is_block else "c", os.major(status.st_rdev), os.minor(status.st_rdev)
        case Inode(device=device):
            # kernel `include/linux/kdev_t.h`, new_decode_dev
            return "b" if node.is_block else "c", device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
    raise TypeError(node)


def xattrs_of(tree: Tree[Any], node: TreeNode) -> Mapping[bytes, bytes]:
    """Return the extended attributes of an inode, with those of `tree` a folder of this machine only some."""
    match tree, node:
        case StackedTree(), StackedNode(parts=(part, *_)):
            seen = xattrs_of(tree.layers[::-1][part.layer], part.node)
            return {name: value for name, value in seen.items() if not _OF_OVERLAYS.match(name)}
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


def as_of_folder(xattrs: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return those that would be taken of a folder of this machine."""
    return {name: value for name, value in xattrs.items() if _OF_FOLDERS.fullmatch(name)}
