"""The first 96 bytes of a squashfs file system (`squashfs_super_block` of the kernel's `squashfs_fs.h`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.byte_source import ByteSource

MAGIC = b"hsqs"
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


@dataclass(frozen=True, slots=True)
class Superblock:
    """What the reader needs of it, checked against the size of the source."""

    inode_count: int
    block_size_bytes: int
    fragment_count: int
    compression: Compressor
    id_count: int
    root_inode: int
    size_bytes: int
    id_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    xattr_table: int
    """Where the header of the extended attributes is; beyond the file system where there are none."""


def read_superblock(source: ByteSource) -> Superblock:
    """Return the checked superblock. Raises ImageError."""
    if source.size < SUPERBLOCK.size:
        raise ImageError(f"a squashfs file system of {source.size} bytes is cut off", where=source.name)
    (
        magic,
        inodes,
        _mtime,
        block_size,
        fragments,
        compression,
        block_log,
        _flags,
        ids,
        major,
        minor,
        root,
        used,
        id_table,
        xattr_table,
        inode_table,
        directory_table,
        fragment_table,
        _export_table,
    ) = SUPERBLOCK.unpack(source.read_at(0, SUPERBLOCK.size))
    if magic != MAGIC:
        raise ImageError("not a squashfs file system", where=source.name)
    if (major, minor) != (4, 0):
        raise ImageError(f"squashfs version {major}.{minor}; only 4.0 is read", where=source.name)
    if not _MIN_BLOCK_LOG <= block_log <= _MAX_BLOCK_LOG or block_size != 1 << block_log:
        raise ImageError(f"squashfs block size {block_size} (2^{block_log}) is not possible", where=source.name)
    if used > source.size:
        raise ImageError(
            f"cut off: the file system has {used} bytes, the file only {source.size} of them",
            where=source.name,
            hint="download or copy it again",
        )
    if compression not in list(Compressor):
        raise ImageError(f"unknown squashfs compression {compression}", where=source.name)
    if not SUPERBLOCK.size <= inode_table < directory_table <= used or not SUPERBLOCK.size <= id_table < used:
        raise ImageError("the tables of the squashfs file system lie outside of it", where=source.name)
    return Superblock(
        inode_count=inodes,
        block_size_bytes=block_size,
        fragment_count=fragments,
        compression=Compressor(compression),
        id_count=ids,
        root_inode=root,
        size_bytes=used,
        id_table=id_table,
        inode_table=inode_table,
        directory_table=directory_table,
        fragment_table=fragment_table,
        xattr_table=xattr_table,
    )
