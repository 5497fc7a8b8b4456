"""Rows of a bandwidth test whose head was cut off: what they are shows in their numbers.

In a row of rccl-tests or nccl-tests the bandwidth is the size over the time (src/common.cu). OSU prints two columns:
the sizes double, and over small messages a latency stays, while a bandwidth doubles.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_COLLECTIVE = re.compile(
    rb"(?P<size>\d{1,15})\s{1,24}\d{1,15}\s{1,24}[a-z]\w{2,12}\s{1,24}[a-z]{2,12}\s{1,24}-?\d{1,7}"
    rb"\s{1,24}(?P<time>\d{1,12}\.\d{1,4})\s{1,24}(?P<algbw>\d{1,6}\.\d\d)\s{1,24}\d{1,6}\.\d\d\s"
)
_ENOUGH = 8
"""Rows of OSU after which it is known what they are: from 1 byte to 128."""
_LABELS, _GAP = 64, 100


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
