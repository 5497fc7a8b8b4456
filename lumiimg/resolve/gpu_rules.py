"""What the files of an image that is built on say of its GPU code, and what is known of the software in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lumiimg.gpu import XNACK, GpuFit, role_of
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import components_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.catalog.layers import KnownTrouble, Layer
    from lumiimg.catalog.sites import Site
    from lumiimg.resolve.image_base import ForeignBase

_ID = "gpu-code"
_OUTCOMES = {
    GpuFit.RUNS: RuleOutcome.OK,
    GpuFit.PART: RuleOutcome.OK,
    GpuFit.UNKNOWN: RuleOutcome.UNKNOWN,
    GpuFit.XNACK: RuleOutcome.WARNING,
    GpuFit.NO: RuleOutcome.REFUSED,
}
_COMPONENTS = {
    "aiter": "aiter",
    "bitsandbytes": "bitsandbytes",
    "flash-attn": "flash-attn",
    "sglang": "sgl-kernel",
    "vllm": "vLLM _C",
}
"""What people call the GPU code of a layer of the catalogue, where its troubles hang on it."""
_SOURCE = "read in the image; LLVM AMDGPUUsage, target ID (lumiimg/gpu/targets.toml, roles.toml)"


def gpu_code(base: ForeignBase, site: Site | None) -> Iterator[RuleResult]:
    """Rule 7: what jobs of an image call has code for the GPU of the site. Layers on top do not bring it."""
    if site is None or site.arch is None:
        return
    need, gpu = f"code for {site.arch}", f"{site.arch}, the GPU of {site.name}"
    for fit, outcome in _OUTCOMES.items():
        if not (parts := [part for part in base.gpu if part.needed and part.fit is fit]):
            continue
        takes, names = outcome is RuleOutcome.OK, ", ".join(part.component for part in parts)
        have = names if takes else ", ".join(f"{part.component}: {part.has}" for part in parts)
        because = f"{names}: {site.arch} takes it"
        if fit is GpuFit.NO:
            because = f"no code for {gpu}: {'; '.join(f'{part.component}: {part.without}' for part in parts)}"
        elif not takes:
            because = f"{names}: {f'only with {XNACK}=1 in the job' if fit is GpuFit.XNACK else parts[0].why}"
        yield RuleResult(_ID, outcome, need, have, because, _SOURCE)
    for part in base.gpu:
        if not part.needed and part.fit is GpuFit.NO and not role_of(part.component).harmless:
            because = f"jobs run without {part.component}; {part.without}"
            yield RuleResult(_ID, RuleOutcome.WARNING, need, f"{part.component}: {part.has}", because, _SOURCE)


def found_troubles(base: ForeignBase, layers: Iterable[Layer]) -> tuple[KnownTrouble, ...]:
    """Return what is known against the software that an image has, as against layers of the same name.

    What its own files show counts more; and what no job needs refuses nothing. A trouble that something put in beside
    would mend is about what is built, not about what is there.
    """
    found = []
    for layer in layers:
        if layer.name not in base.has and "torch" not in base.has.keys() & components_of(layer):
            continue
        component = _COMPONENTS.get(layer.name, "")
        own = [part for part in base.gpu if part.component == component]
        runs = any(part.fit in {GpuFit.RUNS, GpuFit.PART} for part in own)
        found += [
            trouble if role_of(component).needed else replace(trouble, outcome="warning")
            for trouble in layer.troubles
            if not trouble.unless and not (runs and trouble.refused)
        ]
    return tuple(found)
