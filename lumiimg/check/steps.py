"""The fabric path step by step: which steps hold, which are broken, and which could not be checked.

RCCL → net plugin → libfabric → cxi provider → libcxi → NIC. A step holds if a finding, or a file that was seen,
supports it, at the level of that evidence and no higher; without evidence it is unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.registry import PartSource, finding_types
from lumiimg.core.findings import Finding, Level, Severity
from lumiimg.fabric.job_path import part_of_verdict
from lumiimg.fabric.path import NOT_REACHED, FabricPath, Origin, Part, Side, Step, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_UNSEEN = {
    Part.RCCL: "there is no RCCL to check",
    Part.PLUGIN: "it is not known whether RCCL finds and takes it",
    Part.LIBFABRIC: "none was found",
    Part.PROVIDER: "it is not known whether libfabric has it and selects it",
    Part.LIBCXI: "none was found",
    Part.NIC: "only a probe in a job step on a node with Slingshot can open it",
}


def fabric_steps(
    path: FabricPath,
    findings: Sequence[Finding],
    known: Mapping[str, Origin],
    *,
    plugin_version: str | None = None,
    verdict: str | None = None,
) -> tuple[Step, ...]:
    """Return the steps of the path by findings and files; `verdict` is that of the collective, if there was one."""
    blocking: dict[Part, Finding] = {}
    for severity in (Severity.PROBLEM, Severity.UNKNOWN):
        for finding in findings:
            part = _part_of(finding, verdict)
            if finding.severity is severity and part is not None:
                blocking.setdefault(part, finding)
    built_in = next((finding.where for finding in findings if finding.id == "provider.cxi-built-in"), None)
    files = (path.rccl, path.plugin, path.libfabric, built_in, path.libcxi, None)
    made: list[Step] = []
    is_reached = True
    for part, file in zip(Part, files, strict=True):
        origin = known.get(file) if file else None
        interface = origin.offers if origin and part in {Part.LIBFABRIC, Part.LIBCXI} else None
        if part is Part.PLUGIN and path.plugin_api:
            interface = f"net API v{path.plugin_api}"
        step = Step(
            part,
            Severity.UNKNOWN,
            _UNSEEN[part] if is_reached else NOT_REACHED,
            file=origin.host_path if origin and origin.host_path else file,
            side=Side.HOST if part is Part.NIC else origin.side if origin else None,
            version={Part.RCCL: path.rccl_version, Part.PLUGIN: plugin_version if path.plugin else None}.get(part),
            interface=interface,
        )
        made.append(_judged(step, _evidence(part, file, findings), blocking.get(part)))
        is_reached = is_reached and made[-1].severity is not Severity.PROBLEM
    return tuple(made)


def _judged(step: Step, evidence: tuple[Level, str] | None, blocking: Finding | None) -> Step:
    """Return a step with what decides it: an open question outweighs evidence of its own level or below, not above."""
    is_open = blocking is not None and (evidence is None or _rank(evidence[0]) <= _rank(blocking.level))
    if blocking is not None and (blocking.severity is Severity.PROBLEM or is_open):
        why, remedy = blocking.summary, blocking.remedy
        return replace(step, severity=blocking.severity, why=why, level=blocking.level, remedy=remedy)
    if evidence is not None:
        return replace(step, severity=Severity.OK, level=evidence[0], why=evidence[1])
    return step


def _rank(level: Level) -> int:
    return list(Level).index(level)


def _part_of(finding: Finding, verdict: str | None) -> Part | None:
    """Return the step that a finding is about; None if it is not about a single one."""
    meaning = finding_types()[finding.id]
    if meaning.decided_by is None:
        return meaning.part
    if meaning.decided_by is PartSource.VERDICT:
        return part_of_verdict(verdict)
    return _part_of_library(finding, is_of_file=meaning.decided_by is PartSource.LIBRARY)


def _part_of_library(finding: Finding, *, is_of_file: bool) -> Part:
    """Return the step of the last library in a finding's chain; `is_of_file`: or of the file that it is about."""
    names = (*finding.chain, finding.where or "") if is_of_file else finding.chain
    for name in reversed(names):
        part = part_of(name)
        if part in {Part.LIBFABRIC, Part.LIBCXI} or (part is Part.RCCL and is_of_file):
            return part
    return Part.PLUGIN


def _evidence(part: Part, file: str | None, findings: Sequence[Finding]) -> tuple[Level, str] | None:
    """Return the evidence for a step: the highest level that saw it, and what was seen."""
    by_level = sorted(findings, key=lambda finding: _rank(finding.level))
    held = {finding.id: finding for finding in by_level if finding.severity is Severity.OK}
    known = {finding.id: finding for finding in findings if finding.severity in {Severity.OK, Severity.INFO}}
    loads = held.get("plugin.loads")
    found = held.get("run.network") or (held.get("run.selected") if part is not Part.NIC else None)
    if found is not None:
        return found.level, found.summary
    match part:
        case Part.RCCL if file is not None:
            found = held.get("rccl.runs") or known.get("rccl.found")
            return (found.level, found.summary) if found else (Level.STATIC, "it is the one that a program would load")
        case Part.PLUGIN if loads is not None:
            return loads.level, held.get("rccl.opens-plugin", loads).summary
        case Part.PLUGIN if file is not None:
            return Level.STATIC, f"{file} has a name that RCCL looks for"
        case Part.LIBFABRIC | Part.LIBCXI if file is not None:
            if loads is not None and loads.level is Level.PROBE:
                return Level.PROBE, f"{file} was mapped in the process of the plugin"
            return Level.STATIC, f"the loader gives the plugin {file}"
        case Part.PROVIDER | Part.NIC:
            built_in = known.get("provider.cxi-built-in") if part is Part.PROVIDER else None
            found = held.get("provider.cxi") or built_in
            return (found.level, found.summary) if found else None
    return None
