"""The fabric path of a job, as its log shows it: for all of its nodes, or for each kind of them where they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode
from lumiimg.fabric.path import Part, Side, Step
from lumiimg.findings import Level, Severity
from lumiimg.nccl.report import FAST, LogReport, Verdict, VerdictGroup, answer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def job_paths(report: LogReport) -> tuple[JobPath, ...]:
    """Return the path of a job; where its nodes differ, one for each kind of them.

    A few at most, those that went wrong first.
    """
    groups = report.nodes
    if report.nothing_crossed or len(groups) < 2:
        network = next((rank.network for rank in report.ranks if rank.network), None)
        # advice has no line of the log behind it, and may be about something else
        cause = next((one for one in report.causes if one.evidence), next(iter(report.causes), None))
        whole = VerdictGroup(
            report.verdict, network, report.provider, cause.id if cause else None, report.confidence, nodes=()
        )
        return (JobPath(None, tuple(_steps(report, whole))),)
    ordered = sorted(range(len(groups)), key=lambda number: groups[number].verdict in FAST)
    # what went wrong, and beside it what the largest group of the others did
    shown = ordered[: PATHS_SHOWN - 1] + [n for n in ordered[PATHS_SHOWN - 1 :] if groups[n].verdict in FAST][:1]
    return tuple(JobPath(number, tuple(_steps(report, groups[number]))) for number in shown)


def _steps(report: LogReport, group: VerdictGroup) -> Iterator[Step]:
    """Yield the steps that there are, each with what the log says of it."""
    verdict, library, broken, known = group.verdict, report.library, _broken(report, group), _known(report, group)
    absent = _ABSENT.get(verdict, frozenset())
    if library is not None and library.name == "oneCCL" and broken is not Part.PLUGIN:
        absent |= {Part.PLUGIN}  # it speaks to libfabric itself
    cause = next((one for one in report.causes if one.id == group.cause), None)
    is_reached = True
    for part in Part:
        step = Step(part, Severity.UNKNOWN, "", side=Side.HOST if part is Part.NIC else None)
        if part is Part.RCCL and library is not None:
            step = replace(step, name=library.name)
        elif verdict in _ELSEWHERE:
            step = replace(step, name=_ELSEWHERE[verdict].get(part))
        if part is broken:
            is_reached = False
            what = _BROKEN.get(verdict, "a transfer or a collective failed after ranks were connected")
            if verdict is Verdict.OFI_OTHER:
                what = f"libfabric was used with the provider {group.provider}, not with cxi"
            why, remedy = (f"{what}: {cause.summary}", cause.remedy) if cause else (what, ())
            step = replace(step, severity=Severity.PROBLEM, level=Level.RUN, why=why, remedy=remedy)
        elif part in known and (is_reached or part is Part.RCCL):
            component = {Part.RCCL: library, Part.PLUGIN: report.plugin}.get(part)
            why = f"{component.name}: {known[part]}" if component is not None else known[part]
            version = component.version if component is not None else None
            step = replace(step, severity=Severity.OK, level=Level.RUN, why=why, version=version)
        elif report.nothing_crossed:
            step = replace(step, why="not needed: nothing crossed a network")
        elif not is_reached:
            step = replace(step, why="not reached: the path ends before it")
        else:
            is_open = verdict in FAST or verdict is Verdict.IB
            why = "the log does not prove that traffic went this way" if is_open else "the log does not say"
            step = replace(step, why=why)
        if part not in absent:
            yield step


def _broken(report: LogReport, group: VerdictGroup) -> Part | None:
    """Return the step that these nodes did not get past; None where they did, or nobody can tell."""
    verdict = group.verdict
    if report.nothing_crossed or verdict in {Verdict.NONE, Verdict.MIXED, Verdict.INTRA_NODE_ONLY}:
        return None
    if verdict in FAST or verdict is Verdict.IB:
        return Part.NIC if report.failed_running else None
    return None if verdict is Verdict.OFI_OTHER and group.provider is None else part_of_verdict(verdict)


def _known(report: LogReport, group: VerdictGroup) -> dict[Part, str]:
    """Return what the log shows of steps that these nodes came to."""
    verdict, provider, nics = group.verdict, group.provider, report.transport.nics
    is_fast = verdict in FAST or verdict is Verdict.IB
    uses_libfabric = verdict in FAST or (
        verdict is Verdict.OFI_OTHER and (provider is not None or group.network is not None)
    )
    whys = {
        Part.RCCL: "its version is in the log" if report.library is not None else "it was used",
        Part.PLUGIN: "RCCL's own, or that of a plugin for it" if verdict is Verdict.IB else "it was loaded",
        Part.LIBFABRIC: "the network is reached through it",
        Part.PROVIDER: f"the log says that the provider {provider} was selected" if provider else "it was used",
        Part.LIBCXI: "the cxi provider reaches the NIC through it alone",
        Part.NIC: f"its {nics} NICs carried the traffic" if nics else "it carried the traffic",
    }
    is_proved = is_fast and answer_of(verdict, provider, group.confidence) is ExitCode.GOOD
    shown = {
        Part.RCCL: report.library is not None,
        Part.PLUGIN: is_fast or uses_libfabric or verdict is Verdict.PLUGIN_INIT_ERROR,
        Part.LIBFABRIC: uses_libfabric,
        Part.PROVIDER: verdict in FAST and provider is not None,
    }
    if report.nothing_crossed:
        shown, is_proved = {Part.RCCL: shown[Part.RCCL]}, False
    return {part: why for part, why in whys.items() if is_proved or shown.get(part)}
