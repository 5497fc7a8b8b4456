"""One way from a request to its answer, for every command that takes one: refused alike, or a lock."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.catalog.needs import exact_version
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.toml_table import CatalogError
from lumiimg.errors import BadInputError, RefusedError
from lumiimg.resolve.image_base import read_bases
from lumiimg.resolve.network.mirrors import parse_mirrors
from lumiimg.resolve.observed_node import site_seen
from lumiimg.resolve.plan import Ground, Plan, PossibleBases
from lumiimg.resolve.planner import Planner
from lumiimg.resolve.request import Request, name_of, options_of, refuse_secrets, wanted, with_releases
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.resolve.shelf import Shelf
from lumiimg.resolve.stack import OWN_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from packaging.specifiers import SpecifierSet

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Release
    from lumiimg.resolve.lock import Lock


def ground_of(request: Request, catalogue: Catalogue, environment: Mapping[str, str]) -> Ground:
    """Return what a request is judged on here, without asking a server. Raises BadInputError."""
    mirrors = parse_mirrors(read_settings(environment).mirrors, request.mirrors)
    site = site_seen(request.site, request.host, environment)
    return Ground(catalogue, mirrors, environment.get("PATH"), site)


def decide(request: Request, ground: Ground) -> Plan:
    """Return the answer to a request. Raises BadInputError for a wrong name, argument or source."""
    refuse_secrets(request)
    ground = with_unlisted(request, ground)
    images = ground.images or read_bases(request.base, ground.catalogue, ground.pull, ground.site)
    request, ground = with_own(request, replace(ground, images=images))
    plan = Planner(ground).plan(with_releases(request, ground.catalogue))
    if plan.refused and ground.indexes is not None:
        # of a range, the rows are the newest alone: an older release in it may fit where they do not
        more = with_unlisted(request, ground, ranges=True)
        if more.looked != ground.looked:
            found = Planner(more).plan(with_releases(request, more.catalogue))
            if found.stack is not None and not found.refused:
                return found
    return plan


def possible_bases(request: Request, ground: Ground) -> PossibleBases:
    """Return on which bases of the catalogue the layers of a request can be put. Raises as `decide` does."""
    plans, others = _working(request, ground)
    free = [] if plans else _working(replace(request.plainly(), add=request.unpinned), ground)[0]
    return PossibleBases(request, ground.site, tuple(plans), tuple(others), tuple(free))


def _working(request: Request, ground: Ground) -> tuple[list[Plan], list[Plan]]:
    """Return the plans of a request on every base that takes it, and on those that do not."""
    refuse_secrets(request)
    request, ground = with_own(request, with_unlisted(request, ground))
    return Planner(ground).working(with_releases(request, ground.catalogue))


def with_own(request: Request, ground: Ground) -> tuple[Request, Ground]:
    """Return both with the layer of the user's own packages, where there are any.

    Raises BadInputError for that layer without packages.
    """
    if any(name_of(text) == OWN_PACKAGES for text in request.add):
        raise BadInputError(f"--add {OWN_PACKAGES}", hint="name the packages: -r FILE, or --add pip:NAME==VERSION")
    if request.own is None:
        return request, ground
    from lumiimg.resolve.own_packages import brought_by_layers

    layer = replace(ground.catalogue.layer(OWN_PACKAGES), packages=request.own.texts)
    brought = brought_by_layers(layer for _, layer in Shelf(ground.catalogue, {}, None).layers())
    own = replace(request.own, brought=brought)
    return replace(request, own=own), replace(ground, images={**ground.images, OWN_PACKAGES: layer})


def with_unlisted(request: Request, ground: Ground, *, ranges: bool = False) -> Ground:
    """Return the ground with what is known of versions that no row has: those asked for, and those that these expect;
    with `ranges`, those of a range of which there are rows, too.

    Raises BadInputError for what is not a layer.
    """
    asked = [wanted(text) for text in with_releases(request, ground.catalogue).add]
    looked = dict(ground.looked)
    known = ground.catalogue.layer_names()
    while asked:
        name, versions = asked.pop()
        layer = ground.catalogue.entry(name) if name in known and versions else None
        if layer is None or layer.unlisted is None or name in looked:
            continue
        rows = {row.version for row in layer.releases if versions.contains(row.version, prereleases=True)}
        if rows and (not ranges or exact_version(versions) is not None):
            continue
        from lumiimg.resolve.releases.indexes import Looked
        from lumiimg.resolve.releases.lookup import look  # 60 ms that only a version without a row should cost

        found = look(layer, versions, ground.indexes)
        if rows:
            found = Looked(tuple(one for one in found.releases if one.version not in rows))
        looked[name] = found
        asked += _expected(found.releases, ground)
    return replace(ground, looked=looked)


def _expected(releases: Iterable[Release], ground: Ground) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield the layers that bring what releases expect, with the versions."""
    wishes = [need for release in releases for need in release.expects]
    for name in ground.catalogue.layer_names() if wishes and ground.indexes is not None else ():
        with suppress(CatalogError):  # a broken folder of the user's must not hide the others
            entry = ground.catalogue.entry(name)
            brings = {component for release in entry.releases for component in release.has}
            yield from ((name, need.versions) for need in wishes if entry.unlisted and need.component in brings)


def locked(plan: Plan, command: str = "build") -> Lock:
    """Return the lock of a plan; a refusal proposes another request of `command`.

    Raises RefusedError, MissingHereError where it has none.
    """
    if plan.refused:
        raise _refusal(plan, command)
    if plan.missing is not None:
        raise plan.missing
    if plan.lock is None:
        raise ValueError(plan)
    return plan.lock


def _refusal(plan: Plan, command: str) -> RefusedError:
    """Return what stands against a plan as an error: the rule, both numbers, and the nearest request that works."""
    against = next(rule for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED)
    return RefusedError(
        f"{against.because} (rule {against.id}: {against.sides})",
        hint=plan.nearest_by(command) or f"see the reasons: lumiimg explain {options_of(plan.asked)}",
    )


class Held(NamedTuple):
    """What a lock holds already, and the next one is to keep where it still fits."""

    layers: Mapping[str, str]
    """Releases by layer."""
    wheels: Mapping[str, str]
    """Versions by Python distribution."""
    lock: Lock | None
    """Whose base and sources keep their digests; None where everything is taken again."""


def held_by(lock: Lock, upgraded: Collection[str]) -> Held:
    """Return what a lock holds, but for what is to be upgraded.

    Raises BadInputError for a name that the lock does not have.
    """
    layers = {layer.name: layer.release.version for layer in lock.layers if layer.release}
    wheels = {wheel.name: wheel.version for layer in lock.stack for wheel in layer.wheels}
    for name in upgraded:
        if name not in {*layers, *wheels, "all"}:
            known = ", ".join(sorted({*layers, *wheels}))
            raise BadInputError(f"the lock has no {name!r}", where="--upgrade", hint=f"it has: {known or 'nothing'}")
    if "all" in upgraded:
        return Held({}, {}, None)
    kept = [{name: version for name, version in part.items() if name not in upgraded} for part in (layers, wheels)]
    return Held(kept[0], kept[1], lock)
