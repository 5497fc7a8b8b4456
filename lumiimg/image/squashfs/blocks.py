"""The blocks of a squashfs file system, unpacked once as far as memory is bounded: of data, and of metadata."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from lumiimg.image.squashfs.compression import Decompressor
from lumiimg.image.squashfs.format import (
    BLOCK_STORED,
    METADATA_BYTES,
    METADATA_HEADER,
    METADATA_STORED,
    POINTER,
    Compressor,
    Superblock,
)
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    import struct

    from lumiimg.image.byte_source import ByteSource

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_CACHED_BYTES = 24 << 20
_MAX_RECORD_BYTES = 64 << 20
_PACKED_BYTES = 1024
"""More than what is packed can be longer than it was."""


class LruCache(Generic[Key, Value]):
    """Keeps values up to a total weight; what was not used for longest goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """Return a value that is still here."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: Key, value: Value, weight: int = 1) -> None:
        """Remember a value; one that alone is too heavy is remembered until the next."""
        while self._items and self._weight + weight > self._limit:
            _, (_, gone) = self._items.popitem(last=False)
            self._weight -= gone
        self._items[key] = (value, weight)
        self._weight += weight


class Blocks:
    """All blocks of one file system, by their positions."""

    def __init__(self, source: ByteSource, superblock: Superblock) -> None:
        self._source = source
        self._limit = superblock.size_bytes
        self._block_bytes = superblock.block_bytes
        self._decompressor = Decompressor(Compressor(superblock.compression))
        self._cache: LruCache[int, tuple[bytes, int]] = LruCache(_CACHED_BYTES)
        """The content, and where the next block of metadata is."""

    def data(self, position: int, size_word: int) -> bytes:
        """Return the content of a data block; a hole, of which the size word is 0, has no block."""
        known = self._cache.get(position)
        if known is not None:
            return known[0]
        size = size_word & ~BLOCK_STORED
        if not 0 < size <= self._block_bytes:
            raise ImageError(f"a squashfs data block of {size} bytes", where=self._source.name)
        stored = self._source.read_exactly(position, size)
        content = stored if size_word & BLOCK_STORED else self._decompressor.whole(stored, self._block_bytes)
        self._cache.put(position, (content, 0), weight=len(content) + 64)
        return content

    def beginning(self, position: int, size_word: int, size: int) -> bytes:
        """Return the first bytes of a data block, without the rest of it where its compression allows for that."""
        is_packed = 0 < size_word <= self._block_bytes
        if is_packed and self._decompressor.has_beginning and self._cache.get(position) is None:
            # of what is packed so little, no more is needed for it
            stored = self._source.read_at(position, min(size_word, _PACKED_BYTES + size))
            found = self._decompressor.beginning(stored, size)
            if len(found) == size:
                return found
        return self.data(position, size_word)[:size]

    def metadata(self, position: int) -> tuple[bytes, int]:
        """Return (content, position of the next block)."""
        known = self._cache.get(position)
        if known is not None:
            return known
        if not 0 <= position <= self._limit - METADATA_HEADER.size:
            what = f"a squashfs metadata block at {position}, outside the file system"
            raise ImageError(what, where=self._source.name)
        start = position + METADATA_HEADER.size
        (header,) = METADATA_HEADER.unpack(self._source.read_exactly(position, METADATA_HEADER.size))
        size = header & ~METADATA_STORED
        if not 0 < size <= METADATA_BYTES:
            raise ImageError(f"a squashfs metadata block of {size} bytes at {position}", where=self._source.name)
        stored = self._source.read_exactly(start, size)
        content = stored if header & METADATA_STORED else self._decompressor.whole(stored, METADATA_BYTES)
        if not content:
            raise ImageError(f"an empty squashfs metadata block at {position}", where=self._source.name)
        self._cache.put(position, (content, start + size), weight=len(content) + 64)
        return content, start + size

    def cursor(self, table: int, reference: int) -> Cursor:
        """Start to read where a reference leads to in a table."""
        return Cursor(self, table + (reference >> 16), reference & 0xFFFF)

    def entry(self, pointers: int, index: int, record: struct.Struct) -> tuple[int, ...]:
        """Return an entry of a table, of which the list of its metadata blocks is at `pointers`."""
        block, slot = divmod(index, METADATA_BYTES // record.size)
        (position,) = POINTER.unpack(self._source.read_exactly(pointers + block * POINTER.size, POINTER.size))
        return Cursor(self, position, slot * record.size).unpack(record)


class Cursor:
    """A place in a run of metadata blocks that moves as it is read."""

    def __init__(self, blocks: Blocks, position: int, offset: int) -> None:
        self._blocks = blocks
        self._offset = offset
        self._position = position
        self._content, self._next = blocks.metadata(position)
        if offset > len(self._content):
            raise ImageError(f"offset {offset} in a squashfs metadata block of {len(self._content)} bytes")

    @property
    def place(self) -> tuple[int, int]:
        """Where a new cursor would go on: position of a block, and offset in it."""
        return self._position, self._offset

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        end = self._offset + size
        if end <= len(self._content):
            data = self._content[self._offset : end]
            self._offset = end
            return data
        if size > _MAX_RECORD_BYTES:
            raise ImageError(f"a squashfs record of {size} bytes")
        parts: list[bytes] = []
        while size:
            if self._offset == len(self._content):
                self._position = self._next
                self._content, self._next = self._blocks.metadata(self._position)
                self._offset = 0
            part = self._content[self._offset : self._offset + size]
            parts.append(part)
            self._offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def unpack(self, record: struct.Struct) -> tuple[int, ...]:
        return record.unpack(self.read(record.size))
