"""Blocks out of their compression, never more than the format allows for them."""

from __future__ import annotations

import lzma
import sys
import zlib
from collections.abc import Callable
from functools import partial

from lumiimg.image.squashfs.format import Compressor
from lumiimg.image.tree import ImageError

# a 1 MiB block needs a dictionary of 1 MiB; the decoder refuses what asks for more
_LZMA_MEMORY_BYTES = 32 << 20
_Unpack = Callable[[bytes, int], bytes]
"""Of a stored block, as much as a limit allows."""


class Decompressor:
    """The way in which all blocks of one file system are unpacked."""

    def __init__(self, compression: Compressor) -> None:
        """Raise ImageError for a compression that is not read."""
        self._name = compression.name.lower()
        self._unpack, self._errors = _unpacker(compression)
        self.has_beginning = compression is not Compressor.LZ4
        """Whether the beginning of a block can be unpacked without the rest."""

    def whole(self, block: bytes, limit_bytes: int) -> bytes:
        """Return the content of a stored block. Raises ImageError."""
        content = self.beginning(block, limit_bytes + 1)
        if len(content) > limit_bytes:
            raise ImageError(f"a block that unpacks to more than the {limit_bytes} bytes it may have")
        return content

    def beginning(self, block: bytes, size_bytes: int) -> bytes:
        """Return the first bytes of the content of a stored block. Raises ImageError."""
        try:
            return self._unpack(block, size_bytes)
        except self._errors as error:
            raise ImageError(f"a damaged {self._name} block: {error}") from error


def _unpacker(compression: Compressor) -> tuple[_Unpack, tuple[type[Exception], ...]]:
    # what is imported here costs milliseconds, and most images are gzip
    match compression:
        case Compressor.GZIP:
            return (lambda block, limit: zlib.decompressobj().decompress(block, limit)), (zlib.error,)
        case Compressor.XZ | Compressor.LZMA:
            form = lzma.FORMAT_XZ if compression is Compressor.XZ else lzma.FORMAT_ALONE
            new = partial(lzma.LZMADecompressor, form, _LZMA_MEMORY_BYTES)
            return (lambda block, limit: new().decompress(block, limit)), (lzma.LZMAError, EOFError)
        case Compressor.ZSTD:
            if sys.version_info >= (3, 14):
                from compression import zstd
            else:
                from backports import zstd
            return (lambda block, limit: zstd.ZstdDecompressor().decompress(block, limit)), (zstd.ZstdError, EOFError)
        case Compressor.LZ4:
            from lz4 import block as lz4  # type: ignore[import-untyped]

            # bare blocks: no frame around them (kernel `fs/squashfs/lz4_wrapper.c`)
            of_lz4 = lz4.LZ4BlockError, ValueError
            return (lambda block, limit: lz4.decompress(block, uncompressed_size=limit)), of_lz4
        case Compressor.LZO:
            raise ImageError(
                "squashfs compressed with lzo is not supported", hint="pack the image again with gzip, xz, lz4 or zstd"
            )
