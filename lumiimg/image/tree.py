"""A tree of files as stored in an image: a squashfs partition, a folder, the layers of an OCI image.

A tree consists of nodes and the names in them. `root.RootFileSystem` handles paths, symlinks and `..`, so that no
lookup can lead out of a tree.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile


class ImageError(BadInputError):
    """An image that cannot be read or contains contradictory data."""


class NoImageError(ImageError):
    """The file or folder named as an image does not exist."""


class FileKind(StrEnum):
    """Type of a directory entry."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    DEVICE = "device"
    FIFO = "fifo"
    SOCKET = "socket"


class Device(NamedTuple):
    """Type and number of a device."""

    is_block: bool
    """Whether it is a block device rather than a character device."""
    major: int
    minor: int


READ, SEARCH = 0o4, 0o1
"""Rights of everybody: to read or list, and to run or enter (inode(7))."""


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
    """Identity, equal for all names of one inode."""
    device: Device | None = None
    """Number of a device; None if the tree does not record it."""

    def is_for_all(self, right: int) -> bool:
        """Return whether everybody has a right, even without being the owner or in the group."""
        return self.permissions & right == right

    def gives(self, right: int) -> bool:
        """Return whether anyone besides root has a right: everybody, or a non-root owner or group (inode(7))."""
        own, shared = (right << 6 if self.uid else 0), (right << 3 if self.gid else 0)
        return bool(self.permissions & (right | own | shared))


class DirectoryEntry(NamedTuple):
    """One entry of a directory."""

    name: str
    kind: FileKind


Node: TypeAlias = Any
"""One inode, of a type specific to its tree; its `kind` is a `FileKind`."""


class Tree(Protocol):
    """Nodes and the names in them.

    Methods raise ImageError for malformed data, and OSError for errors that the host reports for a file.
    """

    root: Node

    def child(self, directory: Node, name: str) -> Node:
        """Return the node of a name in a directory, without following symlinks; None if there is no such name."""

    def entries(self, directory: Node) -> Iterator[DirectoryEntry]:
        """Yield the names in a directory, without `.` and `..`."""

    def link_target(self, link: Node) -> str:
        """Return the target of a symlink."""

    def stat(self, node: Node) -> FileStat:
        """Return the inode's attributes."""

    def xattrs(self, node: Node) -> Mapping[bytes, bytes] | None:
        """Return the extended attributes of an inode; None if the tree does not record them."""

    def directory_identity(self, directory: Node) -> Hashable:
        """Return the identity of a directory; None if the host ensures that there are no loops."""

    def open(self, node: Node) -> OpenFile:
        """Open a regular file."""
