"""Inodes: sixteen bytes common to all, then what their type needs (kernel `squashfs_fs.h`).

common    type u16, mode u16, uid index u16, gid index u16, mtime u32, inode number u32
1 dir     block u32, links u32, size u16, offset u16, parent u32
8 ldir    links u32, size u32, block u32, parent u32, index count u16, offset u16, xattr u32; index
2 file    block u32, fragment u32, fragment offset u32, size u32; block sizes u32[]
9 lfile   block u64, size u64, sparse u64, links u32, fragment u32, fragment offset u32, xattr u32; block sizes
3/10 link links u32, size u32; target; long: xattr u32
4,5/11,12 device: links u32, number u32; long: xattr u32      6,7/13,14 fifo, socket: links u32; long: xattr u32
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from lumiimg.image.squashfs.metadata import Metadata

KIND_OF_TYPE = {
    1: FileKind.DIRECTORY,
    2: FileKind.FILE,
    3: FileKind.SYMLINK,
    4: FileKind.DEVICE,
    5: FileKind.DEVICE,
    6: FileKind.FIFO,
    7: FileKind.SOCKET,
}
NO_FRAGMENT = NO_XATTRS = 0xFFFFFFFF

_COMMON = struct.Struct("<HHHHII")
_DIRECTORY = struct.Struct("<IIHHI")
_LONG_DIRECTORY = struct.Struct("<IIIIHHI")
_FILE = struct.Struct("<IIII")
_LONG_FILE = struct.Struct("<QQQIIII")
_LINK = struct.Struct("<II")
_LINKS = struct.Struct("<I")
_DEVICE = struct.Struct("<II")
_BLOCK_DEVICES = (4, 11)
_LONG = 7
"""What an extended type is above its basic one."""
_MAX_TARGET_BYTES = 65535
# a file of 2 TiB in blocks of 128 KiB; its list of block sizes has 64 MiB
_MAX_BLOCKS = 16 << 20


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Where the content of a regular file is."""

    start: int
    size_bytes: int
    fragment: int
    fragment_offset: int
    sizes_at: tuple[int, int]
    """Metadata position and offset of the list of block sizes."""

    def block_count(self, block_bytes: int) -> int:
        """Return how many entries that list has: a tail in a fragment is no block."""
        whole, rest = divmod(self.size_bytes, block_bytes)
        count = whole + (1 if rest and self.fragment == NO_FRAGMENT else 0)
        if count > _MAX_BLOCKS:
            raise ImageError(f"a file of {self.size_bytes} bytes in the squashfs file system")
        return count


@dataclass(frozen=True, slots=True)
class Inode:
    """One inode of any type."""

    reference: int
    kind: FileKind
    permissions: int
    uid_index: int
    gid_index: int
    mtime_s: int
    number: int
    links: int = 1
    size_bytes: int = 0
    listing: tuple[int, int] = (0, 0)
    """Of a directory: metadata position in the directory table, and offset."""
    file: FileLayout | None = None
    target: str = ""
    device: int = 0
    """Of a device: its number as stored, 0 for major 0 and minor 0."""
    is_block: bool = False
    """Of a device: a block device, else a character device."""
    xattrs: int = NO_XATTRS
    """Where the table of extended attributes has its own."""


def read_inode(metadata: Metadata, table: int, reference: int) -> Inode:
    """Return the inode that a reference leads to, in the inode table at `table`. Raises ImageError."""
    cursor = metadata.cursor(table + (reference >> 16), reference & 0xFFFF)
    number_of_type, mode, uid, gid, mtime, number = cursor.unpack(_COMMON)
    long = number_of_type > _LONG
    kind = KIND_OF_TYPE.get(number_of_type - _LONG if long else number_of_type)
    if kind is None:
        raise ImageError(f"unknown squashfs inode type {number_of_type}")
    common = (reference, kind, mode & 0o7777, uid, gid, mtime, number)
    match kind:
        case FileKind.DIRECTORY:
            xattrs = NO_XATTRS
            if long:
                links, size, block, _, _, offset, xattrs = cursor.unpack(_LONG_DIRECTORY)
            else:
                block, links, size, offset, _ = cursor.unpack(_DIRECTORY)
            return Inode(*common, links=links, size_bytes=size, listing=(block, offset), xattrs=xattrs)
        case FileKind.FILE:
            links, xattrs = 1, NO_XATTRS
            if long:
                start, size, _, links, fragment, offset, xattrs = cursor.unpack(_LONG_FILE)
            else:
                start, fragment, offset, size = cursor.unpack(_FILE)
            layout = FileLayout(start, size, fragment, offset, cursor.place)
            return Inode(*common, links=links, size_bytes=size, file=layout, xattrs=xattrs)
        case FileKind.SYMLINK:
            links, size = cursor.unpack(_LINK)
            if size > _MAX_TARGET_BYTES:
                raise ImageError(f"a symlink target of {size} bytes")
            target = cursor.read(size).decode("utf-8", "surrogateescape")
            xattrs = cursor.unpack(_LINKS)[0] if long else NO_XATTRS
            return Inode(*common, links=links, size_bytes=size, target=target, xattrs=xattrs)
        case FileKind.DEVICE:
            links, device = cursor.unpack(_DEVICE)
            xattrs = cursor.unpack(_LINKS)[0] if long else NO_XATTRS
            is_block = number_of_type in _BLOCK_DEVICES
            return Inode(*common, links=links, device=device, is_block=is_block, xattrs=xattrs)
        case _:
            links = cursor.unpack(_LINKS)[0]
            return Inode(*common, links=links, xattrs=cursor.unpack(_LINKS)[0] if long else NO_XATTRS)
