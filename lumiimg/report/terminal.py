"""The output for people: its width and height, whether it supports colours, and how sentences are wrapped."""

from __future__ import annotations

import os
import shutil
import textwrap
from typing import TYPE_CHECKING, TextIO

from lumiimg.core.errors import one_safe_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

WIDEST = 100
"""Maximum width in columns: longer lines are hard to read, however wide the terminal is."""
_PIPE, _NARROWEST = 80, 40
"""Width of a pipe or file, and minimum width. A job's output file is read where 80 columns fit; more gain nothing."""
_ROWS = 24
"""Minimum number of rows of a screen."""
_NOTE_AND_PROMPT = 2
"""Rows below an answer: the note about the chosen site (`cli/main.py`), and the prompt."""
_SPACE = "\0"
"""Placeholder for a space inside a name while lines are wrapped; printable text never contains it."""


def takes_codes(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that supports codes for colours and clearing; not if TERM is unset."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}


class Terminal:
    """A stream, its width in columns, its height in rows, and whether it supports colours."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = is_terminal = stream.isatty()
        size = shutil.get_terminal_size()
        self.columns = size.columns if is_terminal else _columns(os.environ.get("COLUMNS", ""))
        self.width = max(min(self.columns, WIDEST), _NARROWEST)
        self.rows = max(size.lines if is_terminal else 0, _ROWS) - _NOTE_AND_PROMPT
        self.has_colours = takes_codes(stream) and not os.environ.get("NO_COLOR")

    def write(self, lines: Iterable[str]) -> None:
        """Print lines."""
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()

    def styled(self, line: str, style: str) -> str:
        """Return a line in a style, if colours are supported."""
        if not (self.has_colours and style and line):
            return line
        from rich.color import ColorSystem
        from rich.style import Style

        return Style.parse(style).render(line, color_system=ColorSystem.STANDARD)

    def drawn(self, what: RenderableType) -> tuple[str, ...]:
        """Return the lines that rich draws; importing rich takes 60 ms, and output to a job's file rarely needs it."""
        from rich.console import Console

        console = Console(
            width=self.width,
            color_system="standard" if self.has_colours else None,
            force_terminal=self.has_colours,
            legacy_windows=False,
        )
        with console.capture() as capture:
            console.print(what, crop=False)
        return tuple(line.rstrip() for line in capture.get().splitlines())

    def wrapped(self, text: str, *, first: str = "", rest: str | None = None, style: str = "") -> tuple[str, ...]:
        """Return a sentence in lines that fit; all but the first are indented by two more columns, or by `rest`."""
        indent = " " * (len(first) - len(first.lstrip()) + 2) if rest is None else rest
        return tuple(self.styled(line, style) for line in self._lines(one_safe_line(text), first, indent))

    def listed(self, names: Iterable[str], indent: str) -> tuple[str, ...]:
        """Return names in lines that fit; no name is broken, even if it contains spaces."""
        text = ", ".join(one_safe_line(name).replace(" ", _SPACE) for name in names)
        return tuple(line.replace(_SPACE, " ") for line in self._lines(text, indent, indent))

    def _lines(self, text: str, first: str, rest: str) -> list[str]:
        """Return a text wrapped into lines; a word longer than a line stays whole."""
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _columns(text: str) -> int:
    columns = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    return max(columns, _NARROWEST) if columns else _PIPE
