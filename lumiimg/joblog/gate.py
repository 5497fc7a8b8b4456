"""A fast filter that decides which lines of a block are read at all.

Lines of a job's log are repetitive: many differ only in numbers and addresses. So a line is looked up by its shape, the
line without digits and the letters a to f, and each shape is searched for hints only once. If a line contains a hint,
its shape contains the hint's shape, because the same letters are removed from both; so no relevant line is dropped. For
a new shape, each word is looked up: few words are new, and a new word is compared with all hints once.
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
"""Characters of numbers and addresses."""
_BEGINNING = 2
"""Number of leading characters by which the words of hints are indexed; no word is shorter."""
_CACHE_SIZE, _WORD_LIMIT = 32_768, 64
"""Maximum number of cached shapes and words, and maximum length of a cached word in bytes."""
_SHAPE_LIMIT = 1024
"""Maximum length in bytes of a cached shape."""
_CHANNEL = re.compile(rb"Channel \d{1,4}/?\d{0,4} ?: \d{1,7}\[\w{1,10}\] -> \d{1,7}\[\w{1,10}\]")
_CHANNEL_MARK = b" via "
_BYTES_EACH = 1024
"""If about every eighth line may be about a channel, looking for such lines is cheaper than reading them."""

Entries = tuple["MessagePattern", ...]


def _shape(line: bytes) -> bytes:
    return line.translate(None, _NUMERIC)


class Gate:
    """Caches shapes, up to a limit, so that a line costs one look-up."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._all = vocabulary.entries
        self._longest: dict[bytes, list[tuple[bytes, bytes, Entries]]] = {}
        """Longest word of each hint, the hint and its entries, by the beginning of the word."""
        for hint, entries in vocabulary.hints.items():
            shape = _shape(hint.encode())
            longest = max(shape.split(), key=len)
            self._longest.setdefault(longest[:_BEGINNING], []).append((longest, shape, entries))
        self._hints_of_word = lru_cache(_CACHE_SIZE)(self._hints_in)
        # what a probe's line quotes is percent-encoded, so its shape says nothing
        self._probe = _shape(PROBE.encode())
        self._irrelevant: set[bytes] = set()
        self._known: dict[bytes, Entries] = {}

    def select(self, block: bytes) -> tuple[int, list[tuple[int, bytes, Entries]]]:
        """Return the number of lines, and the lines that may matter: index, line, entries that may match it."""
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
            if len(self._irrelevant) + len(self._known) >= _CACHE_SIZE:
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
        """Return the hints whose longest word is part of this word, with their entries."""
        return tuple(
            (hint, entries)
            for at in range(len(word))
            for longest, hint, entries in self._longest.get(word[at : at + _BEGINNING], ())
            if word.startswith(longest, at)
        )


def is_flooded(block: bytes) -> bool:
    """Return whether enough lines may be about channels to make filtering them worthwhile."""
    return block.count(_CHANNEL_MARK) * _BYTES_EACH >= len(block)


class Repeats:
    """Lines that each process prints for each of its channels: of those that differ only in numbers, one is read.

    A job of 4,096 ranks prints millions of them. Only their beginning and end matter: the process that wrote them, and
    the way the channel goes. Results are cached by the line without its channel.
    """

    def __init__(self) -> None:
        self._shown: dict[bytes, tuple[Match, ...]] = {}
        self._last: dict[bytes, int] = {}
        """Last line of each key since the positions were last flushed."""

    def unread(self, block: bytes, at: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the lines that must be read: index, line, cache key; `at` is the number of the block's first line."""
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
        """Cache what a line has shown, so that similar lines need not be read."""
        if len(self._shown) < _CACHE_SIZE:
            self._shown[key] = matches

    def flush_positions(self, segment: int) -> None:
        """Update the last positions of the matches seen in a segment of the log."""
        for key, line in self._last.items():
            for match in self._shown[key]:
                match.last_at = max(match.last_at, position(segment, line, 0))
        self._last.clear()
