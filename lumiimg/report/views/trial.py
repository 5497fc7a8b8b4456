"""Answers of `trial`: what would be done and at what cost; then claims compared with facts, differences first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.model import ClaimOutcome, usual_minutes
from lumiimg.core.findings import NO_ADVICE, Advice, Severity
from lumiimg.core.text import count
from lumiimg.report.document import Document, Item, Section, severity_of

if TYPE_CHECKING:
    from lumiimg.cluster.trial.model import ReportRow, TrialPlan, TrialReport

_OUTCOMES = {
    ClaimOutcome.DIFFERS: (Severity.PROBLEM, "Not as predicted"),
    ClaimOutcome.SAME: (Severity.OK, "As predicted"),
    ClaimOutcome.UNPREDICTED: (Severity.INFO, "Measured, without a verdict"),
    ClaimOutcome.UNMEASURED: (Severity.UNKNOWN, "Not measured"),
}
"""Severity and title of each outcome, in display order."""


def trial_plan_document(plan: TrialPlan, advice: Advice) -> Document:
    """Return what would be done, and which command does it."""
    of = f"{plan.site} and {count(len(plan.images), 'image')}" if plan.images else plan.site
    work = f"{count(len(plan.steps), 'step')}, about {usual_minutes(plan.steps, plan.nodes)} node minutes"
    steps = (
        Item(Severity.INFO, f"{step.about} ({count(step.nodes, 'node')}, {step.minutes} min)") for step in plan.steps
    )
    return Document(
        "trial run",
        of,
        f"trial of {of} on {count(plan.nodes, 'node')}: {work}, never more than {plan.node_minutes}",
        advice=advice,
        summary=(f"recorded: {count(len(plan.claims), 'claim')}, each with its source; a job tries them",),
        sections=(Section("Steps", steps, is_headed=True),),
    )


def trial_document(report: TrialReport, folder: str) -> Document:
    """Return the claims compared with the facts; `folder` is the folder of the trial."""
    shared = f"to share: {folder}/trial.json, which names no person, project, node or folder. Nothing was sent"
    not_real = f"not a real machine ({report.stand_in}): this says nothing about {report.site}"
    took = f"{report.node_minutes:g} of {report.node_minutes_most} node minutes, planned {report.made[:10]}"
    goes_on = Advice(None, f"lumiimg trial run {shlex.quote(folder)}")
    return Document(
        "trial",
        f"trial of {report.site}",
        report.sentence,
        severity_of(report.exit_code),
        goes_on if report.is_unfinished else NO_ADVICE,
        summary=(
            *([] if report.is_unfinished else [shared]),
            *([not_real] if report.stand_in is not None else []),
            f"{report.steps_done} of {count(report.steps, 'step')} done, on {count(report.nodes, 'node')}; {took}",
        ),
        sections=(
            Section("Notes", (Item(Severity.UNKNOWN, note) for note in report.notes)),
            *(_section(report, outcome) for outcome in _OUTCOMES),
        ),
        is_named=True,
    )


def _section(report: TrialReport, outcome: ClaimOutcome) -> Section:
    severity, title = _OUTCOMES[outcome]
    items = (
        Item(severity, _claim(row), source=f"{row.source}{f' ({row.date})' if row.date else ''}")
        for row in report.rows
        if row.outcome is outcome
    )
    return Section(f"{title}: {report.counts[outcome]}", items, is_headed=True)


def _claim(row: ReportRow) -> str:
    """Return a claim with its outcome."""
    if row.outcome is ClaimOutcome.SAME:
        return f"{row.about}: {row.measured}"
    if row.outcome is ClaimOutcome.UNPREDICTED:
        return f"{row.about}: {row.measured}{f' ({row.why})' if row.why else ''}"
    predicted = f"predicted {row.predicted}" if row.predicted is not None else "nothing predicted"
    but = f", but {row.why}" if row.outcome is ClaimOutcome.UNMEASURED else ""
    return f"{row.about}: {predicted}; {row.why if row.measured is None else f'measured {row.measured}{but}'}"
