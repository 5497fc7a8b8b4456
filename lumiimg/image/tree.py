"""A tree of files as an image holds it: a squashfs partition, a folder, the layers of an OCI image.

A tree knows nodes and names in them. Paths, symlinks and `..` are the business of `root.RootFileSystem`, so that no
tree can lead out of itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile


class ImageError(BadInputError):
    """An image that cannot be read, or whose bytes contradict themselves."""


class NoImageError(ImageError):
    """No file or folder has the name that was given for an image."""


class FileKind(StrEnum):
    """What a name stands for."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    DEVICE = "device"
    FIFO = "fifo"
    SOCKET = "socket"


class Device(NamedTuple):
    """The number of a device."""

    is_block: bool
    """A block device, else a character device."""
    major: int
    minor: int


READ, SEARCH = 0o4, 0o1
"""Rights of everybody to what is there: to read or list it, to run or enter it (inode(7))."""


class FileStat(NamedTuple):
    """One inode."""

    kind: FileKind
    permissions: int
    """The twelve low bits of st_mode: setuid, setgid, sticky, rwxrwxrwx."""
    uid: int
    gid: int
    size_bytes: int
    mtime_s: int
    links: int
    identity: Hashable
    """Equal for two names of one inode."""
    device: Device | None = None
    """Of a device; None where the tree does not record it."""

    def is_for_all(self, right: int) -> bool:
        """Whether everybody has a right, also without being an owner or in a group."""
        return self.permissions & right == right

    def gives(self, right: int) -> bool:
        """Whether somebody but root has a right: everybody, or an owner or a group that is not root's (inode(7))."""
        own, shared = (right << 6 if self.uid else 0), (right << 3 if self.gid else 0)
        return bool(self.permissions & (right | own | shared))


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    kind: FileKind


Node: TypeAlias = Any
"""One inode, of the own kind of its tree; its `kind` is a `FileKind`."""


class Tree(Protocol):
    """Nodes and the names in them.

    Methods raise ImageError for bytes that make no sense, and OSError for what the host says about a file.
    """

    root: Node

    def child(self, directory: Node, name: str) -> Node:
        """Return what a name in a directory stands for, symlinks not followed; None where there is no such name."""

    def entries(self, directory: Node) -> Iterator[DirectoryEntry]:
        """Yield the names in a directory, without `.` and `..`."""

    def link_target(self, link: Node) -> str:
        """Return the text of a symlink."""

    def stat(self, node: Node) -> FileStat:
        """Return the inode's attributes."""

    def xattrs(self, node: Node) -> Mapping[bytes, bytes] | None:
        """Return the extended attributes of an inode; None where the tree does not record them."""

    def directory_identity(self, directory: Node) -> Hashable:
        """Return the identity of a directory; None where the host sees to it that there are no loops."""

    def open(self, node: Node) -> OpenFile:
        """Open a regular file."""
