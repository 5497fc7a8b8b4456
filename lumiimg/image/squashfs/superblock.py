"""The first 96 bytes of a squashfs file system (`squashfs_super_block` of the kernel's `squashfs_fs.h`)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.byte_source import ByteSource

MAGIC = b"hsqs"
VERSION = 4, 0
NO_TABLE = 0xFFFFFFFFFFFFFFFF
SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
_MIN_BLOCK_LOG, _MAX_BLOCK_LOG = 12, 20


class Compressor(IntEnum):
    """Of all blocks of one file system."""

    GZIP = 1
    LZMA = 2
    LZO = 3
    XZ = 4
    LZ4 = 5
    ZSTD = 6


class Superblock(NamedTuple):
    """Its fields, in their order."""

    magic: bytes
    inode_count: int
    mtime_s: int
    block_bytes: int
    fragment_count: int
    compression: int
    """A `Compressor`."""
    block_log: int
    flags: int
    id_count: int
    major: int
    minor: int
    root_inode: int
    size_bytes: int
    id_table: int
    xattr_table: int
    """Where the header of the extended attributes is; NO_TABLE without any."""
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int


def read_superblock(source: ByteSource) -> Superblock:
    """Return the superblock, checked against the size of the source. Raises ImageError."""
    where = source.name
    if source.size < SUPERBLOCK.size:
        raise ImageError(f"a squashfs file system of {source.size} bytes is cut off", where=where)
    found = Superblock._make(SUPERBLOCK.unpack(source.read_at(0, SUPERBLOCK.size)))
    used = found.size_bytes
    if found.magic != MAGIC:
        raise ImageError("not a squashfs file system", where=where)
    if (found.major, found.minor) != VERSION:
        raise ImageError(f"squashfs version {found.major}.{found.minor}; only 4.0 is read", where=where)
    if not _MIN_BLOCK_LOG <= found.block_log <= _MAX_BLOCK_LOG or found.block_bytes != 1 << found.block_log:
        raise ImageError(f"squashfs block size {found.block_bytes} (2^{found.block_log}) is not possible", where=where)
    if used > source.size:
        raise ImageError(
            f"cut off: the file system has {used} bytes, the file only {source.size} of them",
            where=where,
            hint="download or copy it again",
        )
    if found.compression not in list(Compressor):
        raise ImageError(f"unknown squashfs compression {found.compression}", where=where)
    starts_inside = SUPERBLOCK.size <= found.inode_table and SUPERBLOCK.size <= found.id_table < used
    if not starts_inside or not found.inode_table < found.directory_table <= used:
        raise ImageError("the tables of the squashfs file system lie outside of it", where=where)
    return found
