"""Blocks out of their compression, never more than the format allows for them."""

from __future__ import annotations

import lzma
import sys
import zlib
from collections.abc import Callable
from functools import partial

from lumiimg.image.squashfs.superblock import Compressor
from lumiimg.image.tree import ImageError

# a 1 MiB block needs a dictionary of 1 MiB; the decoder refuses what asks for more
_LZMA_MEMORY_BYTES = 32 << 20


_Unpack = Callable[[bytes, int], bytes]
"""Of a stored block, as much as a limit allows."""


def decompressor(compression: Compressor) -> _Unpack:
    """Return a function of (stored block, limit in bytes) that gives the content. Raises ImageError, and so does it."""
    unpack, errors = _unpack(compression)

    def decompress(block: bytes, limit_bytes: int) -> bytes:
        try:
            content = unpack(block, limit_bytes + 1)
        except errors as error:
            raise ImageError(f"a damaged {compression.name.lower()} block: {error}") from error
        if len(content) > limit_bytes:
            raise ImageError(f"a block that unpacks to more than the {limit_bytes} bytes it may have")
        return content

    return decompress


def head_reader(compression: Compressor) -> _Unpack | None:
    """Return a function of (stored block, bytes) that gives the beginning of the content, or None: lz4 has none.

    Raises ImageError, and so does it.
    """
    if compression is Compressor.LZ4:
        return None
    unpack, errors = _unpack(compression)

    def beginning(block: bytes, size_bytes: int) -> bytes:
        try:
            return unpack(block, size_bytes)[:size_bytes]
        except errors as error:
            raise ImageError(f"a damaged {compression.name.lower()} block: {error}") from error

    return beginning


def _unpack(compression: Compressor) -> tuple[_Unpack, tuple[type[Exception], ...]]:
    # what is imported here costs milliseconds, and most images are gzip
    match compression:
        case Compressor.GZIP:
            return (lambda block, limit: zlib.decompressobj().decompress(block, limit)), (zlib.error,)
        case Compressor.XZ | Compressor.LZMA:
            form = lzma.FORMAT_XZ if compression is Compressor.XZ else lzma.FORMAT_ALONE
            new_decoder = partial(lzma.LZMADecompressor, form, _LZMA_MEMORY_BYTES)
            return (lambda block, limit: new_decoder().decompress(block, limit)), (lzma.LZMAError, EOFError)
        case Compressor.ZSTD:
            if sys.version_info >= (3, 14):
                from compression import zstd
            else:
                from backports import zstd
            return (lambda block, limit: zstd.ZstdDecompressor().decompress(block, limit)), (zstd.ZstdError, EOFError)
        case Compressor.LZ4:
            from lz4 import block as lz4  # type: ignore[import-untyped]

            # bare blocks: no frame around them (kernel `fs/squashfs/lz4_wrapper.c`)
            return (lambda block, limit: lz4.decompress(block, uncompressed_size=limit)), (
                lz4.LZ4BlockError,
                ValueError,
            )
        case Compressor.LZO:
            raise ImageError(
                "squashfs compressed with lzo is not supported", hint="pack the image again with gzip, xz, lz4 or zstd"
            )
