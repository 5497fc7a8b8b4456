"""The terminal, in one style: text for people, unless standard output carries JSON.

The answer comes first, in one sentence, bold and coloured by what it is. What stands behind it follows: a mark and a
sentence, and indented below it evidence (`>`), reasons (`why:`), what to do (`do:`, else `or:`), the source. Text is
wrapped at the terminal's width, and never beyond 100 columns; where there is no terminal, at COLUMNS, else 80.

Wider lines are of three kinds only, and never broken: evidence, which is the proof as it was printed; what is there to
be copied (`do:`, `or:`, `next:`, lines of a script); and a word, a path or a name, that is longer than the line. What
stops a command is printed by `cli/complaint.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from lumiimg.errors import one_line, printable
from lumiimg.secret import hidden, secrets_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.findings import Advice

MARKS = {"ok": "✓", "info": "·", "unknown": "?", "problem": "✗"}
STYLES = {"ok": "green", "info": "dim", "unknown": "yellow", "problem": "bold red"}
HEADLINES = {"ok": "bold green", "info": "bold", "unknown": "bold yellow", "problem": "bold red"}
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
"""ECMA-48, 8.3.117 (SGR)."""
INDENT = "    "
WIDEST = 100
"""Longer lines are hard to read, however wide the terminal is."""
_PIPE, _NARROWEST = 80, 40
"""A job's output file is read in an editor or a terminal that has 80 columns at least; nothing is gained by more."""


class Console:
    """Where text for people goes: a stream, its width, and whether it takes colours.

    rich has such a thing, too, and takes 50 ms to import; of its styles these few are needed.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        self._stream = sys.stderr if stderr else sys.stdout
        is_terminal = self._stream is not None and self._stream.isatty()
        # TERM is not set where nothing is known of the terminal
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") in {"dumb", "unknown"}
        self._has_colours = is_terminal and not plain
        self.width = shutil.get_terminal_size().columns if is_terminal else _columns(os.environ.get("COLUMNS", ""))
        self.encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self.quiet = quiet

    def print(self, text: str = "", *, style: str | None = None) -> None:
        """Print lines in a style (STYLES, HEADLINES), unless the console is quiet. Raises BrokenPipeError."""
        if self.quiet or self._stream is None:
            return
        lines = _harmless(text).split("\n")
        self._stream.write("\n".join(self.styled(line, style) if style and line else line for line in lines) + "\n")
        self._stream.flush()

    def styled(self, text: str, style: str) -> str:
        """Return a line in a style, where this takes colours."""
        codes = ";".join(_CODES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m" if self._has_colours else text


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console: colours only on a terminal, none with NO_COLOR or TERM=dumb.

    `quiet` leaves only the headline. What a terminal would obey is spelled out, should whoever made the text have
    forgotten it.
    """
    return Console(stderr=stderr, quiet=quiet)


def _harmless(text: str) -> str:
    return "\n".join(map(one_line, hidden(text, secrets_here()).split("\n")))


def _columns(text: str) -> int:
    return max(int(text), _NARROWEST) if text.isascii() and text.isdigit() and len(text) < 5 else _PIPE


def wrapped(out: Console, text: str, *, first: str = "", rest: str = "  ") -> str:
    """Return a text in lines that fit, `first` and `rest` before them; a word (a path, a name) stays whole."""
    return textwrap.fill(
        text,
        min(out.width, WIDEST),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def cut(out: Console, text: str, indent: str) -> str:
    """Return a text that has room in a line of its own, its end left out: names of nodes can go on for pages."""
    room = min(out.width, WIDEST) - len(indent) - 1
    return text if len(text) <= room else f"{text[: room - 1]}…"


def headline(out: Console, text: str, kind: str = "info") -> None:
    """Print the answer; all that a quiet console prints, there in one line for scripts."""
    if out.quiet:
        out.quiet = False
        out.print(printable(text), style=HEADLINES[kind])
        out.quiet = True
    else:
        say(out, text, style=HEADLINES[kind])


def say(out: Console, text: str, *, first: str = "", rest: str | None = None, style: str | None = None) -> None:
    """Print a sentence, wrapped; further lines are indented by two more than the first."""
    indent = " " * (len(first) - len(first.lstrip())) + "  " if rest is None else rest
    out.print(wrapped(out, printable(text), first=first, rest=indent), style=style)


def marked(out: Console, kind: str, text: str, *, first: str = "") -> None:
    """Print a sentence behind the mark of its kind (a key of MARKS)."""
    say(out, text, first=f"{first}{MARKS[kind]} ", style=STYLES[kind])


def detail(out: Console, text: str, *, style: str | None = None) -> None:
    """Print what stands behind a sentence, below it."""
    say(out, text, first=INDENT, style=style)


def verbatim(out: Console, text: str, *, style: str | None = None) -> None:
    """Print a line as it is, however long: evidence, or something to be copied."""
    out.print(printable(text), style=style)


def branch(out: Console, left: str, right: str, *, below: str, style: str | None = None) -> None:
    """Print a row of a tree: two parts in one line if there is room, else the second one behind `below` in a line."""
    if len(left) + 1 + len(right) <= min(out.width, WIDEST):
        verbatim(out, f"{left} {right}", style=style)
    else:
        verbatim(out, left, style=style)
        verbatim(out, f"{below}  {right}", style=style)


def evidence(out: Console, line: str) -> None:
    """Print a line that something else printed: it is the proof, and never wrapped."""
    verbatim(out, f"{INDENT}> {line.strip()}")


def remedies(out: Console, found: Sequence[str], *, then: str = "do") -> None:
    """Print what to do, to be copied; `then` is `or` where one of several is enough."""
    for position, remedy in enumerate(found):
        verbatim(out, f"{INDENT}{then if position else 'do'}:  {remedy}")


def proposal(out: Console, command: str, *, word: str = "next") -> None:
    """Print a command to go on with, to be copied."""
    verbatim(out, f"{word}:  {command}")


def advise(out: Console, advice: Advice) -> None:
    """Print why an answer is as it is, and one command: with the headline they are what is read first."""
    if advice.why:
        say(out, f"why: {advice.why}", rest=" " * 5)
    next_step(out, advice)


def next_step(out: Console, advice: Advice) -> None:
    """Print the command to go on with, if there is one."""
    if advice.next:
        proposal(out, advice.next, word=f"next, {advice.where}" if advice.where else "next")


def heading(out: Console, title: str) -> None:
    """Print the title of a part, behind an empty line."""
    out.print()
    out.print(printable(title), style="bold")


def fact(out: Console, title: str, text: str, *, style: str | None = None) -> None:
    """Print a row of a table of facts: a name, and what is known of it."""
    say(out, text, first=f"  {title:<10}", rest=" " * 14, style=style)


def print_json(kind: str, source: object = None, /, **own: object) -> None:
    """Print a result for machines: its keys are `own`, else attributes of the source."""
    from lumiimg.report import schema

    print(schema.json_text(kind, source, **own))


def print_json_line(kind: str, source: object) -> None:
    """Print a result for machines in one line, as one of several (JSON Lines)."""
    from lumiimg.report import schema

    # a line break in a text is an escape
    print(schema.json_text(kind, source).replace("\n", " "), flush=True)
