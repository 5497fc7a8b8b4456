"""What affects jobs of an image on any network: the machine, its GPU, a Python bound over it, faults in its files.

If the GPU accepts none of the code, the network does not matter. The faults do not change the answer of a check; each
is reported with its effect and its remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.registry import SHOWN, FindingDetails, Findings
from lumiimg.core.findings import Finding, Level, Severity
from lumiimg.core.toml import package_toml
from lumiimg.gpu import XNACK, GpuFit
from lumiimg.host.container_view import wrong_processors
from lumiimg.host.rccl_process import mpi_clash
from lumiimg.inventory.components import broken_modules, numpy_1_modules
from lumiimg.resolve.driver_rule import window_on_node
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.resolve.stack import stack_of
from lumiimg.resolve.venv import VenvFault, faults_of, made_again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.process import StaticResult
    from lumiimg.elf import LoaderConfig
    from lumiimg.host.job_process import JobProcess
    from lumiimg.host.rccl_process import Variables
    from lumiimg.image import RootFileSystem
    from lumiimg.inventory.components import Inventory
    from lumiimg.inventory.gpu_fit import ComponentFit, GpuAccount

_LACKS = {GpuFit.NO: "none", GpuFit.PART: "part", GpuFit.UNKNOWN: "unknown", GpuFit.XNACK: "xnack"}
_OF_VENV = {
    VenvFault.OTHER_PYTHON: ("program.venv-python", Severity.PROBLEM, None),
    VenvFault.OWN_TORCH: ("program.venv-torch", Severity.PROBLEM, "own"),
    VenvFault.OWN_PART: ("program.venv-torch", Severity.UNKNOWN, "part"),
    VenvFault.OTHER_IMAGE: ("program.venv-image", Severity.UNKNOWN, None),
    VenvFault.NOT_KNOWN: ("program.venv-image", Severity.UNKNOWN, None),
}


def findings_of_venv(context: ImageInContext) -> tuple[Finding, ...]:
    """Return the faults of a Python environment that jobs bind over the image."""
    found, venv = Findings(Level.STATIC), context.venv
    if venv is None:
        return ()
    for fault, what in faults_of(venv, context.path, context.contents_of(context.plain).has):
        code, severity, reason = _OF_VENV[fault]
        again = (made_again(venv, context.path),)
        found.add(code, severity, what, reason=reason, where=str(venv.path), remedy=again)
    return tuple(found.found)


def findings_of_machine(context: ImageInContext, static: StaticResult) -> tuple[Finding, ...]:
    """Return the findings about the image on a machine's processors, and with its GPU driver."""
    found, snapshot = Findings(Level.STATIC), context.snapshot
    lacking = wrong_processors(context.image, (static.job.program,) if static.job else (), snapshot, context.site)
    if lacking is not None:
        found.add("image.architecture", Severity.PROBLEM, lacking)
    is_seen = snapshot is not None and snapshot.gpu_driver is not None
    is_known = context.site is not None or snapshot is not None  # else the image's packages need not be read
    for rule in window_on_node(stack_of(context.contents), context.site, snapshot) if is_known else ():
        if context.site is None and rule.outcome is RuleOutcome.UNKNOWN:
            continue  # the question is about the network, and an unknown driver does not change the answer
        what = f"{rule.have}: {rule.because}"
        if rule.outcome is RuleOutcome.OK:
            found.add("image.driver", Severity.INFO, what, source=rule.source)
            continue
        severity, reason = Severity.UNKNOWN, "seen" if is_seen else "not-seen"
        if rule.outcome is RuleOutcome.REFUSED:
            severity, reason = Severity.PROBLEM, "refused"
        found.add("image.driver", severity, what, reason=reason, cause=f"needed: {rule.need}", source=rule.source)
    return tuple(found.found)


def findings_of_gpu(account: GpuAccount | None, variables: Variables) -> tuple[Finding, ...]:
    """Return what the account of a machine's GPU means for jobs; nothing without an account."""
    found = Findings(Level.STATIC)
    if account is not None:
        if account.taken_for is not None:
            names = {"processor": account.processor, "machine": account.machine, "other": account.taken_for}
            found.add("gpu.code", Severity.PROBLEM, reason="override", names=names)
        _judge_needed(account, [part for part in account.parts if part.needed], variables, found)
        for part in account.parts:
            if not part.needed and part.fit is not GpuFit.RUNS:
                details: FindingDetails = {"where": part.paths[0], "cause": part.without}
                names = _names(account, part)
                found.add("gpu.beside", Severity.INFO, reason=_LACKS[part.fit], names=names, **details)
    return tuple(found.found)


def _judge_needed(account: GpuAccount, needed: Sequence[ComponentFit], variables: Variables, found: Findings) -> None:
    """Judge the components that each job calls, by how their code fits the GPU."""
    parts = {fit: [part for part in needed if part.fit is fit] for fit in GpuFit}
    if none := parts[GpuFit.NO]:
        reason, details = "none", _details(none)
        if all(any(name.endswith(":xnack-") for name in part.processors) for part in none):
            reason, details["remedy"] = "xnack", (variables.without(XNACK),)
        found.add("gpu.code", Severity.PROBLEM, reason=reason, names=_names(account, *none), **details)
    if retried := parts[GpuFit.XNACK]:
        details = _details(retried)
        if variables.get(XNACK) is not None:
            details["remedy"] = (variables.set_to(XNACK, "1"),)
        found.add("gpu.xnack", Severity.PROBLEM, names=_names(account, *retried), **details)
    for part in parts[GpuFit.UNKNOWN]:
        details = {"where": part.paths[0], "cause": part.why}
        found.add("gpu.code", Severity.UNKNOWN, reason="unknown", names=_names(account, part), **details)
    for part in parts[GpuFit.PART]:
        found.add("gpu.code", Severity.INFO, reason="part", names=_names(account, part), where=part.paths[0])
    if runs := parts[GpuFit.RUNS]:
        found.add("gpu.code", Severity.OK, reason="runs", names=_names(account, *runs))
    if not needed:
        found.add("gpu.code", Severity.UNKNOWN, reason="nothing-found", names=_names(account))


def _names(account: GpuAccount, *parts: ComponentFit) -> dict[str, str]:
    """Return the names that the registry's texts about components contain."""
    return {
        "gpu": account.title,
        "processor": account.processor,
        "components": ", ".join(part.component for part in parts),
        "have": ", ".join(f"{part.component} ({part.has})" for part in parts),
        "has": parts[0].has if parts else "",
        "why": (parts[0].why if parts else None) or "",
    }


def _details(parts: Sequence[ComponentFit]) -> FindingDetails:
    lines = [f"{part.component}: {part.paths[0]}" for part in parts]
    causes = "; ".join(f"{part.component}: {part.without}" for part in parts[:SHOWN])
    return {"where": parts[0].paths[0], "evidence": lines, "cause": causes}


def find_faults(context: ImageInContext, static: StaticResult) -> tuple[Finding, ...]:
    """Return the faults in the files of an image whose path is known. Raises BadInputError if it cannot be read."""
    found, job = Findings(Level.STATIC), static.job
    if job is not None and job.package is not None:  # else no folder of packages is known
        packages = job.package.rpartition("/")[0]
        _judge_mpi(context.image.root, context.inside.settings, job, packages, found)
        _judge_python(context.contents, packages, found)
    return tuple(found.found)


def _judge_mpi(root: RootFileSystem, settings: LoaderConfig, job: JobProcess, packages: str, found: Findings) -> None:
    """Judge whether mpi4py and the framework load in either order: of two files with one soname, the first stays."""
    if (clash := mpi_clash(root, settings, job, packages)) is not None:
        names = {"framework": str(job.framework), "files": " and ".join(clash.files), "first": next(iter(clash.errors))}
        lines = [line for of_order in clash.errors.values() for line in of_order]
        reason = "one-order" if len(clash.errors) == 1 else None
        found.add("image.two-mpi", Severity.INFO, reason=reason, names=names, where=clash.module, evidence=lines)


def _judge_python(contents: Inventory, packages: str, found: Findings) -> None:
    """Judge the compiled modules beside the framework of a job."""
    root, modules = contents.image.root, contents.modules_in(packages)
    prefixes = tuple(package_toml(__package__, "faults.toml")["c10"]["prefixes"])
    lacking = broken_modules(root, f"{packages}/torch/lib/libc10.so", modules, prefixes)
    if lacking:
        lines = tuple(f"{path}: undefined symbol: {symbol}" for path, symbol in lacking.items())
        names, where = {"first": lines[0]}, next(iter(lacking))
        found.add("image.other-torch", Severity.INFO, names=names, where=where, evidence=lines)
    numpy = contents.versions_in(packages).get("numpy", "")
    major = numpy.partition(".")[0]
    old = numpy_1_modules(root, modules) if major.isdecimal() and int(major) >= 2 else ()
    if lines := tuple(f"{path}: compiled with NumPy 1" for path in old):
        names = {"version": numpy, "first": lines[0]}
        found.add("image.numpy", Severity.INFO, names=names, evidence=lines)
