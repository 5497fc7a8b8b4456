"""Answer of `log`: what ended the job, or which network it used; the decisive lines, the causes, the nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.core.findings import Severity
from lumiimg.core.text import count
from lumiimg.fabric.job_path import job_path, nodes_of_path
from lumiimg.joblog import FAST
from lumiimg.report.document import (
    Document,
    Item,
    Lines,
    Paragraph,
    Row,
    Section,
    Shown,
    Table,
)
from lumiimg.report.views.parts import PATH, bandwidth_section, finding_items, path_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.run.log_answer import LogAnswer
    from lumiimg.core.findings import Finding
    from lumiimg.joblog import LogReport, VerdictGroup, Vocabulary

_CAUSES = 3
"""Maximum number of causes that a terminal shows without --verbose."""


def log_document(names: Sequence[str], answer: LogAnswer) -> Document:
    """Return what the log in the files `names` shows about its job."""
    report, measured = answer.report, answer.findings
    is_end = report.ended.leads
    variables = tuple(f"{name}={value}" for name, value in report.environment.items())
    causes = [one for one in report.causes if is_end and one.id == report.ended.cause]
    lines = causes[0].evidence if causes else report.proof
    proof = Lines(tuple(map(str, lines)), few=1 if is_end else 3, is_evidence=True)
    return Document(
        command="log",
        subject=", ".join(names),
        severity=answer.severity,
        sentence=answer.sentence,
        advice=answer.advice,
        summary=tuple(_summary(report)),
        sections=(
            Section("The lines that decide it", (proof,)),
            Section("Why, and what to do", _causes(report)),
            Section("The network", (_network(report),) if is_end else ()),
            Section("The nodes", _nodes(report)),
            Section("Measured", _measured(measured)),
            bandwidth_section(report.measurements, answer.site, report.coverage.of_nodes),
            Section(PATH, (path_steps(job_path(report), _path_nodes(report)),), Shown.PAGE),
            Section("How far each rank got", (Lines(tuple(one.sentence for one in report.progress)),), Shown.VERBOSE),
            Section("Communicators", (_communicators(report),), Shown.VERBOSE),
            Section("Variables in the log", (Lines(variables),), Shown.VERBOSE),
        ),
        case="end of the job" if is_end else "network of the job",
        extent=_extent(report, answer.sentence),
    )


def _extent(report: LogReport, sentence: str) -> str:
    """Return what the sentence omits: how many nodes used which network, or how many ranks and nodes reported one."""
    nodes: Counter[str] = Counter()
    for group in report.nodes:
        nodes[group.verdict.value] += len(group.nodes)
    if len(nodes) > 1:
        return ", ".join(f"{count(number, 'node')} {verdict}" for verdict, number in nodes.items())
    seen = report.coverage
    is_said = seen.of_all_ranks in sentence or not (seen.ranks or seen.of_ranks)
    return "" if is_said else seen.sentence


def _summary(report: LogReport) -> Iterator[str]:
    """Yield the scope of the answer, what was used, and how, in a few lines."""
    if report.stall and report.stall.reason not in report.headline:
        yield f"the stall began with {report.stall.who}, which {report.stall.reason}"
    if report.runs > 1:
        yield f"the log contains {report.runs} runs; this is about the last one, from line {report.first_line} on"
    if report.excerpt:
        yield "an excerpt: no relevant line names its process, so it proves nothing by itself"
    used = [f"{part.name} {part.version}" for part in (report.library, report.plugin) if part is not None]
    used += [f"provider {report.provider}"] if report.provider else []
    yield from filter(None, (", ".join(used), report.transport.words))


def signatures_document(known: Vocabulary) -> Document:
    """Return the list of messages that the log reader knows."""
    items = (
        Item(
            Severity.INFO,
            signature.summary,
            tag=", ".join(filter(None, (signature.id, signature.weight.value, signature.versions))),
            evidence=(signature.example,),
            source=f"{signature.source} ({signature.date})",
        )
        for signature in known.signatures.values()
    )
    kinds, troubles = len(known.entries), len(known.signatures)
    return Document(
        command="log --signatures",
        subject="signatures",
        is_list=True,
        sentence=f"{kinds} kinds of messages, {troubles} of them troubles; --json has all",
        sections=(Section("Messages", items),),
    )


def _network(report: LogReport) -> Item:
    return Item(report.network_severity, f"network: {report.network_in_short}", case="network of the job", always=True)


def _causes(report: LogReport) -> Iterator[Item]:
    """Yield the causes, most likely first; only as notes if the job went well or something else ended it."""
    # on one node, a missing plugin is nothing to worry about
    is_end = report.ended.leads
    shown = 1 if is_end or report.single_node else _CAUSES
    is_good = report.severity is Severity.OK
    severity = Severity.INFO if is_good else report.severity
    for number, cause in enumerate(report.causes):
        is_note = is_good or (is_end and number > 0)
        yield Item(
            Severity.INFO if is_note else severity,
            cause.summary,
            tag=cause.id,
            evidence=tuple(map(str, cause.evidence)),
            why=cause.because,
            is_likely=True,
            remedies=cause.remedy,
            source=cause.source,
            verbose=number >= shown,
        )


def _nodes(report: LogReport) -> Iterator[Paragraph | Item]:
    seen = report.coverage
    if seen.ranks or seen.of_ranks:
        yield Paragraph(f"reported their network: {seen.sentence}", quiet=not seen.is_part)
    for group in report.nodes:
        yield _group(report, group, verbose=len(report.nodes) < 2 and not seen.is_part)


def _group(report: LogReport, group: VerdictGroup, *, verbose: bool) -> Item:
    severity = Severity.OK if report.nothing_crossed else group.severity
    words = ", ".join(part for part in (group.verdict.value, group.network, group.provider, group.cause) if part)
    likely = ", likely" if group.verdict in FAST and severity is not Severity.OK else ""
    return Item(
        severity,
        f"{count(len(group.nodes), 'node')}: {words}{likely}",
        names=(group.names,),
        case=f"network of {group.names}",
        verbose=verbose,
    )


def _measured(measured: Sequence[Finding]) -> Iterator[Item]:
    for item, finding in zip(finding_items(measured), measured, strict=True):
        yield replace(item, case=f"{finding.id} {finding.where}", verbose=False)


def _path_nodes(report: LogReport) -> str:
    group = nodes_of_path(report)
    return f"{count(len(group.nodes), 'node')} {group.names}" if group else ""


def _communicators(report: LogReport) -> Table:
    crosses = {True: "yes", False: "no", None: "not known"}
    rows = (
        Row((one.id, str(one.ranks), str(one.nodes or "not known"), crosses[one.crosses_network], one.verdict.value))
        for one in report.communicators
    )
    heads = ("id", "ranks", "nodes", "crosses a network", "verdict")
    return Table(heads, tuple(rows), "Groups of ranks that talk to each other")
