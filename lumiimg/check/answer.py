"""From findings to an answer: no, no obstacle found at this level, or cannot tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lumiimg.errors import ExitCode
from lumiimg.findings import Finding, Level, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Answer(StrEnum):
    """What a check can say; never that it will work."""

    NO = "no"
    """With what was found, the fast network is not used."""
    NO_OBSTACLE = "no-obstacle"
    """Nothing at this level stands in the way; only a higher level can prove more."""
    UNDECIDED = "undecided"
    """The question cannot be answered from here."""

    @property
    def exit_code(self) -> ExitCode:
        """What the process says to its caller."""
        return {Answer.NO: ExitCode.NO, Answer.NO_OBSTACLE: ExitCode.GOOD, Answer.UNDECIDED: ExitCode.UNDECIDED}[self]


@dataclass(frozen=True, slots=True)
class FabricPath:
    """RCCL → net plugin → libfabric → provider, as far as it is known; None where it is not."""

    rccl: str | None = None
    rccl_version: str | None = None
    plugin_files: tuple[str, ...] = ()
    """File names that this RCCL looks for."""
    accepts: tuple[int, ...] = ()
    """Versions of the net API that it takes, in its order."""
    plugin: str | None = None
    plugin_api: int | None = None
    libfabric: str | None = None
    libcxi: str | None = None
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `lumiimg check`."""

    image: str
    answer: Answer
    sentence: str
    """The answer for a person."""
    level: Level
    """The highest level that was taken."""
    levels: dict[Level, str]
    """What became of each level: `done`, or why it was not taken."""
    path: FabricPath
    findings: tuple[Finding, ...]
    runs: tuple[dict[str, Any], ...] = ()
    """What the probes printed of themselves."""


def decide(findings: Sequence[Finding], path: FabricPath, *, level: Level, level_was_asked_for: bool) -> Answer:
    """Return the answer that the findings support.

    A problem is a no. Without one, the answer is green where the provider cxi opened a NIC (probe), or where the user
    asked for no more than the level and every question of it was answered.
    """
    if any(finding.severity is Severity.PROBLEM for finding in findings):
        return Answer.NO
    if any(finding.id == "provider.cxi" and finding.severity is Severity.OK for finding in findings):
        return Answer.NO_OBSTACLE
    unanswered = any(finding.severity is Severity.UNKNOWN for finding in findings)
    asked_for_files_only = level_was_asked_for and level is Level.STATIC
    if asked_for_files_only and not unanswered and path.plugin is not None:
        return Answer.NO_OBSTACLE
    return Answer.UNDECIDED


def sentence(answer: Answer, findings: Iterable[Finding], level: Level) -> str:
    """Return the answer as one sentence."""
    if answer is Answer.NO:
        first = next(finding for finding in findings if finding.severity is Severity.PROBLEM)
        if first.id == "rccl.absent":
            return "there is nothing here to check: no RCCL was found in this image"
        if first.id == "provider.other":
            return "NO: here the plugin would carry the traffic over TCP, not over Slingshot"
        return "NO: as it is run here, RCCL would use TCP sockets, several times slower than Slingshot"
    if answer is Answer.NO_OBSTACLE:
        return f"no obstacle found at level {level.value}: nothing checked here keeps RCCL from using Slingshot"
    return "CANNOT TELL from here whether RCCL would use Slingshot"


def settle(static: Sequence[Finding], probed: Sequence[Finding]) -> tuple[Finding, ...]:
    """Join the levels: what was seen happening wins over what the files alone say.

    A plugin that a bind mount brings is not in the image's files; a library that the files lack may come from the host.
    """
    seen = {finding.id for finding in probed if finding.severity is Severity.OK}
    failed = {finding.id for finding in probed if finding.severity is Severity.PROBLEM}
    kept = []
    for finding in static:
        about = finding.id.partition(".")[0]
        if finding.severity in {Severity.PROBLEM, Severity.UNKNOWN} and about == "plugin" and "plugin.loads" in seen:
            kept.append(
                replace(finding, severity=Severity.INFO, summary=f"{finding.summary} (in the files; not as run here)")
            )
        elif finding.id in failed:
            continue  # the same finding, with the evidence of a run
        elif (
            finding.severity is Severity.UNKNOWN and about == "provider" and any(f.startswith("provider") for f in seen)
        ):
            continue
        else:
            kept.append(finding)
    order = {Severity.PROBLEM: 0, Severity.UNKNOWN: 1, Severity.OK: 2, Severity.INFO: 3}
    return tuple(sorted([*probed, *kept], key=lambda finding: order[finding.severity]))
