"""An answer as a value, in reading order: the sentence, why, what to do next, then the details.

A view (`report/views/`) makes a document from what a lower room returned. The renderers show it: `text.py` on a
terminal, `page.py` as a page, `junit.py` for CI. They decide on marks, colours, words, widths and limits, and omit what
was already shown above; a view decides none of that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import NO_ADVICE, Advice, Remedy, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumiimg.fabric.path import Step

MARKS = {Severity.OK: "✓", Severity.INFO: "·", Severity.UNKNOWN: "?", Severity.PROBLEM: "✗"}


class Shown(StrEnum):
    """Where a section is shown."""

    ALWAYS = "always"
    """On pages, and on terminals if it fits."""
    VERBOSE = "verbose"
    """On pages, and on terminals with --verbose."""
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing with its details: a finding, a rule, a cause, a change."""

    severity: Severity
    text: str
    """One sentence."""
    tag: str = ""
    """Its id in JSON, and how it was found: `plugin.absent, static`."""
    names: tuple[str, ...] = ()
    """Names of the images or nodes that it is about: part of the answer, and never left out."""
    evidence: tuple[str, ...] = ()
    """Evidence lines as they were printed or read; never wrapped."""
    notes: tuple[str, ...] = ()
    """Sentences that belong to it."""
    via: tuple[str, ...] = ()
    """Chain from what was requested to what failed."""
    why: tuple[str, ...] = ()
    """Reasons, in order."""
    remedies: tuple[Remedy, ...] = ()
    any_one: bool = False
    """Whether any one of the remedies is enough."""
    is_likely: bool = False
    """Whether `why` comes from experience, and nothing here shows it."""
    source: str | None = None
    """Source of the rule; shown with --verbose."""
    verbose: bool = False
    """Whether a terminal shows it only with --verbose."""
    always: bool = False
    """Whether it is part of the answer, and never left out."""
    case: str | None = None
    """Name of its JUnit test case; None if it is not one."""
    is_answered: bool = False
    """Whether JUnit counts an open question as passed, because something else has answered what matters."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence, which is wrapped."""

    text: str
    quiet: bool = False
    """Whether it is shown dimmed."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that are shown unchanged, to be read exactly or copied."""

    lines: tuple[str, ...]
    few: int = 12
    """Number of lines that a terminal shows without --verbose."""
    is_evidence: bool = False
    """Whether another program printed them as proof; the first line matters most."""
    is_pasted: bool = False
    """Whether all are shown without indentation, to be pasted where each space matters."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names, and what is known about each."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with one cell for each heading of the table."""

    cells: tuple[str, ...]
    severity: Severity | None = None
    """Determines mark and colour; None for neither."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings. A cell is wrapped within its column and never truncated."""

    heads: tuple[str, ...]
    """Headings of the columns; all empty for a table that explains itself."""
    rows: tuple[Row, ...]
    caption: str = ""
    """Caption on a page."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A branch: its text, a note, and its sub-branches."""

    text: str
    note: str = ""
    severity: Severity | None = None
    branches: tuple[Tree, ...] = ()


def trees_of(rows: Sequence[tuple[int, Tree]]) -> tuple[Tree, ...]:
    """Return the branches of a tree, built from single branches with their depths, in display order.

    Without recursion, because chains of libraries can be long.
    """
    grown: dict[int, list[Tree]] = {}
    for depth, branch in reversed(rows):
        below = tuple(reversed(grown.pop(depth + 1, [])))
        grown.setdefault(depth, []).append(replace(branch, branches=below))
    return tuple(reversed(grown.get(0, [])))


@dataclass(frozen=True, slots=True)
class PathSteps:
    """The fabric path step by step on a page; a terminal shows it in a line of the summary."""

    steps: tuple[Step, ...]
    sentence: str
    of: str = ""
    """What the path belongs to, if a document has several."""


@dataclass(frozen=True, slots=True)
class Meter:
    """A share of a whole: what an image needs of what the host has, or the time a step took of a build."""

    label: str
    words: str
    """Its meaning in words, with the numbers."""
    share: float | None
    """Share from 0 to 1; None if it cannot be computed."""
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured values over a size, both on logarithmic scales; a terminal shows the accompanying table instead."""

    title: str
    x: str
    """Label of the horizontal axis with its unit: `message, bytes`."""
    y: str
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    """Name and points (x, y) of each line."""


Block = Item | Paragraph | Lines | Facts | Table | Tree | PathSteps | Meter | Curve


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an answer; an empty one is not shown."""

    title: str
    """Heading of the section."""
    blocks: Iterable[Block]
    shown: Shown = Shown.ALWAYS
    is_headed: bool = False
    """Whether a terminal shows the heading, too: a section right after the answer needs none; one added by --verbose
    always has one."""

    def __post_init__(self) -> None:
        """Drop empty blocks."""
        object.__setattr__(self, "blocks", tuple(block for block in self.blocks if _has_content(block)))


def _has_content(block: Block) -> bool:
    match block:
        case Facts(rows=rows) | Table(rows=rows):
            return bool(rows)
        case Lines(lines=lines):
            return bool(lines)
    return True


@dataclass(frozen=True, slots=True)
class Document:
    """An answer."""

    command: str
    """Command that answers: `check`."""
    subject: str
    """Subject of the answer: an image, a log, a request."""
    sentence: str
    """The answer; together with `extent`, it is the one line that --quiet shows."""
    severity: Severity = Severity.INFO
    advice: Advice = NO_ADVICE
    summary: tuple[str, ...] = ()
    """Facts worth knowing first, one per line: which libraries, which network."""
    sections: tuple[Section, ...] = ()
    closing: tuple[str, ...] = ()
    """Last lines, which are never left out: which levels were used."""
    case: str = ""
    """Name of the answer's JUnit test case: `network of image.sif`; empty if it has no such form."""
    is_list: bool = False
    """Whether everything in it was requested, so that no line is left out, however small the screen."""
    is_named: bool = False
    """Whether the subject precedes the sentence, because it is one of several or of many similar ones."""
    extent: str = ""
    """Number of ranks and nodes that it covers."""


def facts_section(title: str, rows: Iterable[tuple[str, str]], *, is_headed: bool = False) -> Section:
    """Return a section that contains only facts; those without a value are left out."""
    return Section(title, (Facts(tuple(row for row in rows if row[1])),), is_headed=is_headed)


def severity_of(code: ExitCode) -> Severity:
    """Return the severity that marks an answer with this exit code."""
    return {ExitCode.NO: Severity.PROBLEM, ExitCode.GOOD: Severity.OK}.get(code, Severity.UNKNOWN)
