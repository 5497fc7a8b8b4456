"""Squashfs 4.0 as it lies on disk (kernel `fs/squashfs/squashfs_fs.h`): the records that are read, and written.

    superblock 96 B | data blocks | fragments | inode table | directory table | fragment table | export table |
    id table | xattr table

Inodes, directories and the entries of tables live in metadata blocks: at most 8 KiB of content, a u16 in front with
the stored size, bit 15 set where it is not compressed. A reference is the offset of a metadata block in its table,
shifted left by 16, plus the offset inside the block. The entries of a table are found by a list of u64: where each of
its metadata blocks is.

An inode has sixteen bytes common to all, then what its type needs; a long one has a type that is seven more.

    common    type u16, mode u16, uid index u16, gid index u16, mtime u32, inode number u32
    1 dir     block u32, links u32, size u16, offset u16, parent u32
    8 ldir    links u32, size u32, block u32, parent u32, index count u16, offset u16, xattr u32; index
    2 file    block u32, fragment u32, fragment offset u32, size u32; block sizes u32[]
    9 lfile   block u64, size u64, sparse u64, links u32, fragment u32, fragment offset u32, xattr u32; block sizes
    3/10 link links u32, size u32; target; long: xattr u32
    4,5/11,12 block, character device: links u32, number u32; long: xattr u32
    6,7/13,14 fifo, socket: links u32; long: xattr u32

The listing of a directory is in the directory table: runs of up to 256 names, each with the inode block that its
names share.

    run       count - 1 u32, inode block u32, inode number u32
    entry     offset u16, inode number difference i16, type u16, name size - 1 u16, name

Extended attributes come in sets: those of one inode, or of several with the same ones.

    table     start of the attributes u64, sets u32, unused u32; then the list of metadata blocks full of sets
    set       reference u64, attributes u32, bytes u32
    attribute type u16, name size u16, name, value size u32, value

The type of an attribute is a prefix of the name that is not stored, and 0x100 where the value is a reference to where
it stands.
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
