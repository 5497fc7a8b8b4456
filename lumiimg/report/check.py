"""What `lumiimg check` says: the answer first, then what stands behind it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lumiimg.errors import ExitCode, one_line
from lumiimg.findings import Finding, Level, Severity
from lumiimg.report.console import MARKS, PLAIN_MARKS, STYLES, console, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from lumiimg.check.answer import Answer, CheckReport, FabricPath
    from lumiimg.report.junit import Case

SCHEMA = 1
"""Longer lines than this are hard to read, however wide the terminal is."""
_INDENT = "    "


def to_json(report: CheckReport) -> dict[str, Any]:
    """Return the report as JSON data (schema 1)."""
    return {
        "schema": SCHEMA,
        "image": report.image,
        "answer": report.answer.value,
        "sentence": report.sentence,
        "level": report.level.value,
        "levels": {level.value: text for level, text in report.levels.items()},
        "path": path_data(report.path),
        "findings": [finding_data(finding) for finding in report.findings],
        "probes": list(report.runs),
        "collective": report.collective,
    }


def print_check(report: CheckReport, *, verbose: bool, stderr: bool = False) -> None:
    """Print the report for a person."""
    out = console(stderr=stderr)
    style = {"no": "bold red", "undecided": "bold yellow"}.get(report.answer.value, "bold green")
    out.print(f"{one_line(report.image)}: {report.sentence}", style=style, soft_wrap=True)
    out.print(f"{_INDENT}{path_line(report.path)}", style="dim", soft_wrap=True)
    out.print()
    for finding in report.findings:
        if finding.severity is Severity.INFO and finding.level is not Level.RUN and not verbose:
            continue
        print_finding(out, finding)
    for level in Level:
        out.print(wrapped(out, f"level {level.value}: {report.levels[level]}", first="  ", rest=_INDENT), style="dim")


def print_finding(out: Console, finding: Finding) -> None:
    """Print one finding with its evidence, cause and remedy."""
    mark = (MARKS if out.encoding.startswith("utf") else PLAIN_MARKS)[finding.severity.value]
    head = f"{one_line(finding.summary)}  [{finding.id}, {finding.level.value}]"
    out.print(wrapped(out, head, first=f"{mark} ", rest="  "), style=STYLES[finding.severity.value])
    for line in finding.evidence:
        # Neither is a line that was printed by something else: it is the proof.
        out.print(f"{_INDENT}> {one_line(line.strip())}", soft_wrap=True)
    if len(finding.chain) > 1:
        out.print(wrapped(out, "via " + " -> ".join(map(one_line, finding.chain)), first=_INDENT, rest=_INDENT + "  "))
    if finding.cause:
        out.print(wrapped(out, f"why: {one_line(finding.cause)}", first=_INDENT, rest=_INDENT + "  "))
    for remedy in finding.remedy:
        # Not wrapped: it is there to be copied.
        out.print(f"{_INDENT}do:  {one_line(remedy)}", soft_wrap=True)
    if finding.source and finding.severity is not Severity.OK:
        out.print(wrapped(out, f"source: {one_line(finding.source)}", first=_INDENT, rest=_INDENT + "  "), style="dim")
    out.print()


def to_junit_text(report: CheckReport) -> str:
    """Return the report as JUnit XML: a case for the answer, one for each finding that bears on it."""
    from lumiimg.report.junit import Case, to_junit  # noqa: PLC0415 - xml is not for everyone

    whole = Case(f"network of {report.image}", report.answer.exit_code, report.sentence)
    return to_junit("lumiimg check", [whole, *finding_cases(report.findings, report.answer)])


def finding_cases(findings: Iterable[Finding], answer: Answer, of: str = "") -> Iterator[Case]:
    """Yield a case for each finding that bears on an answer.

    Beside a green answer an open question is none for CI: a higher level has answered what counts.
    """
    from lumiimg.report.junit import Case  # noqa: PLC0415 - as above

    opens = ExitCode.GOOD if answer.exit_code is ExitCode.GOOD else ExitCode.UNDECIDED
    codes = {Severity.OK: ExitCode.GOOD, Severity.PROBLEM: ExitCode.NO, Severity.UNKNOWN: opens}
    for finding in findings:
        if finding.severity in codes:
            name = f"{finding.id} ({finding.level.value}){of}"
            yield Case(name, codes[finding.severity], finding.summary, (*finding.evidence, *finding.remedy))


def path_data(path: FabricPath) -> dict[str, Any]:
    """Return a fabric path as JSON data."""
    return asdict(path) | {"plugin_files": list(path.plugin_files), "accepts": list(path.accepts)}


def path_line(path: FabricPath) -> str:
    """Return a fabric path for a person."""
    api = f" (API v{path.plugin_api})" if path.plugin_api else ""
    parts = [
        f"RCCL {path.rccl_version or '?'}" if path.rccl else "no RCCL",
        f"{path.plugin}{api}" if path.plugin else "no plugin",
    ]
    if path.plugin:
        parts += [path.libfabric or "libfabric: none in the image", f"provider {path.provider or 'not known yet'}"]
    return one_line(" -> ".join(parts))


def finding_data(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON data."""
    return {
        "id": finding.id,
        "severity": finding.severity.value,
        "level": finding.level.value,
        "summary": finding.summary,
        "where": finding.where,
        "evidence": list(finding.evidence),
        "chain": list(finding.chain),
        "cause": finding.cause,
        "remedy": list(finding.remedy),
        "source": finding.source,
    }
