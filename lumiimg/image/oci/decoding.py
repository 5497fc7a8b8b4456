"""A compressed layer unpacked from the front, or from a place inside that was noted on the way.

gzip (RFC 1952) is one member or several, and the state of its decoder can be copied at any place. zstd (RFC 8878) is
one frame or several, and can be entered where a frame starts. What follows the last of them is padding.
"""

from __future__ import annotations

import sys
import zlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 256 << 10
# small, because a copied gzip state holds on to the piece that it was given last
_PIECE_BYTES = 16 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Behind one byte of 0x50 to 0x5f."""
# what the reference decoder allows where nobody says more: a window of 128 MiB
_ZSTD_WINDOW_LOG = 27
_ZSTD_USUAL_WINDOW = 8 << 20


class BlobSource(Protocol):
    """A blob."""

    name: str
    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes. Raises ImageError."""
        ...


class Decoder(Protocol):
    """A place in a layer that moves as it is read."""

    @property
    def held_bytes(self) -> int:
        """What it keeps in memory, about."""
        ...

    def mark(self, source: BlobSource) -> Place | None:
        """Return what makes decoders at this place that read from `source`; None where there is no way to enter."""
        ...

    def read(self, size: int) -> bytes:
        """Return the next bytes, `size` at the most; none only at the end. Raises ImageError."""
        ...


Place: TypeAlias = "Callable[[], Decoder]"


class LayerCompression(StrEnum):
    """Of a layer."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


def compression_of(source: BlobSource) -> LayerCompression:
    """Tell the compression by the first four bytes. Raises ImageError."""
    head = source.read_at(0, min(4, source.size))
    if head.startswith(_GZIP_MAGIC):
        return LayerCompression.GZIP
    if _is_zstd(head):
        return LayerCompression.ZSTD
    return LayerCompression.NONE


def decoder(source: BlobSource, compression: LayerCompression) -> Decoder:
    """Return a decoder at the front of a layer."""
    match compression:
        case LayerCompression.GZIP:
            return GzipDecoder(source)
        case LayerCompression.ZSTD:
            return ZstdDecoder(source)
        case LayerCompression.NONE:
            return PlainDecoder(source)


class PlainDecoder:
    """Reads what is not compressed."""

    held_bytes = 0

    def __init__(self, source: BlobSource) -> None:
        self._source = source
        self._next = 0

    def mark(self, source: BlobSource) -> None:
        """Return None: such a layer needs no places to start from."""

    def read(self, size: int) -> bytes:
        """Return the next bytes, `size` at the most; none only at the end. Raises ImageError."""
        data = self._source.read_at(self._next, min(size, self._source.size - self._next))
        self._next += len(data)
        return data


class GzipDecoder:
    """Unpacks gzip."""

    held_bytes = _READ_BYTES + (64 << 10)

    def __init__(self, source: BlobSource, start: int = 0) -> None:
        """`start` is where a gzip member begins."""
        self._source = source
        self._input = _Input(source, start)
        self._state = zlib.decompressobj(_GZIP_WINDOW)
        self._inside = False

    def mark(self, source: BlobSource) -> Place:
        """Return what makes decoders at this place. It holds some 40 KiB of state and a piece of input."""
        state, inside, position = self._state.copy(), self._inside, self._input.position

        def enter() -> GzipDecoder:
            entered = GzipDecoder(source, position)
            entered._state, entered._inside = state.copy(), inside
            return entered

        return enter

    def read(self, size: int) -> bytes:
        """Return the next bytes, `size` at the most; none only at the end. Raises ImageError."""
        while self._inside or self._input.peek().startswith(_GZIP_MAGIC):
            data = self._state.unconsumed_tail or self._input.piece()
            try:
                content = self._state.decompress(data, size)
            except zlib.error as error:
                raise ImageError(f"damaged gzip: {error}", where=self._source.name) from error
            self._inside = not self._state.eof
            if self._state.eof:
                self._input.back(len(self._state.unused_data))
                self._state = zlib.decompressobj(_GZIP_WINDOW)
            elif not data and not content:
                raise ImageError("cut off inside its gzip stream", where=self._source.name)
            if content:
                return content
        return b""


class ZstdDecoder:
    """Unpacks zstd."""

    def __init__(self, source: BlobSource, start: int = 0) -> None:
        """`start` is where a frame begins."""
        self._source = source
        self._input = _Input(source, start)
        self._new_state, self._error = _zstd()
        self._state = self._new_state()
        self._inside = False
        self._window = 0

    @property
    def held_bytes(self) -> int:
        """What it keeps in memory, about."""
        return _READ_BYTES + self._window

    def mark(self, source: BlobSource) -> Place | None:
        """Return what makes decoders at this place: only where a frame starts."""
        if self._inside:
            return None
        position = self._input.position
        return lambda: ZstdDecoder(source, position)

    def read(self, size: int) -> bytes:
        """Return the next bytes, `size` at the most; none only at the end. Raises ImageError."""
        while self._inside or _is_zstd(self._input.peek()):
            data = self._input.piece() if self._state.needs_input else b""
            if not self._inside:
                self._window = _zstd_window(data)
            if self._state.needs_input and not data:
                raise ImageError("cut off inside its zstd stream", where=self._source.name)
            try:
                content: bytes = self._state.decompress(data, size)
            except (self._error, EOFError, MemoryError) as error:
                raise ImageError(f"damaged zstd: {error}", where=self._source.name) from error
            self._inside = not self._state.eof
            if self._state.eof:
                self._input.back(len(self._state.unused_data))
                self._state = self._new_state()
            if content:
                return content
        return b""


class _Input:
    """Compressed bytes from the front, read once, handed out in pieces: a decoder keeps what it did not use of one."""

    def __init__(self, source: BlobSource, start: int) -> None:
        self.position = start
        self._source = source
        self._data = b""
        self._data_start = start

    def piece(self) -> bytes:
        """Return the next bytes; none only at the end."""
        self._fill(1)
        at = self.position - self._data_start
        piece = self._data[at : at + _PIECE_BYTES]
        self.position += len(piece)
        return piece

    def back(self, size: int) -> None:
        """Give back the end of the last piece."""
        self.position -= size

    def peek(self) -> bytes:
        """Return the next four bytes, fewer at the end."""
        self._fill(4)
        at = self.position - self._data_start
        return self._data[at : at + 4]

    def _fill(self, wanted: int) -> None:
        left = self._data_start + len(self._data) - self.position
        end = self._data_start + len(self._data)
        if left >= wanted or end >= self._source.size:
            return
        kept = self._data[len(self._data) - left :] if left else b""
        self._data = kept + self._source.read_at(end, min(_READ_BYTES, self._source.size - end))
        self._data_start = self.position


def _zstd_window(frame: bytes) -> int:
    """Return the bytes of window that a frame asks for (RFC 8878, 3.1.1.1): up to 8 MiB is usual."""
    single_segment = len(frame) < 6 or frame[4] & 0x20
    if single_segment or not frame.startswith(_ZSTD_MAGIC):
        return _ZSTD_USUAL_WINDOW
    base = 1 << (10 + (frame[5] >> 3))
    return base + (base >> 3) * (frame[5] & 7)


def _is_zstd(head: bytes) -> bool:
    return head.startswith(_ZSTD_MAGIC) or (head[1:4] == _ZSTD_SKIPPABLE and 0x50 <= head[0] <= 0x5F)


def _zstd() -> tuple[Callable[[], Any], type[Exception]]:
    # imported here: the import costs milliseconds, and few images need it
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options = {int(zstd.DecompressionParameter.window_log_max): _ZSTD_WINDOW_LOG}
    return (lambda: zstd.ZstdDecompressor(options=options)), zstd.ZstdError
