"""Positions in a log, sorted by file: each of 65,536 processes may have one or many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.joblog.state import JobLog


class Places:
    """A set of positions in a log."""

    def __init__(self, log: JobLog, positions: Iterable[int]) -> None:
        self._log = log
        self._of: dict[str, list[int]] = {}
        """Sorted positions by file; files in the order of their first position."""
        for at in sorted(positions):
            self._of.setdefault(log.file(at), []).append(at)

    def first(self, at: int) -> int:
        """Return the first one in the file of a position, or the position itself if there is none."""
        return next(iter(self._beside(at)), at)

    def last(self, at: int) -> int:
        """Return the last one in the file of a position, or -1 if there is none."""
        return next(reversed(self._beside(at)), -1)

    def before(self, at: int) -> int | None:
        """Return the nearest one before a position, in its file."""
        beside = self._beside(at)
        return beside[index - 1] if (index := bisect_left(beside, at)) else None

    def after(self, at: int) -> int | None:
        """Return the nearest one after a position, in its file."""
        beside = self._beside(at)
        return beside[index] if (index := bisect_right(beside, at)) < len(beside) else None

    def following(self, at: int) -> list[int]:
        """Return the nearest one after a position, and the first one in other files, which may be from any time."""
        file, after = self._log.file(at), self.after(at)
        elsewhere = (of[0] for name, of in islice(self._of.items(), 2) if name != file)
        return [*([] if after is None else [after]), *islice(elsewhere, 1)]

    def _beside(self, at: int) -> list[int]:
        return self._of.get(self._log.file(at), [])
