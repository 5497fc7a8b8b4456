"""What a request is decided on, read once per command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import find_site
from lumiimg.errors import BadInputError
from lumiimg.fetch.mirrors import Mirrors, parse_mirrors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer, Release
    from lumiimg.catalog.sites import Site
    from lumiimg.fetch.http import Http
    from lumiimg.resolve.lock_file import LockFile
    from lumiimg.resolve.request import Request


def _not_pulled(base: str) -> Path:
    raise BadInputError("cannot be read without asking its registry", where=base)


@dataclass(frozen=True, slots=True)
class FoundReleases:
    """What is known of a version that no row has."""

    releases: tuple[Release, ...] = ()
    nearest: str | None = None
    """What the index has instead, where it does not have the version; the releases are then of the nearest."""


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What a request is decided on."""

    catalogue: Catalogue
    mirrors: Mirrors = field(default_factory=lambda: Mirrors({}))
    path: str | None = ""
    """The PATH in which bootstrap programs are looked for."""
    site: Site | None = None
    preferred: Mapping[str, str] = field(default_factory=dict)
    """Releases of layers to keep, by name, where the request does not name another."""
    images: Mapping[str, Layer] = field(default_factory=dict)
    """Bases that are images, by their names, as far as they were read."""
    web: Http | None = None
    """By which releases are looked for that no row has; None: no server is asked."""
    on_line: Callable[[str], None] = lambda _: None
    """Is given a line about what is fetched."""
    found: Mapping[str, FoundReleases] = field(default_factory=dict)
    """What is known of releases without a row, by layer."""
    pull: Callable[[str], Path] = _not_pulled
    """Brings a base out of a registry here, to be read."""

    @classmethod
    def of(cls, request: Request, catalogue: Catalogue, environment: Mapping[str, str]) -> Self:
        """Return what a request is decided on here, without asking a server. Raises BadInputError."""
        mirrors = parse_mirrors(read_settings(environment).mirrors, request.mirrors)
        site = find_site(request.site, environment) if request.site else None
        if site is not None and request.host is not None:
            from lumiimg.resolve.observed_node import site_on_node  # reads ELF data, which no other request needs

            site = site_on_node(site, request.host)
        return cls(catalogue, mirrors, environment.get("PATH"), site)


class Preferences(NamedTuple):
    """What a lock has already, and the next one is to keep where it still fits."""

    layers: Mapping[str, str]
    """Releases by layer."""
    wheels: Mapping[str, str]
    """Versions by Python distribution."""
    before: LockFile | None
    """Whose base and sources keep their digests; None where everything is taken again."""


NO_PREFERENCES = Preferences({}, {}, None)


def preferences_of(before: LockFile, upgraded: Collection[str]) -> Preferences:
    """Return what a lock has, but for what is to be upgraded.

    Raises BadInputError for a name that the lock does not have.
    """
    layers = {entry.name: entry.release for entry in before.layer if entry.release}
    wheels = {one.name: one.version for one in (before.python.packages if before.python else ())}
    for name in upgraded:
        if name not in {*layers, *wheels, "all"}:
            known = ", ".join(sorted({*layers, *wheels}))
            raise BadInputError(f"the lock has no {name!r}", where="--upgrade", hint=f"it has: {known or 'nothing'}")
    if "all" in upgraded:
        return NO_PREFERENCES
    layers, wheels = (
        {name: version for name, version in part.items() if name not in upgraded} for part in (layers, wheels)
    )
    return Preferences(layers, wheels, before)
