"""How far a long log was read: a line on a terminal, from the third second on, that is gone when it was read."""

from __future__ import annotations

import sys
import time

from lumiimg.wording import size

_FIRST_S, _AGAIN_S = 3.0, 0.5


class ReadProgress:
    """Shows on standard error how much was read; nothing where that is not a terminal, or `quiet`."""

    def __init__(self, total_bytes: int | None, *, quiet: bool) -> None:
        self._total = total_bytes
        self._is_shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + _FIRST_S
        self._has_line = False

    def __call__(self, read_bytes: int) -> None:
        """Take how much was read so far."""
        if not self._is_shown or (now := time.monotonic()) < self._next:
            return
        self._next, self._has_line = now + _AGAIN_S, True
        told = f"read {size(read_bytes)}"
        if self._total:
            told += f" of {size(self._total)}, {min(100, 100 * read_bytes // self._total)} %"
        print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the line away."""
        if self._has_line:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
