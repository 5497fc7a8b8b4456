"""The answer about the logs of a job, with what the site should give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lumiimg.check.run.bandwidth import bandwidth_findings
from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import NO_ADVICE, Advice, Finding, Severity
from lumiimg.core.text import shell_quote
from lumiimg.joblog import LogReport  # noqa: TC001 - schemas are made from the types of the fields

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.joblog import Cause

_BEFORE, _AFTER = 14, 6
"""Lines that are proposed to be looked at, on a screen of 24."""
_UNPACKED = {".gz": "zcat", ".xz": "xzcat", ".zst": "zstdcat"}
"""What prints a compressed log, by the end of its name."""


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """Which network carried the traffic of a job, the line that proves it, the causes of what went wrong."""

    report: LogReport
    findings: tuple[Finding, ...] = ()
    """What measured bandwidth and wrong results come to."""
    site: Site | None = None
    """Whose bandwidth is drawn beside what was measured."""

    @property
    def severity(self) -> Severity:
        """A slow or wrong benchmark is a problem, whichever network carried it."""
        is_bad = any(finding.severity is Severity.PROBLEM for finding in self.findings)
        return Severity.PROBLEM if is_bad else self.report.severity

    @property
    def exit_code(self) -> ExitCode:
        """What the process says to its caller."""
        return {Severity.OK: ExitCode.GOOD, Severity.PROBLEM: ExitCode.NO}.get(self.severity, ExitCode.UNDECIDED)

    @property
    def answer(self) -> Literal["good", "no", "undecided"]:
        """As the exit code: `good` 0, `no` 1, `undecided` 3."""
        return "good" if self.severity is Severity.OK else "no" if self.severity is Severity.PROBLEM else "undecided"

    @property
    def sentence(self) -> str:
        """The answer for a person: the headline, and what was measured where that alone makes it a no."""
        bad = next((finding for finding in self.findings if finding.severity is Severity.PROBLEM), None)
        measured = f"; {bad.summary}" if bad is not None and self.report.severity is not Severity.PROBLEM else ""
        return f"{self.report.headline}{measured}"

    @property
    def advice(self) -> Advice:
        """Why, and the first command that needs nothing which this case does not have."""
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
    """Return the answer; `names` of this case are put into commands. Without a site nothing is held to benchmarks."""
    causes = tuple(
        replace(cause, remedy=tuple(step.concluded({**names, **_lines(cause)}) for step in cause.remedy))
        for cause in report.causes
    )
    report = replace(report, causes=causes)
    return LogAnswer(report, bandwidth_findings(report, site), site)


def _lines(cause: Cause) -> dict[str, str]:
    """Return what sed(1) needs to print the lines around the first line of a cause, which are in the file as read."""
    first = next((line for line in cause.evidence if line.file != "-"), None)
    if first is None:
        return {}
    file = shell_quote(f"./{first.file}" if first.file.startswith("-") else first.file)
    unpacked = next((f"<({program} {file})" for end, program in _UNPACKED.items() if first.file.endswith(end)), file)
    return {"lines": f"{max(1, first.line - _BEFORE)},{first.line + _AFTER}p {unpacked}"}
