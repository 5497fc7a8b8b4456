"""The answer about the logs of a job, with what the site should give, and what the model of its image adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumiimg.check.run.bandwidth import bandwidth_findings
from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Finding, Severity
from lumiimg.joblog.headline import headline

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.check.run.job_log import ImageOfJob
    from lumiimg.joblog.report import LogReport


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """Which network carried the traffic of a job, the line that proves it, the causes of what went wrong."""

    report: LogReport
    findings: tuple[Finding, ...] = ()
    """What measured bandwidth and wrong results come to."""
    image: ImageOfJob | None = None
    """With --image: what the model of the image adds; else null."""
    site: Site | None = None
    """Whose bandwidth is drawn beside what was measured."""

    @property
    def exit_code(self) -> ExitCode:
        """A slow or wrong benchmark is a no, whichever network carried it."""
        is_bad = any(finding.severity is Severity.PROBLEM for finding in self.findings)
        return ExitCode.NO if is_bad else self.report.answer

    @property
    def answer(self) -> Literal["good", "no", "undecided"]:
        """As the exit code: `good` 0, `no` 1, `undecided` 3."""
        return "good" if self.exit_code is ExitCode.GOOD else "no" if self.exit_code is ExitCode.NO else "undecided"

    @property
    def sentence(self) -> str:
        """The answer for a person: the headline, and what was measured where that alone makes it a no."""
        bad = next((finding for finding in self.findings if finding.severity is Severity.PROBLEM), None)
        measured = f"; {bad.summary}" if bad is not None and self.report.answer is not ExitCode.NO else ""
        return f"{headline(self.report)}{measured}"


def answer_of_log(report: LogReport, site: Site | None = None, image: ImageOfJob | None = None) -> LogAnswer:
    """Return the answer; without a site, benchmarks are compared with nothing."""
    return LogAnswer(report, bandwidth_findings(report, site), image, site)
