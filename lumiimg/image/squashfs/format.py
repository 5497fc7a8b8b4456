"""The on-disk format of squashfs 4.0 (kernel `fs/squashfs/squashfs_fs.h`): the records for reading and writing it.

    superblock | data blocks | fragments | inode table | directory table | fragment table | export table | id table |
    xattr table

Inodes, directories and table entries are stored in metadata blocks: at most 8 KiB of content, preceded by a u16 with
the stored size, bit 15 set if it is not compressed. A reference is the offset of a metadata block in its table,
shifted left by 16, plus the offset inside the block. Each table has a list of u64 with the positions of its metadata
blocks.

An inode has a common part, then a part specific to its type, then the size words of a file's blocks or the target of a
link; a long inode has a type number higher by seven, and the number of its extended attribute set. A directory consists
of runs of up to 256 names that share an inode block. The type of an attribute stands for a prefix of its name, which is
not stored, plus 0x100 if the value is a reference to the real value.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from lumiimg.image.tree import FileKind

MAGIC = b"hsqs"
VERSION = 4, 0
SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
NO_TABLE = 0xFFFFFFFFFFFFFFFF
NO_FRAGMENT = NO_XATTRS = 0xFFFFFFFF


class Compressor(IntEnum):
    """Compression of all blocks of one file system."""

    GZIP = 1
    LZMA = 2
    LZO = 3
    XZ = 4
    LZ4 = 5
    ZSTD = 6


class Superblock(NamedTuple):
    """The superblock's fields, in order."""

    magic: bytes
    inode_count: int
    mtime_s: int
    block_bytes: int
    fragment_count: int
    compression: int
    """Number of a `Compressor`."""
    block_log: int
    flags: int
    id_count: int
    major: int
    minor: int
    root_inode: int
    size_bytes: int
    id_table: int
    xattr_table: int
    """Position of the extended attribute header; NO_TABLE without any."""
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int


METADATA_BYTES = 8192
METADATA_HEADER = struct.Struct("<H")
METADATA_STORED = 0x8000
POINTER = struct.Struct("<Q")
ID = struct.Struct("<I")
FRAGMENT = struct.Struct("<QII")
BLOCK_STORED = 1 << 24
"""Bit in the size word of a data block or a fragment that marks it as not compressed."""

COMMON = struct.Struct("<HHHHII")
DIRECTORY = struct.Struct("<IIHHI")
LONG_DIRECTORY = struct.Struct("<IIIIHHI")
FILE = struct.Struct("<IIII")
LONG_FILE = struct.Struct("<QQQIIII")
LINK = DEVICE = struct.Struct("<II")
LINKS = XATTR_INDEX = struct.Struct("<I")
RUN = INDEX = struct.Struct("<III")
ENTRY = struct.Struct("<HhHH")
LONG = 7
"""Difference between a long type number and the short one."""
BLOCK_DEVICE = 4
KIND_OF_TYPE = {
    1: FileKind.DIRECTORY,
    2: FileKind.FILE,
    3: FileKind.SYMLINK,
    BLOCK_DEVICE: FileKind.DEVICE,
    5: FileKind.DEVICE,
    6: FileKind.FIFO,
    7: FileKind.SOCKET,
}
NAMES_IN_RUN = 256
DOTS_BYTES = 3
"""Difference between the size in a directory's inode and that of its listing: `.` and `..` are not stored."""

XATTR_TABLE = struct.Struct("<QII")
XATTR_SET = struct.Struct("<QII")
XATTR_NAME = struct.Struct("<HH")
XATTR_VALUE = struct.Struct("<I")
XATTR_ELSEWHERE = 0x100
XATTR_PREFIXES = {0: b"user.", 1: b"trusted.", 2: b"security."}


class Content(NamedTuple):
    """Location of a regular file's content."""

    start: int = 0
    words: tuple[int, ...] = ()
    """Size words of its blocks: stored size, and a bit for not compressed; 0 is a hole."""
    fragment: int = NO_FRAGMENT
    """Number of the fragment block that contains its tail."""
    fragment_offset: int = 0
