"""Requests near one that is refused: each adds or gives something up, and those that change least come first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.catalog.needs import version_of
from lumiimg.decode import DecodeError
from lumiimg.resolve.stack import PLUGIN, PLUGIN_COMPONENT, components_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.resolve.context import PlanContext
    from lumiimg.resolve.request import Request

_PLAIN = {"os", "glibc", "python", "rocm", "rccl"}
"""What a base has that is only there to be built on."""
_SERVER = "llm-server"


def nearby_requests(request: Request, context: PlanContext) -> Iterator[Request]:
    """Yield other requests, those that differ least first. None has arguments or sources."""
    plain = replace(request, arguments={}, sources={})
    if plain != request:
        yield plain
    bases = _bases_near(plain.base, context)
    if carried := _carried(plain.base, context):
        # what an image is there for, or what does the same, and the layers on it
        same = replace(plain, add=(carried, *(name for name in plain.unpinned if name != carried)))
        for add in (same.add, *_alike(same, context)):
            yield from (replace(plain, base=base, add=add, fabric=None) for base in bases)
    yield from _on_its_base(plain, context)
    yield from _on_other_bases(plain, bases, context)


def _on_its_base(asked: Request, context: PlanContext) -> Iterator[Request]:
    """Yield requests for the same software on the same base."""
    has, names = context.base(asked.base).has, asked.unpinned
    missing = tuple(text for text, name in zip(asked.add, names, strict=True) if name not in has)
    if missing != asked.add:
        yield replace(asked, add=missing)
    for at, name in enumerate(names):  # what a layer does not run without
        fatal = (trouble for trouble in context.layer(name).troubles if trouble.refused)
        for component in sorted({need.component for trouble in fatal for need in trouble.unless}):
            layer = context.provider_of(component)
            if layer is not None and layer not in names:
                yield replace(asked, add=(*asked.add[:at], layer, *asked.add[at:]))
    if asked.fabric is not None:
        yield replace(asked, fabric=None)
    # the one version at fault alone, then all of them
    for at, (text, name) in enumerate(zip(asked.add, names, strict=True)):
        if name != text:
            yield replace(asked, add=(*asked.add[:at], name, *asked.add[at + 1 :]))
    if names != asked.add:
        yield replace(asked, add=names)
    plugins = _plugins(asked, context)
    for plugin in reversed(plugins):
        yield replace(asked, add=tuple(name for name in names if name != plugin))
    if PLUGIN not in plugins and context.catalogue.knows(PLUGIN):
        yield replace(asked, add=(*(name for name in names if name not in plugins), PLUGIN))


def _on_other_bases(asked: Request, near: list[str], context: PlanContext) -> Iterator[Request]:
    """Yield requests on other bases, only on those of the same kind where nothing is added; then with fewer layers."""
    folder, names, plugins = context.base(asked.base).folder, asked.unpinned, _plugins(asked, context)
    bases = near if asked.add else [base for base in near if context.base(base).folder == folder]
    yield from (replace(asked, base=base) for base in bases)
    without_plugins = tuple(name for name in names if name not in plugins)
    yield from (replace(asked, base=base, add=without_plugins, fabric=None) for base in bases)
    # other software only where the same works on no base
    alike = [*_alike(asked, context)]
    yield from (replace(asked, add=add) for add in alike)
    for add in alike:
        yield from (replace(asked, base=base, add=add, fabric=None) for base in bases)
    for name in names:
        if less := tuple(other for other in names if other != name):
            yield replace(asked, add=less)
            yield from (replace(asked, base=base, add=less, fabric=None) for base in (asked.base, *bases))
    if asked.add:
        yield replace(asked, add=(), fabric=None)


def _plugins(request: Request, context: PlanContext) -> list[str]:
    """Return the layers of a request that bring a net plugin."""
    return [name for name in request.unpinned if PLUGIN_COMPONENT in context.layer(name).provides]


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


def _alike(request: Request, context: PlanContext) -> Iterator[tuple[str, ...]]:
    """Yield the layers of a request with another in place of one that provides the same."""
    names, layers = request.unpinned, list(context.layers())
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
