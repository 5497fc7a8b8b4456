"""The terminal, in one style: text for people, unless standard output carries JSON."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

from lumiimg.report import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

MARKS = {"ok": "✓", "info": "·", "unknown": "?", "problem": "✗"}
PLAIN_MARKS = {"ok": "+", "info": "-", "unknown": "?", "problem": "x"}
WIDTH = 100
"""Columns that text is wrapped to where there is room, and in a pipe."""
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
    width = None if stream is not None and stream.isatty() else WIDTH
    return PipeConsole(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def wrapped(out: Console, text: str, *, first: str = "", rest: str = "  ") -> str:
    """Return a text in lines that fit, `first` and `rest` before them; a word (a path, a name) stays whole."""
    return textwrap.fill(
        text,
        min(out.width, WIDTH),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_json(name: str, data: Mapping[str, Any]) -> None:
    """Print a result for machines: `name` is that of its schema."""
    print(schema.json_text(name, data))
