"""How a command says what stops it: for a person at a terminal in two sentences, for tools in one line."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from lumiimg.core.errors import one_safe_line


def write_error(program: str, line: str, sentence: str, hint: str | None) -> None:
    """Print on standard error what stops a command: `sentence` and `hint` at a terminal, else `line`.

    Where that is full the exit code says it alone.
    """
    with contextlib.suppress(OSError):
        _print(sys.stderr, program, line, sentence, hint)


def _print(stream: TextIO, program: str, line: str, sentence: str, hint: str | None) -> None:
    if not stream.isatty():
        print(one_safe_line(f"{program}: {line}"), file=stream, flush=True)
        return
    from lumiimg.report.terminal import Terminal  # where something is wrong

    terminal = Terminal(stream)
    for word, style, text in (("error:", "bold red", sentence), ("hint:", "bold cyan", hint)):
        if text:
            first, *more = terminal.wrapped(text, first=f"{word} ", rest=" " * (len(word) + 1))
            terminal.write([first.replace(word, terminal.styled(word, style), 1), *more])
