"""Requests near one that is refused: each adds or gives something up, and those that change least come first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.resolve.request import Request, name_of
from lumiimg.resolve.stack import PLUGIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.resolve.site_catalogue import SiteCatalogue


def nearby_requests(request: Request, catalogue: SiteCatalogue) -> Iterator[Request]:
    """Yield other requests, those that differ least first. None has arguments or sources."""
    plain = request.plainly()
    if plain != request:
        yield plain
    there = tuple(
        f"{name}=={found[0]}"
        if catalogue.nearest_in_index(name) and (found := catalogue.versions_found(name))
        else text
        for text, name in zip(plain.add, plain.unpinned, strict=True)
    )
    if there != plain.add:  # of a version that the package index does not have, the nearest
        yield replace(plain, add=there)
    if carried := catalogue.carried(request.base):
        yield from _in_place_of_an_image(plain, carried, catalogue)
    yield from _on_its_base(plain, catalogue)
    yield from _on_another_base(plain, catalogue)


def _in_place_of_an_image(asked: Request, carried: tuple[str, ...], catalogue: SiteCatalogue) -> Iterator[Request]:
    """Yield requests that build what an image is there for, or what does the same, and the layers on it."""
    bases = catalogue.bases_near(asked.base)
    same = replace(asked, add=(*carried, *(name for name in asked.unpinned if name not in carried)), fabric=None)
    for add in (same.add, *catalogue.alike(same)):
        yield from (replace(same, base=base, add=add) for base in bases)


def _on_its_base(asked: Request, catalogue: SiteCatalogue) -> Iterator[Request]:
    has = catalogue.base(asked.base).has
    missing = tuple(text for text in asked.add if name_of(text) not in has)
    if missing != asked.add:
        yield replace(asked, add=missing)
    for at, layer in catalogue.lacking(asked):
        yield replace(asked, add=(*asked.add[:at], layer, *asked.add[at:]))
    if asked.fabric is not None:
        yield replace(asked, fabric=None)
    # the one version at fault alone, then all of them
    for at, (text, name) in enumerate(zip(asked.add, asked.unpinned, strict=True)):
        if name != text:
            yield replace(asked, add=(*asked.add[:at], name, *asked.add[at + 1 :]))
    if asked.unpinned != asked.add:
        yield replace(asked, add=asked.unpinned)
    plugins = catalogue.plugins(asked)
    for plugin in reversed(plugins):
        yield replace(asked, add=tuple(name for name in asked.unpinned if name != plugin))
    if PLUGIN not in plugins and PLUGIN in dict(catalogue.layers()):
        yield replace(asked, add=(*(name for name in asked.unpinned if name not in plugins), PLUGIN))


def _on_another_base(asked: Request, catalogue: SiteCatalogue) -> Iterator[Request]:
    """Yield requests on other bases, only on those of the same kind where nothing is added; then with fewer layers."""
    bases = catalogue.bases_near(asked.base) if asked.add else catalogue.bases_like(asked.base)
    yield from (replace(asked, base=base) for base in bases)
    plugins = catalogue.plugins(asked)
    fitting = tuple(name for name in asked.unpinned if name not in plugins)
    yield from (replace(asked, base=base, add=fitting, fabric=None) for base in bases)
    # other software only where the same works on no base
    alike = [*catalogue.alike(asked)]
    yield from (replace(asked, add=add) for add in alike)
    for add in alike:
        yield from (replace(asked, base=base, add=add, fabric=None) for base in bases)
    for name in asked.unpinned:
        if less := tuple(other for other in asked.unpinned if other != name):
            yield replace(asked, add=less)
            yield from (replace(asked, base=base, add=less, fabric=None) for base in (asked.base, *bases))
    if asked.add:
        yield replace(asked, add=(), fabric=None)
