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
            gpu = f"{account.processor}, {account.machine}'s GPU"
            what = f"{OVERRIDE} makes the runtime treat {gpu}, as {account.taken_for}"
            found.add(Code.GPU_CODE, Severity.PROBLEM, what, reason="override")
        _judge_needed(account, [part for part in account.parts if part.needed], found)
        for part in account.parts:
            if not part.needed and part.fit is not GpuFit.RUNS:
                what = f"{part.component} {_lacks(part, account)}"
                found.add(Code.GPU_BESIDE, Severity.INFO, what, where=part.paths[0], cause=part.without)
    return tuple(found.found)


def _real(image: Image, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            yield image.root.resolve(path)
        except (OSError, ImageError):
            continue  # of the host


def _judge_needed(account: GpuAccount, needed: Sequence[GpuVerdict], found: Findings) -> None:
    """Judge what each job calls: a finding for each kind of answer."""
    gpu, of = account.title, {"processor": account.processor}
    parts = {fit: [part for part in needed if part.fit is fit] for fit in GpuFit}
    if none := parts[GpuFit.NO]:
        what = f"no code for {gpu}: {_named(none)}"
        found.add(Code.GPU_CODE, Severity.PROBLEM, what, reason="none", names=of, **_details(none))
    if retried := parts[GpuFit.XNACK]:
        what = f"code for {account.processor} with xnack alone, which runs only with {XNACK}=1: {_named(retried)}"
        found.add(Code.GPU_XNACK, Severity.PROBLEM, what, **_details(retried))
    for part in parts[GpuFit.UNKNOWN]:
        what = f"{part.component}: whether it has code for {gpu}, is not known"
        found.add(Code.GPU_CODE, Severity.UNKNOWN, what, where=part.paths[0], cause=part.why)
    for part in parts[GpuFit.PART]:
        what = f"{part.component} {_lacks(part, account)}"
        found.add(Code.GPU_CODE, Severity.INFO, what, reason="part", where=part.paths[0])
    if runs := parts[GpuFit.RUNS]:
        found.add(Code.GPU_CODE, Severity.OK, f"code for {gpu}: {', '.join(part.component for part in runs)}")
    if not needed:
        what = f"whether its jobs find code for {gpu}, is not known: no component that they need was found with any"
        found.add(Code.GPU_CODE, Severity.UNKNOWN, what)


def _named(parts: Iterable[GpuVerdict]) -> str:
    return ", ".join(f"{part.component} ({part.has})" for part in parts)


def _details(parts: Sequence[GpuVerdict]) -> FindingDetails:
    lines = tuple(f"{part.component}: {part.paths[0]}" for part in parts[:_SHOWN])
    causes = "; ".join(f"{part.component}: {part.without}" for part in parts[:_SHOWN])
    return {"where": parts[0].paths[0], "evidence": lines, "cause": causes}


def _lacks(part: GpuVerdict, account: GpuAccount) -> str:
    words = {
        GpuFit.UNKNOWN: f"may have no code for {account.title}: {part.why}",
        GpuFit.PART: f"has code for {account.title}, in part of its files or bundles only",
        GpuFit.XNACK: f"has code for {account.title}, only with {XNACK}=1",
    }
    return words.get(part.fit, f"has no code for {account.title}: {part.has}")
