"""From findings to an answer: no, no obstacle found at this level, or cannot tell."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.check.registry import finding_types
from lumiimg.errors import ExitCode
from lumiimg.findings import Code, Family, Finding, Level, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumiimg.fabric.path import FabricPath

_EFFECTS = frozenset({Family.RCCL, Family.RUN, Family.SIMULATED})
"""What RCCL made of what is wrong with its plugin."""
_SEVERITIES = (Severity.PROBLEM, Severity.UNKNOWN, Severity.OK, Severity.INFO)


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

    @property
    def severity(self) -> Severity:
        """How it is marked where it is shown."""
        return {
            Answer.NO: Severity.PROBLEM,
            Answer.NO_OBSTACLE: Severity.OK,
            Answer.UNDECIDED: Severity.UNKNOWN,
        }[self]


def levels_taken(probe: str, run: str) -> dict[str, str]:
    """Return what became of each level, where the files were read."""
    return {Level.STATIC.value: "done", Level.PROBE.value: probe, Level.RUN.value: run}


def decide(findings: Sequence[Finding], path: FabricPath, *, level: Level, level_was_asked_for: bool) -> Answer:
    """Return the answer that the findings support.

    A problem is a no. Without one, the answer is green where the provider cxi listens on a NIC, no probe left a
    question open, and neither did variables of which no probe asks; where a collective on several nodes was carried by
    it, and the run left no question open; or where the user asked for the files only, and every question about them was
    answered.
    """
    if any(finding.severity is Severity.PROBLEM for finding in findings):
        return Answer.NO
    unanswered = {finding.level for finding in findings if finding.severity is Severity.UNKNOWN}
    beyond = any(finding_types()[f.id].survives_probe and f.severity is Severity.UNKNOWN for f in findings)
    proved = not beyond and any(f.id is Code.PROVIDER_CXI and f.severity is Severity.OK for f in findings)
    if proved and not unanswered & {Level.PROBE, Level.RUN}:
        return Answer.NO_OBSTACLE
    if _ran(findings) and Level.RUN not in unanswered:
        return Answer.NO_OBSTACLE
    asked_for_files_only = level_was_asked_for and level is Level.STATIC
    if asked_for_files_only and not unanswered and path.plugin is not None:
        return Answer.NO_OBSTACLE
    return Answer.UNDECIDED


def _ran(findings: Iterable[Finding]) -> bool:
    """Whether a collective was seen to go over the fast network."""
    return any(finding.id is Code.RUN_NETWORK and finding.severity is Severity.OK for finding in findings)


def sentence(answer: Answer, findings: Iterable[Finding], level: Level) -> str:
    if answer is Answer.NO:
        problems = [finding for finding in findings if finding.severity is Severity.PROBLEM]
        first = next((finding for finding in problems if finding.level is Level.RUN), problems[0])
        how = "from its files alone" if level is Level.STATIC else "as it is run here"
        slow = f"NO: {how}, RCCL would use TCP sockets, several times slower than Slingshot"
        return finding_types()[first.id].no or slow
    if answer is Answer.NO_OBSTACLE and level is Level.RUN:
        if _ran(findings):
            return "no obstacle found at level run: a real collective went over Slingshot"
        level = Level.PROBE  # of one node: nothing crossed the network
    if answer is Answer.NO_OBSTACLE:
        return f"no obstacle found at level {level.value}: nothing checked here keeps RCCL from using Slingshot"
    return "CANNOT TELL from here whether RCCL would use Slingshot"


def merge_levels(
    static: Sequence[Finding], probed: Sequence[Finding], ran: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Join the levels: what was seen happening wins over what the files alone say, and a run over both.

    A plugin that a bind mount brings is not in the image's files; a library that the files lack may come from the host.
    Causes come before their effects: what is wrong with the plugin, then what RCCL made of it.
    """
    seen = {finding.id for finding in probed if finding.severity is Severity.OK}
    answered = {finding.id for finding in probed}
    merged = list(probed)
    for finding in static:
        meaning = finding_types()[finding.id]
        open_or_bad = finding.severity in {Severity.PROBLEM, Severity.UNKNOWN}
        if finding.id in answered or meaning.answered_by in seen:
            continue  # the same question, answered by a run, perhaps with what a bind (--rocm) brought
        if open_or_bad and meaning.demoted_by in seen:
            summary = f"{finding.summary} (so say the files; as it is run here, a plugin is loaded)"
            merged.append(replace(finding, severity=Severity.INFO, summary=summary))
        else:
            merged.append(finding)
    if _ran(ran):
        merged = [_demoted_by_run(finding) for finding in merged]
    if any(finding.id is Code.RUN_SELECTED and finding.severity is Severity.OK for finding in ran):
        merged = [_driver_confirmed(finding) for finding in merged]
    merged += ran
    return tuple(
        sorted(merged, key=lambda finding: (_SEVERITIES.index(finding.severity), finding.id.family in _EFFECTS))
    )


def _driver_confirmed(finding: Finding) -> Finding:
    """Return a finding as it counts after a collective on one node: the driver was seen to serve the image's ROCm."""
    if finding.id is not Code.IMAGE_DRIVER or finding.severity is Severity.INFO:
        return finding
    return replace(finding, severity=Severity.INFO, summary=f"{finding.summary} (a collective ran on the GPUs here)")


def _demoted_by_run(finding: Finding) -> Finding:
    """Return a finding of a lower level as it counts after a collective that went over the fast network."""
    if finding.severity in {Severity.OK, Severity.INFO} or finding.id.family is Family.GPU:
        return finding  # a collective calls RCCL alone, of all that has GPU code
    return replace(finding, severity=Severity.INFO, summary=f"{finding.summary} (the collective went over Slingshot)")
