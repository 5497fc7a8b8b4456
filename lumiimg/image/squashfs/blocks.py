"""The data and metadata blocks of a squashfs file system, unpacked and cached within a memory limit."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import lumiimg.image.squashfs.format as disk
from lumiimg.core.access import zstd
from lumiimg.image.squashfs.format import Compressor
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    import struct

    from lumiimg.image.host_files import HostFile

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_CACHED_BYTES = 24 << 20
_MAX_RECORD_BYTES = 64 << 20
_PACKED_BYTES = 1024
"""Upper bound for how much longer packed data can be than its content."""
# a 1 MiB block needs a dictionary of 1 MiB; the decoder refuses a block that needs more
_LZMA_MEMORY_BYTES = 32 << 20
_Unpack = Callable[[bytes, int], bytes]
"""Function that unpacks a stored block up to a limit."""


class Cache(dict[Key, Value]):
    """A cache of values that is cleared when their total weight exceeds a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._weight = 0

    def keep(self, key: Key, value: Value, weight: int = 1) -> Value:
        """Store a value and return it."""
        self._weight += weight
        if self._weight > self._limit:
            self.clear()
            self._weight = weight
        self[key] = value
        return value


class Blocks:
    """All blocks of one file system, by position."""

    def __init__(self, source: HostFile, superblock: disk.Superblock) -> None:
        self._source = source
        self._limit = superblock.size_bytes
        self._block_bytes = superblock.block_bytes
        self._decompressor = Decompressor(Compressor(superblock.compression))
        self._cache: Cache[int, tuple[bytes, int]] = Cache(_CACHED_BYTES)
        """Content of each block, and the position of the next metadata block."""

    def data(self, position: int, size_word: int) -> bytes:
        """Return the content of a data block; a hole (size word 0) has no block."""
        known = self._cache.get(position)
        if known is not None:
            return known[0]
        size = size_word & ~disk.BLOCK_STORED
        if not 0 < size <= self._block_bytes:
            raise ImageError(f"a squashfs data block of {size} bytes", where=self._source.name)
        stored = self._source.read_exactly(position, size)
        content = stored if size_word & disk.BLOCK_STORED else self._decompressor.whole(stored, self._block_bytes)
        return self._cache.keep(position, (content, 0), weight=len(content) + 64)[0]

    def beginning(self, position: int, size_word: int, size: int) -> bytes:
        """Return the first bytes of a data block, without unpacking the rest if its compression allows that."""
        is_packed = 0 < size_word <= self._block_bytes
        if is_packed and self._decompressor.has_beginning and position not in self._cache:
            # data that does not compress grows by less than this, so these bytes contain the first `size`
            stored = self._source.read_exactly(position, min(size_word, _PACKED_BYTES + size))
            found = self._decompressor.beginning(stored, size)
            if len(found) == size:
                return found
        return self.data(position, size_word)[:size]

    def metadata(self, position: int) -> tuple[bytes, int]:
        """Return (content, position of the next block)."""
        known = self._cache.get(position)
        if known is not None:
            return known
        start = position + disk.METADATA_HEADER.size
        if not 0 <= position <= self._limit - disk.METADATA_HEADER.size:
            what = f"a squashfs metadata block at {position}, outside the file system"
            raise ImageError(what, where=self._source.name)
        (header,) = disk.METADATA_HEADER.unpack(self._source.read_exactly(position, disk.METADATA_HEADER.size))
        size = header & ~disk.METADATA_STORED
        if not 0 < size <= disk.METADATA_BYTES:
            raise ImageError(f"a squashfs metadata block of {size} bytes at {position}", where=self._source.name)
        stored = self._source.read_exactly(start, size)
        content = stored if header & disk.METADATA_STORED else self._decompressor.whole(stored, disk.METADATA_BYTES)
        if not content:
            raise ImageError(f"an empty squashfs metadata block at {position}", where=self._source.name)
        return self._cache.keep(position, (content, start + size), weight=len(content) + 64)

    def cursor(self, table: int, reference: int) -> Cursor:
        """Return a cursor at a reference into a table."""
        return Cursor(self, table + (reference >> 16), reference & 0xFFFF)

    def entry(self, pointers: int, index: int, record: struct.Struct) -> tuple[int, ...]:
        """Return an entry of a table whose list of metadata blocks is at `pointers`."""
        block, slot = divmod(index, disk.METADATA_BYTES // record.size)
        pointer = self._source.read_exactly(pointers + block * disk.POINTER.size, disk.POINTER.size)
        (position,) = disk.POINTER.unpack(pointer)
        return Cursor(self, position, slot * record.size).unpack(record)


class Cursor:
    """A position in a run of metadata blocks that advances with each read."""

    def __init__(self, blocks: Blocks, position: int, offset: int) -> None:
        self._blocks = blocks
        self._offset = offset
        self._position = position
        self._content, self._next = blocks.metadata(position)
        if offset > len(self._content):
            raise ImageError(f"offset {offset} in a squashfs metadata block of {len(self._content)} bytes")

    @property
    def place(self) -> tuple[int, int]:
        """Current position of a block, and offset in it, from which a new cursor can continue."""
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


class Decompressor:
    """The decompressor for all blocks of one file system."""

    def __init__(self, compression: Compressor) -> None:
        """Prepare to unpack blocks. Raises ImageError for an unsupported compression."""
        self._name = compression.name.lower()
        self._unpack, self._errors = _unpacker(compression)
        self.has_beginning = compression is not Compressor.LZ4
        """Whether the beginning of a block can be unpacked without the rest."""

    def whole(self, block: bytes, limit_bytes: int) -> bytes:
        """Return the content of a stored block. Raises ImageError."""
        content = self.beginning(block, limit_bytes + 1)
        if len(content) > limit_bytes:
            raise ImageError(f"a block unpacks to more than the {limit_bytes} bytes allowed")
        return content

    def beginning(self, block: bytes, size_bytes: int) -> bytes:
        """Return the first bytes of the content of a stored block. Raises ImageError."""
        try:
            return self._unpack(block, size_bytes)
        except self._errors as error:
            raise ImageError(f"a damaged {self._name} block: {error}") from error


def _unpacker(compression: Compressor) -> tuple[_Unpack, tuple[type[Exception], ...]]:
    # imported only where needed: it takes milliseconds, and most images use gzip
    match compression:
        case Compressor.GZIP:
            return (lambda block, limit: zlib.decompressobj().decompress(block, limit)), (zlib.error,)
        case Compressor.XZ | Compressor.LZMA:
            form = lzma.FORMAT_XZ if compression is Compressor.XZ else lzma.FORMAT_ALONE
            new = partial(lzma.LZMADecompressor, form, _LZMA_MEMORY_BYTES)
            return (lambda block, limit: new().decompress(block, limit)), (lzma.LZMAError, EOFError)
        case Compressor.ZSTD:
            new = zstd().ZstdDecompressor
            return (lambda block, limit: new().decompress(block, limit)), (zstd().ZstdError, EOFError)
        case Compressor.LZ4:
            from lz4 import block as lz4  # type: ignore[import-untyped]

            # raw blocks without a frame (kernel `fs/squashfs/lz4_wrapper.c`)
            of_lz4 = lz4.LZ4BlockError, ValueError
            return (lambda block, limit: lz4.decompress(block, uncompressed_size=limit)), of_lz4
        case Compressor.LZO:
            raise ImageError(
                "squashfs compressed with lzo is not supported", hint="pack the image again with gzip, xz, lz4 or zstd"
            )
