"""What stands against an image whatever its libraries are: processors, driver and GPU, and a Python bound over it.

Where the GPU takes none of the code, no network matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.registry import FindingDetails, Findings
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.gpu.rule import GpuFit
from lumiimg.host.processors import wrong_processors
from lumiimg.resolve.driver_rule import window_on_node
from lumiimg.resolve.inventory import read_contents
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.resolve.venv import VenvFault, faults_of, made_again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.process import StaticResult
    from lumiimg.resolve.gpu_account import GpuAccount
    from lumiimg.resolve.gpu_verdict import GpuVerdict

_SHOWN = 8
_LACKS = {GpuFit.NO: "none", GpuFit.PART: "part", GpuFit.UNKNOWN: "unknown", GpuFit.XNACK: "xnack"}
_OF_VENV = {
    VenvFault.OTHER_PYTHON: (Code.PROGRAM_VENV_PYTHON, Severity.PROBLEM, None),
    VenvFault.OWN_TORCH: (Code.PROGRAM_VENV_TORCH, Severity.PROBLEM, "own"),
    VenvFault.OWN_PART: (Code.PROGRAM_VENV_TORCH, Severity.UNKNOWN, "part"),
    VenvFault.OTHER_IMAGE: (Code.PROGRAM_VENV_IMAGE, Severity.UNKNOWN, None),
    VenvFault.NOT_KNOWN: (Code.PROGRAM_VENV_IMAGE, Severity.UNKNOWN, None),
}


def findings_of_venv(context: ImageInContext) -> tuple[Finding, ...]:
    """Return what stands against an environment that jobs bind over the image."""
    found, venv = Findings(Level.STATIC), context.venv
    if venv is None:
        return ()
    for fault, what in faults_of(venv, context.path, read_contents(context.plain).has):
        code, severity, reason = _OF_VENV[fault]
        again = (made_again(venv, context.path),)
        found.add(code, severity, what, reason=reason, where=str(venv.path), remedy=again)
    return tuple(found.found)


def findings_of_machine(context: ImageInContext, static: StaticResult) -> tuple[Finding, ...]:
    """Return what stands against the image on the processors of a machine, and with the driver of its GPUs."""
    found, snapshot = Findings(Level.STATIC), context.snapshot
    lacking = wrong_processors(context.image, (static.job.program,) if static.job else (), snapshot, context.site)
    if lacking is not None:
        found.add(Code.IMAGE_ARCHITECTURE, Severity.PROBLEM, lacking)
    is_seen = snapshot is not None and snapshot.gpu_driver is not None
    is_known = context.site is not None or snapshot is not None  # else the image's packages need not be read
    for rule in window_on_node(context.contents.stack, context.site, snapshot) if is_known else ():
        if context.site is None and rule.outcome is RuleOutcome.UNKNOWN:
            continue  # the question is the network's, and a driver that nobody knows leaves it as it is
        what = f"{rule.have}: {rule.because}"
        if rule.outcome is RuleOutcome.OK:
            found.add(Code.IMAGE_DRIVER, Severity.INFO, what, source=rule.source)
            continue
        severity, reason = Severity.UNKNOWN, "seen" if is_seen else "not-seen"
        if rule.outcome is RuleOutcome.REFUSED:
            severity, reason = Severity.PROBLEM, "refused"
        found.add(Code.IMAGE_DRIVER, severity, what, reason=reason, cause=f"needed: {rule.need}", source=rule.source)
    return tuple(found.found)


def findings_of_gpu(account: GpuAccount | None) -> tuple[Finding, ...]:
    """Return what follows for jobs from what the GPU of a machine makes of the code; without an account, nothing."""
    found = Findings(Level.STATIC)
    if account is not None:
        if account.taken_for is not None:
            names = {"processor": account.processor, "machine": account.machine, "other": account.taken_for}
            found.add(Code.GPU_CODE, Severity.PROBLEM, reason="override", names=names)
        _judge_needed(account, [part for part in account.parts if part.needed], found)
        for part in account.parts:
            if not part.needed and part.fit is not GpuFit.RUNS:
                details: FindingDetails = {"where": part.paths[0], "cause": part.without}
                names = _names(account, part)
                found.add(Code.GPU_BESIDE, Severity.INFO, reason=_LACKS[part.fit], names=names, **details)
    return tuple(found.found)


def _judge_needed(account: GpuAccount, needed: Sequence[GpuVerdict], found: Findings) -> None:
    """Judge what each job calls: a finding for each kind of answer."""
    parts = {fit: [part for part in needed if part.fit is fit] for fit in GpuFit}
    if none := parts[GpuFit.NO]:
        found.add(Code.GPU_CODE, Severity.PROBLEM, reason="none", names=_names(account, *none), **_details(none))
    if retried := parts[GpuFit.XNACK]:
        found.add(Code.GPU_XNACK, Severity.PROBLEM, names=_names(account, *retried), **_details(retried))
    for part in parts[GpuFit.UNKNOWN]:
        details: FindingDetails = {"where": part.paths[0], "cause": part.why}
        found.add(Code.GPU_CODE, Severity.UNKNOWN, reason="unknown", names=_names(account, part), **details)
    for part in parts[GpuFit.PART]:
        found.add(Code.GPU_CODE, Severity.INFO, reason="part", names=_names(account, part), where=part.paths[0])
    if runs := parts[GpuFit.RUNS]:
        found.add(Code.GPU_CODE, Severity.OK, reason="runs", names=_names(account, *runs))
    if not needed:
        found.add(Code.GPU_CODE, Severity.UNKNOWN, reason="nothing-found", names=_names(account))


def _names(account: GpuAccount, *parts: GpuVerdict) -> dict[str, str]:
    """Return the names for what is said of components."""
    return {
        "gpu": account.title,
        "processor": account.processor,
        "components": ", ".join(part.component for part in parts),
        "have": ", ".join(f"{part.component} ({part.has})" for part in parts),
        "has": parts[0].has if parts else "",
        "why": (parts[0].why if parts else None) or "",
    }


def _details(parts: Sequence[GpuVerdict]) -> FindingDetails:
    lines = tuple(f"{part.component}: {part.paths[0]}" for part in parts[:_SHOWN])
    causes = "; ".join(f"{part.component}: {part.without}" for part in parts[:_SHOWN])
    return {"where": parts[0].paths[0], "evidence": lines, "cause": causes}
