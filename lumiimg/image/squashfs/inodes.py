"""Inodes and listings of directories: sixteen bytes common to all, then what their type needs (kernel `squashfs_fs.h`).

common    type u16, mode u16, uid index u16, gid index u16, mtime u32, inode number u32
1 dir     block u32, links u32, size u16, offset u16, parent u32
8 ldir    links u32, size u32, block u32, parent u32, index count u16, offset u16, xattr u32; index
2 file    block u32, fragment u32, fragment offset u32, size u32; block sizes u32[]
9 lfile   block u64, size u64, sparse u64, links u32, fragment u32, fragment offset u32, xattr u32; block sizes
3/10 link links u32, size u32; target; long: xattr u32
4,5/11,12 device: links u32, number u32; long: xattr u32      6,7/13,14 fifo, socket: links u32; long: xattr u32

A directory's listing is in the directory table: runs of up to 256 names, each with the inode block that they share.

header    count - 1 u32, inode block u32, inode number u32
entry     offset u16, inode number difference i16, type u16, name size - 1 u16, name

The size in a directory's inode is three more than its listing has bytes, for `.` and `..` that are not stored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.image.tree import Device, FileKind, ImageError

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

COMMON = struct.Struct("<HHHHII")
DIRECTORY = struct.Struct("<IIHHI")
LONG_DIRECTORY = struct.Struct("<IIIIHHI")
FILE = struct.Struct("<IIII")
LONG_FILE = struct.Struct("<QQQIIII")
LINK = DEVICE = struct.Struct("<II")
LINKS = struct.Struct("<I")
RUN = INDEX = struct.Struct("<III")
ENTRY = struct.Struct("<HhHH")
MAX_NAMES_IN_RUN = 256
DOTS_BYTES = 3
# a listing of 64 MiB has some two million names
_MAX_LISTING_BYTES = 64 << 20
_BLOCK_DEVICES = (4, 11)
LONG = 7
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
        """Return how many entries that list has: a tail in a fragment is not a block."""
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
    device: Device | None = None
    xattrs: int = NO_XATTRS
    """Where the table of extended attributes has its own."""


def read_inode(metadata: Metadata, table: int, reference: int) -> Inode:
    """Return the inode that a reference leads to, in the inode table at `table`. Raises ImageError."""
    cursor = metadata.cursor(table + (reference >> 16), reference & 0xFFFF)
    number_of_type, mode, uid, gid, mtime, number = cursor.unpack(COMMON)
    long = number_of_type > LONG
    kind = KIND_OF_TYPE.get(number_of_type - LONG if long else number_of_type)
    if kind is None:
        raise ImageError(f"unknown squashfs inode type {number_of_type}")
    common = (reference, kind, mode & 0o7777, uid, gid, mtime, number)
    match kind:
        case FileKind.DIRECTORY:
            xattrs = NO_XATTRS
            if long:
                links, size, block, _, _, offset, xattrs = cursor.unpack(LONG_DIRECTORY)
            else:
                block, links, size, offset, _ = cursor.unpack(DIRECTORY)
            return Inode(*common, links=links, size_bytes=size, listing=(block, offset), xattrs=xattrs)
        case FileKind.FILE:
            links, xattrs = 1, NO_XATTRS
            if long:
                start, size, _, links, fragment, offset, xattrs = cursor.unpack(LONG_FILE)
            else:
                start, fragment, offset, size = cursor.unpack(FILE)
            layout = FileLayout(start, size, fragment, offset, cursor.place)
            return Inode(*common, links=links, size_bytes=size, file=layout, xattrs=xattrs)
        case FileKind.SYMLINK:
            links, size = cursor.unpack(LINK)
            if size > _MAX_TARGET_BYTES:
                raise ImageError(f"a symlink target of {size} bytes")
            target = cursor.read(size).decode("utf-8", "surrogateescape")
            xattrs = cursor.unpack(LINKS)[0] if long else NO_XATTRS
            return Inode(*common, links=links, size_bytes=size, target=target, xattrs=xattrs)
        case FileKind.DEVICE:
            links, stored = cursor.unpack(DEVICE)
            xattrs = cursor.unpack(LINKS)[0] if long else NO_XATTRS
            # kernel `include/linux/kdev_t.h`, new_decode_dev
            major, minor = stored >> 8 & 0xFFF, stored & 0xFF | stored >> 12 & 0xFFF00
            device = Device(number_of_type in _BLOCK_DEVICES, major, minor)
            return Inode(*common, links=links, device=device, xattrs=xattrs)
        case _:
            links = cursor.unpack(LINKS)[0]
            return Inode(*common, links=links, xattrs=cursor.unpack(LINKS)[0] if long else NO_XATTRS)


class Name(NamedTuple):
    """One name: its inode and what kind of inode the listing says that it is."""

    reference: int
    kind: FileKind


def read_listing(metadata: Metadata, table: int, directory: Inode) -> dict[str, Name]:
    """Return the names of a directory. Raises ImageError."""
    left = directory.size_bytes - DOTS_BYTES
    if left <= 0:
        return {}
    if left > _MAX_LISTING_BYTES:
        raise ImageError(f"a directory listing of {left} bytes")
    block, offset = directory.listing
    listing = metadata.cursor(table + block, offset).read(left)
    try:
        return _names(listing)
    except struct.error as error:
        raise ImageError("a squashfs directory that is cut off") from error


def _names(listing: bytes) -> dict[str, Name]:
    names: dict[str, Name] = {}
    at = 0
    while at < len(listing):
        count, inode_block, _ = RUN.unpack_from(listing, at)
        if count >= MAX_NAMES_IN_RUN:
            raise ImageError(f"a run of {count + 1} names in a squashfs directory")
        at += RUN.size
        for _ in range(count + 1):
            inode_offset, _, kind_number, name_size = ENTRY.unpack_from(listing, at)
            at += ENTRY.size + name_size + 1
            name = listing[at - name_size - 1 : at]
            kind = KIND_OF_TYPE.get(kind_number)
            if kind is None or at > len(listing) or b"/" in name or b"\0" in name or name in (b".", b".."):
                raise ImageError("a damaged squashfs directory")
            names[name.decode("utf-8", "surrogateescape")] = Name(inode_block << 16 | inode_offset, kind)
    return names
