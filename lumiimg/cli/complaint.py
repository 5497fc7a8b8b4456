"""How a command says what stops it: for a person at a terminal in two sentences, for tools in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from lumiimg.errors import printable

if TYPE_CHECKING:
    from typing import TextIO

_ERROR, _HINT, _PLAIN = "\x1b[1;31m", "\x1b[1;36m", "\x1b[0m"
_NARROWEST, _WIDEST = 40, 100


def complain(program: str, line: str, sentence: str, hint: str | None) -> None:
    """Print on standard error what stops a command: `sentence` and `hint` at a terminal, else `line`.

    Where that is closed or full the exit code says it alone.
    """
    with contextlib.suppress(OSError):
        _complain(sys.stderr, program, line, sentence, hint)


def _complain(stream: TextIO | None, program: str, line: str, sentence: str, hint: str | None) -> None:
    if stream is None:
        return
    if not stream.isatty():
        print(printable(f"{program}: {line}"), file=stream, flush=True)
        return
    width = max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))
    has_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in {None, "dumb"}
    for word, colour, text in (("error:", _ERROR, sentence), ("hint:", _HINT, hint)):
        if text:
            lines = textwrap.wrap(
                f"{word} {printable(text)}",
                width,
                subsequent_indent=" " * (len(word) + 1),
                break_long_words=False,
                break_on_hyphens=False,
            )
            told = "\n".join(lines)
            print(told.replace(word, f"{colour}{word}{_PLAIN}", 1) if has_colour else told, file=stream)
