"""Learn a prefix that prefixes.toml does not know: it precedes most lines of a file, including known messages.

Whatever launches a job may put a number, an address or a time before each of its lines. A quoted message appears in a
line or two, in quotation marks, or after plain words: nothing is learned from that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lumiimg.joblog.lines import end_of, messages, plain, prefixes

if TYPE_CHECKING:
    from lumiimg.joblog.vocabulary import MessagePattern

_MAX_BLOCKS, _MAX_TRIES, _MAX_HITS, _MAX_LINES, _MAX_EARLIER = 16, 4, 12, 256, 32
"""Number of blocks of a file that are examined, and of those in which learning is tried; per block, the number of lines
that may be known, of lines that must have the prefix, and of those lines that precede the first that may be known."""
_PREFIX_BYTES, _MESSAGE_BYTES, _BEFORE_BYTES, _FEWEST = 120, 1024, 4096, 3
_PART = re.compile(rb"(?P<colour>\x1b\[[\d;]*[a-zA-Z])|(?P<word>[\w.+-]*\d[\w.+-]*)|(?P<gap> +(?= *\d))|.", re.DOTALL)
_FOLDED = {"colour": rb"\x1b\[[\d;]{0,20}[a-zA-Z]", "word": rb"[\w.+-]{1,80}", "gap": rb" {1,9}"}
"""Parts that differ from line to line: colours, numbers, names with a number, and spaces before these."""
_BEGINS = re.compile(rb"(?<![^ \t])[^\s\x1b]|(?<!\w)\w|[\[(]")
"""Where a message may begin: after a space, at the start of a word, or at a bracket."""
_QUOTATION = re.compile(r"[\"'`{\r]|^[ \t]*(?:[>#*|-]|//)|\.(?:out|err|log|txt)\b|\.[a-z]{1,5}[:-]\d+[:-]")
"""Text that a prefix never contains: marks of a quotation, or of copied lines of a file."""

Hit = tuple[int, bytes, "Sequence[MessagePattern]"]
"""A line that may be known: its number in the block, the line, the entries that may match it."""


class LearnedPrefix:
    """The unknown prefix of the lines of one file."""

    __slots__ = ("_before", "_left", "_pattern")

    def __init__(self) -> None:
        self._left = _MAX_BLOCKS * _MAX_LINES
        self._pattern: re.Pattern[bytes] | None = None
        self._before = b""
        """Latest lines of earlier blocks, which have the prefix, too; in a followed file, a block may be one line."""

    @property
    def is_open(self) -> bool:
        """Whether another block may still show a prefix: it is undecided whether there is one."""
        return self._left > 0

    def learn(self, block: bytes, hits: Sequence[Hit]) -> bytes:
        """Learn from whole lines and the `hits` among them; return earlier lines that can now be read."""
        count = min(block.count(b"\n"), _MAX_LINES)
        self._left -= count
        known = ((at, line, [entry for entry in entries if not entry.of_program]) for at, line, entries in hits)
        hits = [hit for hit in known if hit[2]][:_MAX_HITS]
        if any(_is_known(line, entries) for _, line, entries in hits):
            self._left = 0
        elif hits:
            self._left -= (_MAX_BLOCKS // _MAX_TRIES - 1) * max(count, _MAX_HITS)
            first = max(0, hits[0][0] - _MAX_EARLIER)
            here = block.split(b"\n")[first : first + _MAX_LINES]
            lines = [line for line in (*self._before.split(b"\n"), *here) if line.strip()]
            shapes = (_shape(line, entries, lines) for _, line, entries in hits)
            if shape := next(filter(None, shapes), None):
                self._left, self._pattern = 0, shape
                return self.without(self._before)
        before = self._before + block if self.is_open else b""
        self._before = before[before.find(b"\n", -_BEFORE_BYTES) + 1 :] if len(before) > _BEFORE_BYTES else before
        return b""

    def without(self, block: bytes) -> bytes:
        """Return whole lines of the file without the prefix."""
        return self._pattern.sub(b"", block) if self._pattern else block


def _is_known(line: bytes, entries: Sequence[MessagePattern]) -> bool:
    """Return whether a line begins as a message does: with a library's prefix, a traceback, or a known error."""
    return any(
        one.signed or one.text.startswith("Traceback (", one.start) or any(e.is_grave and e.match(one) for e in entries)
        for one in messages(line)
    )


def _shape(line: bytes, entries: Sequence[MessagePattern], lines: Sequence[bytes]) -> re.Pattern[bytes] | None:
    """Return the prefix, with any numbers in it, after which a line is known, if most lines have it."""
    pattern = b"(?m)^"
    for part in _PART.finditer(line[:_PREFIX_BYTES]):
        pattern += _FOLDED.get(part.lastgroup or "", re.escape(part[0]))
        begins = line[part.end() :][:_MESSAGE_BYTES]
        if not _BEGINS.match(line, part.end()) or not _is_message(begins, entries):
            continue
        found = re.compile(pattern)
        count = sum(1 for one in lines if found.match(one))
        is_of_most = count >= _FEWEST and 4 * count >= 3 * len(lines)
        return found if is_of_most and not _may_be_prose(line[: part.end()], begins) else None
    return None


def _is_message(text: bytes, entries: Sequence[MessagePattern]) -> bool:
    return any(one.signed or any(entry.match(one) for entry in entries) for one in messages(text))


def _may_be_prose(prefix: bytes, begins: bytes) -> bool:
    """Return whether a prefix may be prose: apart from a launcher's prefix, a real one has a digit (who, when)."""
    text, behind = plain(prefix), plain(begins)
    launcher = prefixes().launcher
    said = text[end_of(launcher, text) :] + behind[: end_of(launcher, behind)]
    return not any(map(str.isdigit, said)) or bool(_QUOTATION.search(said) or prefixes().warning.search(said))
