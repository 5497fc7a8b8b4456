"""A document on a terminal, drawn by rich: text for people, on standard error where standard output carries JSON.

The answer comes first, in one sentence, coloured by what it is, with why and what next. What stands behind it follows:
a mark and a sentence, and indented below it evidence (`>`), reasons (`why:`), what to do (`do:`, else `or:`). Text is
wrapped at the terminal's width, and never beyond 100 columns; where there is no terminal, at COLUMNS, else 80.

An answer has room on one screen, of 24 lines at least. What has not is left to --verbose, and one line says so:
evidence and further remedies first, then what is well, then reasons, each from the end (`_fitting`).

Three kinds of lines are never broken: evidence, which is the proof as it was printed; what is there to be copied
(`do:`, `or:`, `next:`); and a word, a path or a name, that is longer than the line. Nothing is cut: a name that is
part of an answer goes over several lines.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from lumiimg.errors import printable
from lumiimg.findings import Severity
from lumiimg.report.document import (
    MARKS,
    Curve,
    Document,
    Facts,
    Item,
    Lines,
    Meter,
    Paragraph,
    PathSteps,
    Shown,
    Table,
    Tree,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from lumiimg.findings import Advice, Remedy
    from lumiimg.report.document import Block, Section

_STYLES = {Severity.OK: "green", Severity.INFO: "dim", Severity.UNKNOWN: "yellow", Severity.PROBLEM: "bold red"}
_HEADLINES = {
    Severity.OK: "bold green",
    Severity.INFO: "bold",
    Severity.UNKNOWN: "bold yellow",
    Severity.PROBLEM: "bold red",
}
_WEIGHTY = frozenset({Severity.PROBLEM, Severity.UNKNOWN})
_TITLE, _QUIET = "bold", "dim"
_INDENT, _NAME = 4, 22
"""Columns before what stands behind an item; for the names of facts, of which a few are longer."""
WIDEST = 100
"""Columns: longer lines are hard to read, however wide the terminal is."""
_PIPE, _NARROWEST = 80, 40
"""A job's output file is read in an editor or a terminal that has 80 columns at least; nothing is gained by more."""
_SGR = re.compile("\x1b\\[[0-9;]*m")
"""ECMA-48, 8.3.117: what colours a line, and takes no room on it."""
_BESIDE_NAMES = 14
"""Rows that have room in a file beside names, which are all there, each with two rows for why and what to do."""
_ROWS = 24
"""Of a screen, the last of them for the prompt."""


class Importance(IntEnum):
    """How soon a text is left out where a screen is too small: the highest number first."""

    ALWAYS = 0
    SENTENCE = 1
    REASON = 2
    WELL = 3
    """What is well, or of no weight."""
    MORE = 4
    """Evidence, further remedies, sources."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines that are shown or left out together; without lines an empty one."""

    lines: tuple[str, ...]
    importance: Importance
    rows: int
    """How many rows of the terminal they take."""
    is_title: bool = False
    is_name: bool = False

    @property
    def is_gap(self) -> bool:
        return not self.lines


_GAP = _Part((), Importance.ALWAYS, 1)


def show(document: Document, *, verbose: bool = False, quiet: bool = False, stderr: bool = False) -> None:
    """Print a document; `quiet` is its sentence alone, on one line. Raises BrokenPipeError."""
    terminal = Terminal(sys.stderr if stderr else sys.stdout)
    if quiet:
        terminal.write([terminal.styled(printable(headline(document)), _HEADLINES[document.severity])])
        return
    parts = _without_gaps(list(_Writer(terminal, document, verbose=verbose).parts()))
    left_out = 0
    if not verbose and not document.is_list:
        names = sum(part.rows for part in parts if part.is_name)
        room = terminal.rows if terminal.is_terminal else max(terminal.rows, 3 * names + _BESIDE_NAMES)
        parts, left_out = _fitting(parts, room)
    lines = [line for part in parts for line in part.lines or ("",)]
    if left_out:  # then all of it is counted that --verbose has
        whole = _Writer(terminal, document, verbose=True).parts()
        left_out = sum(len(part.lines) for part in whole) - sum(len(part.lines) for part in parts)
        more = f"({left_out} more {'line' if left_out == 1 else 'lines'} with --verbose)"
        lines.append(terminal.styled(more, _QUIET))
    terminal.write(lines)


def show_items(items: Iterable[Item], *, stderr: bool = False) -> None:
    """Print things beside an answer that is printed as it is: a script, a manifest."""
    terminal = Terminal(sys.stderr if stderr else sys.stdout)
    writer = _Writer(terminal, Document("", "", ""), verbose=True)
    parts = _without_gaps([part for item in items for part in writer.item(item)])
    terminal.write(line for part in parts for line in part.lines or ("",))


def headline(document: Document) -> str:
    """Return the answer with what it is about."""
    return f"{document.subject}: {document.sentence}" if document.is_named else document.sentence


class Terminal:
    """Where text for people goes: a stream, its width in columns, its height in rows, and whether it takes colours."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = is_terminal = stream.isatty()
        # TERM is not set where nothing is known of the terminal
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") in {"", "dumb", "unknown"}
        size = shutil.get_terminal_size()
        columns = size.columns if is_terminal else _columns(os.environ.get("COLUMNS", ""))
        self.columns = columns
        self.width = max(min(columns, WIDEST), _NARROWEST)
        self.rows = max(size.lines if is_terminal else 0, _ROWS) - 1
        self.has_colours = is_terminal and not plain

    def write(self, lines: Iterable[str]) -> None:
        """Print lines."""
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()

    @cached_property
    def console(self) -> Console:
        """What draws tables, trees and colours; to import it takes 60 ms, and a file of a job seldom needs it."""
        from rich.console import Console

        return Console(
            file=self._stream,
            width=self.width,
            color_system="standard" if self.has_colours else None,
            force_terminal=self.is_terminal,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )

    def styled(self, line: str, style: str) -> str:
        """Return a line in a style, where this takes colours."""
        if not (self.has_colours and style and line):
            return line
        from rich.text import Text

        return "\n".join(self.drawn(Text(line, style), as_it_is=True))

    def drawn(self, what: RenderableType, *, as_it_is: bool = False) -> tuple[str, ...]:
        """Return the lines of something that rich draws; `as_it_is`: of a text that stays on its line, however long."""
        with self.console.capture() as capture:
            self.console.print(what, soft_wrap=as_it_is, crop=False)
        return tuple(line.rstrip() for line in capture.get().removesuffix("\n").split("\n"))

    def wrapped(self, text: str, *, first: str = "", rest: str | None = None, style: str = "") -> tuple[str, ...]:
        """Return a sentence in lines that fit; further ones are indented by two more than the first, or by `rest`.

        A word that is longer than a line stays whole, which rich would cut or break.
        """
        indent = " " * (len(first) - len(first.lstrip()) + 2) if rest is None else rest
        lines = textwrap.wrap(
            printable(text),
            self.width,
            initial_indent=first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return tuple(self.styled(line, style) for line in lines)


def _columns(text: str) -> int:
    columns = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    return max(columns, _NARROWEST) if columns else _PIPE


class _Writer:
    """Makes the parts of a document, each with how much it matters."""

    def __init__(self, terminal: Terminal, document: Document, *, verbose: bool) -> None:
        self._terminal = terminal
        self._document = document
        self._verbose = verbose
        seen = {Shown.ALWAYS, Shown.TERMINAL, *((Shown.VERBOSE,) if verbose else ())}
        self._sections = [section for section in document.sections if section.shown in seen]
        self._first = next((one for one in self._items() if one.tag and one.severity is not Severity.INFO), None)
        """What stands behind the reason at the top: that is not said again above it."""
        self._is_answer_above = True
        """Whether nothing but evidence stands between the reason at the top and what comes next."""
        self._shown: set[str] = set()
        """Lines and commands that stand above already."""
        # into a file all of them, where nobody can ask for more
        self._of_names = Importance.SENTENCE if terminal.is_terminal else Importance.ALWAYS

    def parts(self) -> Iterator[_Part]:
        """Yield all parts in their order."""
        document = self._document
        yield self._sentence(headline(document), Importance.ALWAYS, style=_HEADLINES[document.severity])
        yield from self._advice(document.advice)
        if document.summary:
            yield _GAP
        for line in document.summary:
            yield self._sentence(line, Importance.REASON, first=" " * _INDENT, style=_QUIET)
        for section in self._sections:
            yield from self._section(section)
        if document.closing:
            yield _GAP
        for line in document.closing:
            yield self._sentence(line, Importance.ALWAYS, first="  ", style=_QUIET)

    def _part(self, lines: Sequence[str], importance: Importance, *, is_title: bool = False) -> _Part:
        columns = self._terminal.columns
        rows = sum(-(-len(_SGR.sub("", line)) // columns) or 1 for line in lines)
        return _Part(tuple(lines), importance, rows, is_title)

    def _sentence(
        self, text: str, importance: Importance, *, first: str = "", rest: str | None = None, style: str = ""
    ) -> _Part:
        return self._part(self._terminal.wrapped(text, first=first, rest=rest, style=style), importance)

    def _verbatim(self, text: str, importance: Importance, *, style: str = "") -> _Part:
        """Return a line that is never broken."""
        return self._part([self._terminal.styled(printable(text), style)], importance)

    def _advice(self, advice: Advice) -> Iterator[_Part]:
        if advice.why:
            tag = next((item.tag for item in self._items() if item.text == advice.why and item.tag), "")
            why = f"why: {advice.why}  [{tag}]" if tag else f"why: {advice.why}"
            yield self._sentence(why, Importance.ALWAYS, rest=" " * 5)
        if advice.next:
            word = f"next, {advice.where}" if advice.where else "next"
            yield self._verbatim(f"{word}:  {advice.next}", Importance.ALWAYS)

    def _items(self) -> Iterator[Item]:
        for section in self._sections:
            yield from (block for block in section.blocks if isinstance(block, Item))

    def _section(self, section: Section) -> Iterator[_Part]:
        if not section.blocks:
            return
        yield _GAP
        if section.is_headed or section.shown is Shown.VERBOSE:
            lines = [self._terminal.styled(printable(section.title), _TITLE)]
            yield self._part(lines, Importance.ALWAYS, is_title=True)  # as long as something is left below it
        for block in section.blocks:
            yield from self._block(block)
            is_evidence = isinstance(block, Lines) and block.is_evidence
            self._is_answer_above &= is_evidence or (isinstance(block, Item) and not block.tag)

    def _block(self, block: Block) -> Iterator[_Part]:
        match block:
            case Item():
                yield from self.item(block)
            case Paragraph(severity=None):
                style = _QUIET if block.quiet else ""
                yield self._sentence(block.text, Importance.SENTENCE, rest="", style=style)
            case Paragraph(severity=Severity() as severity):
                yield self._marked(block.text, severity)
            case Lines():
                yield from self._lines(block)
            case Facts():
                yield from self._facts(block)
            case Table():
                yield from self._table(block)
            case Tree():
                yield from self._tree(block)
            case PathSteps():
                yield self._sentence(block.sentence, Importance.WELL)
            case Meter():
                text = f"{block.label} {block.words}"
                if block.severity is None:
                    yield self._sentence(text, Importance.WELL, first="  ")
                else:
                    yield self._marked(text, block.severity)
            case Curve():
                pass

    def _lines(self, block: Lines) -> Iterator[_Part]:
        is_whole = self._verbose or self._document.is_list or block.is_pasted
        few = len(block.lines) if is_whole else block.few
        for line in block.lines[:few]:
            self._shown.add(line)
            mark = "> " if block.is_evidence else ""
            shown = line if block.is_pasted else f"{' ' * _INDENT}{mark}{line.strip()}"
            yield self._verbatim(shown, Importance.REASON)
        if len(block.lines) > few:
            more = f"{len(block.lines) - few} more {block.what} with --verbose"
            yield self._sentence(more, Importance.REASON, first=" " * _INDENT, style=_QUIET)

    def _marked(self, text: str, severity: Severity, importance: Importance | None = None) -> _Part:
        if importance is None:
            importance = Importance.SENTENCE if severity in _WEIGHTY else Importance.WELL
        return self._sentence(text, importance, first=f"{MARKS[severity]} ", style=_STYLES[severity])

    def item(self, item: Item) -> Iterator[_Part]:
        """Yield one thing with what stands behind it."""
        if item.verbose and not self._verbose:
            return
        below = list(self._below(item))
        is_at_top = item.text == self._document.advice.why
        if not (is_at_top and ((item is self._first and self._is_answer_above) or not below)):
            importance = self._of_names if item.names else None
            yield self._marked(f"{item.text}  [{item.tag}]" if item.tag else item.text, item.severity, importance)
        yield from below
        if below and (self._verbose or item.severity in _WEIGHTY):
            yield _GAP

    def _below(self, item: Item) -> Iterator[_Part]:
        """Yield what stands behind an item, but for the command at the top of the document."""
        indent = " " * _INDENT
        reason = Importance.REASON if item.severity in _WEIGHTY else Importance.MORE
        if item.names:
            for line in self._terminal.wrapped(", ".join(item.names), first=indent, rest=indent):
                yield replace(self._part([line], self._of_names), is_name=True)
        if item.severity is not Severity.OK or self._verbose:
            for line in item.evidence:
                if line not in self._shown:
                    yield self._verbatim(f"{indent}> {line.strip()}", Importance.MORE)
        if len(item.via) > 1:
            yield self._sentence(f"via {' -> '.join(item.via)}", Importance.MORE, first=indent)
        for note in item.notes:
            yield self._sentence(note, reason, first=indent)
        reasons = [text for text in item.why if text != self._document.advice.why]
        for number, text in enumerate(reasons, 1):
            word = "why:" if len(reasons) == 1 else f"{number}."
            yield self._sentence(f"{word} {text}", reason, first=indent)
        shown = [words for words in map(self._remedy, item.remedies) if words and words not in self._shown]
        self._shown.update(shown)
        first = Importance.SENTENCE if item.severity in _WEIGHTY else Importance.WELL
        for number, words in enumerate(shown):
            word = "or" if item.any_one and (number or len(shown) < len(item.remedies)) else "do"
            yield self._verbatim(f"{indent}{word}:  {words}", Importance.MORE if number else first)
        if item.source and self._verbose:
            yield self._sentence(f"source: {item.source}", Importance.MORE, first=indent, style=_QUIET)

    def _remedy(self, remedy: Remedy) -> str | None:
        """Return a remedy; of one whose command stands at the top the rest, where that is not said there."""
        advice = self._document.advice
        if remedy.command is None or remedy.command != advice.next:
            return remedy
        return remedy.reason if remedy.reason != advice.where else None

    def _facts(self, facts: Facts) -> Iterator[_Part]:
        width = min(max((len(name) for name, _ in facts.rows), default=0), _NAME)
        rest = " " * (width + 4)
        for name, text in ((printable(name), text) for name, text in facts.rows):
            if len(name) > width:
                lines = (f"  {name}", *self._terminal.wrapped(text, first=rest, rest=rest))
                yield self._part(lines, Importance.SENTENCE)
            else:
                yield self._sentence(text, Importance.SENTENCE, first=f"  {name:<{width}}  ", rest=rest)

    def _table(self, table: Table) -> Iterator[_Part]:
        """Yield the rows of a table, which rich lays out as a whole."""
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=None, show_header=any(table.heads), pad_edge=False, padding=(0, 2, 0, 0), header_style=_QUIET)
        marked = any(row.severity is not None for row in table.rows)
        for head in (*([""] if marked else []), *table.heads):
            grid.add_column(Text(printable(head)), overflow="fold")
        for row in table.rows:
            mark = [MARKS[row.severity] if row.severity else ""] if marked else []
            cells = [Text(printable(cell)) for cell in (*mark, *row.cells)]
            grid.add_row(*cells, style=_STYLES[row.severity] if row.severity else None)
        for line in self._terminal.drawn(grid):
            yield self._part([line], Importance.WELL)

    def _tree(self, tree: Tree) -> Iterator[_Part]:
        """Yield a tree branch by branch, which rich would cut; a note has a line of its own where there is no room.

        Without recursion: chains can be long.
        """
        pending = [(tree, "", "")]
        while pending:
            branch, guide, below = pending.pop()
            mark = f"{MARKS[branch.severity]} " if branch.severity else ""
            style = _STYLES[branch.severity] if branch.severity else ""
            text = f"{guide}{mark}{branch.text}"
            is_short = len(text) + 2 + len(branch.note) <= self._terminal.width
            if branch.note and is_short:
                text = f"{text}  {branch.note}"
            yield self._verbatim(text, Importance.WELL, style=style)
            if branch.note and not is_short:
                note = f"{below}{'│' if branch.branches else ' '}   {branch.note}"
                yield self._verbatim(note, Importance.WELL, style=style)
            if branch.branches:
                *others, last = branch.branches
                pending.append((last, f"{below}└── ", f"{below}    "))
                pending += [(one, f"{below}├── ", f"{below}│   ") for one in reversed(others)]


def _fitting(parts: Sequence[_Part], room: int) -> tuple[list[_Part], int]:
    """Return (parts that have room together, how many lines are left out); a line that says so has room, too."""
    kept = _without_gaps(parts)
    if sum(one.rows for one in kept) <= room:
        return kept, 0
    whole = sum(one.rows for one in kept if not one.is_gap)
    for importance in sorted(Importance, reverse=True)[:-1]:
        numbers = [number for number, one in enumerate(kept) if one.importance is importance and not one.is_gap]
        left_out = set(numbers[room:])  # of each there is room for no more
        for number in [*numbers[:room][::-1], None]:
            shorter = _without_gaps([one for at, one in enumerate(kept) if at not in left_out])
            if sum(one.rows for one in shorter) < room:
                return shorter, whole - sum(one.rows for one in shorter if not one.is_gap)
            if number is not None:
                left_out.add(number)
        kept = shorter
    return kept, whole - sum(one.rows for one in kept if not one.is_gap)


def _without_gaps(parts: Sequence[_Part]) -> list[_Part]:
    """Leave out titles with nothing below them, and each empty line behind another, or at the end."""
    found: list[_Part] = []
    for one in parts:
        if one.is_gap and found and found[-1].is_title:
            found.pop()
        if not one.is_gap or (found and not found[-1].is_gap):
            found.append(one)
    while found and (found[-1].is_gap or found[-1].is_title):
        found.pop()
    return found
