"""What `lumiimg check` says: the answer first, then what stands behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer
from lumiimg.errors import ExitCode, printable
from lumiimg.findings import Family, Finding, Level, Severity
from lumiimg.report.console import console, detail, evidence, headline, marked, remedies, say
from lumiimg.report.gpu_code import summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from lumiimg.check.answer import CheckReport
    from lumiimg.fabric.path import FabricPath
    from lumiimg.report.junit import Case

_ALWAYS = frozenset({Family.IMAGE, Family.GPU})
"""Of no weight for the network, and jobs meet it."""
KINDS = {Answer.NO: "problem", Answer.UNDECIDED: "unknown", Answer.NO_OBSTACLE: "ok"}
"""Of headlines."""


def print_check(report: CheckReport, *, verbose: bool, quiet: bool = False, stderr: bool = False) -> None:
    """Print the report for a person."""
    out = console(stderr=stderr, quiet=quiet)
    headline(out, f"{report.image}: {report.sentence}", KINDS[report.answer])
    detail(out, path_line(report.path), style="dim")
    if report.gpu is not None:
        detail(out, summary_of(report.gpu), style="dim")
    out.print()
    for finding in report.findings:
        is_told = verbose or finding.level is Level.RUN or finding.id.family in _ALWAYS
        if finding.severity is Severity.INFO and not is_told:
            continue
        print_finding(out, finding)
    for level in Level:
        say(out, f"level {level.value}: {report.levels.of(level)}", first="  ", style="dim")


def print_finding(out: Console, finding: Finding) -> None:
    """Print one finding with its evidence, cause and remedy."""
    marked(out, finding.severity.value, f"{finding.summary}  [{finding.id}, {finding.level.value}]")
    for line in finding.evidence:
        evidence(out, line)
    if len(finding.chain) > 1:
        detail(out, "via " + " -> ".join(finding.chain))
    if finding.cause:
        detail(out, f"why: {finding.cause}")
    remedies(out, finding.remedy)
    if finding.source and finding.severity is not Severity.OK:
        detail(out, f"source: {finding.source}", style="dim")
    out.print()


def to_junit_text(report: CheckReport) -> str:
    """Return the report as JUnit XML: a case for the answer, one for each finding that bears on it."""
    from lumiimg.report.junit import Case, to_junit  # xml is not for everyone

    whole = Case(f"network of {report.image}", report.answer.exit_code, report.sentence)
    return to_junit("lumiimg check", [whole, *finding_cases(report.findings, report.answer)])


def finding_cases(findings: Iterable[Finding], answer: Answer, of: str = "") -> Iterator[Case]:
    """Yield a case for each finding that bears on an answer.

    Beside a green answer an open question is none for CI: a higher level has answered what counts.
    """
    from lumiimg.report.junit import Case  # as above

    opens = ExitCode.GOOD if answer.exit_code is ExitCode.GOOD else ExitCode.UNDECIDED
    codes = {Severity.OK: ExitCode.GOOD, Severity.PROBLEM: ExitCode.NO, Severity.UNKNOWN: opens}
    for finding in findings:
        if finding.severity in codes:
            name = f"{finding.id} ({finding.level.value}){of}"
            yield Case(name, codes[finding.severity], finding.summary, (*finding.evidence, *finding.remedy))


def path_line(path: FabricPath) -> str:
    """Return a fabric path for a person."""
    api = f" (API v{path.plugin_api})" if path.plugin_api else ""
    parts = [
        f"RCCL {path.rccl_version or '?'}" if path.rccl else "no RCCL",
        f"{path.plugin}{api}" if path.plugin else "no plugin",
    ]
    if path.plugin:
        parts += [path.libfabric or "libfabric: none in the image", f"provider {path.provider or 'not known yet'}"]
    return printable(" -> ".join(parts))
