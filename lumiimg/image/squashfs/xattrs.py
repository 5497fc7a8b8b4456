"""Extended attributes of squashfs inodes (kernel `squashfs_fs.h`, `fs/squashfs/xattr.c`).

    table   start of the attributes u64, sets u32, unused u32; then pointers u64 to metadata blocks full of sets
    set     reference u64, attributes u32, bytes u32: the attributes of one inode, or of several with the same ones
    one     type u16, name size u16, name, value size u32, value

A reference is block << 16 | offset, from the start of the attributes. The type is a prefix of the name that is not
stored, and 0x100 where the value is a reference to where it stands.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.squashfs.metadata import BLOCK_BYTES, Cursor, Metadata
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.byte_source import ByteSource

TABLE = struct.Struct("<QII")
POINTER = struct.Struct("<Q")
SET = struct.Struct("<QII")
NAME = struct.Struct("<HH")
VALUE = struct.Struct("<I")
_ELSEWHERE = 0x100
PREFIXES = {0: b"user.", 1: b"trusted.", 2: b"security."}
# of the kernel: XATTR_SIZE_MAX for a value, XATTR_LIST_MAX for all names of an inode, each of two bytes at least
_MAX_VALUE_BYTES = 65536
_MAX_ATTRIBUTES = 65536 // 2


@dataclass(frozen=True, slots=True)
class Xattrs:
    """The attributes of one file system; nothing is read before it is asked for."""

    source: ByteSource
    metadata: Metadata
    table: int
    """Where the header is."""

    def count(self) -> int:
        return int(TABLE.unpack(self.source.read_at(self.table, TABLE.size))[1])

    def read(self, index: int) -> dict[bytes, bytes]:
        """Return the attributes of the inodes that name this set. Raises ImageError."""
        start, sets, _ = TABLE.unpack(self.source.read_at(self.table, TABLE.size))
        if index >= sets:
            raise ImageError(f"set {index} of {sets} sets of attributes", where=self.source.name)
        block, slot = divmod(index, BLOCK_BYTES // SET.size)
        at = self.table + TABLE.size + block * POINTER.size
        (position,) = POINTER.unpack(self.source.read_at(at, POINTER.size))
        reference, count, _ = self.metadata.cursor(position, slot * SET.size).unpack(SET)
        if count > _MAX_ATTRIBUTES:
            raise ImageError(f"an inode with {count} extended attributes", where=self.source.name)
        cursor = self._at(start, reference)
        found: dict[bytes, bytes] = {}
        for _ in range(count):
            number, size = cursor.unpack(NAME)
            name = cursor.read(size)
            value = self._value(cursor)
            if number & _ELSEWHERE:
                (reference,) = POINTER.unpack(value.ljust(POINTER.size, b"\0")[: POINTER.size])
                value = self._value(self._at(start, reference))
            if (prefix := PREFIXES.get(number & 0xFF)) is not None:  # the kernel shows no others either
                found[prefix + name] = value
        return found

    def _at(self, start: int, reference: int) -> Cursor:
        return self.metadata.cursor(start + (reference >> 16), reference & 0xFFFF)

    def _value(self, cursor: Cursor) -> bytes:
        (size,) = cursor.unpack(VALUE)
        if size > _MAX_VALUE_BYTES:
            raise ImageError(f"an extended attribute of {size} bytes", where=self.source.name)
        return cursor.read(size)
