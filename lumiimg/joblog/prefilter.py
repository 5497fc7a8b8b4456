"""The quick gate: which lines of a block can hold a message that the knowledge base knows.

A job's log repeats itself: its lines differ in numbers and addresses only. So a line is looked up by its shape, that is
without digits and the letters a to f; a shape is searched for hints once. A hint is in the shape of each line that
holds it (taking letters out of both cannot part them), so no line is passed over that a search of the line would keep.
Of a new shape the words are looked up: a text has few that are new, and each is compared with all hints once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.joblog.lines import PROBE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.joblog.vocabulary import MessagePattern, Vocabulary

DROPPED = b"0123456789abcdef"
"""What numbers and addresses are written with."""
TABLE_HEADERS: tuple[bytes, ...] = (
    b"busbw",
    b"Avg bus bandwidth",
    b"Out of bounds values",
    b"Collective test starting",
    b"# nThread",
    b"# Using devices",
)
"""Of benchmarks (bandwidth.py): where none of them is, no table begins or ends."""
_BEGINNING = 2
"""Letters by which the words of hints are looked up; none is shorter."""
_WORDS_LEARNED, _WORD_LIMIT = 32, 64
"""Words that are learned of a line, so that a log of ever new words costs little more than the search of its lines."""
_SHAPES_KEPT = 32_768
_SHAPE_LIMIT = 1024
"""Bytes of a shape that is worth to be kept."""


def shape_of(line: bytes) -> bytes:
    """Return the line without what numbers are written with."""
    return line.translate(None, DROPPED)


def announces_table(block: bytes) -> bool:
    """Whether a block may hold the head or the end of a benchmark's table."""
    return b"#" in block and any(header in block for header in TABLE_HEADERS)


class Prefilter:
    """Remembers shapes, up to a bound, so that a line costs a look-up."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._all = vocabulary.entries
        self._hints = tuple((shape_of(hint.encode()), entries) for hint, entries in vocabulary.by_hint)
        self._parts: dict[bytes, list[tuple[bytes, tuple[bytes, tuple[MessagePattern, ...]]]]] = {}
        """The longest word of each hint, by its beginning."""
        for hint in self._hints:
            part = max(hint[0].split(), key=len)
            self._parts.setdefault(part[:_BEGINNING], []).append((part, hint))
        self._words: dict[bytes, tuple[tuple[bytes, tuple[MessagePattern, ...]], ...]] = {}
        """What words may be part of."""
        # what a line of a probe quotes is percent-encoded, so its shape says nothing
        self._probe = shape_of(PROBE.encode())
        self._boring: set[bytes] = set()
        self._known: dict[bytes, tuple[MessagePattern, ...]] = {}

    def select(self, block: bytes) -> tuple[int, list[tuple[int, bytes, tuple[MessagePattern, ...]]]]:
        """Return the number of lines in a block, and those that may matter: index, line, entries that may match it."""
        shapes = block.translate(None, DROPPED).split(b"\n")
        if not shapes[-1] and block.endswith(b"\n"):
            shapes.pop()
        boring = self._boring
        left = [index for index, shape in enumerate(shapes) if shape not in boring]
        if not left:
            return len(shapes), []
        lines = block.split(b"\n")
        found = [(index, lines[index], self._entries(shapes[index])) for index in left]
        return len(shapes), [hit for hit in found if hit[2]]

    def entries(self, line: bytes) -> tuple[MessagePattern, ...]:
        """Return the entries that may match a line."""
        shape = shape_of(line)
        return () if shape in self._boring else self._entries(shape)

    def _entries(self, shape: bytes) -> tuple[MessagePattern, ...]:
        known = self._known.get(shape)
        if known is not None:
            return known
        entries = self._searched(shape)
        if len(shape) > _SHAPE_LIMIT:
            return entries
        if len(self._boring) + len(self._known) >= _SHAPES_KEPT:
            self._boring.clear()
            self._known.clear()
        if entries:
            self._known[shape] = entries
        else:
            self._boring.add(shape)
        return entries

    def _searched(self, shape: bytes) -> tuple[MessagePattern, ...]:
        if shape.startswith(self._probe):
            return self._all
        found = [entries for hint, entries in self._candidates(shape) if hint in shape]
        return tuple({entry.id: entry for entries in found for entry in entries}.values())

    def _hints_in(self, word: bytes) -> Iterator[tuple[bytes, tuple[MessagePattern, ...]]]:
        """Yield the hints whose longest word is part of this one."""
        for at in range(len(word)):
            for part, hint in self._parts.get(word[at : at + _BEGINNING], ()):
                if word.startswith(part, at):
                    yield hint

    def _candidates(self, shape: bytes) -> Iterable[tuple[bytes, tuple[MessagePattern, ...]]]:
        """Return the hints that a line may hold: a word of it has the longest word of the hint in it."""
        words = set(shape.split())
        unknown = [word for word in words if word not in self._words]
        if len(self._words) >= _SHAPES_KEPT:
            self._words.clear()
        for word in unknown[:_WORDS_LEARNED]:
            if len(word) <= _WORD_LIMIT:
                self._words[word] = tuple(self._hints_in(word))
        if any(word not in self._words for word in words):
            return self._hints
        return [hint for word in words for hint in self._words[word]]
