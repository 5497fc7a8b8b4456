"""The context in which a request is decided: catalogue, site, images as bases, releases without a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import structs

from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import find_site
from lumiimg.core.decode import DecodeError
from lumiimg.fetch.mirrors import Mirrors, parse_mirrors
from lumiimg.resolve.driver_rule import site_as_observed
from lumiimg.resolve.stack import PLUGIN, for_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.releases import Release
    from lumiimg.catalog.sites import Site
    from lumiimg.fetch.http import Http
    from lumiimg.resolve.request import Request

_PREFERRED = {"net-plugin": PLUGIN, "libfabric": "fabric-bundled"}
"""Component -> the layer to add, if several provide it."""


@dataclass(frozen=True, slots=True)
class FoundReleases:
    """What is known of a version without a row."""

    releases: tuple[Release, ...] = ()
    instead: str = ""
    """What the package index has, if it does not have the version."""


@dataclass(frozen=True, slots=True)
class PlanContext:
    """The context in which a request is decided. Its methods raise as those of the catalogue do."""

    catalogue: Catalogue
    mirrors: Mirrors = field(default_factory=lambda: Mirrors({}))
    path: str | None = ""
    """The PATH that is searched for bootstrap programs."""
    site: Site | None = None
    preferred: Mapping[str, str] = field(default_factory=dict)
    """Releases to prefer, by name of the layer, unless the request names another."""
    images: Mapping[str, Layer] = field(default_factory=dict)
    """Bases that are images and were read, and the layer of the user's own packages, by name."""
    web: Http | None = None
    """Client for finding releases without a row; None: no server is asked."""
    on_line: Callable[[str], None] = lambda _: None
    """Called with a line about each fetch."""
    found: Mapping[str, FoundReleases] = field(default_factory=dict)
    """What is known of releases without a row, by layer."""
    pull: Callable[[str], Path] = Path
    """Fetches a base from a registry, to be read."""

    @classmethod
    def from_request(cls, request: Request, catalogue: Catalogue, environment: Mapping[str, str]) -> Self:
        """Return the context of a request on this machine, without asking a server. Raises BadInputError."""
        mirrors = parse_mirrors(read_settings(environment).mirrors, request.mirrors)
        site = find_site(request.site, environment) if request.site else None
        if site is not None and request.host:
            from lumiimg.host.snapshot import read_snapshot  # loads ELF data, which no other request needs

            site = site_as_observed(site, read_snapshot(Path(request.host)), request.host)
        return cls(catalogue, mirrors, environment.get("PATH"), site)

    def base(self, name: str) -> Layer:
        """Return a base of the catalogue, or an image that was read."""
        return self.images.get(name) or self.catalogue.base(name)

    def layer(self, name: str) -> Layer:
        """Return a layer for the GPU of the site, with the releases that were found."""
        own = self.images.get(name)
        if own is not None and not own.is_base:
            return own
        layer = for_gpu(self.catalogue.layer(name), self.site.arch if self.site else None)
        if name in self.found:
            return structs.replace(layer, releases=(*layer.releases, *self.found[name].releases))
        return layer

    def layers(self, component: str | None = None) -> Iterator[Layer]:
        """Yield every readable layer; with `component`, all that provide it, and few others."""
        for name in self.catalogue.layer_names() if component is None else self.catalogue.possible_providers(component):
            try:
                is_base = self.catalogue.entry(name).is_base
            except DecodeError:
                continue  # a broken folder of the user's must not hide the others
            if not is_base:
                yield self.layer(name)

    def provider_of(self, component: str) -> str | None:
        """Return the layer that provides a component, in all releases: the preferred or the only one."""
        if component in _PREFERRED:
            return _PREFERRED[component]
        found = [one.name for one in self.layers(component) if component in {one.name, *one.provides, *one.has}]
        return found[0] if len(found) == 1 else None
