"""Answers of `check`, for an image on one node and on several nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.core.findings import Answer, Remedy, Severity
from lumiimg.core.text import count, hostlist
from lumiimg.gpu import GpuFit
from lumiimg.joblog import TRANSPORTS
from lumiimg.report.document import Document, Item, Row, Section, Shown, Table
from lumiimg.report.views.parts import PATH, bandwidth_section, finding_items, path_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.check.pipeline import CheckReport, CheckResult
    from lumiimg.cluster.nodes.report import NodeGroup, NodesReport
    from lumiimg.inventory.gpu_fit import ComponentFit, GpuAccount

FOUND = "What was found"
_LONG_NAMES = 60
"""Number of characters beyond which node names go on a line of their own."""
_SEVERITIES = {GpuFit.RUNS: Severity.OK, GpuFit.PART: Severity.OK, GpuFit.UNKNOWN: Severity.UNKNOWN}
_MARKS = {GpuFit.RUNS: "✓", GpuFit.PART: "✓ in part", GpuFit.XNACK: "✗ without HSA_XNACK=1", GpuFit.UNKNOWN: "?"}


def check_document(report: CheckReport, site: Site | None = None) -> Document:
    """Return the answer of `check IMAGE`; the bandwidth of `site` is drawn next to what was measured."""
    findings = finding_items(report.findings, is_green=report.answer is Answer.NO_OBSTACLE)
    sections = (
        Section(PATH, (path_steps(report.steps),), Shown.PAGE),
        account_section(report.gpu),
        Section(FOUND, findings),
    )
    return _document(report, site, report.path.line, sections)


def nodes_document(report: NodesReport, site: Site | None = None) -> Document:
    """Return the answer of `check IMAGE --nodes N`: each kind of node with its names, then what was found on it."""
    pictures = (
        path_steps(group.steps, "" if len(report.groups) == 1 else names_of(group.nodes))
        for group in report.groups
        if group.steps
    )
    sections = (
        Section("The nodes", (*(_group(report, group) for group in report.groups), *_silent(report))),
        Section(PATH, pictures, Shown.PAGE),
        account_section(report.gpu),
        *_findings(report),
    )
    found = _document(report, site, f"job {report.job}", sections)
    return replace(found, command="check --nodes", case=f"network of {report.image} on all nodes")


def _document(report: CheckResult, site: Site | None, first: str, sections: tuple[Section, ...]) -> Document:
    """Return the parts common to both; `first` is the first line below the answer."""
    ran, summary = report.collective, [first]
    if ran is not None:
        best = max((one.best_gb_s for one in ran.measurements if one.best_gb_s is not None), default=None)
        speed = "" if best is None else f", {best:.1f} GB/s"
        where = f"{count(ran.ranks, 'rank')} on {count(ran.nodes, 'node')}"
        is_choice = ran.nodes == 1 and ran.verdict in TRANSPORTS  # nothing crosses the network
        sure = "selected" if is_choice else f"({ran.confidence})"
        summary.append(f"{ran.program}, {where}: {ran.verdict} {sure}{speed}")
        sections = (*sections, bandwidth_section(ran.measurements, site, ran.nodes))
    if report.gpu is not None:
        summary.append(account_summary(report.gpu))
    levels: dict[str, list[str]] = {}
    for level, text in report.levels.items():
        levels.setdefault(text, []).append(level)
    return Document(
        command="check",
        subject=report.image,
        is_named=True,
        severity=report.answer.severity,
        sentence=report.sentence,
        advice=report.advice,
        summary=tuple(summary),
        sections=sections,
        closing=tuple(f"level{'s' * (len(same) > 1)} {' and '.join(same)}: {text}" for text, same in levels.items()),
        case=f"network of {report.image}",
    )


def names_of(nodes: Sequence[str]) -> str:
    """Return how many nodes there are, and their names as Slurm folds them."""
    return f"{count(len(nodes), 'node')} {hostlist(nodes)}"


def _group(report: NodesReport, group: NodeGroup) -> Item:
    is_all = len(report.groups) == 1 and not report.silent
    return Item(
        group.answer.severity,
        *on_nodes(group.nodes, "all the same" if is_all else group.sentence),
        notes=(
            *(f"differs: {difference}" for difference in group.differs),
            *([group.path.line] if group is report.groups[0] and group.path.rccl else []),
        ),
        evidence=group.said,
        remedies=(Remedy(group.to_do),) if group.to_do else (),
        case=f"network on {hostlist(group.nodes)}",
    )


def on_nodes(nodes: Sequence[str], sentence: str) -> tuple[str, str, tuple[str, ...]]:
    """Return text, tag and names of an item about nodes; long names go below it."""
    names = hostlist(nodes)
    if len(names) > _LONG_NAMES:
        return f"{count(len(nodes), 'node')}: {sentence}", "", (names,)
    return f"{names_of(nodes)}: {sentence}", "", ()


def _silent(report: NodesReport) -> Iterator[Item]:
    """Yield the nodes that gave no answer; the last item includes what the step printed."""
    for number, silent in enumerate(report.silent, 1):
        yield Item(
            Severity.UNKNOWN,
            *on_nodes(silent.nodes, silent.why),
            evidence=report.output if number == len(report.silent) else (),
            case=f"network on {hostlist(silent.nodes)}",
        )


def _findings(report: NodesReport) -> Iterator[Section]:
    """Yield the findings of each group, except those shown for an earlier group."""
    shown: set[tuple[str, str]] = set()
    for group in report.groups:
        fresh = [finding for finding in group.findings if (finding.id, finding.summary) not in shown]
        shown |= {(finding.id, finding.summary) for finding in fresh}
        of = f" on {hostlist(group.nodes)}"
        title = FOUND if len(report.groups) == 1 else f"{FOUND} on {names_of(group.nodes)}"
        items = finding_items(fresh, of, is_green=group.answer is Answer.NO_OBSTACLE)
        yield Section(title, items, is_headed=len(report.groups) > 1)


def account_summary(account: GpuAccount) -> str:
    """Return one line: each component with its mark."""
    parts = ", ".join(f"{part.component} {_in_short(part)}" for part in account.parts)
    return f"GPU code for {account.processor}: {parts or 'none was found'}"


def account_section(account: GpuAccount | None) -> Section:
    """Return each component and whether the GPU runs its code; empty if there is no account."""
    if account is None:
        return Section("GPU code", ())
    rows = map(_row, account.parts)
    caption = f"Whether {account.gpu}, the GPU of {account.machine}, can run the code of each component"
    table = Table(("component", account.processor, "why", "where"), tuple(rows), caption)
    return Section("GPU code", (table,), Shown.PAGE)


def _in_short(part: ComponentFit) -> str:
    """Return the answer as a mark; if it has no code for the GPU, with what it has code for."""
    return _MARKS.get(part.fit) or f"{part.has} ✗"


def _row(part: ComponentFit) -> Row:
    """Return a component with its answer, the reason if it is not good, and its first place."""
    severity = Severity.PROBLEM if part.blocks_jobs else _SEVERITIES.get(part.fit, Severity.INFO)
    why = "" if severity is Severity.OK else part.why or part.without
    reason = "; ".join(filter(None, (why, "" if part.needed else "off the path: not every job calls it")))
    more = f", and {count(len(part.paths) - 1, 'place')} more" if len(part.paths) > 1 else ""
    return Row((part.component, _in_short(part), reason, f"{part.paths[0]}{more}"), severity)
