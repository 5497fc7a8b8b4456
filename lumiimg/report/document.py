"""An answer as a value, in the order in which it is read: the sentence, why, what next, then what stands behind it.

A view (`report/views/`) makes a document of what a room below returned. The renderers show it: `text.py` on a terminal,
`page.py` as a page, `junit.py` for CI. They own marks, colours, words, widths and limits, and leave out what is shown
above already; a view decides none of that.
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
    """On pages, and on terminals if there is room."""
    VERBOSE = "verbose"
    """On pages, and on terminals with --verbose."""
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing with what stands behind it: a finding, a rule, a cause, a change."""

    severity: Severity
    text: str
    """One sentence."""
    tag: str = ""
    """What JSON calls it, and how it was found: `plugin.absent, static`."""
    names: tuple[str, ...] = ()
    """Of images or nodes that it is about: they are part of the answer, and never cut."""
    evidence: tuple[str, ...] = ()
    """Lines as they were printed or read; never wrapped."""
    notes: tuple[str, ...] = ()
    """Sentences that belong to it."""
    via: tuple[str, ...] = ()
    """From what was asked to what failed."""
    why: tuple[str, ...] = ()
    """Reasons, one after the other."""
    remedies: tuple[Remedy, ...] = ()
    any_one: bool = False
    """Whether one of the remedies is enough."""
    is_likely: bool = False
    """Whether `why` is what leads to it by experience, and nothing here shows it."""
    source: str | None = None
    """Where the rule comes from; shown with --verbose."""
    verbose: bool = False
    """Whether a terminal shows it with --verbose only."""
    always: bool = False
    """Whether it is part of the answer, and never cut."""
    case: str | None = None
    """Its name as a case of JUnit; None for what is none."""
    is_answered: bool = False
    """Whether an open question counts as passed there: something else has answered what counts."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence, wrapped."""

    text: str
    quiet: bool = False
    """Whether it is in the background."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that are shown as they are, to be read exactly or copied."""

    lines: tuple[str, ...]
    few: int = 12
    """How many of them a terminal shows without --verbose."""
    is_evidence: bool = False
    """Whether something else printed them: they are the proof, and the first of them counts most."""
    is_pasted: bool = False
    """Whether they stand at the margin, all of them: they are pasted elsewhere, where each space counts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names, and what is known of each."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: as many cells as the table has heads."""

    cells: tuple[str, ...]
    severity: Severity | None = None
    """Its mark and colour; None for neither."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads. A cell is wrapped within its column and never cut."""

    heads: tuple[str, ...]
    """What each column has; all empty for a table that explains itself."""
    rows: tuple[Row, ...]
    caption: str = ""
    """What a page says of it."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A branch: its text, a note, and its branches."""

    text: str
    note: str = ""
    severity: Severity | None = None
    branches: tuple[Tree, ...] = ()


def trees_of(rows: Sequence[tuple[int, Tree]]) -> tuple[Tree, ...]:
    """Return what grows out of one branch, from single branches, each with its depth, in the order they are shown in.

    Without recursion: chains of libraries can be long.
    """
    grown: dict[int, list[Tree]] = {}
    for depth, branch in reversed(rows):
        below = tuple(reversed(grown.pop(depth + 1, [])))
        grown.setdefault(depth, []).append(replace(branch, branches=below))
    return tuple(reversed(grown.get(0, [])))


@dataclass(frozen=True, slots=True)
class PathSteps:
    """The fabric path step by step, on a page; a terminal has it in a line of the summary."""

    steps: tuple[Step, ...]
    sentence: str
    of: str = ""
    """Whose path it is, where a document has several."""


@dataclass(frozen=True, slots=True)
class Meter:
    """How much of a whole: what an image needs of what the host has, what a step took of a build."""

    label: str
    words: str
    """What it shows, with its numbers."""
    share: float | None
    """From 0 to 1; None where it cannot be counted."""
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured values over a size, both on logarithmic scales; a terminal shows the table that is beside it."""

    title: str
    x: str
    """What the horizontal axis has, with its unit: `message, bytes`."""
    y: str
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    """Name, and points (x, y) of each."""


Block = Item | Paragraph | Lines | Facts | Table | Tree | PathSteps | Meter | Curve


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an answer; without anything to show it is not shown."""

    title: str
    """Its heading."""
    blocks: Iterable[Block]
    shown: Shown = Shown.ALWAYS
    is_headed: bool = False
    """Whether a terminal shows the heading, too: what follows the answer at once needs none, and what --verbose adds
    always has one."""

    def __post_init__(self) -> None:
        """Leave out what has nothing to show."""
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
    """Which command answers: `check`."""
    subject: str
    """What it is about: an image, a log, a request."""
    sentence: str
    """The answer; with `extent`, all that --quiet shows, on one line."""
    severity: Severity = Severity.INFO
    advice: Advice = NO_ADVICE
    summary: tuple[str, ...] = ()
    """What is good to know at once, a line each: which libraries, which network."""
    sections: tuple[Section, ...] = ()
    closing: tuple[str, ...] = ()
    """The last line, however many lines there are: which levels were taken."""
    case: str = ""
    """What the answer is called as a case of JUnit: `network of image.sif`; empty where it has no such form."""
    is_list: bool = False
    """Whether all of it is what was asked for: then no line is left out, however small the screen."""
    is_named: bool = False
    """Whether the subject stands in front of the sentence: it is one of several, or of many that are alike."""
    extent: str = ""
    """Of how many ranks and nodes it is."""


def facts_section(title: str, rows: Iterable[tuple[str, str]], *, is_headed: bool = False) -> Section:
    """Return a section that has nothing but facts; what nothing is known of is left out."""
    return Section(title, (Facts(tuple(row for row in rows if row[1])),), is_headed=is_headed)


def severity_of(code: ExitCode) -> Severity:
    """Return how an answer is marked, by the exit code that goes with it."""
    return {ExitCode.NO: Severity.PROBLEM, ExitCode.GOOD: Severity.OK}.get(code, Severity.UNKNOWN)
