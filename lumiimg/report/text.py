"""Render a document on a terminal: text for people, on standard error if standard output carries JSON.

The answer comes first, as one sentence coloured by its severity, with why and what to do next. The details follow: a
mark and a sentence, and indented below it evidence (`>`), reasons (`why:`) and remedies (`do:`, else `or:`). Text is
wrapped at the terminal's width, but at most at 100 columns; without a terminal, at COLUMNS, else at 80.

An answer fits on one screen of at least 24 lines. What does not fit is left to --verbose: first evidence and further
remedies, then what is well, then reasons and long lists of names, each from the end (`_fitting`). One line counts the
lines that --verbose adds.

Three kinds of lines are never broken: evidence, which is proof as it was printed; commands to be copied (`do:`, `or:`,
`next:`); and a word, path or name longer than the line: the line breaks before it. Nothing is truncated: a name that is
part of an answer may continue over several lines.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.core.findings import Severity
from lumiimg.core.text import count
from lumiimg.report.document import MARKS, Document, Facts, Item, Lines, Meter, Paragraph, Shown, Table, Tree
from lumiimg.report.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.core.findings import Advice, Remedy
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
_INDENT = " " * 4
"""Indentation of the details of an item."""
_NAME = 22
"""Maximum width in columns of the names of facts; a few are longer."""
_SGR = re.compile("\x1b\\[[0-9;]*m")
"""Colour codes (ECMA-48, 8.3.117), which take no room on a line."""
_BESIDE_NAMED = 8
"""Rows available in a file besides items with names, which are always complete."""


class _Importance(IntEnum):
    """Order in which text is left out if the screen is too small: highest number first."""

    ALWAYS = 0
    NAMED = 1
    """Items with names, in a file, where no one can ask for more: never left out."""
    SENTENCE = 2
    REASON = 3
    WELL = 4
    """Things that are well or unimportant; details."""
    MORE = 5
    """Evidence, further remedies, sources."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines that are shown or left out together; no lines mean an empty line."""

    lines: tuple[str, ...]
    importance: _Importance
    rows: int
    """Screen rows that the lines take."""
    is_title: bool = False


_GAP = _Part((), _Importance.ALWAYS, 1)


def show(document: Document, *, verbose: bool = False, quiet: bool = False, stderr: bool = False) -> None:
    """Print a document; with `quiet`, only its sentence and extent on one line. Raises BrokenPipeError."""
    terminal = Terminal(sys.stderr if stderr else sys.stdout)
    if quiet:
        line = "; ".join(filter(None, (headline(document), document.extent)))
        terminal.write([terminal.styled(one_safe_line(line), _HEADLINES[document.severity])])
        return
    parts, note = _without_gaps(_Writer(terminal, document, verbose=verbose).parts()), []
    if not verbose:
        whole = _number(_without_gaps(_Writer(terminal, document, verbose=True, is_counted=True).parts()))
        named = _rows(part for part in parts if part.importance is _Importance.NAMED)
        room = max(terminal.rows, named + _BESIDE_NAMED)
        if not document.is_list and _rows(parts) + (whole > _number(parts)) > room:
            parts = _fitting(parts, room - 1)
        if hidden := whole - _number(parts):
            note = [terminal.styled(f"({count(hidden, 'more line')} with --verbose)", _QUIET)]
    terminal.write([*_lines(parts), *note])


def show_items(items: Iterable[Item]) -> None:
    """Print items on standard error, next to an answer that is printed verbatim: a script, a manifest."""
    terminal = Terminal(sys.stderr)
    writer = _Writer(terminal, Document("", "", ""), verbose=True)
    terminal.write(_lines(_without_gaps(part for item in items for part in writer.item(item))))


def headline(document: Document) -> str:
    """Return the answer, preceded by its subject if that is to be shown."""
    return f"{document.subject}: {document.sentence}" if document.is_named else document.sentence


class _Writer:
    """Makes the parts of a document, each with its importance."""

    def __init__(self, terminal: Terminal, document: Document, *, verbose: bool, is_counted: bool = False) -> None:
        self._terminal = terminal
        self._document = document
        self._verbose = verbose
        self._is_counted = is_counted
        """Whether lines are only counted, to see what --verbose would add."""
        seen = {Shown.ALWAYS, Shown.VERBOSE} if verbose else {Shown.ALWAYS}
        self._sections = [section for section in document.sections if section.shown in seen]
        self._first = next((one for one in self._items() if one.tag and one.severity is not Severity.INFO), None)
        """The item of the reason at the top; its sentence is not repeated."""
        self._is_answer_above = True
        """Whether only evidence was printed between the reason at the top and what comes next."""
        self._shown: set[str] = set()
        """Lines and commands that were already printed."""

    def parts(self) -> Iterator[_Part]:
        """Yield all parts in order."""
        document = self._document
        yield self._sentence(headline(document), _Importance.ALWAYS, style=_HEADLINES[document.severity])
        yield from self._advice(document.advice)
        if document.summary:
            yield _GAP
        for line in document.summary:
            yield self._sentence(line, _Importance.REASON, first=_INDENT, style=_QUIET)
        for section in self._sections:
            yield from self._section(section)
        if document.closing:
            yield _GAP
        for line in document.closing:
            yield self._sentence(line, _Importance.ALWAYS, first="  ", style=_QUIET)

    def _part(self, lines: Sequence[str], importance: _Importance, *, is_title: bool = False) -> _Part:
        columns = self._terminal.columns
        rows = sum(-(-len(_SGR.sub("", line)) // columns) or 1 for line in lines)
        return _Part(tuple(lines), importance, rows, is_title)

    def _sentence(
        self, text: str, importance: _Importance, *, first: str = "", rest: str | None = None, style: str = ""
    ) -> _Part:
        return self._part(self._terminal.wrapped(text, first=first, rest=rest, style=style), importance)

    def _verbatim(self, text: str, importance: _Importance) -> _Part:
        """Return a line that is never broken."""
        return self._part([one_safe_line(text)], importance)

    def _advice(self, advice: Advice) -> Iterator[_Part]:
        if advice.why:
            tag = next((item.tag for item in self._items() if item.text == advice.why and item.tag), "")
            why = f"why: {advice.why}  [{tag}]" if tag else f"why: {advice.why}"
            yield self._sentence(why, _Importance.ALWAYS, rest=" " * 5)
        if advice.likely:
            yield self._sentence(f"likely: {advice.likely}", _Importance.ALWAYS, rest=" " * 8)
        if advice.next:
            word = f"next, {advice.where}" if advice.where else "next"
            yield self._verbatim(f"{word}:  {advice.next}", _Importance.ALWAYS)

    def _items(self) -> Iterator[Item]:
        for section in self._sections:
            yield from (block for block in section.blocks if isinstance(block, Item))

    def _section(self, section: Section) -> Iterator[_Part]:
        if not section.blocks:
            return
        yield _GAP
        if section.is_headed or section.shown is Shown.VERBOSE:
            title = self._terminal.wrapped(section.title, rest="", style=_TITLE)
            yield self._part(title, _Importance.ALWAYS, is_title=True)  # shown if anything is left below it
        for block in section.blocks:
            yield from self._block(block)
            is_evidence = isinstance(block, Lines) and block.is_evidence
            self._is_answer_above &= is_evidence or (isinstance(block, Item) and not block.tag)

    def _block(self, block: Block) -> Iterator[_Part]:
        """Yield the parts of a block; none for a path or a curve, which only a page draws."""
        match block:
            case Item():
                yield from self.item(block)
            case Paragraph():
                style = _QUIET if block.quiet else ""
                yield self._sentence(block.text, _Importance.SENTENCE, rest="", style=style)
            case Lines():
                yield from self._lines(block)
            case Facts():
                yield from self._facts(block)
            case Table():
                yield from self._table(block)
            case Tree():
                yield from self._tree(block)
            case Meter():
                yield self._marked(f"{block.label} {block.words}", block.severity)

    def _lines(self, block: Lines) -> Iterator[_Part]:
        is_whole = self._verbose or self._document.is_list or block.is_pasted
        for number, line in enumerate(block.lines if is_whole else block.lines[: block.few]):
            self._shown.add(line)
            if block.is_evidence:
                yield self._verbatim(
                    f"{_INDENT}> {line.strip()}", _Importance.REASON if number else _Importance.SENTENCE
                )
            else:
                yield self._verbatim(line if block.is_pasted else f"{_INDENT}{line.strip()}", _Importance.WELL)

    def _marked(self, text: str, severity: Severity | None, importance: _Importance | None = None) -> _Part:
        if importance is None:
            importance = _Importance.SENTENCE if severity in _WEIGHTY else _Importance.WELL
        mark, style = (f"{MARKS[severity]} ", _STYLES[severity]) if severity else ("  ", "")
        return self._sentence(text, importance, first=mark, style=style)

    def item(self, item: Item) -> Iterator[_Part]:
        """Yield an item with its details."""
        if item.verbose and not self._verbose:
            return
        is_whole = item.names and not self._terminal.is_terminal
        for part in self._of_item(item):
            is_named = is_whole and part.importance < _Importance.MORE
            yield replace(part, importance=_Importance.NAMED) if is_named else part

    def _of_item(self, item: Item) -> Iterator[_Part]:
        below = list(self._below(item))
        is_at_top = item.text == self._document.advice.why or self._document.sentence.startswith(
            f"{item.tag}: {item.text}"
        )
        if not (is_at_top and ((item is self._first and self._is_answer_above) or not below)):
            importance = _Importance.SENTENCE if item.names or item.always else None
            yield self._marked(f"{item.text}  [{item.tag}]" if item.tag else item.text, item.severity, importance)
        yield from below
        if below and (self._verbose or item.severity in _WEIGHTY):
            yield _GAP

    def _below(self, item: Item) -> Iterator[_Part]:
        """Yield the details of an item, except the command at the top of the document."""
        is_weighty = item.severity in _WEIGHTY
        reason = _Importance.REASON if is_weighty else _Importance.MORE
        first = _Importance.SENTENCE if is_weighty else _Importance.WELL
        if item.names:  # several images or nodes in one item: the reason matters more
            reason, first = _Importance.SENTENCE, _Importance.REASON
        listed = list(self._terminal.listed(item.names, _INDENT))
        for line in listed:
            yield self._part([line], _Importance.REASON if len(listed) > 1 else _Importance.SENTENCE)
        if item.severity is not Severity.OK or self._verbose:
            for line in item.evidence:
                if line not in self._shown:
                    yield self._verbatim(f"{_INDENT}> {line.strip()}", _Importance.MORE)
        if len(item.via) > 1:
            yield self._sentence(f"via {' -> '.join(item.via)}", _Importance.MORE, first=_INDENT)
        for note in item.notes:
            yield self._sentence(note, reason, first=_INDENT)
        advice = self._document.advice
        reasons = [text for text in item.why if text not in (advice.why, advice.likely)]
        if len(reasons) == 1:
            word = "or likely" if advice.likely in item.why else "likely" if item.is_likely else "why"
            yield self._sentence(f"{word}: {reasons[0]}", reason, first=_INDENT)
        for number, text in enumerate(reasons, 1) if len(reasons) > 1 else ():
            yield self._sentence(f"{number}. {text}", reason, first=_INDENT)
        shown = [words for words in map(self._remedy, item.remedies) if words and words not in self._shown]
        self._shown.update(shown)
        for number, words in enumerate(shown):
            word = "or" if item.any_one and (number or len(shown) < len(item.remedies)) else "do"
            yield self._verbatim(f"{_INDENT}{word}:  {words}", _Importance.MORE if number else first)
        if item.source and self._verbose:
            yield self._sentence(f"source: {item.source}", _Importance.MORE, first=_INDENT, style=_QUIET)

    def _remedy(self, remedy: Remedy) -> str | None:
        """Return a remedy; if its command is at the top, only what is not said there."""
        advice = self._document.advice
        if remedy.command is None or remedy.command != advice.next:
            return remedy
        if remedy.reason == advice.where:
            return None
        return remedy.text if remedy.where == advice.where else remedy.reason

    def _facts(self, facts: Facts) -> Iterator[_Part]:
        width = min(max(len(name) for name, _ in facts.rows), _NAME)
        rest = " " * (width + 4)
        for name, text in ((one_safe_line(name), text) for name, text in facts.rows):
            if len(name) > width:
                yield self._part((f"  {name}", *self._terminal.wrapped(text, first=rest, rest=rest)), _Importance.WELL)
            else:
                yield self._sentence(text, _Importance.WELL, first=f"  {name:<{width}}  ", rest=rest)

    def _table(self, table: Table) -> Iterator[_Part]:
        """Yield the rows of a table, laid out by rich; cells go one below the other if they do not fit side by side."""
        rows = [map(one_safe_line, cells) for cells in (table.heads, *(row.cells for row in table.rows))]
        columns = [*zip(*rows, strict=True)]
        widths = [max(map(len, column)) for column in columns]
        longest = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
        room = self._terminal.width - 2 * len(columns)
        if self._is_counted and sum(widths) <= room:  # importing rich takes 60 ms
            yield self._part([""] * (len(table.rows) + any(table.heads)), _Importance.WELL)
            return
        if sum(longest) > room:
            for row in table.rows:
                yield self._marked(row.cells[0], row.severity, _Importance.WELL)
                for head, cell in zip(table.heads[1:], row.cells[1:], strict=True):
                    yield self._sentence(f"{head}: {cell}" if head else cell, _Importance.WELL, first=_INDENT)
            return
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=None, show_header=any(table.heads), pad_edge=False, padding=(0, 2, 0, 0), header_style=_QUIET)
        if marked := any(row.severity for row in table.rows):
            grid.add_column()
        for column, width, word in zip(columns, widths, longest, strict=True):
            grid.add_column(Text(column[0]), min_width=word, no_wrap=word == width)
        for row in table.rows:
            cells = [MARKS[row.severity] if row.severity else "", *row.cells] if marked else row.cells
            grid.add_row(
                *(Text(one_safe_line(cell)) for cell in cells), style=_STYLES[row.severity] if row.severity else ""
            )
        for line in self._terminal.drawn(grid):
            yield self._part([line], _Importance.WELL)

    def _tree(self, tree: Tree) -> Iterator[_Part]:
        """Yield a tree branch by branch; a note that does not fit gets lines of its own.

        Without recursion, because chains can be long.
        """
        pending = [(tree, "", "")]
        while pending:
            branch, guide, below = pending.pop()
            style = _STYLES[branch.severity] if branch.severity else ""
            first = f"{guide}{MARKS[branch.severity]} " if branch.severity else guide
            rest = f"{below}{'│' if branch.branches else ' '}   "
            is_short = len(first) + len(branch.text) + 2 + len(branch.note) <= self._terminal.width
            text = f"{branch.text}  {branch.note}" if branch.note and is_short else branch.text
            yield self._sentence(text, _Importance.WELL, first=first, rest=rest, style=style)
            if branch.note and not is_short:
                yield self._sentence(branch.note, _Importance.WELL, first=rest, rest=rest, style=style)
            if branch.branches:
                *others, last = branch.branches
                pending.append((last, f"{below}└── ", f"{below}    "))
                pending += [(one, f"{below}├── ", f"{below}│   ") for one in reversed(others)]


def _number(parts: Iterable[_Part]) -> int:
    return sum(len(part.lines) for part in parts)


def _rows(parts: Iterable[_Part]) -> int:
    return sum(part.rows for part in parts)


def _lines(parts: Iterable[_Part]) -> Iterator[str]:
    for part in parts:
        yield from part.lines or ("",)


def _fitting(parts: list[_Part], room: int) -> list[_Part]:
    """Return the parts that fit, leaving out the least important ones, from the end."""
    for importance in (_Importance.MORE, _Importance.WELL, _Importance.REASON, _Importance.SENTENCE):
        numbers = [number for number, part in enumerate(parts) if part.importance is importance and part.lines]
        for most in range(min(len(numbers), room), -1, -1):
            left_out = set(numbers[most:])
            fewer = _without_gaps(part for number, part in enumerate(parts) if number not in left_out)
            if _rows(fewer) <= room:
                return fewer
        parts = fewer
    return parts


def _without_gaps(parts: Iterable[_Part]) -> list[_Part]:
    """Return the parts without titles that have nothing below them, and without repeated or trailing empty lines."""
    found: list[_Part] = []
    for one in parts:
        if not one.lines and found and found[-1].is_title:
            found.pop()
        if one.lines or (found and found[-1].lines):
            found.append(one)
    while found and (not found[-1].lines or found[-1].is_title):
        found.pop()
    return found
