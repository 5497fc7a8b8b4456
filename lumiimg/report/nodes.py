"""What `lumiimg check --nodes` says: the answer for all, then each kind of node with its names, then the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode, printable
from lumiimg.findings import Severity
from lumiimg.nccl.node_names import folded
from lumiimg.report.check import KINDS, finding_cases, path_line, print_finding, print_levels
from lumiimg.report.console import HEADLINES, INDENT, Priority, advise, cut, detail, evidence, headline, say, screen
from lumiimg.report.gpu_code import summary_of
from lumiimg.wording import count

if TYPE_CHECKING:
    from lumiimg.cluster.nodes.check import NodesReport
    from lumiimg.report.console import Console


def to_junit_text(report: NodesReport) -> str:
    """Return the report as JUnit XML: a case for all, one for each kind of node, and for the findings of each."""
    from lumiimg.report.junit import Case, to_junit  # xml is not for everyone

    cases = [Case(f"network of {report.image} on all nodes", report.answer.exit_code, report.sentence)]
    for group in report.groups:
        names = folded(group.nodes)
        cases.append(Case(f"network on {names}", group.answer.exit_code, group.sentence, group.differs))
        cases += finding_cases(group.findings, group.answer, f" on {names}")
    cases += [Case(f"network on {folded(s.nodes)}", ExitCode.UNDECIDED, s.why, report.output) for s in report.silent]
    return to_junit("lumiimg check --nodes", cases)


def print_nodes(report: NodesReport, *, verbose: bool, quiet: bool = False, stderr: bool = False) -> None:
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        headline(out, f"{report.image}: {report.sentence}", KINDS[report.answer])
        advise(out, report.advice)
        out.print()
        for number, group in enumerate(report.groups):
            is_all = number == 0 and len(report.groups) == 1 and not report.silent
            _head(out, group.nodes, "all the same" if is_all else group.sentence, KINDS[group.answer], verbose=verbose)
            for difference in group.differs:
                detail(out, f"differs: {difference}")
            if number == 0 and group.path.rccl:
                detail(out, path_line(group.path), style="dim")
        if report.gpu is not None:
            detail(out, summary_of(report.gpu), style="dim")
        for entry in report.silent:
            _head(out, entry.nodes, entry.why, "unknown", verbose=verbose)
        if report.silent:
            for line in report.output:
                evidence(out, line)
        out.print()
        told: set[tuple[str, str]] = set()
        for group in report.groups:
            new = [f for f in group.findings if (verbose or f.severity is not Severity.INFO)]
            fresh = [finding for finding in new if (finding.id, finding.summary) not in told]
            told |= {(finding.id, finding.summary) for finding in fresh}
            if not fresh:
                continue
            if len(report.groups) > 1:
                say(out, f"on {_names(out, group.nodes, verbose=verbose)}:", style="bold")
            for finding in fresh:
                print_finding(out, finding, report.advice, verbose=verbose)
        print_levels(out, report.levels)


def _head(out: Console, nodes: tuple[str, ...], text: str, kind: str, *, verbose: bool) -> None:
    names = _names(out, nodes, verbose=verbose)
    say(
        out,
        f"{count(len(nodes), 'node')}  {names}: {text}",
        rest=INDENT,
        style=HEADLINES[kind],
        priority=Priority.ALWAYS,
    )


def _names(out: Console, nodes: tuple[str, ...], *, verbose: bool) -> str:
    names = printable(folded(nodes))
    return names if verbose else cut(out, names, INDENT)
