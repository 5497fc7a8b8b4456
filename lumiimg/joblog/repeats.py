"""Lines that each process prints for each of its channels: of those that differ in their numbers alone, one is read.

A job of 4,096 ranks prints millions of them. What they show is in their beginning and their end: who wrote them, and
how the channel goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lumiimg.joblog.events import Sighting, position

_NUMBERS = re.compile(rb"Channel \d{1,4}/?\d{0,4} ?: \d{1,7}\[\w{1,10}\] -> \d{1,7}\[\w{1,10}\]")
_WAY = b" via "
_SHARE = 8
"""Where every eighth line or more may be of a channel, looking for such lines costs less than reading them."""
_KEPT = 32_768


class Repeats:
    """What such lines have shown, by what is left of them without their numbers."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[Sighting, ...]] = {}
        self._last: dict[bytes, int] = {}
        """The last line of each, since they were last told."""
        self.quotes = False
        """Whether any line that it looked at began as one that is quoted does."""

    def abound(self, block: bytes, lines: int) -> bool:
        """Whether enough of the lines may be of channels to be worth a look."""
        return block.count(_WAY) * _SHARE >= lines

    def unread(self, block: bytes, at: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the lines that must be read: index, line, key to remember it by; `at`: number of the block's first."""
        keys = _NUMBERS.sub(b"", block).split(b"\n")
        if not keys[-1]:
            keys.pop()
        seen = self._seen
        left = [index for index, key in enumerate(keys) if key not in seen]
        lines = block.split(b"\n") if left else []
        self.quotes = self.quotes or any(keys[index].startswith(b">") for index in left)
        for index in left:
            if (key := keys[index]) not in seen:
                yield index, lines[index], key
        self._last.update(zip(keys, range(at, at + len(keys)), strict=True))
        for index in left:
            if keys[index] not in seen:
                self._last.pop(keys[index], None)

    def remember(self, key: bytes, sightings: tuple[Sighting, ...]) -> None:
        """Keep what a line has shown, so that others of its kind need not be read."""
        if len(self._seen) < _KEPT:
            self._seen[key] = sightings

    def tell(self, piece: int) -> None:
        """Note in what was seen where it was last seen, in a piece of the log."""
        for key, line in self._last.items():
            where = position(piece, line, 0)
            for sighting in self._seen[key]:
                sighting.last = max(sighting.last, where)
        self._last.clear()

    def forget(self) -> None:
        """Forget all: the next lines are of another file, whose processes may be others."""
        self._seen.clear()
        self._last.clear()
