"""What the files of an image that is built on say of its GPU code, and what is known of the software in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lumiimg.gpu.roles import is_needed_layer, role_of
from lumiimg.gpu.rule import XNACK, GpuFit
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import components_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from lumiimg.catalog.layers import KnownTrouble, Layer
    from lumiimg.catalog.sites import Site
    from lumiimg.inventory.gpu_fit import ComponentFit
    from lumiimg.resolve.image_base import ForeignBase

_ID = "gpu-code"
_OUTCOMES = {
    GpuFit.RUNS: RuleOutcome.OK,
    GpuFit.PART: RuleOutcome.OK,
    GpuFit.UNKNOWN: RuleOutcome.UNKNOWN,
    GpuFit.XNACK: RuleOutcome.WARNING,
    GpuFit.NO: RuleOutcome.REFUSED,
}
_SOURCE = "read in the image; LLVM AMDGPUUsage, target ID (lumiimg/gpu/targets.toml, roles.toml)"


def gpu_code(base: ForeignBase, site: Site | None) -> Iterator[RuleResult]:
    """Rule 7: what jobs of an image call has code for the GPU of the site. Layers on top do not bring it."""
    if site is not None and site.arch is not None:
        yield from _of_components(base.gpu, site)


def _of_components(verdicts: Collection[ComponentFit], site: Site) -> Iterator[RuleResult]:
    """Yield what follows from the code of an image's components."""
    need = f"code for {site.arch}"
    for fit, outcome in _OUTCOMES.items():
        parts = [part for part in verdicts if part.needed and part.fit is fit]
        if parts:
            takes = outcome is RuleOutcome.OK
            have = ", ".join(part.component if takes else f"{part.component}: {part.has}" for part in parts)
            yield RuleResult(_ID, outcome, need, have, _because(parts, site), _SOURCE)
    for part in verdicts:
        if not part.needed and part.fit is GpuFit.NO and not role_of(part.component).harmless:
            have = f"{part.component}: {part.has}"
            because = f"jobs run without {part.component}; {part.without}"
            yield RuleResult(_ID, RuleOutcome.WARNING, need, have, because, _SOURCE)


def _because(parts: Iterable[ComponentFit], site: Site) -> str:
    first = next(iter(parts))
    names = ", ".join(part.component for part in parts)
    match first.fit:
        case GpuFit.NO:
            withouts = "; ".join(f"{part.component}: {part.without}" for part in parts)
            return f"no code for {site.arch}, the GPU of {site.name}: {withouts}"
        case GpuFit.XNACK:
            return f"{names}: only with {XNACK}=1 in the job"
        case GpuFit.UNKNOWN:
            return f"{names}: {first.why}"
    return f"{names}: {site.arch} takes it"


def found_troubles(base: ForeignBase, layers: Iterable[Layer]) -> tuple[KnownTrouble, ...]:
    """Return what is known against the software that an image has, as against layers of the same name.

    What its own files show counts more; and what no job needs refuses nothing. A trouble that something put in beside
    would mend is about what is built, not about what is there.
    """
    found = []
    for layer in layers:
        if layer.name not in base.has and "torch" not in base.has.keys() & components_of(layer):
            continue
        own = [part for part in base.gpu if role_of(part.component).layer == layer.name]
        runs = any(part.fit in {GpuFit.RUNS, GpuFit.PART} for part in own)
        found += [
            trouble if is_needed_layer(layer.name) else replace(trouble, outcome="warning")
            for trouble in layer.troubles
            if not trouble.unless and not (runs and trouble.refused)
        ]
    return tuple(found)
