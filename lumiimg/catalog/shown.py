"""What the catalogue has, as it is listed, and as each entry is shown."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumiimg.catalog.age import age_of
from lumiimg.catalog.ledger import Trial, furthest, rows_of, status_of, trials_of
from lumiimg.catalog.sites import Site, find_site, site_names
from lumiimg.decode import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lumiimg.catalog.catalogue import Catalogue, Recipe
    from lumiimg.catalog.layers import Layer, LayerSource, Reach, Release, Status


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One entry."""

    kind: Literal["base", "layer", "recipe", "site", "broken"]
    """What it is."""
    name: str
    """As for --base, --add, --recipe, --site, and `show`."""
    status: Status | Literal["broken", ""]
    """How far it was tried; of several releases, the one that got furthest. Empty for a recipe, and where a site does
    not state it."""
    summary: str
    """One sentence; of a broken one, its fault."""
    old: str | None
    """Of a site, what is old of what is known, and how old; null where nothing is."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Every base, layer, recipe and site."""

    entries: tuple[CatalogueEntry, ...]
    """Bases and layers, then recipes, then sites."""


@dataclass(frozen=True, slots=True)
class ShownRelease:
    """One version of what a layer puts in, with what only this version needs and has."""

    release: Release
    status: Status
    """How far this release was tried."""


@dataclass(frozen=True, slots=True)
class ShownLayer:
    """A layer or a base of the catalogue."""

    layer: Layer
    """With what it does to the environment of the image."""
    status: Reach
    """How far it was tried; of several releases, the one that got furthest."""
    releases: tuple[ShownRelease, ...]
    """The one to prefer first; empty where there is only the one that the arguments name."""
    trials: tuple[Trial, ...]
    """What is known of how far it, its releases and its members were tried."""

    @property
    def sources(self) -> dict[str, LayerSource]:
        """By name (`--source NAME=FILE`)."""
        return {source.name: source for source in self.layer.sources}


def shown_layer(layer: Layer) -> ShownLayer:
    """Return a layer with how far it was tried. Raises DecodeError where a file of it cannot be read."""
    releases = tuple(ShownRelease(release, status_of(layer, release)) for release in layer.releases)
    trials = tuple(trial for row in rows_of(layer) for trial in trials_of(*row))
    return ShownLayer(layer, furthest(layer), releases, trials)


def listing_of(catalogue: Catalogue, environment: Mapping[str, str]) -> Listing:
    """Return every base, layer, recipe and site; what cannot be read is there with its fault."""
    entries: list[CatalogueEntry] = []
    readers: tuple[tuple[Iterable[str], Callable[[str], CatalogueEntry]], ...] = (
        (catalogue.layer_names(), lambda name: _of_layer(catalogue.entry(name))),
        (catalogue.recipe_names(), lambda name: _of_recipe(catalogue.recipe(name))),
        (site_names(environment), lambda name: _of_site(name, find_site(name, environment))),
    )
    for names, read in readers:
        for name in names:
            try:
                entries.append(read(name))
            except DecodeError as error:
                entries.append(CatalogueEntry("broken", name, "broken", str(error), None))
    return Listing(tuple(entries))


def _of_layer(layer: Layer) -> CatalogueEntry:
    return CatalogueEntry(layer.kind, layer.name, furthest(layer), layer.summary, None)


def _of_recipe(recipe: Recipe) -> CatalogueEntry:
    summary = f"{recipe.summary} ({' + '.join((recipe.base, *recipe.add))})"
    return CatalogueEntry("recipe", recipe.name, "", summary, None)


def _of_site(name: str, site: Site) -> CatalogueEntry:
    return CatalogueEntry("site", name, site.status or "", site.title, _age_of_site(site))


def _age_of_site(site: Site) -> str | None:
    """Return what is old of what is known of a machine, each by its newest fact."""
    facts = {"network": site.fabric.date} if site.fabric else {}
    if site.driver is not None:
        facts["driver"] = max(site.driver.date, *(one.date for one in site.driver.evidence), dt.date.min)
    ages = [f"{name} {old}" for name, date in facts.items() if (old := age_of(date, site.date))]
    return f"what is known of it is old: {'; '.join(ages)}" if ages else None
