"""The content of a compressed layer, from its front to its end.

gzip (RFC 1952) is one member or several, zstd (RFC 8878) one frame or several. What follows the last of them is
padding.
"""

from __future__ import annotations

import sys
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONTENT_BYTES = 1 << 20
# small, because a decoder copies what it did not use of a piece, once for each stream that ends in it
_PIECE_BYTES = 32 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Behind one byte of 0x50 to 0x5f."""
# what the reference decoder allows where nobody says more: a window of 128 MiB
_ZSTD_WINDOW_LOG = 27


class BlobReader(Protocol):
    """A blob."""

    name: str
    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes. Raises ImageError."""


def is_compressed(source: BlobReader) -> bool:
    """Whether a blob is gzip or zstd, by its first four bytes. Raises ImageError."""
    head = source.read_at(0, min(4, source.size))
    return _is_gzip(head) or _is_zstd(head)


def unpack(source: BlobReader) -> Iterator[bytes]:
    """Yield the content of a compressed blob, which is read once, from the front. Raises ImageError."""
    pieces = _pieces(source)
    data = next(pieces, b"")
    name, begins, new_state, errors = _gzip() if _is_gzip(data) else _zstd()
    while begins(data):
        state, given = new_state(), data
        while not state.eof:
            try:
                content = state.decompress(given, _CONTENT_BYTES)
            except errors as error:
                raise ImageError(f"damaged {name}: {error}", where=source.name) from error
            if content:
                yield content
            given = getattr(state, "unconsumed_tail", b"")  # zlib hands back what the others keep
            if not state.eof and not given and getattr(state, "needs_input", True):
                given = next(pieces, b"")
                if not given and not content:
                    raise ImageError(f"cut off inside its {name} stream", where=source.name)
        data = state.unused_data
        if len(data) < len(_ZSTD_MAGIC):
            data += next(pieces, b"")


def _pieces(source: BlobReader) -> Iterator[bytes]:
    for start in range(0, source.size, _PIECE_BYTES):
        yield source.read_at(start, min(_PIECE_BYTES, source.size - start))


def _is_gzip(head: bytes) -> bool:
    return head.startswith(_GZIP_MAGIC)


def _is_zstd(head: bytes) -> bool:
    return head.startswith(_ZSTD_MAGIC) or (head[1:4] == _ZSTD_SKIPPABLE and 0x50 <= head[0] <= 0x5F)


_Format = tuple[str, "Callable[[bytes], bool]", "Callable[[], Any]", tuple[type[Exception], ...]]
"""Its name, whether a stream begins with some bytes, what makes a decoder of one stream, what that raises."""


def _gzip() -> _Format:
    return "gzip", _is_gzip, partial(zlib.decompressobj, _GZIP_WINDOW), (zlib.error,)


def _zstd() -> _Format:
    # imported here: the import costs milliseconds, and few images need it
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options = {int(zstd.DecompressionParameter.window_log_max): _ZSTD_WINDOW_LOG}
    errors = (zstd.ZstdError, EOFError, MemoryError)
    return "zstd", _is_zstd, partial(zstd.ZstdDecompressor, options=options), errors
