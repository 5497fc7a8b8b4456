"""`trial report --html`: claims beside facts, as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.report.console import MARKS
from lumiimg.report.html.page import Node, Section, element, page, table
from lumiimg.report.trial import KINDS, TITLES, facts, kind_of, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.trial.values import ClaimOutcome, TrialReport


def trial_page(report: TrialReport) -> str:
    """Return the table of a trial as a page."""
    parts = [Section("Read this first", list(_notes(report)))]
    parts += [Section(title, list(_rows(report, kind))) for kind, title in TITLES.items()]
    return page("trial", report.site, kind_of(report), sentence(report), facts(report), parts)


def _notes(report: TrialReport) -> Iterator[Node]:
    if report.stand_in is not None:
        yield element("p", f"Not a real machine: {report.stand_in}. This says nothing about {report.site}.")
    yield from (element("p", note) for note in report.notes)


def _rows(report: TrialReport, kind: ClaimOutcome) -> Iterator[Node]:
    rows = [row for row in report.rows if row.outcome is kind]
    if not rows:
        return
    mark = MARKS[KINDS[kind]]
    cells = [
        (f"{mark} {row.about}", row.predicted or "nothing", _measured(row.measured, row.why), row.source)
        for row in rows
    ]
    caption = f"{len(rows)} of {len(report.rows)} claims"
    yield table(caption, ("claim", "predicted", "measured", "source"), cells)


def _measured(measured: str | None, why: str) -> str:
    return " · ".join(filter(None, (measured, why))) if measured else why
