"""Requests near one that is refused: each adds or gives something up, and those that change least come first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lumiimg.catalog.needs import version_of
from lumiimg.core.decode import DecodeError
from lumiimg.resolve.request import AUTO, Request
from lumiimg.resolve.stack import PLUGIN, PLUGIN_COMPONENT, components_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.catalog.catalogue import FabricOption
    from lumiimg.resolve.context import PlanContext

_PLAIN = {"os", "glibc", "python", "rocm", "rccl"}
"""What a base has that is only there to be built on."""
_SERVER = "llm-server"


def nearby_requests(request: Request, context: PlanContext) -> Iterator[Request]:
    """Yield other requests, those that differ least first. None has arguments or sources."""
    asked = replace(request, arguments={}, sources={})
    here, names, alike = asked.base, asked.unpinned, partial(_alike, context=context)
    plugins = [name for name in names if PLUGIN_COMPONENT in context.layer(name).provides]

    def each(bases: Iterable[str], adds: Iterable[tuple[str, ...]], fabric: FabricOption = AUTO) -> Iterator[Request]:
        yield from (replace(asked, base=base, add=add, fabric=fabric) for add in adds for base in bases)

    if asked != request:
        yield asked
    if carried := _carried(here, context):
        # what an image is there for, or what does the same, and the layers on it
        same = (carried, *(name for name in names if name != carried))
        yield from each(_bases_near(here, context), (same, *alike(same)))
    if asked.fabric != AUTO:
        yield replace(asked, fabric=AUTO)
    yield from each([here], _same_software(asked, plugins, context), asked.fabric)
    # only a base of the same kind where nothing is added
    folder = context.base(here).folder
    bases = [base for base in _bases_near(here, context) if names or context.base(base).folder == folder]
    yield from each(bases, [asked.add], asked.fabric)
    yield from each(bases, [tuple(name for name in names if name not in plugins)])
    # other software only where the same works on no base
    yield from each([here], alike(names), asked.fabric)
    yield from each(bases, alike(names))
    for left_out in names if len(names) > 1 else ():
        less = tuple(name for name in names if name != left_out)
        yield from each([here], [less], asked.fabric)
        yield from each([here, *bases], [less])
    if names:
        yield from each([here], [()])


def _same_software(asked: Request, plugins: Sequence[str], context: PlanContext) -> Iterator[tuple[str, ...]]:
    """Yield what can be added in place of what is asked for, so that the image has the same."""
    has, add, names = context.base(asked.base).has, asked.add, asked.unpinned
    if has.keys() & {*names}:
        yield tuple(text for text, name in zip(add, names, strict=True) if name not in has)
    for at, name in enumerate(names):  # what a layer does not run without
        fatal = (trouble for trouble in context.layer(name).troubles if trouble.refused)
        for component in sorted({need.component for trouble in fatal for need in trouble.unless}):
            layer = context.provider_of(component)
            if layer is not None and layer not in names:
                yield (*add[:at], layer, *add[at:])
    # the one version at fault alone, then all of them
    for at, (text, name) in enumerate(zip(add, names, strict=True)):
        if name != text:
            yield (*add[:at], name, *add[at + 1 :])
    if names != add:
        yield names
    for plugin in reversed(plugins):
        yield tuple(name for name in names if name != plugin)
    if PLUGIN not in plugins and context.catalogue.knows(PLUGIN):
        yield (*(name for name in names if name not in plugins), PLUGIN)


def _carried(name: str, context: PlanContext) -> str | None:
    """Return the layer that would bring what an image as a base is there for: a server, else torch, else JAX."""
    base = context.base(name)
    layers = list(context.layers()) if base.is_foreign else []
    servers = [layer.name for layer in layers if _SERVER in layer.provides]
    for component in (*servers, "torch", "jax"):
        found = (layer.name for layer in layers if component in base.has and component in components_of(layer))
        if (first := next(found, None)) is not None:
            return first
    return None


def _alike(names: tuple[str, ...], context: PlanContext) -> Iterator[tuple[str, ...]]:
    """Yield layers with another in place of one that provides the same."""
    layers = list(context.layers())
    for at, name in enumerate(names):
        provides = set(context.layer(name).provides)
        for other in layers:
            if other.name not in names and provides & set(other.provides):
                yield (*names[:at], other.name, *names[at + 1 :])


def _bases_near(name: str, context: PlanContext) -> list[str]:
    """Return the other bases of the same kind, then those that have nothing yet which layers bring.

    Of each, the one whose ROCm is nearest comes first; of two as near the older.
    """
    here, found = context.base(name), []
    for other in context.catalogue.base_names():
        try:
            base = context.base(other)
        except DecodeError:
            continue
        version, is_other_kind = _rocm(base.has.get("rocm")), base.folder != here.folder
        if other != name and version and (not is_other_kind or base.has.keys() <= _PLAIN):
            found.append((is_other_kind, abs(version - _rocm(here.has.get("rocm"))), version, other))
    return [other for *_, other in sorted(found)]


def _rocm(version: str | None) -> float:
    """Return a release of ROCm as a number, so that 6.2.4 is nearer to 6.3 than to 7.0; 0 where it is not known."""
    found = version_of(version)
    return sum((part / 100**place for place, part in enumerate(found.release[:3])), start=0.0) if found else 0.0
