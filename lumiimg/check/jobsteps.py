"""The fabric path of a job, as its log tells it: for all of its nodes, or for each kind of them where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.check.steps import Part, Side, State, Step, part_of_verdict
from lumiimg.errors import ExitCode
from lumiimg.findings import Level
from lumiimg.nccl.report import FAST, Confidence, Verdict, answer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.nccl.report import Cause, LogReport, NodeGroup

PATHS_SHOWN = 3
_USED_PLUGIN = FAST | {Verdict.OFI_OTHER}
_WHY = {
    Part.PLUGIN: "RCCL started it",
    Part.LIBFABRIC: "the plugin speaks to the network through it",
    Part.LIBCXI: "the cxi provider reaches the NIC through it alone",
}
_ELSEWHERE = {
    Verdict.OFI_EFA: {Part.PROVIDER: "efa provider", Part.NIC: "EFA device"},
    Verdict.IB: {Part.PLUGIN: "verbs transport", Part.NIC: "InfiniBand NIC"},
}
"""What steps are called on the fast networks of other machines."""
_ABSENT = {Verdict.OFI_EFA: {Part.LIBCXI}, Verdict.IB: {Part.LIBFABRIC, Part.PROVIDER, Part.LIBCXI}}
"""Steps that they do not have."""
_BROKEN = {
    Verdict.PLUGIN_MISSING: "RCCL did not find it",
    Verdict.PLUGIN_LOAD_ERROR: "it could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the plugin was loaded; it, or the provider under it, failed to start",
    Verdict.SOCKET: "not used: RCCL took its own TCP sockets",
    Verdict.OFI_OTHER: "libfabric was used with another provider",
}


@dataclass(frozen=True, slots=True)
class JobPath:
    """A path, and the nodes that it is of."""

    group: int | None
    """Which of the report's groups of nodes; None: the whole job."""
    steps: tuple[Step, ...]


def job_paths(report: LogReport) -> tuple[JobPath, ...]:
    """Return the path of a job; where its nodes differ, one for each kind of them.

    A few at most, those that went wrong first.
    """
    groups = report.nodes
    if report.nothing_crossed or len(groups) < 2:
        return (JobPath(None, _steps(report, report.verdict, report.provider, report.confidence, None)),)
    ordered = sorted(range(len(groups)), key=lambda number: groups[number].verdict in FAST)
    # what went wrong, and beside it what the largest group of the others did
    shown = ordered[: PATHS_SHOWN - 1] + [n for n in ordered[PATHS_SHOWN - 1 :] if groups[n].verdict in FAST][:1]
    return tuple(JobPath(number, _of_group(report, groups[number])) for number in shown)


def _of_group(report: LogReport, group: NodeGroup) -> tuple[Step, ...]:
    return _steps(report, group.verdict, group.provider, group.confidence, group.cause)


def _steps(
    report: LogReport, verdict: Verdict, provider: str | None, confidence: Confidence, cause: str | None
) -> tuple[Step, ...]:
    is_good = answer_of(verdict, provider, confidence) is ExitCode.GOOD
    broken = _broken(report, verdict, provider)
    told = next((one for one in report.causes if one.id == cause), None)
    # of the whole job, or of a group that is the only one with its trouble
    told = told or next((one for one in report.causes if cause is None), None)
    return tuple(
        _step(part, state, why, report, verdict, told if state is State.BROKEN else None)
        for part, state, why in _judged(report, verdict, provider, broken, is_good=is_good)
        if part not in _ABSENT.get(verdict, ())
    )


def _broken(report: LogReport, verdict: Verdict, provider: str | None) -> Part | None:
    """Return the step that the job did not get past; None where it did, or nobody can tell."""
    if report.nothing_crossed or verdict in {Verdict.NONE, Verdict.MIXED, Verdict.INTRA_NODE_ONLY}:
        return None
    if verdict in FAST | {Verdict.IB}:
        return Part.NIC if report.failed_running else None
    if verdict is Verdict.OFI_OTHER and provider is None:
        return None
    return part_of_verdict(verdict)


def _judged(
    report: LogReport, verdict: Verdict, provider: str | None, broken: Part | None, *, is_good: bool
) -> Iterator[tuple[Part, State, str]]:
    """Yield each step with what is known of it, and why."""
    for part in Part:
        if part is broken:
            why = _BROKEN.get(verdict, "a transfer or a collective failed after the ranks were connected")
            if verdict is Verdict.OFI_OTHER and provider:
                why = f"libfabric was used with the provider {provider}, not with cxi"
            yield part, State.BROKEN, why
        elif part is Part.RCCL and report.library is not None:
            yield part, State.HOLDS, "it names itself in the log"
        elif report.nothing_crossed:
            yield part, State.UNKNOWN, "not needed: nothing crossed a network"
        elif broken is not None and list(Part).index(part) > list(Part).index(broken):
            yield part, State.UNKNOWN, "not reached: the path ends before it"
        elif part in {Part.PLUGIN, Part.LIBFABRIC} and (
            verdict in _USED_PLUGIN or (verdict is Verdict.PLUGIN_INIT_ERROR and part is Part.PLUGIN)
        ):
            yield part, State.HOLDS, _WHY[part]
        elif part is Part.PROVIDER and verdict in FAST and provider is not None:
            yield part, State.HOLDS, f"the plugin says that it selected the provider {provider}"
        elif verdict is Verdict.IB and part is Part.PLUGIN:
            yield part, State.HOLDS, "RCCL's own, or that of a plugin for it"
        elif verdict in FAST | {Verdict.IB} and is_good:
            crossed = f"{_nics(report)} carried the traffic" if part is Part.NIC else _WHY.get(part, "it was used")
            yield part, State.HOLDS, crossed
        elif verdict in FAST | {Verdict.IB}:
            yield part, State.UNKNOWN, "the log does not prove that traffic went this way"
        else:
            yield part, State.UNKNOWN, "the log does not tell"


def _step(part: Part, state: State, why: str, report: LogReport, verdict: Verdict, cause: Cause | None) -> Step:
    component = {Part.RCCL: report.library, Part.PLUGIN: report.plugin}.get(part) if state is State.HOLDS else None
    return Step(
        part=part,
        state=state,
        why=f"{component.name}: {why}" if component is not None else f"{why}: {cause.summary}" if cause else why,
        level=Level.RUN if state is not State.UNKNOWN else None,
        file=None,
        side=Side.HOST if part is Part.NIC else None,
        version=component.version if component is not None else None,
        remedy=cause.remedy if cause else (),
        name=_ELSEWHERE.get(verdict, {}).get(part),
    )


def _nics(report: LogReport) -> str:
    return f"its {report.transport.nics} NICs" if report.transport.nics else "it"
