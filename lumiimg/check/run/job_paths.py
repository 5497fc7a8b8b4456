"""The fabric path of a job, as its log shows it: for all of its nodes, or for each kind of them where they differ."""

from __future__ import annotations

from dataclasses import dataclass

from lumiimg.errors import ExitCode
from lumiimg.fabric.path import Part, Side, Step
from lumiimg.findings import Level, Severity
from lumiimg.nccl.report import FAST, Cause, Confidence, LogReport, Verdict, VerdictGroup, answer_of

PATHS_SHOWN = 3
_BY_VERDICT = {
    Verdict.PLUGIN_MISSING: Part.PLUGIN,
    Verdict.PLUGIN_LOAD_ERROR: Part.PLUGIN,
    Verdict.SOCKET: Part.PLUGIN,
    Verdict.IB: Part.PLUGIN,
    Verdict.PLUGIN_INIT_ERROR: Part.PROVIDER,
    Verdict.OFI_OTHER: Part.PROVIDER,
}
_ELSEWHERE = {
    Verdict.OFI_EFA: {Part.PROVIDER: "efa provider", Part.NIC: "EFA device"},
    Verdict.IB: {Part.PLUGIN: "verbs transport", Part.NIC: "InfiniBand NIC"},
}
"""What steps are called on the fast networks of other machines."""
_ABSENT = {
    Verdict.OFI_EFA: frozenset({Part.LIBCXI}),
    Verdict.IB: frozenset({Part.LIBFABRIC, Part.PROVIDER, Part.LIBCXI}),
}
"""Steps that they do not have."""
_BROKEN = {
    Verdict.PLUGIN_MISSING: "RCCL did not find it",
    Verdict.PLUGIN_LOAD_ERROR: "it could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the plugin was loaded; it, or the provider under it, failed to start",
    Verdict.SOCKET: "not used: RCCL took its own TCP sockets",
}


def part_of_verdict(verdict: str | None) -> Part:
    """Return the step that a job did not get past which came to a verdict other than a fast network."""
    return _BY_VERDICT.get(Verdict(verdict), Part.NIC) if verdict else Part.NIC


@dataclass(frozen=True, slots=True)
class JobPath:
    """A path, and the nodes that it is of."""

    group: int | None
    """Which of the report's groups of nodes; None: the whole job."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """What some nodes came to, or all."""

    report: LogReport
    verdict: Verdict
    confidence: Confidence
    provider: str | None
    network: str | None
    cause: Cause | None

    @property
    def is_fast(self) -> bool:
        return self.verdict in FAST or self.verdict is Verdict.IB

    @property
    def is_proved(self) -> bool:
        """Whether a fast network carried the traffic."""
        answer = answer_of(self.verdict, self.provider, self.confidence)
        return self.is_fast and answer is ExitCode.GOOD and not self.report.nothing_crossed

    @property
    def uses_libfabric(self) -> bool:
        return self.verdict in FAST or (
            self.verdict is Verdict.OFI_OTHER and (self.provider is not None or self.network is not None)
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The steps that there are; oneCCL speaks to libfabric itself."""
        library = self.report.library
        absent = _ABSENT.get(self.verdict, frozenset())
        if library is not None and library.name == "oneCCL" and self.broken is not Part.PLUGIN:
            absent |= {Part.PLUGIN}
        return tuple(part for part in Part if part not in absent)

    @property
    def broken(self) -> Part | None:
        """The step that these nodes did not get past; None where they did, or nobody can tell."""
        if self.report.nothing_crossed or self.verdict in {Verdict.NONE, Verdict.MIXED, Verdict.INTRA_NODE_ONLY}:
            return None
        if self.is_fast:
            return Part.NIC if self.report.failed_running else None
        if self.verdict is Verdict.OFI_OTHER and self.provider is None:
            return None
        return part_of_verdict(self.verdict)


def job_paths(report: LogReport) -> tuple[JobPath, ...]:
    """Return the path of a job; where its nodes differ, one for each kind of them.

    A few at most, those that went wrong first.
    """
    groups = report.nodes
    if report.nothing_crossed or len(groups) < 2:
        network = next((rank.network for rank in report.ranks if rank.network), None)
        # advice has no line of the log behind it, and may be about something else
        cause = next((one for one in report.causes if one.evidence), next(iter(report.causes), None))
        case = _Case(report, report.verdict, report.confidence, report.provider, network, cause)
        return (JobPath(None, _steps(case)),)
    ordered = sorted(range(len(groups)), key=lambda number: groups[number].verdict in FAST)
    # what went wrong, and beside it what the largest group of the others did
    shown = ordered[: PATHS_SHOWN - 1] + [n for n in ordered[PATHS_SHOWN - 1 :] if groups[n].verdict in FAST][:1]
    return tuple(JobPath(number, _steps(_of_group(report, groups[number]))) for number in shown)


def _of_group(report: LogReport, group: VerdictGroup) -> _Case:
    cause = next((one for one in report.causes if one.id == group.cause), None)
    return _Case(report, group.verdict, group.confidence, group.provider, group.network, cause)


def _steps(case: _Case) -> tuple[Step, ...]:
    return tuple(_step(part, case) for part in case.parts)


def _step(part: Part, case: _Case) -> Step:
    severity, why = _judged(part, case)
    report = case.report
    component = {Part.RCCL: report.library, Part.PLUGIN: report.plugin}.get(part) if severity is Severity.OK else None
    cause = case.cause if severity is Severity.PROBLEM else None
    return Step(
        part=part,
        severity=severity,
        why=f"{component.name}: {why}" if component is not None else f"{why}: {cause.summary}" if cause else why,
        level=Level.RUN if severity is not Severity.UNKNOWN else None,
        side=Side.HOST if part is Part.NIC else None,
        version=component.version if component is not None else None,
        remedy=cause.remedy if cause is not None else (),
        name=report.library.name
        if part is Part.RCCL and report.library is not None
        else _ELSEWHERE.get(case.verdict, {}).get(part),
    )


def _judged(part: Part, case: _Case) -> tuple[Severity, str]:
    """Return what is known of a step, and why."""
    broken = case.broken
    if part is broken:
        if case.verdict is Verdict.OFI_OTHER:
            return Severity.PROBLEM, f"libfabric was used with the provider {case.provider}, not with cxi"
        return Severity.PROBLEM, _BROKEN.get(
            case.verdict, "a transfer or a collective failed after ranks were connected"
        )
    if part is Part.RCCL and case.report.library is not None:
        return Severity.OK, "its version is in the log"
    if case.report.nothing_crossed:
        return Severity.UNKNOWN, "not needed: nothing crossed a network"
    if broken is not None and list(Part).index(part) > list(Part).index(broken):
        return Severity.UNKNOWN, "not reached: the path ends before it"
    used = {
        Part.PLUGIN: case.is_fast or case.uses_libfabric or case.verdict is Verdict.PLUGIN_INIT_ERROR,
        Part.LIBFABRIC: case.uses_libfabric,
        Part.PROVIDER: case.verdict in FAST and case.provider is not None,
    }
    if used.get(part) or case.is_proved:
        return Severity.OK, _why(part, case)
    return (
        Severity.UNKNOWN,
        "the log does not prove that traffic went this way" if case.is_fast else "the log does not say",
    )


def _why(part: Part, case: _Case) -> str:
    match part:
        case Part.PLUGIN:
            return "RCCL's own, or that of a plugin for it" if case.verdict is Verdict.IB else "it was loaded"
        case Part.LIBFABRIC:
            return "the network is reached through it"
        case Part.PROVIDER if case.provider is not None:
            return f"the log says that the provider {case.provider} was selected"
        case Part.LIBCXI:
            return "the cxi provider reaches the NIC through it alone"
        case Part.NIC:
            nics = case.report.transport.nics
            return f"its {nics} NICs carried the traffic" if nics else "it carried the traffic"
    return "it was used"
