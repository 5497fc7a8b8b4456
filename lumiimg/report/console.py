"""The terminal, in one style: text for people, unless standard output carries JSON."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from lumiimg.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console

MARKS = {"ok": "✓", "info": "·", "unknown": "?", "problem": "✗"}
PLAIN_MARKS = {"ok": "+", "info": "-", "unknown": "?", "problem": "x"}
WIDTH = 100
"""Columns that text is wrapped to where there is room, and in a pipe."""
_UNSEEN = re.compile(r"[^\n -~]")
STYLES = {"ok": "green", "info": "dim", "unknown": "yellow", "problem": "bold red"}


def console(*, stderr: bool = False) -> Console:
    """Return a console of rich: colours only on a terminal, none with NO_COLOR or TERM=dumb.

    Text is never read as markup or searched for emoji codes: it holds lines of foreign logs. What a terminal would obey
    is spelled out, should whoever made the text have forgotten it.
    """
    from rich.console import Console  # noqa: PLC0415 - 26 ms that --help should not cost

    class PipeConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
            super().print(*(_harmless(text) if isinstance(text, str) else text for text in objects), **options)

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


def _harmless(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n")))


def print_json(data: dict[str, Any]) -> None:
    """Print a result for machines."""
    print(json_text(data))


def json_text(data: dict[str, Any]) -> str:
    """Return a result for machines: letters of all languages stay, but nothing that a terminal obeys."""
    return _UNSEEN.sub(_spelled, json.dumps(data, indent=2, ensure_ascii=False))


def _spelled(match: re.Match[str]) -> str:
    """Return what is not printable as JSON spells it: in pairs of UTF-16 where it takes two."""
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]
