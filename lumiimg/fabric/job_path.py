"""The fabric path of a job, as its log shows it: for all of its nodes, or for each kind of them where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Level, Severity
from lumiimg.fabric.path import NOT_REACHED, Part, Side, Step
from lumiimg.joblog.report import FAST, LogReport, Verdict, VerdictGroup, answer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PATHS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class JobPath:
    """A path, and the nodes that it is of."""

    group: int | None
    """Which of the report's groups of nodes; None: the whole job."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class _Course:
    """What a verdict says of the path."""

    ends: Part
    """The step that Slingshot's path does not get past; of Slingshot itself, where a transfer fails."""
    why: str = "a transfer or a collective failed after ranks were connected"
    used: tuple[Part, ...] = ()
    """Steps that were used, beside RCCL."""
    names: Mapping[Part, str | None] = field(default_factory=dict)
    """What steps are called on the network of another machine; None: it has no such step."""


_CARRIES = FAST | {Verdict.IB}
_OF_EFA = {Part.PROVIDER: "efa provider", Part.LIBCXI: None, Part.NIC: "EFA device"}
_OF_IB = {
    Part.PLUGIN: "verbs transport",
    **dict.fromkeys((Part.LIBFABRIC, Part.PROVIDER, Part.LIBCXI)),
    Part.NIC: "InfiniBand NIC",
}
_COURSES = {
    Verdict.OFI_CXI: _Course(Part.NIC, used=(Part.PLUGIN, Part.LIBFABRIC)),
    Verdict.OFI_EFA: _Course(Part.NIC, used=(Part.PLUGIN, Part.LIBFABRIC), names=_OF_EFA),
    Verdict.IB: _Course(Part.PLUGIN, used=(Part.PLUGIN,), names=_OF_IB),
    Verdict.OFI_OTHER: _Course(
        Part.PROVIDER, "libfabric was used with the provider {provider}, not with cxi", (Part.PLUGIN, Part.LIBFABRIC)
    ),
    Verdict.SOCKET: _Course(Part.PLUGIN, "not used: RCCL took its own TCP sockets"),
    Verdict.PLUGIN_MISSING: _Course(Part.PLUGIN, "RCCL did not find it"),
    Verdict.PLUGIN_LOAD_ERROR: _Course(Part.PLUGIN, "it could not be loaded"),
    Verdict.PLUGIN_INIT_ERROR: _Course(
        Part.PROVIDER, "the plugin was loaded; it, or the provider under it, failed to start", (Part.PLUGIN,)
    ),
}
_NOT_KNOWN = _Course(Part.NIC)


def part_of_verdict(verdict: str | None) -> Part:
    """Return the step that a job did not get past which came to a verdict other than a fast network."""
    return _COURSES.get(Verdict(verdict), _NOT_KNOWN).ends if verdict else Part.NIC


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
    course, library = _COURSES.get(group.verdict, _NOT_KNOWN), report.library
    broken, known = _broken(report, group), _known(report, group, course)
    names = dict(course.names)
    if library is not None:
        names[Part.RCCL] = library.name
        if library.name == "oneCCL" and broken is not Part.PLUGIN:
            names[Part.PLUGIN] = None  # it speaks to libfabric itself
    unseen = "the log does not say"
    if report.nothing_crossed:
        unseen = "not needed: nothing crossed a network"
    elif group.verdict in _CARRIES:
        unseen = "the log does not prove that traffic went this way"
    for part in Part:
        name = names.get(part)
        if part in names and name is None:
            continue
        step = Step(part, Severity.UNKNOWN, unseen, side=Side.HOST if part is Part.NIC else None, name=name)
        if part is broken:
            cause = next((one for one in report.causes if one.id == group.cause), None)
            why = course.why.format(provider=group.provider) + (f": {cause.summary}" if cause else "")
            step = replace(step, severity=Severity.PROBLEM, level=Level.RUN, why=why)
            step = replace(step, remedy=cause.remedy) if cause else step
            unseen, known = NOT_REACHED, {}
        elif part in known:
            component = {Part.RCCL: library, Part.PLUGIN: report.plugin}.get(part)
            step = replace(step, severity=Severity.OK, level=Level.RUN, why=known[part])
            if component is not None:
                step = replace(step, why=f"{component.name}: {step.why}", version=component.version)
        yield step


def _broken(report: LogReport, group: VerdictGroup) -> Part | None:
    """Return the step that these nodes did not get past; None where they did, or nobody can tell."""
    verdict = group.verdict
    if report.nothing_crossed or verdict not in _COURSES or (verdict is Verdict.OFI_OTHER and group.provider is None):
        return None
    if verdict in _CARRIES:
        return Part.NIC if report.failed_running else None
    return _COURSES[verdict].ends


def _known(report: LogReport, group: VerdictGroup, course: _Course) -> dict[Part, str]:
    """Return what the log shows of steps that these nodes came to."""
    verdict, provider, nics = group.verdict, group.provider, report.transport.nics
    whys = {
        Part.RCCL: "its version is in the log" if report.library is not None else "it was used",
        Part.PLUGIN: "RCCL's own, or that of a plugin for it" if verdict is Verdict.IB else "it was loaded",
        Part.LIBFABRIC: "the network is reached through it",
        Part.PROVIDER: f"the log says that the provider {provider} was selected" if provider else "it was used",
        Part.LIBCXI: "the cxi provider reaches the NIC through it alone",
        Part.NIC: f"its {nics} NICs carried the traffic" if nics else "it carried the traffic",
    }
    shown = {Part.RCCL} if report.library is not None else set()
    if not report.nothing_crossed:
        if verdict in _CARRIES and answer_of(verdict, provider, group.confidence) is ExitCode.GOOD:
            return whys
        if verdict is not Verdict.OFI_OTHER or provider is not None or group.network is not None:
            shown |= set(course.used)
        if verdict in FAST and provider is not None:
            shown.add(Part.PROVIDER)
    return {part: whys[part] for part in shown}
