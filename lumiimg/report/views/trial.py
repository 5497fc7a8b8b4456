"""What `trial` answers: what would be done and what it costs; then claims beside facts, the differences first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.measure import LEFT, NOT_YET
from lumiimg.cluster.trial.plan import usual_minutes
from lumiimg.cluster.trial.values import ClaimOutcome
from lumiimg.findings import NO_ADVICE, Advice, Severity
from lumiimg.report.document import Document, Item, Paragraph, Section
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.trial.values import Row, TrialPlan, TrialReport

_OUTCOMES = {
    ClaimOutcome.DIFFERS: (Severity.PROBLEM, "Not as predicted"),
    ClaimOutcome.SAME: (Severity.OK, "As predicted"),
    ClaimOutcome.NEWS: (Severity.INFO, "Measured, without a verdict"),
    ClaimOutcome.OPEN: (Severity.UNKNOWN, "Not measured"),
}
"""How each is marked, and the title above it, in their order."""


_WITH = "with Slurm's options in --sbatch"


def trial_plan_document(plan: TrialPlan, advice: Advice) -> Document:
    """Return what would be done, and what does it."""
    of = f"{plan.site} and {count(len(plan.images), 'image')}" if plan.images else plan.site
    usual = usual_minutes(plan.steps, plan.nodes)
    steps = (
        Paragraph(f"{step.about} ({count(step.nodes, 'node') if step.nodes else 'here'}, {step.minutes} min)")
        for step in plan.steps
    )
    return Document(
        command="trial plan",
        subject=of,
        is_list=True,
        sentence=f"trial of {of} on {count(plan.nodes, 'node')}: {count(len(plan.steps), 'step')}, about {usual} node "
        f"minutes, never more than {plan.node_minutes}",
        advice=advice,
        summary=(f"{count(len(plan.claims), 'claim')} are written down, each with its source; nothing has run yet",),
        sections=(Section("Steps", steps, is_headed=True),),
    )


def trial_document(report: TrialReport, folder: str) -> Document:
    """Return claims beside facts; `folder` is that of the trial."""
    is_open = any(row.why == NOT_YET or row.why.startswith(LEFT) for row in report.rows)
    shared = f"to share: {folder}/trial.json, which names no person, project, node or folder. Nothing was sent"
    not_real = f"not a real machine ({report.stand_in}): this says nothing about {report.site}"
    took = f"{report.node_minutes:g} of {report.node_minutes_most} node minutes, planned {report.made[:10]}"
    severity = Severity.UNKNOWN if report.counts[ClaimOutcome.OPEN] else Severity.OK
    return Document(
        command="trial",
        subject=f"trial of {report.site}",
        is_named=True,
        severity=Severity.PROBLEM if report.counts[ClaimOutcome.DIFFERS] else severity,
        sentence=_sentence(report),
        advice=Advice(None, f"lumiimg trial run {shlex.quote(folder)}", _WITH) if is_open else NO_ADVICE,
        summary=(
            *([] if is_open else [shared]),
            *([not_real] if report.stand_in is not None else []),
            f"{report.steps_done} of {count(report.steps, 'step')} done, on {count(report.nodes, 'node')}; {took}",
        ),
        sections=(
            Section("Notes", (Paragraph(note, Severity.UNKNOWN) for note in report.notes)),
            *_sections(report),
        ),
    )


def _sentence(report: TrialReport) -> str:
    numbers = report.counts
    judged = numbers[ClaimOutcome.SAME] + numbers[ClaimOutcome.DIFFERS]
    same = f"{numbers[ClaimOutcome.SAME]} of {count(judged, 'claim')} as predicted"
    words = {ClaimOutcome.DIFFERS: "not", ClaimOutcome.OPEN: "not measured", ClaimOutcome.NEWS: "news"}
    others = [f"{numbers[one]} {word}" for one, word in words.items() if numbers[one]]
    return ", ".join([same if judged else "no claim was judged", *others])


def _sections(report: TrialReport) -> Iterator[Section]:
    for outcome, (severity, title) in _OUTCOMES.items():
        items = tuple(
            Item(severity, _claim(row), source=f"{row.source}{f' ({row.date})' if row.date else ''}")
            for row in report.rows
            if row.outcome is outcome
        )
        yield Section(f"{title}: {len(items)}", items, is_headed=True)


def _claim(row: Row) -> str:
    """Return a claim with what came of it."""
    if row.outcome is ClaimOutcome.SAME:
        return f"{row.about}: {row.measured}"
    if row.outcome is ClaimOutcome.NEWS:
        return f"{row.about}: {row.measured}{f' ({row.why})' if row.why else ''}"
    predicted = f"predicted {row.predicted}" if row.predicted is not None else "nothing predicted"
    measured = f"measured {row.measured}" if row.measured is not None else row.why
    if row.outcome is ClaimOutcome.OPEN and row.measured is not None:
        measured += f", but {row.why}"
    return f"{row.about}: {predicted}; {measured}"
