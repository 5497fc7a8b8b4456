"""A prefix that prefixes.toml does not know: the same stands before most lines of a file, also before signed ones.

Who starts a job puts something before each of its lines: a number, an address, a time. Who quotes a message does so in
a line or two, in quotation marks, or behind words alone: that teaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lumiimg.joblog.lines import end_of, messages, plain, prefixes

_SIGNS = (b" NCCL ", b"Traceback (most recent call last)")
"""In lines of which it is known how they begin; literals, which are found in no time."""
_BEGINNING = re.compile(rb"(?<![\w.\-])[\w.\-]{1,255}:\d{1,10}:\d{1,10} (?:\[-?\d{1,11}\]|NCCL )|Traceback \(")
_BLOCKS, _SIGNED, _LINES = 64, 64, 256
"""Blocks of a file that are looked at, and in each signed lines, and lines behind the first of them."""
_PREFIX_BYTES, _MOST_SHAPES, _FEWEST = 120, 8, 3
_BEFORE_BYTES = 4096
_PART = re.compile(rb"(?P<word>[\w.+-]*\d[\w.+-]*)|(?P<gap> +(?!\Z))|.", re.DOTALL)
_QUOTATION = re.compile(r"[\"'`{\r]|^[ \t]*(?:[>#*|-]|//)|\.(?:out|err|log|txt)\b|\.[a-z]{1,5}[:-]\d+[:-]")
"""What has no place in a prefix: marks of those who quote, or copy lines of a file."""


class LearnedPrefix:
    """What stands before the lines of one file."""

    __slots__ = ("_before", "_left", "_pattern")

    def __init__(self) -> None:
        self._left = _BLOCKS
        self._pattern: re.Pattern[bytes] | None = None
        self._before: list[bytes] = []
        """The last lines of the block before: they have the prefix, too."""

    def without(self, block: bytes) -> bytes:
        """Return whole lines of the file without the prefix, if they show one, or lines before did."""
        if self._left:
            if signed := [*_signed(block)]:
                self._learn(block, signed)
            self._left = max(0, self._left - 1)
            self._before = block[-_BEFORE_BYTES:].split(b"\n")[1:]
        return self._pattern.sub(b"", block) if self._pattern else block

    def _learn(self, block: bytes, signed: list[tuple[int, bytes]]) -> None:
        shapes: set[bytes] = set()
        for _, line in signed:
            if any(one.signed or one.text.startswith("Traceback (", one.start) for one in messages(line)):
                self._left = 0
                return
            if found := _BEGINNING.search(line):
                shapes |= _shape(line[: found.start()])
        if shapes:
            # the shortest first: behind it may stand a quotation
            ordered: list[bytes] = sorted(shapes, key=len)[:_MOST_SHAPES]
            pattern = re.compile(rb"(?m)^(?:" + b"|".join(ordered) + rb")")
            behind = block[signed[0][0] :].split(b"\n", _LINES)[:_LINES]
            lines = [line for line in (*self._before, *behind) if line.strip()]
            count = sum(1 for line in lines if pattern.match(line))
            if count >= _FEWEST and 4 * count >= 3 * len(lines):
                self._left, self._pattern = 0, pattern


def _signed(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield lines that hold one of the signs, each with where it begins."""
    for sign in _SIGNS:
        at = block.find(sign)
        for _ in range(_SIGNED):
            if at < 0:
                break
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            yield start, block[start : end if end >= 0 else None][: 4 * _PREFIX_BYTES]
            at = block.find(sign, end) if end >= 0 else -1


def _shape(prefix: bytes) -> set[bytes]:
    """Return the pattern of such prefixes, whatever numbers are in it; none where it may be somebody's words.

    Who speaks or when has a number, behind what a known launcher wrote.
    """
    text = plain(prefix)
    unknown = text[end_of(prefixes().launcher, text) :]
    is_said = _QUOTATION.search(unknown) or prefixes().warning.search(unknown) or not any(map(str.isdigit, unknown))
    return set() if is_said or len(prefix) > _PREFIX_BYTES else {_PART.sub(_folded, prefix)}


def _folded(part: re.Match[bytes]) -> bytes:
    folded = {"word": rb"[\w.+-]{1,80}", "gap": rb" {1,9}"}
    return folded[part.lastgroup] if part.lastgroup else re.escape(part[0])
