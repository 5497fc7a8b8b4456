"""The table of a bandwidth test while it is read: what its lines say, and what it measured in the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from lumiimg.joblog.report import Measurement

_PATIENCE = 200_000
"""Lines without a row after which a table is over whose end was not seen: on a large job the first row waits for all
channels of all ranks."""
_WRONG_LIMIT = 10**15
_POINTS = 256
"""Sizes whose bandwidth is kept: the largest, which decide."""
_COLUMNS = re.compile(rb"\b(?:size\s{1,40}count|bytes\s{1,40}N)\s{1,40}type((?:\s{1,40}[\w#%]{1,12}){3,26})")
_AMD = re.compile(rb"AMD|Radeon|Instinct|gfx\d")
_DEFAULT = ("time", "algbw", "busbw", "#wrong") * 2


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
    best: tuple[float, int] | None = None
    """Bandwidth, size."""
    points: dict[int, float] = field(default_factory=dict)
    """The best bandwidth of each size."""
    largest: int | None = None
    average: float | None = None
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
        return line - self.seen > _PATIENCE

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
        self.points[self.size] = max(value, self.points.get(self.size, value))
        if len(self.points) > _POINTS:
            del self.points[min(self.points)]

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
        best, size = self.best or (None, None)
        file, line = place(self.position)
        return Measurement(
            name=self.name,
            program=self.program,
            test=self.test,
            ranks=self.ranks or None,
            nodes=self.nodes,
            best_gb_s=best,
            best_size=size,
            largest_size=self.largest,
            average_gb_s=self.average,
            wrong=self.wrong if self.checked else None,
            file=file,
            line=line,
            wrong_line=None if self.wrong_position is None else place(self.wrong_position)[1],
            points=tuple(sorted(self.points.items())),
        )
