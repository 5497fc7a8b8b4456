"""The terminal, in one style: text for people, unless standard output carries JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

MARKS = {"ok": "✓", "info": "·", "unknown": "?", "problem": "✗"}
PLAIN_MARKS = {"ok": "+", "info": "-", "unknown": "?", "problem": "x"}
STYLES = {"ok": "green", "info": "dim", "unknown": "yellow", "problem": "bold red"}


def console(*, stderr: bool = False) -> Console:
    """Return a console of rich: colours only on a terminal, none with NO_COLOR or TERM=dumb.

    Text is never read as markup or searched for emoji codes: it holds lines of foreign logs.
    """
    from rich.console import Console  # noqa: PLC0415 - 26 ms that --help should not cost

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich leaves with 1, which is an answer here.
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is not None and stream.isatty() else 100
    return PipeConsole(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def size(size_bytes: int) -> str:
    """Return a size for people."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def duration(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def print_json(data: dict[str, Any]) -> None:
    """Print a result for machines."""
    print(json.dumps(data, indent=2, ensure_ascii=False))
