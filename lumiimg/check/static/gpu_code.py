"""Whether the GPU of a machine takes the code that the jobs of an image call: without it, no network matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.check.registry import FindingDetails, Findings
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.gpu.rule import GpuFit
from lumiimg.gpu.source import GpuCodeError
from lumiimg.host.container_view import variable_of
from lumiimg.image import Image, ImageError
from lumiimg.resolve.gpu_code import gpu_code_of
from lumiimg.resolve.gpu_verdict import OVERRIDE, XNACK, GpuVerdict, gpu_of, gpu_verdicts, taken_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.host.snapshot import Snapshot

_SHOWN = 8
_LACKS = {GpuFit.NO: "none", GpuFit.PART: "part", GpuFit.UNKNOWN: "unknown", GpuFit.XNACK: "xnack"}


@dataclass(frozen=True, slots=True)
class GpuAccount:
    """What the GPU of a machine makes of the code of an image."""

    gpu: str
    """As a process of a job finds it: `gfx90a:sramecc+:xnack-`."""
    machine: str
    """The site, or the node that was seen, whose GPU it is."""
    parts: tuple[GpuVerdict, ...]
    """By component, those first that each job calls."""
    taken_for: str | None = None
    """The processor for which a variable has the runtime take the GPU, where that is another."""

    @property
    def processor(self) -> str:
        """Its name without modes."""
        return self.gpu.partition(":")[0]

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        return f"{self.processor}, the GPU of {self.machine}"


def judge_gpu_code(
    image: Image, environment: Mapping[str, str], loaded: Iterable[str], site: Site | None, snapshot: Snapshot | None
) -> GpuAccount | None:
    """Return the account for the GPU of a machine; None where none of AMD's is known.

    What was seen on a node counts more than what is believed of its site. `loaded`: the files of a job's process, as
    its loader found them. Raises ImageError where the image cannot be read.
    """
    if snapshot is not None and snapshot.gpu is not None:
        processor, machine = snapshot.gpu, snapshot.host
    elif site is not None and site.arch is not None:
        processor, machine = site.arch, site.name
    else:
        return None
    try:
        gpu = gpu_of(processor, variable_of(XNACK, image, environment))
    except GpuCodeError:
        return None
    parts = gpu_verdicts(gpu_code_of(image.root), gpu, frozenset(_real(image, loaded)))
    override = taken_for(processor, variable_of(OVERRIDE, image, environment))
    return GpuAccount(str(gpu), machine, parts, override)


def findings_of(account: GpuAccount | None) -> tuple[Finding, ...]:
    """Return what follows from an account for jobs; nothing without one."""
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


def _real(image: Image, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            yield image.root.resolve(path)
        except (OSError, ImageError):
            continue  # of the host


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
