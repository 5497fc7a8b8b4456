"""Blocks out of their compression, never more than the format allows for them."""

from __future__ import annotations

import lzma
import sys
import zlib
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lumiimg.image.squashfs.superblock import Compressor
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable

# a 1 MiB block needs a dictionary of 1 MiB; the decoder refuses what asks for more
_LZMA_MEMORY_BYTES = 32 << 20


class _Decoder(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def decompressor(compression: Compressor) -> Callable[[bytes, int], bytes]:
    """Return a function of (stored block, limit in bytes) that gives the content. Raises ImageError, and so does it."""
    new_decoder, errors = _decoder(compression)

    def decompress(block: bytes, limit_bytes: int) -> bytes:
        try:
            content = new_decoder().decompress(block, limit_bytes + 1)
        except errors as error:
            raise ImageError(f"a damaged {compression.name.lower()} block: {error}") from error
        if len(content) > limit_bytes:
            raise ImageError(f"a block that unpacks to more than the {limit_bytes} bytes it may have")
        return content

    return decompress


def _decoder(compression: Compressor) -> tuple[Callable[[], _Decoder], tuple[type[Exception], ...]]:
    match compression:
        case Compressor.GZIP:
            return zlib.decompressobj, (zlib.error,)
        case Compressor.XZ | Compressor.LZMA:
            form = lzma.FORMAT_XZ if compression is Compressor.XZ else lzma.FORMAT_ALONE
            return partial(lzma.LZMADecompressor, form, _LZMA_MEMORY_BYTES), (lzma.LZMAError, EOFError)
        case Compressor.ZSTD:
            return _zstd()
        case Compressor.LZ4:
            return _lz4()
        case Compressor.LZO:
            raise ImageError(
                "squashfs compressed with lzo is not supported", hint="pack the image again with gzip, xz, lz4 or zstd"
            )


def _lz4() -> tuple[Callable[[], _Decoder], tuple[type[Exception], ...]]:
    """Return the decoder of bare blocks: no frame around them (kernel `fs/squashfs/lz4_wrapper.c`)."""
    from lz4 import block  # type: ignore[import-untyped]

    class Decoder:
        def decompress(self, data: bytes, max_length: int) -> bytes:
            content: bytes = block.decompress(data, uncompressed_size=max_length)
            return content

    return Decoder, (block.LZ4BlockError, ValueError)


def _zstd() -> tuple[Callable[[], _Decoder], tuple[type[Exception], ...]]:
    # imported here: most images are gzip, and the import costs milliseconds
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor, (zstd.ZstdError, EOFError)
