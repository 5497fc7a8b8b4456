"""Bandwidth measurements: the tables that rccl-tests and nccl-tests print into a log.

Sources of the formats: NVIDIA/nccl-tests src/common.cu and src/util.cu up to 2.19 (busbw in GB/s of 1e9 bytes; a row is
printed in three parts, so NCCL's lines may come between them), ROCm/rccl-tests src/common.cu (the same table, but
`error` instead of `#wrong` before its version for NCCL 2.13).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from lumiimg.joblog.lines import announces_table, end_of, plain, prefixes
from lumiimg.joblog.report import Measurement

TABLE_LIMIT = 64
_HOST_LIMIT = 16_384
"""Maximum number of host names stored while reading a device list; beyond it, the number of nodes is unknown."""
_PATIENCE = 200_000
"""Number of lines without a row after which a table counts as finished even if its end was not seen. On a large job,
the first row comes after the lines of all channels of all ranks."""
_WRONG_LIMIT = 10**15
_POINTS = 256
"""Maximum number of sizes stored: the largest, which matter most."""
_DEFAULT = ("time", "algbw", "busbw", "#wrong") * 2

_NUMBER = r"\d{1,15}(?:\.\d{1,6})?(?:e[+\-]\d\d)?"
_TYPE = r"(?:b?float(?:16)?|bf16|half|double|char|u?int(?:8|32|64)?|(?:fp|f)8_?e[45]m[23])(?!\w)"
_RELEVANT = re.compile(rb"#|rccl-tests: |\d {1,24}\d{1,15}(?:\.\d| {1,24}[a-z])")
"""Cheap filter that every line of a table passes."""
_WORDS = re.compile(
    r"(?P<start># nThread|# Using devices|Collective test starting: (?P<test>[\w.\-]{1,64}))"
    r"|#\s{1,4}Rank\s{1,8}(?P<rank>\d{1,7})\s.{0,40}?Pid\s{1,12}\d{1,10} on\s{1,64}(?P<host>[\w.\-]{1,64})"
    r" device\s{1,8}\d{1,4} \["
    r"|(?P<columns>algbw\s{1,40}busbw)"
    r"|Out of bounds values\s{0,20}: (?P<wrong>\d{1,12})"
    rf"|(?P<end>Avg bus bandwidth)(?:\s{{0,20}}: (?P<average>{_NUMBER}))?"
)
"""Parts of a table other than its rows."""
_COLUMNS = re.compile(r"\b(?:size\s{1,40}count|bytes\s{1,40}N)\s{1,40}type((?:\s{1,40}[\w#%]{1,12}){3,26})")
_ROW = re.compile(
    rf"(?P<size>\d{{1,15}}) {{1,24}}(?P<count>\d{{1,15}}) {{1,24}}{_TYPE}(?: {{1,24}}[a-z]{{2,12}}(?!\w))?"
)
_CELL = rf"(?:N/A|-?{_NUMBER}\*?)(?=[\sA-Za-z\[(#]|$)"
_CELLS = re.compile(rf"\s{{0,40}}{_CELL}(?:\s{{1,40}}{_CELL}){{0,23}}")
"""The rest of a row; output of another process may be joined to its end."""
_LABEL = re.compile(
    r"^\s{0,8}(\d{1,7}): |\[(\d{1,7},\d{1,7})\]<std|\(([\w.:\-]{1,64} pid=\d{1,10})|\[([a-z]{1,16}\d{1,6})\]:"
)
"""Labels of srun -l, Open MPI, Ray and torchrun, which keep the tables of two processes apart."""


@dataclass(slots=True)
class _Table:
    """State of a table while it is read."""

    seen: int
    """Number of its latest line in the file."""
    position: int = 0
    headed: bool = False
    """Whether the header was seen, and not only what precedes it."""
    test: str | None = None
    ranks: int = 0
    hosts: set[str] | None = field(default_factory=set)
    """Host names; None if there are too many."""
    nodes: int | None = None
    names: tuple[str, ...] = _DEFAULT
    has_root: bool = True
    rest: tuple[str, ...] = ()
    """Columns of the current row that are still missing."""
    size: int = -1
    points: dict[int, float] = field(default_factory=dict)
    """Best bandwidth by size."""
    average: float | None = None
    checked: bool = False
    wrong: int = 0
    wrong_position: int | None = None

    def is_over(self, line: int) -> bool:
        """Return whether no more lines are expected, because too many others have passed since the last one."""
        return line - self.seen > _PATIENCE

    def take_device(self, found: re.Match[str], *, full: bool) -> None:
        self.ranks = max(self.ranks, int(found["rank"]) + 1)  # long device lists are truncated
        if self.hosts is not None and found["host"] not in self.hosts:
            self.hosts = None if full else self.hosts | {found["host"]}

    def take_columns(self, line: str) -> None:
        """Read the header of the table; a truncated header means the usual columns."""
        self.nodes, self.hosts = len(self.hosts) if self.hosts else None, set()
        if found := _COLUMNS.search(line):
            names = found[1].split()
            self.has_root = "root" in names
            names = names[: names.index("timestamp")] if "timestamp" in names else names
            self.names = tuple(name for name in names if name not in {"redop", "op", "root"})

    def take_wrong(self, count: int, at: int) -> None:
        self.checked = True
        self.wrong = min(self.wrong + count, _WRONG_LIMIT)
        if count and self.wrong_position is None:
            self.wrong_position = at

    def take_row(self, row: re.Match[str]) -> None:
        self.size = int(row["size"])
        self.rest = () if self.size < int(row["count"]) else self.names  # the leading digits are missing

    def take_cells(self, cells: list[str], at: int) -> None:
        for name, cell in zip(self.rest, cells, strict=False):
            if cell == "N/A":
                continue
            if name == "busbw":
                self._take_best(float(cell.rstrip("*")))
            elif name == "#wrong":
                self.take_wrong(min(int(float(cell.rstrip("*"))), _WRONG_LIMIT), at)
            elif name in {"error", "res"}:  # the largest deviation, starred if it is too large
                self.take_wrong(int(cell.endswith("*")), at)
        self.rest = self.rest[len(cells) :]

    def _take_best(self, value: float) -> None:
        self.points[self.size] = max(value, self.points.get(self.size, value))
        if len(self.points) > _POINTS:
            del self.points[min(self.points)]

    def measurement(self, place: Callable[[int], tuple[str, int]]) -> Measurement:
        file, line = place(self.position)
        alone = self.ranks == 1  # it sends nothing: programs print 0 GB/s, or the speed of its memory
        return Measurement(
            test=self.test,
            ranks=self.ranks or None,
            nodes=self.nodes,
            average_gb_s=None if alone else self.average,
            wrong=self.wrong if self.checked else None,
            file=file,
            line=line,
            wrong_line=None if self.wrong_position is None else place(self.wrong_position)[1],
            points=() if alone else tuple(sorted(self.points.items())),
        )


class BandwidthReader:
    """Reads the tables of a log, block by block; memory does not grow with the log."""

    def __init__(self) -> None:
        self._file = ""
        self._line = 0
        self._tables: list[_Table] = []
        self._open: dict[str, _Table] = {}
        """Open tables by process label."""

    def feed(self, file: str, block: bytes, position: Callable[[int], int]) -> None:
        """Read whole lines of a file; `position(n)` is the position of line n of the block, counted from 0."""
        if file != self._file:
            self._file, self._open, self._line = file, {}, 0
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if announces_table(block) or any(not table.is_over(self._line) for table in self._open.values()):
            for index, line in enumerate(block.split(b"\n")):
                if _RELEVANT.search(line):
                    self._take(plain(line), self._line + index, position(index))
        self._line += lines

    def _take(self, line: str, now: int, at: int) -> None:
        """Read a line of a file, given its number `now` and its position `at` in the log."""
        begin = end_of(prefixes().launcher, line)
        tag = _LABEL.search(line[:begin])
        label = next(filter(None, tag.groups()), "") if tag else ""
        table = self._open.get(label)
        is_open = table is not None and not table.is_over(now)
        if table is not None and table.headed and is_open:
            self._numbers(table, line[begin:], now, at)
        for found in _WORDS.finditer(line) if is_open or "#" in line else ():
            self._words(found, line, label, now, at)

    def _numbers(self, table: _Table, text: str, now: int, at: int) -> None:
        """Read the rows in a line, or the continuation of a row."""
        rows = list(_ROW.finditer(text))
        starts = [row.start() for row in rows] + [len(text)]
        for row, end in zip(rows, starts[1:], strict=True):
            table.seen = now
            table.take_row(row)
            if found := _CELLS.match(text, row.end(), end):
                cells = found[0].split()
                has_root = table.has_root and "." not in cells[0]
                table.take_cells(cells[1:] if has_root else cells, at)
        if not rows and table.rest[:1] in {("time",), ("cputime",)} and (found := _CELLS.match(text)):
            table.seen = now
            table.take_cells(found[0].split(), at)

    def _words(self, found: re.Match[str], line: str, label: str, now: int, at: int) -> None:
        """Read a part of a table other than a row."""
        table = self._open.get(label)
        if found["start"]:
            if table is None or table.headed or found["test"] or table.ranks:
                table = self._begin(label, now)
            table.test, table.seen = found["test"] or table.test, now
        elif found["rank"]:
            if table is not None and not (table.headed or table.is_over(now)):
                table.seen = now
                full = sum(len(one.hosts or ()) for one in self._open.values()) >= _HOST_LIMIT
                table.take_device(found, full=full)
        elif found["columns"]:
            if table is None or (table.headed and table.position != at):
                table = self._begin(label, now)
            if not table.headed:  # otherwise it is the second half of the same line
                table.seen = now
                table.take_columns(line)
                self._head(table, at)
        elif found["end"]:
            if table is not None and table.headed:
                table.average = float(found["average"]) if found["average"] else None
                del self._open[label]
        elif count := int(found["wrong"]):  # rows may be missing, and not all versions count wrong results in them
            if table is None or not table.headed:  # wrong results count even without a header
                table = self._begin(label, now)
                self._head(table, at)
            table.take_wrong(max(0, count - table.wrong), at)

    def _begin(self, label: str, now: int) -> _Table:
        """Open a table, closing the oldest one if there are too many."""
        if label not in self._open and len(self._open) >= TABLE_LIMIT:
            self._open.pop(next(iter(self._open)))
        table = self._open[label] = _Table(now)
        return table

    def _head(self, table: _Table, at: int) -> None:
        """Record where a table begins; tables beyond the limit are read but not stored."""
        table.position, table.headed = at, True
        if len(self._tables) < TABLE_LIMIT:
            self._tables.append(table)

    def measurements(self, place: Callable[[int], tuple[str, int]]) -> tuple[Measurement, ...]:
        """Return the tables read so far, in log order; `place` maps a position to its file and line."""
        return tuple(table.measurement(place) for table in self._tables)
