"""Requests near one that is refused: each rule gives something up, and the rules that give up least come first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.resolve.request import name_of
from lumiimg.resolve.stack import PLUGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.resolve.request import Request
    from lumiimg.resolve.shelf import Shelf


def others(request: Request, shelf: Shelf) -> Iterator[Request]:
    """Yield other requests, those that differ least first. None has arguments or sources."""
    plain = request.plainly()
    if plain != request:
        yield plain
    for rule in RULES:
        yield from rule(plain, shelf)


def _bases(asked: Request, shelf: Shelf) -> list[str]:
    """Return the other bases that a request may be put on; those of its own kind alone where it adds nothing."""
    return shelf.bases_near(asked.base) if asked.add else shelf.bases_like(asked.base)


def _without_what_the_base_has(asked: Request, shelf: Shelf) -> Iterator[Request]:
    has = shelf.base(asked.base).has
    missing = tuple(text for text in asked.add if name_of(text) not in has)
    if missing != asked.add:
        yield replace(asked, add=missing)


def _with_the_fabric_that_fits(asked: Request, _shelf: Shelf) -> Iterator[Request]:
    if asked.fabric is not None:
        yield replace(asked, fabric=None)


def _without_one_version(asked: Request, _shelf: Shelf) -> Iterator[Request]:
    for at, (text, name) in enumerate(zip(asked.add, asked.unpinned, strict=True)):
        if name != text:
            yield replace(asked, add=(*asked.add[:at], name, *asked.add[at + 1 :]))


def _without_versions(asked: Request, _shelf: Shelf) -> Iterator[Request]:
    if asked.unpinned != asked.add:
        yield replace(asked, add=asked.unpinned)


def _without_a_plugin(asked: Request, shelf: Shelf) -> Iterator[Request]:
    for plugin in reversed(shelf.plugins(asked)):
        yield replace(asked, add=tuple(name for name in asked.unpinned if name != plugin))


def _with_the_usual_plugin(asked: Request, shelf: Shelf) -> Iterator[Request]:
    plugins = shelf.plugins(asked)
    if PLUGIN not in plugins and PLUGIN in dict(shelf.layers()):
        yield replace(asked, add=(*(name for name in asked.unpinned if name not in plugins), PLUGIN))


def _with_a_layer_alike(asked: Request, shelf: Shelf) -> Iterator[Request]:
    yield from (replace(asked, add=add) for add in shelf.alike(asked))


def _on_another_base(asked: Request, shelf: Shelf) -> Iterator[Request]:
    yield from (replace(asked, base=name) for name in _bases(asked, shelf))


def _on_another_base_with_what_fits_it(asked: Request, shelf: Shelf) -> Iterator[Request]:
    plugins = shelf.plugins(asked)
    add = tuple(name for name in asked.unpinned if name not in plugins)
    yield from (replace(asked, base=name, add=add, fabric=None) for name in _bases(asked, shelf))


def _on_another_base_with_a_layer_alike(asked: Request, shelf: Shelf) -> Iterator[Request]:
    bases = _bases(asked, shelf)
    for add in shelf.alike(asked):
        yield from (replace(asked, base=name, add=add, fabric=None) for name in bases)


def _without_one_layer(asked: Request, shelf: Shelf) -> Iterator[Request]:
    bases = (asked.base, *_bases(asked, shelf))
    for name in asked.unpinned:
        if less := tuple(other for other in asked.unpinned if other != name):
            yield from (replace(asked, base=base, add=less, fabric=None) for base in bases)


def _the_base_alone(asked: Request, _shelf: Shelf) -> Iterator[Request]:
    if asked.add:
        yield replace(asked, add=(), fabric=None)


RULES: tuple[Callable[[Request, Shelf], Iterator[Request]], ...] = (
    _without_what_the_base_has,
    _with_the_fabric_that_fits,
    _without_one_version,  # the one at fault alone, before all of them
    _without_versions,
    _without_a_plugin,
    _with_the_usual_plugin,
    _with_a_layer_alike,
    _on_another_base,
    _on_another_base_with_what_fits_it,
    _on_another_base_with_a_layer_alike,
    _without_one_layer,
    _the_base_alone,
)
