"""The table of a bandwidth test while it is read: what its lines say, and what it measured in the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from lumiimg.nccl.report import Measurement

_PATIENCE_OSU = 10_000
"""Lines without a row after which an OSU table is over: it has no end mark."""
_PATIENCE = 200_000
"""The same for the others, which have one: on a large job the first row waits for all channels of all ranks."""
_WRONG_LIMIT = 10**15
_COLUMNS = re.compile(rb"\b(?:size\s{1,40}count|bytes\s{1,40}N)\s{1,40}type((?:\s{1,40}[\w#%]{1,12}){3,26})")
_AMD = re.compile(rb"AMD|Radeon|Instinct|gfx\d")
_DEFAULT = ("time", "algbw", "busbw", "#wrong") * 2
_COLLECTIVE = re.compile(
    rb"(?P<size>\d{1,15})\s{1,24}\d{1,15}\s{1,24}[a-z]\w{2,12}\s{1,24}[a-z]{2,12}\s{1,24}-?\d{1,7}"
    rb"\s{1,24}(?P<time>\d{1,12}\.\d{1,4})\s{1,24}(?P<algbw>\d{1,6}\.\d\d)\s{1,24}\d{1,6}\.\d\d\s"
)
_ENOUGH = 8
"""Rows of OSU after which it is known what they are: from 1 byte to 128."""
_LABELS, _GAP = 64, 100


@dataclass(slots=True)
class BandwidthTable:
    """What is known of a table so far."""

    program: str
    seen: int
    position: int = 0
    headed: bool = False
    """The header was seen, not only what stands before it."""
    test: str | None = None
    ranks: int = 0
    hosts: set[bytes] | None = field(default_factory=set)
    """None where there are too many."""
    nodes: int | None = None
    names: tuple[str, ...] = _DEFAULT
    root: bool = True
    rest: tuple[str, ...] = ()
    """Columns of the current row that are still to come."""
    size: int = -1
    unit: bytes = b""
    prefix: bytes | None = None
    """Shape of what stands before OSU's column titles, and so before each of its rows; None before them."""
    best: tuple[float, int] | None = None
    """Bandwidth, size."""
    largest: int | None = None
    average: float | None = None
    latency: tuple[int, float] | None = None
    checked: bool = False
    wrong: int = 0
    wrong_position: int | None = None

    @property
    def name(self) -> str:
        """The program with its test, as far as it is known; this project's own has the table of rccl-tests."""
        if self.test and self.test.startswith("lumiimg-"):
            return self.test
        return f"{self.program} {self.test}" if self.test else self.program

    def is_over(self, line: int) -> bool:
        """Whether enough lines have passed without one of the table that no more will come."""
        return line - self.seen > (_PATIENCE_OSU if self.program == "osu" else _PATIENCE)

    def see_device(self, rank: int, host: bytes, bus: bytes, device: bytes, *, full: bool) -> None:
        self.ranks = max(self.ranks, rank + 1)  # a long list is cut short
        if _AMD.search(device) or b".0" in bus:  # HIP prints the PCI function, CUDA's tests do not
            self.program = "rccl-tests"
        if self.hosts is not None and host not in self.hosts:
            if full:
                self.hosts = None
            else:
                self.hosts.add(host)

    def see_columns(self, line: bytes) -> None:
        """Take the header of the table; a cut one has the usual columns."""
        self.nodes = len(self.hosts) if self.hosts else None
        self.hosts = set()
        found = _COLUMNS.search(line)
        if found:
            names = found[1].decode("ascii", "replace").split()
            self.root = "root" in names
            names = names[: names.index("timestamp")] if "timestamp" in names else names
            self.names = tuple(name for name in names if name not in {"redop", "op", "root"})

    def see_best(self, value: float) -> None:
        self.largest = max(self.largest or 0, self.size)
        if self.best is None or value > self.best[0]:
            self.best = (value, self.size)

    def see_wrong(self, count: int, at: int) -> None:
        self.checked = True
        self.wrong = min(self.wrong + count, _WRONG_LIMIT)
        if count and self.wrong_position is None:
            self.wrong_position = at

    def see_cells(self, cells: list[bytes], at: int) -> None:
        for name, cell in zip(self.rest, cells, strict=False):
            if cell == b"N/A":
                continue
            if name == "busbw":
                self.see_best(float(cell.rstrip(b"*")))
            elif name == "#wrong":
                self.see_wrong(min(int(float(cell.rstrip(b"*"))), _WRONG_LIMIT), at)
            elif name in {"error", "res"}:  # the largest deviation, with a star where it is too large
                self.see_wrong(int(cell.endswith(b"*")), at)
        self.rest = self.rest[len(cells) :]

    def result(self, place: Callable[[int], tuple[str, int]]) -> Measurement:
        osu = self.program == "osu"
        best, size = self.best or (None, None)
        file, line = place(self.position)
        return Measurement(
            name=self.name,
            program=self.program,
            test=self.test,
            ranks=self.ranks or None,
            nodes=self.nodes,
            best_gb_s=round(best / 1000, 6) if osu and best is not None else best,
            best_size=size,
            largest_size=self.largest,
            average_gb_s=self.average,
            latency_us=self.latency[1] if self.latency else None,
            wrong=self.wrong if self.checked else None,
            file=file,
            line=line,
            wrong_line=None if self.wrong_position is None else place(self.wrong_position)[1],
        )


# -- rows of a test whose head was cut off: what they are shows in their numbers. In one of rccl-tests or nccl-tests the
# bandwidth is the size over the time (src/common.cu). OSU prints two columns: the sizes double, and over small messages
# a latency stays, while a bandwidth doubles. --


def is_row_of_collective(row: bytes) -> bool:
    """Whether a row's bandwidth is its size over its time, as far as both are printed."""
    found = _COLLECTIVE.match(row)
    if found is None:
        return False
    size, time_us, printed = int(found["size"]), float(found["time"]), float(found["algbw"])
    if time_us <= 0 or printed <= 0:
        return False
    return abs(size / time_us / 1000 - printed) <= 0.02 * printed + 0.01


class _Row(NamedTuple):
    line: int
    size: int
    value: float


class OsuRows:
    """The rows so far of each process that may be of an OSU table."""

    def __init__(self) -> None:
        self._rows: dict[bytes, list[_Row]] = {}

    def see(self, label: bytes, line: int, row: re.Match[bytes]) -> bytes:
        """Take a row, and return the unit of its table once it is known, else nothing."""
        seen = _Row(line, int(row["size"]), float(row["value"]))
        if label not in self._rows and len(self._rows) >= _LABELS:
            self._rows.clear()
        rows = self._rows.setdefault(label, [])
        follows = rows and seen.size == 2 * rows[-1].size and line - rows[-1].line <= _GAP
        if not follows:
            rows.clear()
        if follows or seen.size in {1, 2, 4}:
            rows.append(seen)
        if len(rows) < _ENOUGH:
            return b""
        ratio = rows[-2].value / max(rows[0].value, 0.001)
        self._rows.pop(label)
        return b"MB/s" if ratio > 2 ** (_ENOUGH - 4) else b"us" if ratio < 4 else b""
