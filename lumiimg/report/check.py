"""What `lumiimg check` says: the answer first, then what stands behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer, CheckReport
from lumiimg.errors import ExitCode, printable
from lumiimg.findings import NO_ADVICE, Advice, Family, Finding, Level, Severity
from lumiimg.report.console import INDENT, Priority, advise, detail, evidence, headline, marked, remedies, say, screen
from lumiimg.report.gpu_code import summary_of
from lumiimg.wording import command_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.fabric.path import FabricPath
    from lumiimg.report.console import Console
    from lumiimg.report.junit import Case

_ALWAYS = frozenset({Family.IMAGE, Family.GPU})
"""Of no weight for the network, and jobs meet it."""
KINDS = {Answer.NO: "problem", Answer.UNDECIDED: "unknown", Answer.NO_OBSTACLE: "ok"}
"""Of headlines."""


def print_check(report: CheckReport, *, verbose: bool, quiet: bool = False, stderr: bool = False) -> None:
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        headline(out, f"{report.image}: {report.sentence}", KINDS[report.answer])
        advise(out, report.advice)
        out.print()
        detail(out, path_line(report.path), style="dim")
        if report.gpu is not None:
            detail(out, summary_of(report.gpu), style="dim")
        out.print()
        for finding in report.findings:
            is_told = verbose or finding.level is Level.RUN or finding.id.family in _ALWAYS
            if finding.severity is Severity.INFO and not is_told:
                continue
            print_finding(out, finding, report.advice, verbose=verbose)
        taken = {level.value: report.levels.of(level) for level in Level}
        print_levels(out, taken)


def print_levels(out: Console, taken: Mapping[str, str]) -> None:
    """Print what became of each level; of several the same only once."""
    for text in dict.fromkeys(taken.values()):
        same = [level for level in taken if taken[level] == text]
        say(out, f"level {' and '.join(same)}: {text}", first="  ", style="dim", priority=Priority.ALWAYS)


def print_finding(out: Console, finding: Finding, advice: Advice = NO_ADVICE, *, verbose: bool = True) -> None:
    """Print one finding with its evidence, cause and remedy; without what `advice` has said above it."""
    kept = finding.severity is not Severity.OK or verbose
    is_said = advice.why == finding.summary
    identity = f"{finding.id}, {finding.level.value}"
    marked(out, finding.severity.value, identity if is_said else f"{finding.summary}  [{identity}]")
    for line in finding.evidence if kept else ():
        evidence(out, line)
    if len(finding.chain) > 1:
        say(out, "via " + " -> ".join(finding.chain), first=INDENT, priority=Priority.MORE)
    if finding.cause:
        detail(out, f"why: {finding.cause}")
    shown = advice.next if is_said else None
    remedies(out, [remedy for remedy in finding.remedy if shown is None or command_in([remedy]) != shown])
    if finding.source and finding.severity is not Severity.OK and verbose:
        detail(out, f"source: {finding.source}", style="dim")
    if kept:
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
