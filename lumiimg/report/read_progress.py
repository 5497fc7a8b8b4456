"""A terminal line that is overwritten and finally removed; the amount of data read."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.core.text import size
from lumiimg.report.terminal import takes_codes

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_S, _AGAIN_S = 3.0, 0.5


def write_over(text: str = "", *, stays: bool = False) -> None:
    """Overwrite the last line on standard error, truncated to its width; if it `stays`, it is a whole line."""
    room = None if stays else shutil.get_terminal_size().columns - 1
    print(f"\r\x1b[K{one_safe_line(text)[:room]}", end="\n" if stays else "", file=sys.stderr, flush=True)


class ReadProgress:
    """Shows how much was read, from the third second on; nothing if there is no terminal, or with `quiet`."""

    def __init__(self, *, quiet: bool, what: str = "read", shown: Callable[[int], str] = size) -> None:
        self._what, self._shown = what, shown
        self._is_shown = not quiet and sys.stderr is not None and takes_codes(sys.stderr)
        self._next = time.monotonic() + _FIRST_S
        self._is_written = False

    def __call__(self, read: int, total: int | None) -> None:
        """Show how much was read so far, and of how much, if that is known."""
        if not self._is_shown or (now := time.monotonic()) < self._next:
            return
        self._next, self._is_written = now + _AGAIN_S, True
        of = f" of {self._shown(total)}, {min(100, 100 * read // total)} %" if total else ""
        write_over(f"{self._what} {self._shown(read)}{of}")

    def close(self) -> None:
        """Remove the line."""
        if self._is_written:
            write_over()
