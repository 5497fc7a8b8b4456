"""What the catalogue contains, as it is listed, and as each entry is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumiimg.catalog.catalogue import Catalogue, Recipe
from lumiimg.catalog.layers import Layer
from lumiimg.catalog.ledger import LedgerEntry, all_trials, furthest_reach, status_of
from lumiimg.catalog.sites import Site, find_site, site_names
from lumiimg.core.decode import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lumiimg.catalog.layers import LayerSource, Reach, Status
    from lumiimg.catalog.releases import Release


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A base, layer, recipe or site."""

    kind: Literal["base", "layer", "recipe", "site", "broken"]
    """Kind of entry."""
    name: str
    """Name, as for --base, --add, --recipe, --site, and `show`."""
    status: Status | Literal["broken", ""]
    """How far it was tried: the best of its releases. Empty for a recipe, and for a site that does not state it."""
    summary: str
    """One sentence; for a broken entry, its fault."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Every base, layer, recipe and site."""

    entries: tuple[CatalogueEntry, ...]
    """Bases and layers, then recipes, then sites."""


@dataclass(frozen=True, slots=True)
class ShownRelease:
    """One version of what a layer installs, with what only this version needs and has."""

    release: Release
    status: Status
    """How far this release was tried."""


@dataclass(frozen=True, slots=True)
class ShownLayer:
    """A layer or a base of the catalogue."""

    layer: Layer
    """The layer, with its changes to the environment of the image."""
    releases: tuple[ShownRelease, ...]
    """Releases, preferred one first; empty if there is only the one that the arguments name."""
    trials: tuple[LedgerEntry, ...]
    """How far the layer, its releases and its members were tried, by the ledger."""

    @property
    def status(self) -> Reach:
        """How far it was tried; of several releases, the one that got furthest."""
        return furthest_reach(self.trials)

    @property
    def sources(self) -> dict[str, LayerSource]:
        """Sources by name (`--source NAME=FILE`)."""
        return {source.name: source for source in self.layer.sources}


def shown_layer(layer: Layer) -> ShownLayer:
    """Return a layer with how far it was tried. Raises DecodeError if one of its files cannot be read."""
    releases = tuple(ShownRelease(release, status_of(layer, release)) for release in layer.releases)
    return ShownLayer(layer, releases, all_trials(layer))


def listing_of(catalogue: Catalogue, environment: Mapping[str, str]) -> Listing:
    """Return every base, layer, recipe and site; those that cannot be read are listed with their fault."""
    entries: list[CatalogueEntry] = []
    readers: tuple[tuple[Iterable[str], Callable[[str], Layer | Recipe | Site]], ...] = (
        (catalogue.layer_names(), catalogue.entry),
        (catalogue.recipe_names(), catalogue.recipe),
        (site_names(environment), lambda name: find_site(name, environment)),
    )
    for names, read in readers:
        for name in names:
            try:
                entries.append(_entry(read(name)))
            except DecodeError as error:
                entries.append(CatalogueEntry("broken", name, "broken", str(error)))
    return Listing(tuple(entries))


def _entry(found: Layer | Recipe | Site) -> CatalogueEntry:
    match found:
        case Layer():
            return CatalogueEntry(found.kind, found.name, furthest_reach(all_trials(found)), found.summary)
        case Recipe():
            parts = " + ".join((found.base, *found.add))
            return CatalogueEntry("recipe", found.name, "", f"{found.summary} ({parts})")
        case Site():
            return CatalogueEntry("site", found.name, found.status or "", found.title)
