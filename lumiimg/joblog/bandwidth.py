"""What bandwidth tests measured: the tables that rccl-tests and nccl-tests print into a log.

Sources of the formats: NVIDIA/nccl-tests src/common.cu and src/util.cu up to 2.19 (busbw in GB/s of 1e9 bytes; a row is
printed in three parts, so NCCL's lines may stand between them), ROCm/rccl-tests src/common.cu (the same table, `error`
instead of `#wrong` before its version for NCCL 2.13).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from lumiimg.joblog.bandwidth_table import BandwidthTable
from lumiimg.joblog.lines import announces_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.joblog.report import Measurement

TABLE_LIMIT = 64
_HOST_LIMIT = 16_384
"""Host names kept while a list of devices is read; beyond it the number of nodes is not known."""
_PREFIX_LIMIT = 200

_NUMBER = rb"\d{1,15}(?:\.\d{1,6})?(?:e[+\-]\d\d)?"
_TYPE = rb"(?:b?float(?:16)?|bf16|half|double|char|u?int(?:8|32|64)?|(?:fp|f)8_?e[45]m[23])(?!\w)"
# An alternation of words is slow to look for; a set of first characters is fast.
_EVENT = re.compile(
    rb"[#bAOCr ](?:(?<=#)(?: nThread| Using devices|[ ]{1,4}Rank )|(?<=b)usbw|(?<=A)vg bus bandwidth"
    rb"|(?<=O)ut of bounds values|(?<=C)ollective test starting|(?<=r)ccl-tests: "
    rb"|(?<=\d )[ ]{1,24}\d{1,15}(?:\.\d|[ ]{1,24}" + _TYPE + rb"))"
)
_BEFORE = re.compile(rb"\d{1,15}(?:\.\d{1,2})?$")
_ROW = re.compile(
    rb"(?P<size>\d{1,15})[ ]{1,24}(?P<count>\d{1,15})[ ]{1,24}" + _TYPE + rb"(?:[ ]{1,24}[a-z]{2,12}(?!\w))?"
)
_CELL = rb"(?:N/A|-?" + _NUMBER + rb"\*?)(?=[\sA-Za-z\[(#]|$)"
_CELLS = re.compile(rb"\s{0,40}" + _CELL + rb"(?:\s{1,40}" + _CELL + rb"){0,23}")
"""The rest of a row; what another process printed may be joined to its end."""
_STARTING = re.compile(rb"Collective test starting: ([\w.\-]{1,64})")
_DEVICE = re.compile(
    rb"#\s{1,4}Rank\s{1,8}(\d{1,7})\s.{0,40}?Pid\s{1,12}\d{1,10} on\s{1,64}"
    rb"([\w.\-]{1,64}) device\s{1,8}\d{1,4} \[([^\]]{1,24})\](.{0,64})"
)
_WRONG = re.compile(rb"Out of bounds values\s{0,20}: (\d{1,12})")
_AVERAGE = re.compile(rb"Avg bus bandwidth\s{0,20}: (" + _NUMBER + rb")")
_LABELS = (
    re.compile(rb"\s{0,8}(\d{1,7}): "),  # srun -l
    re.compile(rb"\[(\d{1,7},\d{1,7})\]<std(?:out|err)>"),  # Open MPI, a timestamp may stand before it
    re.compile(rb"\(([\w.:\-]{1,64} pid=\d{1,10})[^()]{0,64}\)"),  # Ray
    re.compile(rb"\[([a-z]{1,16}\d{1,6})\]:"),  # torchrun
)
_PREFIX = re.compile(rb"\s*|.*(?:[:\])>|]|\[\d{0,3}m|\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+\-]\d\d:?\d\d)?)\s*", re.DOTALL)
"""What may stand before a row of bare numbers: a label, a timestamp, a colour."""


class _Words(NamedTuple):
    """Words that a table has beside its rows, and where they stand."""

    text: bytes
    before: bytes
    """What stands before them on the line."""
    label: bytes
    now: int
    """The line of the file."""
    at: int
    """The position in the log."""


class BandwidthReader:
    """Reads the tables of a log, block by block; memory does not grow with the log."""

    def __init__(self) -> None:
        self._file = ""
        self._line = 0
        self._tables: list[BandwidthTable] = []
        self._open: dict[bytes, BandwidthTable] = {}
        """By the label of the process, so that the tables of two do not mix."""

    def feed(self, file: str, block: bytes, position: Callable[[int], int]) -> None:
        """Take in whole lines of a file; `position(n)` is that of the n-th line of the block, from 0 on."""
        if file != self._file:
            self._file, self._open, self._line = file, {}, 0
        announced = announces_table(block)
        if not announced and not self._open:
            return
        if announced or not all(table.is_over(self._line) for table in self._open.values()):
            self._scan(block, position)
        self._line += block.count(b"\n") + (not block.endswith(b"\n"))

    def _scan(self, block: bytes, position: Callable[[int], int]) -> None:
        line = start = at = 0
        end, label = -1, b""
        while (event := _EVENT.search(block, at)) is not None:
            if event.start() > end:
                begin = block.rfind(b"\n", 0, event.start()) + 1
                line += block.count(b"\n", start, begin)
                start, end = begin, block.find(b"\n", event.start())
                end = len(block) if end < 0 else end
                label = _label(block[start : min(end, start + _PREFIX_LIMIT)])
            where = position(line)
            # what is read of a line's end is bounded, so a line of any length takes linear time
            ahead = min(end, event.start() + 1024)
            if event[0][:1] == b" ":
                number = _BEFORE.search(block, max(start, event.start() - 19), event.start())
                first = number.start() if number else event.start()
                prefix = block[start : min(first, start + _PREFIX_LIMIT + 1)]
                at = self._number(block, first, ahead, prefix, label, line, where) or event.end()
            else:
                before = block[max(start, event.start() - 1024) : event.start()]
                self._words(_Words(block[event.start() : ahead], before, label, self._line + line, where))
                at = event.end()

    def _begin(self, label: bytes, program: str, now: int) -> BandwidthTable:
        """Open a table; one beyond the limit is read, but not kept."""
        if label not in self._open and len(self._open) >= TABLE_LIMIT:
            self._open.pop(next(iter(self._open)))
        table = self._open[label] = BandwidthTable(program, now)
        return table

    def _head(self, table: BandwidthTable, at: int) -> None:
        table.position, table.headed = at, True
        if len(self._tables) < TABLE_LIMIT:
            self._tables.append(table)

    def _words(self, words: _Words) -> None:
        """Read what a table has beside its rows."""
        table = self._open.get(words.label)
        if b"#" not in words.before and b"#" not in words.text and (table is None or table.is_over(words.now)):
            return  # as in feed()
        if read := self._READERS.get(words.text[:3]):
            read(self, words, table)
        elif table is not None and not table.headed and not table.is_over(words.now):
            self._program(words, table)

    def _average(self, words: _Words, table: BandwidthTable | None) -> None:
        found = _AVERAGE.match(words.text)
        self._summed_up(words, table).average = float(found[1]) if found else None
        del self._open[words.label]

    def _wrong_values(self, words: _Words, table: BandwidthTable | None) -> None:
        found = _WRONG.match(words.text)
        if found is None:
            return
        table = self._summed_up(words, table)
        if count := int(found[1]):  # rows may be missing, and not all versions count in their rows
            table.see_wrong(max(0, count - table.wrong), words.at)

    def _summed_up(self, words: _Words, table: BandwidthTable | None) -> BandwidthTable:
        """Return the table that a sum belongs to; a new one where its beginning was not seen."""
        if table is not None and table.headed:
            return table
        table = self._begin(words.label, table.program if table else "nccl-tests", words.now)
        self._head(table, words.at)
        return table

    def _columns(self, words: _Words, table: BandwidthTable | None) -> None:
        if not words.before[-48:].rstrip().endswith(b"algbw"):
            return
        if table and table.headed and table.position == words.at:  # the second half of the same line
            return
        if table is None or table.headed:
            table = self._begin(words.label, "nccl-tests", words.now)
        table.see_columns(words.before + words.text)
        table.seen = words.now
        self._head(table, words.at)

    def _start(self, words: _Words, table: BandwidthTable | None) -> None:
        name = _STARTING.match(words.text)
        if table is None or table.headed or name or table.ranks:
            table = self._begin(words.label, "nccl-tests", words.now)
        table.test = name[1].decode() if name else table.test
        table.seen = words.now

    def _program(self, words: _Words, table: BandwidthTable) -> None:
        """Read of what stands before the columns which program prints it, and on which devices."""
        table.seen = words.now
        if device := _DEVICE.match(words.text):
            full = sum(len(t.hosts or ()) for t in self._open.values()) >= _HOST_LIMIT
            table.see_device(int(device[1]), device[2], device[3], device[4], full=full)
        elif words.text.startswith(b"rccl"):
            table.program = "rccl-tests"

    _READERS: ClassVar = {
        b"Avg": _average,
        b"Out": _wrong_values,
        b"bus": _columns,
        b"Col": _start,
        b"# n": _start,
        b"# U": _start,
    }
    """By the first letters of what `_EVENT` finds; the others stand before the columns."""

    def _number(
        self, block: bytes, at: int, end: int, prefix: bytes, label: bytes, line: int, where: int
    ) -> int | None:
        """Read a row, or what follows of one; return where it ends, None where it is none."""
        table = self._open.get(label)
        now = self._line + line
        if table is None or not table.headed or table.is_over(now):
            return None
        row = _ROW.match(block, at, end)
        if row is not None:
            at, table.rest, table.size = row.end(), table.names, int(row["size"])
            if table.size < int(row["count"]):  # the first digits are cut off
                table.rest = ()
            following = _ROW.search(block, at, end)
            end = following.start() if following else end
        elif not table.rest or table.rest[0] not in {"time", "cputime"} or not _is_prefix(prefix):
            return None
        table.seen = now
        cells = _CELLS.match(block, at, end)
        if cells is None:
            return at if row else None
        found = cells[0].split()
        if row and table.root and b"." not in found[0]:
            found.pop(0)
        table.see_cells(found, where)
        return cells.end()

    def measurements(self, place: Callable[[int], tuple[str, int]]) -> tuple[Measurement, ...]:
        """Return the tables so far, in the order of the log; `place` gives the file and line of a position."""
        return tuple(table.result(place) for table in self._tables)


def _label(line: bytes) -> bytes:
    tags = [tag for pattern in _LABELS[1:] if (tag := pattern.search(line)) is not None]
    tag = _LABELS[0].match(line) or (tags[0] if tags else None)
    return tag[1] if tag else b""


def _is_prefix(text: bytes) -> bool:
    return len(text) <= _PREFIX_LIMIT and _PREFIX.fullmatch(text) is not None
