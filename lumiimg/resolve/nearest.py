"""Requests near one that is refused: each rule gives something up, and the rules that give up least come first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from lumiimg.catalog.toml_table import CatalogError
from lumiimg.resolve.request import name_of
from lumiimg.resolve.stack import PLUGIN, PLUGIN_COMPONENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.resolve.request import Request
    from lumiimg.resolve.shelf import Shelf

_PLAIN = {"os", "glibc", "python", "rocm", "rccl"}
"""What a base has that is only there to be built on."""


class Neighbourhood:
    """What a request can have in place of what it has."""

    def __init__(self, catalogue: Catalogue, shelf: Shelf) -> None:
        self._catalogue = catalogue
        self.shelf = shelf

    def others(self, request: Request) -> Iterator[Request]:
        """Yield other requests, those that differ least first. None has arguments or sources."""
        plain = request.plainly()
        if plain != request:
            yield plain
        for rule in RULES:
            yield from rule(plain, self)

    def has_layer(self, name: str) -> bool:
        return name in self._catalogue.layer_names()

    def plugins(self, request: Request) -> list[str]:
        """Return the layers of a request that bring a net plugin."""
        return [name for name in request.unpinned if PLUGIN_COMPONENT in self.shelf.layer(name).provides]

    def alike(self, request: Request) -> Iterator[tuple[str, ...]]:
        """Yield the layers of a request with another in place of one that provides the same."""
        names = request.unpinned
        for at, name in enumerate(names):
            provides = set(self.shelf.layer(name).provides)
            for other, layer in self.shelf.layers():
                if other not in names and provides & set(layer.provides):
                    yield (*names[:at], other, *names[at + 1 :])

    def bases(self, request: Request) -> list[str]:
        """Return the other bases that a request may be put on; those of its own kind alone where it adds nothing."""
        return self.by_distance(request.base) if request.add else self.of_kind(request.base)

    def by_distance(self, name: str) -> list[str]:
        """Return the other bases of the same kind, then those that have nothing yet which layers bring.

        Of each, the one whose ROCm is nearest comes first; of two as near the older.
        """
        here = self.shelf.base(name)
        rocm = self.rocm(name)
        found = []
        for other in self._catalogue.base_names():
            try:
                base = self.shelf.base(other)
            except CatalogError:
                continue
            version = _number(base.has.get("rocm"))
            is_other_kind = base.folder != here.folder
            if other != name and version is not None and (not is_other_kind or base.has.keys() <= _PLAIN):
                found.append((is_other_kind, abs(version - rocm), version, other))
        return [other for *_, other in sorted(found)]

    def of_kind(self, name: str) -> list[str]:
        folder = self.shelf.base(name).folder
        return [other for other in self.by_distance(name) if self.shelf.base(other).folder == folder]

    def rocm(self, base: str) -> float:
        """Return the release of a base's ROCm as a number, 0 where there is none."""
        return _number(self.shelf.base(base).has.get("rocm")) or 0.0


def _without_what_the_base_has(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    has = near.shelf.base(asked.base).has
    missing = tuple(text for text in asked.add if name_of(text) not in has)
    if missing != asked.add:
        yield replace(asked, add=missing)


def _with_the_fabric_that_fits(asked: Request, _near: Neighbourhood) -> Iterator[Request]:
    if asked.fabric is not None:
        yield replace(asked, fabric=None)


def _without_one_version(asked: Request, _near: Neighbourhood) -> Iterator[Request]:
    for at, (text, name) in enumerate(zip(asked.add, asked.unpinned, strict=True)):
        if name != text:
            yield replace(asked, add=(*asked.add[:at], name, *asked.add[at + 1 :]))


def _without_versions(asked: Request, _near: Neighbourhood) -> Iterator[Request]:
    if asked.unpinned != asked.add:
        yield replace(asked, add=asked.unpinned)


def _without_a_plugin(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    for plugin in reversed(near.plugins(asked)):
        yield replace(asked, add=tuple(name for name in asked.unpinned if name != plugin))


def _with_the_usual_plugin(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    plugins = near.plugins(asked)
    if PLUGIN not in plugins and near.has_layer(PLUGIN):
        yield replace(asked, add=(*(name for name in asked.unpinned if name not in plugins), PLUGIN))


def _with_a_layer_alike(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    yield from (replace(asked, add=add) for add in near.alike(asked))


def _on_another_base(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    yield from (replace(asked, base=name) for name in near.bases(asked))


def _on_another_base_with_what_fits_it(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    plugins = near.plugins(asked)
    add = tuple(name for name in asked.unpinned if name not in plugins)
    yield from (replace(asked, base=name, add=add, fabric=None) for name in near.bases(asked))


def _on_another_base_with_a_layer_alike(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    bases = near.bases(asked)
    for add in near.alike(asked):
        yield from (replace(asked, base=name, add=add, fabric=None) for name in bases)


def _without_one_layer(asked: Request, near: Neighbourhood) -> Iterator[Request]:
    bases = (asked.base, *near.bases(asked))
    for name in asked.unpinned:
        if less := tuple(other for other in asked.unpinned if other != name):
            yield from (replace(asked, base=base, add=less, fabric=None) for base in bases)


def _the_base_alone(asked: Request, _near: Neighbourhood) -> Iterator[Request]:
    if asked.add:
        yield replace(asked, add=(), fabric=None)


RULES: tuple[Callable[[Request, Neighbourhood], Iterator[Request]], ...] = (
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


def _number(version: str | None) -> float | None:
    """Return a release of ROCm as a number, so that 6.2.4 is nearer to 6.3 than to 7.0."""
    try:
        release = Version(version or "").release
    except InvalidVersion:
        return None
    return sum((part / 100**place for place, part in enumerate(release[:3])), start=0.0)
