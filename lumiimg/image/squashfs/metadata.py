"""Metadata blocks: found by offset, unpacked once, kept in a bounded cache, read as one run across their borders."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from lumiimg.image.lru import LruCache
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.image.byte_source import ByteSource

BLOCK_BYTES = 8192
HEADER = struct.Struct("<H")
STORED = 0x8000
_CACHED_BLOCKS = 1024
_MAX_RUN_BYTES = 64 << 20


class Metadata:
    """All metadata blocks of one file system."""

    def __init__(self, source: ByteSource, limit: int, decompress: Callable[[bytes, int], bytes]) -> None:
        self._source = source
        self._limit = limit
        self._decompress = decompress
        self._blocks: LruCache[int, tuple[bytes, int]] = LruCache(_CACHED_BLOCKS)

    def block(self, position: int) -> tuple[bytes, int]:
        """Return (content, position of the next block)."""
        known = self._blocks.get(position)
        if known is not None:
            return known
        if not 0 <= position <= self._limit - HEADER.size:
            raise ImageError(
                f"a squashfs metadata block at {position}, outside the file system", where=self._source.name
            )
        (header,) = HEADER.unpack(self._source.read_at(position, HEADER.size))
        size = header & ~STORED
        if not 0 < size <= BLOCK_BYTES:
            raise ImageError(f"a squashfs metadata block of {size} bytes at {position}", where=self._source.name)
        data = self._source.read_at(position + HEADER.size, size)
        content = data if header & STORED else self._decompress(data, BLOCK_BYTES)
        if not content:
            raise ImageError(f"an empty squashfs metadata block at {position}", where=self._source.name)
        block = (content, position + HEADER.size + size)
        self._blocks.put(position, block)
        return block

    def cursor(self, position: int, offset: int) -> Cursor:
        """Start to read at an offset inside the block at a position."""
        return Cursor(self, position, offset)


class Cursor:
    """A place in a run of metadata blocks that moves as it is read."""

    def __init__(self, metadata: Metadata, position: int, offset: int) -> None:
        self._metadata = metadata
        self._offset = offset
        self._position = position
        self._content, self._next = metadata.block(position)
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
        if size > _MAX_RUN_BYTES:
            raise ImageError(f"a squashfs record of {size} bytes")
        parts: list[bytes] = []
        while size:
            if self._offset == len(self._content):
                self._position = self._next
                self._content, self._next = self._metadata.block(self._position)
                self._offset = 0
            part = self._content[self._offset : self._offset + size]
            parts.append(part)
            self._offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def unpack(self, record: struct.Struct) -> tuple[int, ...]:
        return record.unpack(self.read(record.size))
