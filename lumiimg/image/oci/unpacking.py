"""Any part of a compressed layer, without unpacking all of it again.

While a layer is read from its front for the first time, places are noted where a decoder can enter it. The further
the layer goes on, the fewer are kept: twice as far apart each time that there are too many.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.image.lru import LruCache
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.byte_source import ByteSource
    from lumiimg.image.oci.decoding import Decoder, Place

_CHUNK_BYTES = 256 << 10
_CACHED_BYTES = 32 << 20
_FIRST_SPACING_BYTES = 1 << 20
# some 50 KiB each: about 25 MiB for an image
_MAX_PLACES = 512
_MIN_PLACES = 4
# what a layer of zeros may unpack to, whatever its size; beyond, a ratio that no real software has
_FREE_BYTES = 4 << 30
_MAX_RATIO = 200
# of decoders where they stopped: many, because zstd can often be entered nowhere else
_MAX_CURSORS_BYTES = 48 << 20


@dataclass(slots=True)
class _Cursor:
    """A decoder, and the offset of what it will give next."""

    layer: int
    decoder: Decoder
    position: int


class Workspace:
    """What the layers of one image share: chunks unpacked last, decoders where they stopped, one bound."""

    def __init__(self, layers: int, stored_bytes: int) -> None:
        self.max_places = max(_MIN_PLACES, _MAX_PLACES // max(1, layers))
        self._left = _FREE_BYTES + _MAX_RATIO * stored_bytes
        self._chunks: LruCache[tuple[int, int], bytes] = LruCache(_CACHED_BYTES)
        self._cursors: list[_Cursor] = []

    def count(self, size: int, where: str) -> None:
        """Count bytes that were unpacked. Raises ImageError where all layers together come to too many."""
        self.refuse_more(size, where)
        self._left -= size

    def refuse_more(self, size: int, where: str) -> None:
        """Raise ImageError where that number of bytes is too large, before they are unpacked."""
        if size > self._left:
            raise ImageError(f"layers that unpack to more than {_MAX_RATIO} times their size", where=where)

    def chunk(self, layer: Unpacked, index: int) -> bytes:
        """Return a chunk; all that is unpacked on the way to it is remembered too. Raises ImageError."""
        known = self._chunks.get((layer.number, index))
        if known is not None:
            return known
        cursor = self._cursor(layer, index * _CHUNK_BYTES)
        try:
            rest = -cursor.position % _CHUNK_BYTES
            cursor.position += len(read_fully(cursor.decoder, rest))
            while True:
                number = cursor.position // _CHUNK_BYTES
                chunk = read_fully(cursor.decoder, _CHUNK_BYTES)
                cursor.position += len(chunk)
                self._chunks.put((layer.number, number), chunk, weight=len(chunk))
                if number == index or len(chunk) < _CHUNK_BYTES:
                    break
        except BaseException:
            self._cursors.remove(cursor)
            raise
        if number != index:
            raise ImageError("a layer became shorter while it was read")
        return chunk

    def _cursor(self, layer: Unpacked, offset: int) -> _Cursor:
        """Return the decoder that has the least way to an offset, the one used last at the end of the list."""
        start, place = layer.place_before(offset)
        best: _Cursor | None = None
        for cursor in self._cursors:
            if cursor.layer == layer.number and max(start, best.position if best else 0) <= cursor.position <= offset:
                best = cursor
        if best is None:
            best = _Cursor(layer.number, place(), start)
            while sum(cursor.decoder.held_bytes for cursor in self._cursors) > _MAX_CURSORS_BYTES:
                del self._cursors[0]
        else:
            self._cursors.remove(best)
        self._cursors.append(best)
        return best


@dataclass(slots=True)
class Unpacked:
    """The content of one compressed layer."""

    source: ByteSource
    """The blob."""
    number: int
    """Of the layer."""
    workspace: Workspace
    _starts: list[int] = field(default_factory=list)
    _places: list[Place] = field(default_factory=list)
    _spacing: int = _FIRST_SPACING_BYTES

    def offer(self, position: int, decoder: Decoder) -> None:
        """Note where a decoder stands, if that is far enough from the last place and can be entered."""
        if self._starts and position - self._starts[-1] < self._spacing:
            return
        place = decoder.mark(self.source)
        if place is None:
            return
        self._starts.append(position)
        self._places.append(place)
        if len(self._starts) > self.workspace.max_places:
            self._starts, self._places = self._starts[::2], self._places[::2]
            self._spacing *= 2

    def place_before(self, offset: int) -> tuple[int, Place]:
        """Return the last place at or before an offset, and its own offset."""
        index = bisect.bisect_right(self._starts, offset) - 1
        return self._starts[index], self._places[index]

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`. Raises ImageError."""
        first, skip = divmod(offset, _CHUNK_BYTES)
        last = (offset + size - 1) // _CHUNK_BYTES
        parts = [self.workspace.chunk(self, index) for index in range(first, last + 1)]
        return b"".join(parts)[skip : skip + size] if len(parts) != 1 else parts[0][skip : skip + size]


def read_fully(decoder: Decoder, size: int) -> bytes:
    """Return exactly `size` bytes, fewer only at the end. Raises ImageError."""
    parts: list[bytes] = []
    while size:
        part = decoder.read(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
