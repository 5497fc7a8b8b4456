"""The quick gate: which lines of a block are read at all.

A job's log repeats itself: its lines differ in numbers and addresses only. So a line is looked up by its shape, that is
without digits and the letters a to f; a shape is searched for hints once. A hint is in the shape of each line that
holds it (taking letters out of both cannot part them), so no line is passed over that a search of the line would keep.
Of a new shape the words are looked up: a text has few that are new, and each is compared with all hints once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from lumiimg.joblog.lines import PROBE
from lumiimg.joblog.state import Match, position

if TYPE_CHECKING:
    from lumiimg.joblog.vocabulary import MessagePattern, Vocabulary

_NUMERIC = b"0123456789abcdef"
"""What numbers and addresses are written with."""
_BEGINNING = 2
"""Letters by which the words of hints are looked up; none is shorter."""
_MOST_STORED, _WORD_LIMIT = 32_768, 64
"""Shapes and words that are remembered, and bytes of such a word."""
_SHAPE_LIMIT = 1024
"""Bytes of a shape that is worth to be kept."""
_CHANNEL = re.compile(rb"Channel \d{1,4}/?\d{0,4} ?: \d{1,7}\[\w{1,10}\] -> \d{1,7}\[\w{1,10}\]")
_OF_CHANNEL = b" via "
_BYTES_EACH = 1024
"""Where every eighth line or so may be of a channel, looking for such lines costs less than reading them."""

Entries = tuple["MessagePattern", ...]


def _shape(line: bytes) -> bytes:
    return line.translate(None, _NUMERIC)


class Gate:
    """Remembers shapes, up to a bound, so that a line costs a look-up."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._all = vocabulary.entries
        self._longest: dict[bytes, list[tuple[bytes, bytes, Entries]]] = {}
        """The longest word of each hint, the hint, and what it is one of, by the word's beginning."""
        for hint, entries in vocabulary.hints.items():
            shape = _shape(hint.encode())
            longest = max(shape.split(), key=len)
            self._longest.setdefault(longest[:_BEGINNING], []).append((longest, shape, entries))
        self._hints_of_word = lru_cache(_MOST_STORED)(self._hints_in)
        # what a line of a probe quotes is percent-encoded, so its shape says nothing
        self._probe = _shape(PROBE.encode())
        self._irrelevant: set[bytes] = set()
        self._known: dict[bytes, Entries] = {}

    def select(self, block: bytes) -> tuple[int, list[tuple[int, bytes, Entries]]]:
        """Return how many lines a block has, and those that may matter: index, line, entries that may match it."""
        shapes = _shape(block).split(b"\n")
        count = len(shapes) - block.endswith(b"\n")
        if self._irrelevant.issuperset(shapes):
            return count, []
        left = [index for index, shape in enumerate(shapes) if shape not in self._irrelevant]
        lines = block.split(b"\n")
        found = [(index, lines[index], self._entries(shapes[index])) for index in left]
        return count, [hit for hit in found if hit[2]]

    def entries(self, line: bytes) -> Entries:
        """Return the entries that may match a line."""
        shape = _shape(line)
        return () if shape in self._irrelevant else self._entries(shape)

    def _entries(self, shape: bytes) -> Entries:
        known = self._known.get(shape)
        if known is not None:
            return known
        entries = self._searched(shape)
        if len(shape) <= _SHAPE_LIMIT:
            if len(self._irrelevant) + len(self._known) >= _MOST_STORED:
                self._irrelevant.clear()
                self._known.clear()
            if entries:
                self._known[shape] = entries
            else:
                self._irrelevant.add(shape)
        return entries

    def _searched(self, shape: bytes) -> Entries:
        if self._probe in shape:
            return self._all
        found: dict[str, MessagePattern] = {}
        for word in set(shape.split()):
            for hint, entries in (self._hints_of_word if len(word) <= _WORD_LIMIT else self._hints_in)(word):
                if hint in shape:
                    found.update((entry.id, entry) for entry in entries)
        return tuple(found.values())

    def _hints_in(self, word: bytes) -> tuple[tuple[bytes, Entries], ...]:
        """Return the hints whose longest word is part of this one, and what they are hints of."""
        return tuple(
            (hint, entries)
            for at in range(len(word))
            for longest, hint, entries in self._longest.get(word[at : at + _BEGINNING], ())
            if word.startswith(longest, at)
        )


def is_flooded(block: bytes) -> bool:
    """Whether enough of the lines may be of channels to be worth a look."""
    return block.count(_OF_CHANNEL) * _BYTES_EACH >= len(block)


class Repeats:
    """Lines that each process prints for each of its channels: of those that differ in their numbers alone one is read.

    A job of 4,096 ranks prints millions of them. What they show is in their beginning and their end: who wrote them,
    and how the channel goes. It is remembered by what is left of a line without its numbers.
    """

    def __init__(self) -> None:
        self._shown: dict[bytes, tuple[Match, ...]] = {}
        self._last: dict[bytes, int] = {}
        """The last line of each, since they were last written down."""

    def unread(self, block: bytes, at: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the lines that must be read: index, line, key to remember it by; `at`: number of the block's first."""
        keys = _CHANNEL.sub(b"", block).split(b"\n")
        if not keys[-1]:
            keys.pop()
        shown = self._shown
        left = [index for index, key in enumerate(keys) if key not in shown]
        lines = block.split(b"\n") if left else []
        for index in left:
            if (key := keys[index]) not in shown:
                yield index, lines[index], key
        self._last.update(zip(keys, range(at, at + len(keys)), strict=True))
        for index in left:
            if keys[index] not in shown:
                self._last.pop(keys[index], None)

    def remember(self, key: bytes, matches: tuple[Match, ...]) -> None:
        """Keep what a line has shown, so that others of its kind need not be read."""
        if len(self._shown) < _MOST_STORED:
            self._shown[key] = matches

    def flush_positions(self, segment: int) -> None:
        """Note in what was seen where it was last seen, in a segment of the log."""
        for key, line in self._last.items():
            for match in self._shown[key]:
                match.last_at = max(match.last_at, position(segment, line, 0))
        self._last.clear()
