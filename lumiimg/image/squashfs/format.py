"""Squashfs 4.0 as it lies on disk (kernel `fs/squashfs/squashfs_fs.h`): the records that are read, and written.

    superblock | data blocks | fragments | inode table | directory table | fragment table | export table | id table |
    xattr table

Inodes, directories and the entries of tables live in metadata blocks: at most 8 KiB of content, a u16 in front with
the stored size, bit 15 set where it is not compressed. A reference is the offset of a metadata block in its table,
shifted left by 16, plus the offset inside the block. The entries of a table are found by a list of u64: where each of
its metadata blocks is.

An inode has what is common to all, then what its type needs, then the size words of a file's blocks or the target of a
link; a long one has a type that is seven more, and the number of its set of extended attributes. A directory is runs of
up to 256 names, each with the inode block that they share. The type of an attribute is a prefix of the name that is not
stored, and 0x100 where the value is a reference to where it stands.
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


METADATA_BYTES = 8192
METADATA_HEADER = struct.Struct("<H")
METADATA_STORED = 0x8000
POINTER = struct.Struct("<Q")
ID = struct.Struct("<I")
FRAGMENT = struct.Struct("<QII")
BLOCK_STORED = 1 << 24
"""In the size word of a data block, or of a fragment: it is not compressed."""

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
"""What a long type is above its short one."""
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
"""What the size in a directory's inode is above that of its listing: for `.` and `..`, which are not stored."""

XATTR_TABLE = struct.Struct("<QII")
XATTR_SET = struct.Struct("<QII")
XATTR_NAME = struct.Struct("<HH")
XATTR_VALUE = struct.Struct("<I")
XATTR_ELSEWHERE = 0x100
XATTR_PREFIXES = {0: b"user.", 1: b"trusted.", 2: b"security."}


class Content(NamedTuple):
    """Where the content of a regular file is."""

    start: int = 0
    words: tuple[int, ...] = ()
    """Of its blocks: stored size, and whether it is not compressed; 0 is a hole."""
    fragment: int = NO_FRAGMENT
    """The number of the block of tails that has the last of it."""
    fragment_offset: int = 0
