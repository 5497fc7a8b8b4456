"""The fabric path of a job, as its log shows it; where its nodes differ, that of the nodes that went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.core.findings import Level, Severity
from lumiimg.fabric.path import NOT_REACHED, Part, Side, Step
from lumiimg.joblog import FAST, Confidence, LogReport, Verdict, VerdictGroup

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class _PathRule:
    """What a verdict says about the path."""

    ends: Part
    """Step that the path does not get past; on a fast network, only where a transfer fails."""
    why: str = "a transfer or a collective failed after ranks were connected"
    used: tuple[Part, ...] = ()
    """Steps that were used, in addition to RCCL."""
    names: Mapping[Part, str | None] = field(default_factory=dict)
    """Names of steps on another machine's network; None for a step that it does not have."""


_CARRIES = FAST | {Verdict.IB}
_EFA_NAMES = {Part.PROVIDER: "efa provider", Part.LIBCXI: None, Part.NIC: "EFA device"}
_IB_NAMES = {
    Part.PLUGIN: "verbs transport",
    **dict.fromkeys((Part.LIBFABRIC, Part.PROVIDER, Part.LIBCXI)),
    Part.NIC: "InfiniBand NIC",
}
_RULES = {
    Verdict.OFI_CXI: _PathRule(Part.NIC, used=(Part.PLUGIN, Part.LIBFABRIC)),
    Verdict.OFI_EFA: _PathRule(Part.NIC, used=(Part.PLUGIN, Part.LIBFABRIC), names=_EFA_NAMES),
    Verdict.IB: _PathRule(Part.PLUGIN, used=(Part.PLUGIN,), names=_IB_NAMES),
    Verdict.OFI_OTHER: _PathRule(
        Part.PROVIDER, "libfabric was used with the provider {provider}, not with cxi", (Part.PLUGIN, Part.LIBFABRIC)
    ),
    Verdict.SOCKET: _PathRule(Part.PLUGIN, "not used: RCCL used its own TCP sockets"),
    Verdict.PLUGIN_MISSING: _PathRule(Part.PLUGIN, "RCCL did not find it"),
    Verdict.PLUGIN_LOAD_ERROR: _PathRule(Part.PLUGIN, "it could not be loaded"),
    Verdict.PLUGIN_INIT_ERROR: _PathRule(
        Part.PROVIDER, "the plugin was loaded; it, or the provider under it, failed to start", (Part.PLUGIN,)
    ),
}
_DEFAULT_RULE = _PathRule(Part.NIC)


def part_of_verdict(verdict: str | None) -> Part:
    """Return the step that a job with this verdict did not get past; the NIC where that is not known."""
    return _RULES.get(Verdict(verdict), _DEFAULT_RULE).ends if verdict else Part.NIC


def nodes_of_path(report: LogReport) -> VerdictGroup | None:
    """Return the nodes whose path is shown: the largest group that went wrong; None if all nodes are alike."""
    if report.nothing_crossed or len(report.nodes) < 2:
        return None
    return next((group for group in report.nodes if group.verdict not in FAST), report.nodes[0])


def job_path(report: LogReport) -> tuple[Step, ...]:
    """Return the steps of the path, each with what the log says about it."""
    network = next((rank.network for rank in report.ranks if rank.network), None)
    # advice without a line of the log as evidence may be about something else
    cause = next(iter(sorted(report.causes, key=lambda cause: not cause.evidence)), None)
    name = cause.id if cause else None
    all_nodes = VerdictGroup(report.verdict, network, report.provider, name, report.confidence, nodes=())
    return tuple(_steps(report, nodes_of_path(report) or all_nodes))


def _steps(report: LogReport, group: VerdictGroup) -> Iterator[Step]:
    broken, used = _failed_part(report, group), _used_parts(report, group)
    unseen = "the log does not say"
    if report.nothing_crossed:
        unseen = "not needed: nothing crossed a network"
    elif group.verdict in _CARRIES:
        unseen = "the log does not prove that traffic went this way"
    for part, name in _names(report, group, broken).items():
        step = Step(part, Severity.UNKNOWN, unseen, side=Side.HOST if part is Part.NIC else None, name=name)
        if part is broken:
            yield _where_it_ends(step, report, group)
            unseen, used = NOT_REACHED, {}
        elif part in used:
            component = {Part.RCCL: report.library, Part.PLUGIN: report.plugin}.get(part)
            why = f"{component.name}: {used[part]}" if component else used[part]
            version = component.version if component else None
            yield replace(step, severity=Severity.OK, level=Level.RUN, why=why, version=version)
        else:
            yield step


def _names(report: LogReport, group: VerdictGroup, broken: Part | None) -> dict[Part, str | None]:
    """Return the steps of this network, with their names where these differ from the names of the parts."""
    rule, library = _RULES.get(group.verdict, _DEFAULT_RULE), report.library
    left_out = {part for part, name in rule.names.items() if name is None}
    if library is not None and library.name == "oneCCL" and broken is not Part.PLUGIN:
        left_out.add(Part.PLUGIN)  # it calls libfabric directly
    names = {Part.RCCL: library.name if library is not None else None, **rule.names}
    return {part: names.get(part) for part in Part if part not in left_out}


def _where_it_ends(step: Step, report: LogReport, group: VerdictGroup) -> Step:
    why = _RULES[group.verdict].why.format(provider=group.provider)
    step = replace(step, severity=Severity.PROBLEM, level=Level.RUN, why=why)
    cause = next((one for one in report.causes if one.id == group.cause), None)
    return replace(step, why=f"{why}: {cause.summary}", remedy=cause.remedy) if cause else step


def _failed_part(report: LogReport, group: VerdictGroup) -> Part | None:
    """Return the step that these nodes did not get past; None without such a step, or where it is not known."""
    verdict = group.verdict
    if report.nothing_crossed or verdict not in _RULES or (verdict is Verdict.OFI_OTHER and group.provider is None):
        return None
    if verdict in _CARRIES:
        return Part.NIC if report.failed_running else None
    return _RULES[verdict].ends


def _used_parts(report: LogReport, group: VerdictGroup) -> dict[Part, str]:
    """Return what the log shows about the steps that these nodes reached."""
    verdict, provider, nics = group.verdict, group.provider, report.transport.nics
    whys = {
        Part.RCCL: "its version is in the log" if report.library is not None else "it was used",
        Part.PLUGIN: "RCCL's own, or a plugin's" if verdict is Verdict.IB else "it was loaded",
        Part.LIBFABRIC: "the network is reached through it",
        Part.PROVIDER: f"the log says that the provider {provider} was selected" if provider else "it was used",
        Part.LIBCXI: "the cxi provider reaches the NIC only through it",
        Part.NIC: f"its {nics} NICs carried the traffic" if nics else "it carried the traffic",
    }
    shown = {Part.RCCL} if report.library is not None else set()
    if not report.nothing_crossed:
        if verdict in _CARRIES and group.confidence is Confidence.PROVED:
            return whys
        if verdict is not Verdict.OFI_OTHER or provider is not None or group.network is not None:
            shown |= set(_RULES.get(verdict, _DEFAULT_RULE).used)
        if verdict in FAST and provider is not None:
            shown.add(Part.PROVIDER)
    return {part: whys[part] for part in shown}
