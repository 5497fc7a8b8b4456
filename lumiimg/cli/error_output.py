"""Print the error that stops a command: two sentences for a person at a terminal, one line for tools."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from lumiimg.core.errors import one_safe_line


def write_error(program: str, line: str, sentence: str, hint: str | None) -> None:
    """Print an error on standard error: `sentence` and `hint` at a terminal, else `line`.

    If standard error cannot be written to, only the exit code reports the error.
    """
    with contextlib.suppress(OSError):
        _print(sys.stderr, program, line, sentence, hint)


def _print(stream: TextIO, program: str, line: str, sentence: str, hint: str | None) -> None:
    if not stream.isatty():
        print(one_safe_line(f"{program}: {line}"), file=stream, flush=True)
        return
    from lumiimg.report.terminal import Terminal  # imported only after an error

    terminal = Terminal(stream)
    for word, style, text in (("error:", "bold red", sentence), ("hint:", "bold cyan", hint)):
        if text:
            first, *more = terminal.wrapped(text, first=f"{word} ", rest=" " * (len(word) + 1))
            terminal.write([first.replace(word, terminal.styled(word, style), 1), *more])
