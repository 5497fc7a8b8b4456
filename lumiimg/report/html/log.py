"""`log --html`: one job, as its log shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode
from lumiimg.findings import Finding, Severity
from lumiimg.nccl.report import FAST, Cause, LogReport, VerdictGroup, answer_of
from lumiimg.report import log
from lumiimg.report.html.findings import block, findings_list, unsaid
from lumiimg.report.html.grid import NodeKind, grid_figure, named
from lumiimg.report.html.page import Node, Section, element, left_out, lines, page, short, table
from lumiimg.report.html.picture import path_figure
from lumiimg.report.views.check import PATH
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.run.job_log import ImageOfJob
    from lumiimg.check.run.job_paths import JobPath

_PROOF = 10
_VARIABLES = 200
_COMMUNICATORS = 20


def log_page(
    names: Sequence[str],
    report: LogReport,
    paths: Sequence[JobPath],
    measured: Sequence[Finding],
    image: ImageOfJob | None,
    answer: ExitCode,
) -> str:
    """Return the answer about a log as a page; `names` are its files, `answer` is that of the command."""
    of_groups = len(report.nodes) if paths[0].group is not None else 0
    figures = [node for one in paths for node in _figure(report, one)]
    path = Section(PATH, [*figures, *left_out(of_groups, len(paths), "kinds of nodes")])
    nodes = Section("The nodes", list(_nodes(report)))
    parts = [
        *([path, nodes] if len(paths) == 1 else [nodes, path]),
        Section("Why, and what to do", [_cause(cause, report) for cause in report.causes]),
        Section("The lines that decide it", lines(map(log.place, report.proof), _PROOF, "lines")),
        Section("Measured", findings_list(measured)),
        Section("The image of the job", list(_image(image))),
        Section("Variables that differ between ranks", lines(log.differences(report), _VARIABLES, "values")),
        Section("How far each rank came", lines(log.progress_lines(report), _VARIABLES, "ranks")),
        Section("How ranks were connected", list(_channels(report))),
        Section("Communicators", list(_communicators(report))),
        Section("Variables in the log", list(_variables(report))),
    ]
    subject = short(", ".join(names), 300)
    kind = log.KINDS.get(answer, "unknown")
    second = [f"network: {log.network(report)}" if report.ended is not None else "", log.stall_line(report)]
    beside = [*filter(None, second), *log.known(report)]
    return page("log", subject, kind, _sentence(report, measured, answer), beside, parts, log.advice_of(report))


def _sentence(report: LogReport, measured: Sequence[Finding], answer: ExitCode) -> str:
    """Return the headline, and what was measured where that alone makes the answer a no."""
    worst = next((finding for finding in measured if finding.severity is Severity.PROBLEM), None)
    extra = (
        f"; {worst.summary}" if worst is not None and answer is ExitCode.NO and report.answer is not ExitCode.NO else ""
    )
    return f"{log.headline(report)}{extra}"


def _figure(report: LogReport, path: JobPath) -> Iterator[Node]:
    if path.group is None:
        yield path_figure(path.steps, "path", said=log.advice_of(report).next)
    else:
        of = named(path.group, report.nodes[path.group].nodes)
        yield element("h3", of)
        yield path_figure(path.steps, f"path-{path.group}", of, log.advice_of(report).next)


def _nodes(report: LogReport) -> Iterator[Node]:
    if line := log.told_line(report):
        yield element("p", line)
    if sum(len(group.nodes) for group in report.nodes) > 1:
        yield grid_figure([_kind(report, group) for group in report.nodes])


def _kind(report: LogReport, group: VerdictGroup) -> NodeKind:
    answer = ExitCode.GOOD if report.nothing_crossed else answer_of(group.verdict, group.provider, group.confidence)
    words = ", ".join(part for part in (group.verdict.value, group.network, group.provider, group.cause) if part)
    is_likely = group.verdict in FAST and answer is not ExitCode.GOOD
    return NodeKind(group.nodes, log.KINDS.get(answer, "unknown"), f"{words}, likely" if is_likely else words)


def _cause(cause: Cause, report: LogReport) -> Node:
    return block(
        kind="info" if report.answer is ExitCode.GOOD else "problem" if report.answer is ExitCode.NO else "unknown",
        summary=cause.summary,
        identity=cause.id,
        is_open=cause is report.causes[0],
        evidence=map(log.place, cause.evidence),
        reasons=cause.because,
        remedy=unsaid(cause.remedy, log.advice_of(report).next),
        source=cause.source,
    )


def _image(image: ImageOfJob | None) -> Iterator[Node]:
    if image is not None:
        yield element("p", element("code", image.image), f" {image.sentence}")
        yield from findings_list(image.findings)


def _channels(report: LogReport) -> Iterator[Node]:
    if report.channels:
        rows = ((element("code", one.way), str(one.ranks)) for one in report.channels[:_COMMUNICATORS])
        yield table("Rings, trees and channels by their kind", ("way", "ranks"), rows)


def _communicators(report: LogReport) -> Iterator[Node]:
    if report.communicators:
        rows = (
            (
                element("code", c.id),
                str(c.ranks),
                "not known" if c.nodes is None else str(c.nodes),
                {True: "yes", False: "no", None: "not known"}[c.crosses_network],
                c.verdict.value,
            )
            for c in report.communicators[:_COMMUNICATORS]
        )
        yield table(
            "Groups of ranks that talk to each other", ("id", "ranks", "nodes", "crosses a network", "verdict"), rows
        )
        yield from left_out(len(report.communicators), _COMMUNICATORS, "communicators")


def _variables(report: LogReport) -> Iterator[Node]:
    if report.environment:
        yield element(
            "details",
            element("summary", f"{count(len(report.environment), 'variable')} of NCCL, Slurm and Slingshot"),
            *lines((f"{name}={value}" for name, value in report.environment), _VARIABLES, "variables"),
        )
