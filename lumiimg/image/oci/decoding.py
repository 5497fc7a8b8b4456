"""A compressed layer unpacked from the front, or from a place inside that was noted on the way.

gzip (RFC 1952) is one member or several, and the state of its decoder can be copied at any place. zstd (RFC 8878) is
one frame or several, and can be entered where a frame starts. What follows the last of them is padding.
"""

from __future__ import annotations

import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

from lumiimg.image.tree import ImageError

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


class Decoder:
    """A place in a layer that moves as it is read; one of this very class is in a layer that is not compressed."""

    held_bytes = 0
    """What it keeps in memory, about."""

    def __init__(self, source: BlobSource, start: int = 0) -> None:
        self._source = source
        self._next = start

    def mark(self, _: BlobSource) -> Place | None:
        """Return what makes decoders at this place that read from a source; None where there is no way to enter."""
        return None

    def read(self, size: int) -> bytes:
        """Return the next bytes, `size` at the most; none only at the end. Raises ImageError."""
        data = self._source.read_at(self._next, min(size, self._source.size - self._next))
        self._next += len(data)
        return data


Place: TypeAlias = "Callable[[], Decoder]"


def decoder_of(source: BlobSource) -> type[Decoder]:
    """Return what reads a blob, by its first four bytes. Raises ImageError."""
    head = source.read_at(0, min(4, source.size))
    if head.startswith(_GZIP_MAGIC):
        return GzipDecoder
    return ZstdDecoder if _is_zstd(head) else Decoder


class _Unpacker(Decoder):
    """Unpacks one stream after the other, as long as another one begins where one ends."""

    name: str

    def __init__(self, source: BlobSource, start: int, new_state: Callable[[], Any], *errors: type[Exception]) -> None:
        """`start` is where a stream begins."""
        super().__init__(source, start)
        self._input = _Input(source, start)
        self._new_state = new_state
        self._errors = errors
        self._state = new_state()
        self._inside = False

    def read(self, size: int) -> bytes:
        while self._inside or self._begins(self._input.peek()):
            data = self._wanted()
            try:
                content: bytes = self._state.decompress(data or b"", size)
            except self._errors as error:
                raise ImageError(f"damaged {self.name}: {error}", where=self._source.name) from error
            self._inside = not self._state.eof
            if self._state.eof:
                self._input.back(len(self._state.unused_data))
                self._state = self._new_state()
            elif data is None and not content:
                raise ImageError(f"cut off inside its {self.name} stream", where=self._source.name)
            if content:
                return content
        return b""

    @abstractmethod
    def _begins(self, head: bytes) -> bool:
        """Whether a stream begins with these four bytes."""

    @abstractmethod
    def _wanted(self) -> bytes | None:
        """Return what the state takes next, nothing where it has more to give first; None at the end."""


class GzipDecoder(_Unpacker):
    """Unpacks gzip."""

    name = "gzip"
    held_bytes = _READ_BYTES + (64 << 10)

    def __init__(self, source: BlobSource, start: int = 0) -> None:
        super().__init__(source, start, partial(zlib.decompressobj, _GZIP_WINDOW), zlib.error)

    def mark(self, source: BlobSource) -> Place:
        """Return what makes decoders at this place. It holds some 40 KiB of state and a piece of input."""
        state, inside, position = self._state.copy(), self._inside, self._input.position

        def enter() -> GzipDecoder:
            entered = GzipDecoder(source, position)
            entered._state, entered._inside = state.copy(), inside
            return entered

        return enter

    def _begins(self, head: bytes) -> bool:
        return head.startswith(_GZIP_MAGIC)

    def _wanted(self) -> bytes | None:
        return self._state.unconsumed_tail or self._input.piece() or None


class ZstdDecoder(_Unpacker):
    """Unpacks zstd."""

    name = "zstd"

    def __init__(self, source: BlobSource, start: int = 0) -> None:
        new_state, error = _zstd()
        super().__init__(source, start, new_state, error, EOFError, MemoryError)

    def mark(self, source: BlobSource) -> Place | None:
        """Return what makes decoders at this place: only where a frame starts."""
        return None if self._inside else partial(ZstdDecoder, source, self._input.position)

    def _begins(self, head: bytes) -> bool:
        return _is_zstd(head)

    def _wanted(self) -> bytes | None:
        if not self._state.needs_input:
            return b""
        data = self._input.piece()
        if not self._inside:
            self.held_bytes = _READ_BYTES + _zstd_window(data)
        return data or None


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
    return partial(zstd.ZstdDecompressor, options=options), zstd.ZstdError
