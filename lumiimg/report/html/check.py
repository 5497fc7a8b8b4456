"""`check --html`: one image on one machine, or on many nodes, by what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Level, Severity
from lumiimg.report.check import KINDS
from lumiimg.report.html.findings import FINDINGS as FINDINGS_SHOWN
from lumiimg.report.html.findings import findings_list
from lumiimg.report.html.gpu_code import GPU_CODE, gpu_boxes
from lumiimg.report.html.grid import NodeKind, grid_figure, named
from lumiimg.report.html.page import Node, Section, element, left_out, lines, page, table
from lumiimg.report.html.picture import path_figure
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from xml.etree import ElementTree as ET

    from lumiimg.check.answer import CheckReport
    from lumiimg.cluster.nodes.check import NodeGroup, NodesReport
    from lumiimg.fabric.path import Step

PATH, FINDINGS, LEVELS = "The path to the fast network", "What was found", "How far was looked"
_PATHS = 6
_GROUPS = 40


def check_page(report: CheckReport) -> str:
    parts = [
        Section(PATH, [path_figure(report.steps, "path", said=report.advice.next)]),
        Section(GPU_CODE, gpu_boxes(report.gpu)),
        Section(FINDINGS, findings_list(report.findings, report.advice.next)),
        Section(LEVELS, [_levels([(level.value, report.levels.of(level)) for level in Level])]),
    ]
    facts = [f"looked as far as level {report.level.value}"]
    if ran := report.collective:
        ranks = f"{count(ran.ranks, 'rank')} on {count(ran.nodes, 'node')}"
        facts.append(f"{ran.program}, {ranks}: {ran.verdict} ({ran.confidence})")
    return page("check", report.image, KINDS[report.answer], report.sentence, facts, parts, report.advice)


def _levels(levels: Sequence[tuple[str, str]]) -> Node:
    """Return what became of each level."""
    caption = "A lower level never claims what only a higher one can see"
    return table(caption, ("level", "what became of it"), levels)


def nodes_page(report: NodesReport, paths: Sequence[Sequence[Step]]) -> str:
    """Return the report as a page; `paths` are those of its groups."""
    kinds = [*map(_kind, report.groups), *(NodeKind(entry.nodes, "unknown", entry.why) for entry in report.silent)]
    output = (
        [element("p", "What the step printed at its end:"), *lines(report.output, 20, "lines")] if report.output else []
    )
    parts = [
        Section("The nodes", [grid_figure(kinds), *(output if report.silent else [])]),
        Section(PATH, [*_figures(report, paths), *left_out(len(paths), _PATHS, "paths")]),
        Section(GPU_CODE, gpu_boxes(report.gpu)),
        Section(FINDINGS, list(_findings(report))),
        Section(LEVELS, [_levels(list(report.levels.items()))]),
    ]
    facts = [f"job {report.job}", *_collective(report)]
    return page("check --nodes", report.image, KINDS[report.answer], report.sentence, facts, parts, report.advice)


def _kind(group: NodeGroup) -> NodeKind:
    slowest = f"slowest answer {group.slowest_ms / 1000:.1f} s" if group.slowest_ms else ""
    details = (*(f"differs: {difference}" for difference in group.differs), *([slowest] if slowest else []))
    return NodeKind(group.nodes, KINDS[group.answer], group.sentence, details)


def _figures(report: NodesReport, paths: Sequence[Sequence[Step]]) -> Iterator[ET.Element]:
    if len(paths) == 1:
        yield path_figure(paths[0], "path", said=report.advice.next)
        return
    for number in range(min(len(paths), _PATHS)):
        of = named(number, report.groups[number].nodes)
        yield element("h3", of)
        yield path_figure(paths[number], f"path-{number}", of, report.advice.next)


def _findings(report: NodesReport) -> Iterator[ET.Element]:
    """Yield the findings of each group that none before it has."""
    told: set[tuple[str, str]] = set()
    groups = shown = 0
    for number, group in enumerate(report.groups[:_GROUPS]):
        groups += 1
        fresh = [f for f in group.findings if (f.id, f.summary) not in told]
        told |= {(finding.id, finding.summary) for finding in fresh}
        if fresh and len(report.groups) > 1:
            yield element("h3", named(number, group.nodes))
        fresh.sort(key=lambda finding: finding.severity is Severity.INFO)
        yield from findings_list(fresh, report.advice.next)
        shown += len(fresh)
        if shown >= FINDINGS_SHOWN:
            break
    yield from left_out(len(report.groups), groups, "kinds of nodes")


def _collective(report: NodesReport) -> list[str]:
    ran = report.collective
    if ran is None:
        return []
    best = [m.best_gb_s for m in ran.measurements if m.best_gb_s is not None]
    fast = [f"{max(best):.1f} GB/s"] if best else []
    return [f"{ran.program}, {count(ran.ranks, 'rank')}: {ran.verdict} ({ran.confidence})", *fast]
