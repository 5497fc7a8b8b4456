"""The answer about the logs of a job, with its measured bandwidths compared with those of the site."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lumiimg.check.registry import Findings
from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import NO_ADVICE, Advice, Finding, Level, Remedy, Severity
from lumiimg.core.text import count, shell_quote, size
from lumiimg.joblog import LogReport  # noqa: TC001 - schemas are made from the types of the fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.catalog.sites import Site, SiteBandwidth
    from lumiimg.joblog import Cause, Measurement

SAME_TEST = {"lumiimg-allreduce": "all_reduce_perf", "lumiimg-torch-allreduce": "all_reduce_perf"}
"""Tests that measure the same bandwidth, by the name of this project's own test."""
_BEFORE, _AFTER = 14, 6
"""Lines that a suggested command prints around a cause, on a screen of 24."""
_UNPACKED = {".gz": "zcat", ".xz": "xzcat", ".zst": "zstdcat"}
"""Programs that print a compressed log, by its suffix."""


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """Which network carried the traffic of a job, the line that proves it, and the causes of what went wrong."""

    report: LogReport
    findings: tuple[Finding, ...] = ()
    """Findings about measured bandwidth and wrong results."""
    site: Site | None = None
    """The site whose bandwidth is drawn beside what was measured."""
    job: str | None = None
    """Which of several jobs: the number that Slurm or PBS gave it, else its file or folder."""

    @property
    def severity(self) -> Severity:
        """Severity of the report; a slow or wrong benchmark is a problem, whichever network carried it."""
        is_bad = any(finding.severity is Severity.PROBLEM for finding in self.findings)
        return Severity.PROBLEM if is_bad else self.report.severity

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the answer."""
        return {Severity.OK: ExitCode.GOOD, Severity.PROBLEM: ExitCode.NO}.get(self.severity, ExitCode.UNDECIDED)

    @property
    def answer(self) -> Literal["good", "no", "undecided"]:
        """The answer in a word; exit code: `good` 0, `no` 1, `undecided` 3."""
        return "good" if self.severity is Severity.OK else "no" if self.severity is Severity.PROBLEM else "undecided"

    @property
    def sentence(self) -> str:
        """The answer as a sentence: the headline, and what was measured if that alone makes it a no."""
        bad = next((finding for finding in self.findings if finding.severity is Severity.PROBLEM), None)
        measured = f"; {bad.summary}" if bad is not None and self.report.severity is not Severity.PROBLEM else ""
        return f"{self.report.headline}{measured}"

    @property
    def advice(self) -> Advice:
        """The reason, and the first command for which this case supplies everything."""
        report = self.report
        if not report.causes or report.severity is Severity.OK:
            return NO_ADVICE
        cause = report.causes[0]
        is_end = cause.id == report.ended.cause and report.ended.leads  # the headline says it
        advice = Advice(likely=cause.because[0] if cause.because else None) if is_end else Advice(cause.summary)
        steps = (remedy.concluded({}) for remedy in cause.remedy)
        step = next((step for step in steps if step.command), None)
        return advice if step is None else replace(advice, next=step.command, where=step.reason)


def answer_of_log(report: LogReport, site: Site | None, names: Mapping[str, str]) -> LogAnswer:
    """Return the answer; `names` are filled into commands. Without a site, bandwidth is not compared."""
    causes = tuple(replace(cause, remedy=tuple(_steps(cause, names))) for cause in report.causes)
    report = replace(report, causes=causes)
    return LogAnswer(report, bandwidth_findings(report, site), site)


def _steps(cause: Cause, names: Mapping[str, str]) -> Iterator[Remedy]:
    """Yield the remedies of a cause, with names filled in; a command that would be refused is not suggested."""
    steps = (step.concluded({**names, **_lines(cause)}) for step in cause.remedy)
    image, site = (shlex.split(names.get(name, "")) for name in ("image", "site"))
    if not (image and site):
        yield from steps
        return
    from lumiimg.check.static.commands import usable_remedy  # imports the planner, which a log alone does not need

    yield from (usable_remedy(step, image[0], ("--site", site[0])) for step in steps)


def _lines(cause: Cause) -> dict[str, str]:
    """Return what sed(1) needs to print the lines around the first line of a cause, by their numbers in the file."""
    first = next((line for line in cause.evidence if line.file != "-"), None)
    if first is None:
        return {}
    file = shell_quote(f"./{first.file}" if first.file.startswith("-") else first.file)
    unpacked = next((f"<({program} {file})" for end, program in _UNPACKED.items() if first.file.endswith(end)), file)
    return {"lines": f"{max(1, first.line - _BEFORE)},{first.line + _AFTER}p {unpacked}"}


# -- bandwidth --


def bandwidth_findings(report: LogReport, site: Site | None) -> tuple[Finding, ...]:
    """Return a problem for a test with wrong results, or below the site's minimum; else what it measured.

    A test is compared only with a reference for its name, its nodes and its ranks, and only if its messages were large
    enough. If its table does not show the number of nodes, that of the job counts.
    """
    findings = Findings(Level.RUN)
    for measured in report.measurements:
        where = f"{measured.file}:{measured.line}"
        if measured.wrong:
            findings.add(
                "run.data-errors",
                Severity.PROBLEM,
                f"{measured.name}: {count(measured.wrong, 'wrong result')}: the collective gives wrong data",
                reason="benchmark",
                where=f"{measured.file}:{measured.wrong_line}",
            )
        nodes = measured.nodes or report.coverage.of_nodes
        if measured.ranks == 1:
            continue  # one rank has no bandwidth
        reference = reference_of(measured, nodes, site)
        if reference is None or measured.best_gb_s is None:
            why = _not_compared(measured, nodes, site)
            findings.add("run.bandwidth", Severity.INFO, f"{measured.sentence}{why}", where=where)
            continue
        slow = measured.best_gb_s < reference.least_gb_s
        findings.add(
            "run.bandwidth",
            Severity.PROBLEM if slow else Severity.OK,
            f"{measured.sentence}; a healthy network gives {reference.gb_s:g} GB/s",
            where=where,
            remedy=tuple(map(Remedy, reference.remedy)) if slow else (),
            source=reference.source,
        )
    return tuple(findings.found)


def reference_of(measured: Measurement, nodes: int | None, site: Site | None) -> SiteBandwidth | None:
    """Return what a site should give for this test on that number of nodes; None if it has no figure."""
    if site is None or measured.largest_size is None:
        return None
    for reference in _references(measured, site):
        is_same = reference.nodes == nodes and measured.ranks in {None, reference.ranks}
        if is_same and measured.largest_size >= reference.from_bytes:
            return reference
    return None


def _references(measured: Measurement, site: Site) -> list[SiteBandwidth]:
    test = SAME_TEST.get(measured.test or "", measured.test)
    return [reference for reference in site.bandwidths if reference.test == test]


def _not_compared(measured: Measurement, nodes: int | None, site: Site | None) -> str:
    """Return why a test is not compared with a site's figure; empty if there is no site with figures."""
    if site is None or not site.bandwidths:
        return ""
    missing = ["the name of its test"] if measured.test is None else []
    missing += ["its number of nodes"] if nodes is None else []
    if missing:
        return f"; not compared with {site.name}: the log does not give {' and '.join(missing)}"
    known = _references(measured, site)
    if not known:
        return f"; not compared: {site.name} has no figure for this test"
    wanted = " or ".join(f"{count(one.nodes, 'node')} from {size(one.from_bytes)} on" for one in known)
    return f"; not compared: {site.name} has a figure for {wanted}"
