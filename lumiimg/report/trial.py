"""What `lumiimg trial` says: what would be done and what it costs; then claims beside facts, the differences first."""

from __future__ import annotations

import shlex

from lumiimg.cluster.trial.measure import LEFT, NOT_YET
from lumiimg.cluster.trial.plan import usual_minutes
from lumiimg.cluster.trial.values import ClaimOutcome, Row, TrialPlan, TrialReport
from lumiimg.report.console import Console, Priority, console, detail, heading, headline, marked, proposal, say, screen
from lumiimg.wording import count

KINDS = {
    ClaimOutcome.DIFFERS: "problem",
    ClaimOutcome.SAME: "ok",
    ClaimOutcome.NEWS: "info",
    ClaimOutcome.OPEN: "unknown",
}
TITLES = {
    ClaimOutcome.DIFFERS: "Not as predicted",
    ClaimOutcome.SAME: "As predicted",
    ClaimOutcome.NEWS: "Measured, without a verdict",
    ClaimOutcome.OPEN: "Not measured",
}
_SOON = {
    ClaimOutcome.DIFFERS: Priority.SENTENCE,
    ClaimOutcome.OPEN: Priority.REASON,
    ClaimOutcome.NEWS: Priority.WELL,
    ClaimOutcome.SAME: Priority.WELL,
}
"""What is left out last where a screen is too small."""


def print_plan(plan: TrialPlan, command: str, *, quiet: bool, stderr: bool) -> None:
    """Print what would be done."""
    out = console(stderr=stderr, quiet=quiet)
    of = f"{plan.site} and {count(len(plan.images), 'image')}" if plan.images else plan.site
    usual = usual_minutes(plan.steps, plan.nodes)
    headline(
        out,
        f"trial of {of} on {count(plan.nodes, 'node')}: {count(len(plan.steps), 'step')}, about {usual} node minutes, "
        f"never more than {plan.node_minutes}",
    )
    detail(out, f"{count(len(plan.claims), 'claim')} are written down, each with its source; nothing has run yet")
    heading(out, "Steps")
    for step in plan.steps:
        where = f"{count(step.nodes, 'node')}, {step.minutes} min" if step.nodes else f"here, {step.minutes} min"
        say(out, f"{step.about} ({where})", first="  ", rest="      ")
    out.print()
    proposal(out, command)


def sentence(report: TrialReport) -> str:
    """Return what a trial came to, in one sentence."""
    numbers = report.counts
    judged = numbers[ClaimOutcome.SAME] + numbers[ClaimOutcome.DIFFERS]
    told = f"{numbers[ClaimOutcome.SAME]} of {count(judged, 'claim')} as predicted" if judged else "no claim was judged"
    rest = [f"{numbers[ClaimOutcome.DIFFERS]} not" if numbers[ClaimOutcome.DIFFERS] else ""]
    rest += [f"{numbers[ClaimOutcome.OPEN]} not measured" if numbers[ClaimOutcome.OPEN] else ""]
    rest += [f"{numbers[ClaimOutcome.NEWS]} news" if numbers[ClaimOutcome.NEWS] else ""]
    return ", ".join(filter(None, (told, *rest)))


def facts(report: TrialReport) -> list[str]:
    """Return what a trial was, in short."""
    return [
        f"{report.site}, {count(report.nodes, 'node')}, {count(len(report.images), 'image')}",
        f"{report.steps_done} of {count(report.steps, 'step')} done",
        f"{report.node_minutes:g} of {report.node_minutes_most} node minutes",
        f"lumiimg {report.tool}, planned {report.made[:10]}",
    ]


def kind_of(report: TrialReport) -> str:
    """Return the kind of answer, a key of MARKS."""
    return "problem" if report.counts[ClaimOutcome.DIFFERS] else "unknown" if report.counts[ClaimOutcome.OPEN] else "ok"


def told(row: Row) -> str:
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


def print_trial(report: TrialReport, folder: str, *, verbose: bool, quiet: bool, stderr: bool) -> None:
    """Print the table."""
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        _print_table(out, report, folder, verbose=verbose)


def _print_table(out: Console, report: TrialReport, folder: str, *, verbose: bool) -> None:
    headline(out, f"trial of {report.site}: {sentence(report)}", kind_of(report))
    name = shlex.quote(folder)
    if any(row.why == NOT_YET or row.why.startswith(LEFT) for row in report.rows):
        proposal(out, f"lumiimg trial run {name} --sbatch='OPTIONS'")
    else:
        told_file = f"{folder}/trial.json, which names no person, project, node or folder. Nothing was sent"
        say(out, f"to share: {told_file}", rest=" " * 10)
    if report.stand_in is not None:
        say(out, f"not a real machine ({report.stand_in}): this says nothing about {report.site}")
    detail(out, "; ".join(facts(report)))
    for note in report.notes:
        marked(out, "unknown", note, first="  ")
    for kind, title in TITLES.items():
        rows = [row for row in report.rows if row.outcome is kind]
        if not rows:
            continue
        heading(out, f"{title}: {len(rows)}")
        for row in rows:
            marked(out, KINDS[kind], told(row), first="  ", priority=_SOON[kind])
            if verbose or kind is ClaimOutcome.DIFFERS:
                source = f"  source: {row.source}{f' ({row.date})' if row.date else ''}"
                detail(out, source, priority=Priority.MORE)
