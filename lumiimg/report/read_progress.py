"""A line of a terminal that says how far something is, and is gone at the end; of a log, how much of it was read."""

from __future__ import annotations

import shutil
import sys
import time

from lumiimg.errors import printable
from lumiimg.wording import size

_FIRST_S, _AGAIN_S = 3.0, 0.5


class LiveLine:
    """One line on standard error that is written over."""

    def show(self, text: str) -> None:
        """Show a text, as much of it as the line has room for."""
        self._write(printable(text)[: shutil.get_terminal_size().columns - 1])

    def leave(self, text: str) -> None:
        """Show a text that stays, and go on below it."""
        self._write(text, "\n")

    def clear(self) -> None:
        """Take the line away."""
        self._write("")

    def _write(self, text: str, end: str = "") -> None:
        print(f"\r\x1b[K{printable(text)}", end=end, file=sys.stderr, flush=True)


class ReadProgress:
    """Shows how much was read, from the third second on; nothing where there is no terminal, or `quiet`."""

    def __init__(self, total_bytes: int | None, *, quiet: bool) -> None:
        self._total = total_bytes
        self._is_shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + _FIRST_S
        self._line: LiveLine | None = None

    def __call__(self, read_bytes: int) -> None:
        """Take how much was read so far."""
        if not self._is_shown or (now := time.monotonic()) < self._next:
            return
        self._next, self._line = now + _AGAIN_S, LiveLine()
        of = f" of {size(self._total)}, {min(100, 100 * read_bytes // self._total)} %" if self._total else ""
        self._line.show(f"read {size(read_bytes)}{of}")

    def close(self) -> None:
        """Take the line away."""
        if self._line is not None:
            self._line.clear()
