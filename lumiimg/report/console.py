"""The terminal, in one style: text for people, unless standard output carries JSON.

The answer comes first, in one sentence, bold and coloured by what it is. What stands behind it follows: a mark and a
sentence, and indented below it evidence (`>`), reasons (`why:`), what to do (`do:`, else `or:`), the source. Text is
wrapped at the terminal's width, and never beyond 100 columns; where there is no terminal, at COLUMNS, else 80.

What a command answers has room on one screen, of 24 lines at least. What has not is left to --verbose, and one line
says so: evidence and further remedies first, then what is well, then reasons, each from the end (`screen`).

Wider lines are of three kinds only, and never broken: evidence, which is the proof as it was printed; what is there to
be copied (`do:`, `or:`, `next:`, lines of a script); and a word, a path or a name, that is longer than the line. What
stops a command is printed by `cli/error_output.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.errors import one_line, printable
from lumiimg.secret import hidden, secrets_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
_TITLE = "bold"
_ROWS = 24
"""Of a screen, the last of them for the prompt."""


class Priority(IntEnum):
    """How soon a text is left out where a screen is too small: the highest number first."""

    ALWAYS = 0
    SENTENCE = 1
    REASON = 2
    WELL = 3
    """What stands against nothing."""
    MORE = 4
    """Evidence, further remedies, sources."""


class _Text(NamedTuple):
    """What was printed at once."""

    text: str
    style: str | None
    priority: Priority
    rows: int


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
        size = shutil.get_terminal_size()
        self.width = size.columns if is_terminal else _columns(os.environ.get("COLUMNS", ""))
        self._room = max(size.lines if is_terminal else 0, _ROWS) - 1
        self._held: list[_Text] | None = None
        self.encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self.quiet = quiet

    def print(self, text: str = "", *, style: str | None = None, priority: Priority = Priority.ALWAYS) -> None:
        """Print lines in a style (STYLES, HEADLINES), unless the console is quiet. Raises BrokenPipeError."""
        if self.quiet or self._stream is None:
            return
        lines = [one_line(line) for line in hidden(text, secrets_here()).split("\n")]
        if self._held is not None:
            rows = sum(-(-len(line) // self.width) or 1 for line in lines)
            self._held.append(_Text(text, style, priority, rows))
            return
        self._stream.write("\n".join(self.styled(line, style) if style and line else line for line in lines) + "\n")
        self._stream.flush()

    def hold(self) -> None:
        """Keep what is printed until `show`."""
        self._held = []

    def show(self) -> None:
        """Print what was kept, as far as it has room on a screen, and how much is left out."""
        held, self._held = self._held or [], None
        shown, left = _fitting(held, self._room)
        for one in shown:
            self.print(one.text, style=one.style)
        if left:
            self.print(f"({left} more {'line' if left == 1 else 'lines'} with --verbose)", style="dim")

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


@contextmanager
def screen(*, verbose: bool, quiet: bool = False, stderr: bool = False) -> Iterator[Console]:
    """Give a console for one answer; unless it is `verbose`, what has no room on a screen is left out at the end."""
    out = console(stderr=stderr, quiet=quiet)
    if verbose or quiet:
        yield out
        return
    out.hold()
    yield out
    out.show()


def _fitting(held: Sequence[_Text], room: int) -> tuple[list[_Text], int]:
    """Return (texts that have room together, how many lines are left out); a line that says so has room, too."""
    kept = _without_gaps(held)
    if sum(one.rows for one in kept) <= room:
        return kept, 0
    whole = sum(one.rows for one in kept if one.text)
    for priority in sorted(Priority, reverse=True)[:-1]:
        numbers = [number for number, one in enumerate(kept) if one.priority is priority and one.text]
        left_out = set(numbers[room:])  # of each there is room for no more
        for number in [*numbers[:room][::-1], None]:
            shorter = _without_gaps([one for at, one in enumerate(kept) if at not in left_out])
            if sum(one.rows for one in shorter) < room:
                return shorter, whole - sum(one.rows for one in shorter if one.text)
            if number is not None:
                left_out.add(number)
        kept = shorter
    return kept, whole - sum(one.rows for one in kept if one.text)


def _without_gaps(texts: Sequence[_Text]) -> list[_Text]:
    """Leave out titles with nothing below them, and each empty line behind another, or at the end."""
    found: list[_Text] = []
    for one in texts:
        if not one.text and found and found[-1].style == _TITLE:
            found.pop()
        if one.text or (found and found[-1].text):
            found.append(one)
    while found and (not found[-1].text or found[-1].style == _TITLE):
        found.pop()
    return found


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
        say(out, text, style=HEADLINES[kind], priority=Priority.ALWAYS)


def say(
    out: Console,
    text: str,
    *,
    first: str = "",
    rest: str | None = None,
    style: str | None = None,
    priority: Priority = Priority.SENTENCE,
) -> None:
    """Print a sentence, wrapped; further lines are indented by two more than the first."""
    indent = " " * (len(first) - len(first.lstrip())) + "  " if rest is None else rest
    out.print(wrapped(out, printable(text), first=first, rest=indent), style=style, priority=priority)


def marked(out: Console, kind: str, text: str, *, first: str = "", priority: Priority | None = None) -> None:
    """Print a sentence behind the mark of its kind (a key of MARKS)."""
    if priority is None:
        priority = Priority.SENTENCE if kind in {"problem", "unknown"} else Priority.WELL
    say(out, text, first=f"{first}{MARKS[kind]} ", style=STYLES[kind], priority=priority)


def detail(out: Console, text: str, *, style: str | None = None, priority: Priority = Priority.REASON) -> None:
    """Print what stands behind a sentence, below it."""
    say(out, text, first=INDENT, style=style, priority=priority)


def verbatim(out: Console, text: str, *, style: str | None = None, priority: Priority = Priority.REASON) -> None:
    """Print a line as it is, however long: evidence, or something to be copied."""
    out.print(printable(text), style=style, priority=priority)


def branch(out: Console, left: str, right: str, *, below: str, style: str | None = None) -> None:
    """Print a row of a tree: two parts in one line if there is room, else the second one behind `below` in a line."""
    if len(left) + 1 + len(right) <= min(out.width, WIDEST):
        verbatim(out, f"{left} {right}", style=style, priority=Priority.WELL)
    else:
        verbatim(out, left, style=style, priority=Priority.WELL)
        verbatim(out, f"{below}  {right}", style=style, priority=Priority.WELL)


def evidence(out: Console, line: str, *, priority: Priority = Priority.MORE) -> None:
    """Print a line that something else printed: it is the proof, and never wrapped."""
    verbatim(out, f"{INDENT}> {line.strip()}", priority=priority)


def remedies(out: Console, found: Sequence[str], *, first: str = "do", then: str = "do") -> None:
    """Print what to do, to be copied; `then` is `or` where one of several is enough."""
    for position, remedy in enumerate(found):
        priority = Priority.MORE if position else Priority.SENTENCE
        verbatim(out, f"{INDENT}{then if position else first}:  {remedy}", priority=priority)


def proposal(out: Console, command: str, *, word: str = "next") -> None:
    """Print a command to go on with, to be copied."""
    verbatim(out, f"{word}:  {command}", priority=Priority.ALWAYS)


def advise(out: Console, advice: Advice) -> None:
    """Print why an answer is as it is, and one command: with the headline they are what is read first."""
    if advice.why:
        say(out, f"why: {advice.why}", rest=" " * 5, priority=Priority.ALWAYS)
    next_step(out, advice)


def next_step(out: Console, advice: Advice) -> None:
    """Print the command to go on with, if there is one."""
    if advice.next:
        proposal(out, advice.next, word=f"next, {advice.where}" if advice.where else "next")


def heading(out: Console, title: str) -> None:
    """Print the title of a part, behind an empty line."""
    out.print()
    out.print(printable(title), style=_TITLE, priority=Priority.WELL)


def fact(out: Console, title: str, text: str, *, style: str | None = None) -> None:
    """Print a row of a table of facts: a name, and what is known of it."""
    say(out, text, first=f"  {title:<10}", rest=" " * 14, style=style)


def print_json(kind: str, value: object) -> None:
    """Print a result for machines, a value of the kind's type."""
    from lumiimg.report import json_output

    print(json_output.json_text(kind, value))


def print_json_line(kind: str, value: object) -> None:
    """Print a result for machines in one line, as one of several (JSON Lines)."""
    from lumiimg.report import json_output

    # a line break in a text is an escape
    print(json_output.json_text(kind, value).replace("\n", " "), flush=True)
