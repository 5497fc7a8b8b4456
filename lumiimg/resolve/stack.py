"""Which layers, in which order and which release: wishes and their needs against what the base and the site offer.

A depth-first search over releases, the preferred first; a need that nothing below offers brings in the layer known for
its component. Bases, layers and releases are few, so the search is small; it is bounded all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from lumiimg.catalog.layers import KnownTrouble, Layer, Release, Status
from lumiimg.catalog.needs import Need
from lumiimg.catalog.templates import expand, placeholders
from lumiimg.errors import BadInputError
from lumiimg.resolve.arguments import UNLISTED, sources_named_otherwise, values_of

PLUGIN = "aws-ofi-nccl"
"""Put in where a site's fabric is used and nobody asked for another: RCCL of every release takes it."""
PLUGIN_COMPONENT = "net-plugin"
HEADERS = "host-libfabric"
"""The host's own libfabric with its headers: an archive that a user may give for compilers, and its component."""
OWN_PACKAGES = "own-packages"
"""The layer that packages of the user's own make; `--add` names these, never it."""
PACKAGE = "pip:"
"""What begins a word of `--add` that is a package of the index, not a layer."""
DEPTH_LIMIT = 40
STEP_LIMIT = 5_000
"""Layers tried; beyond it the search is given up."""


class OfferedComponent(NamedTuple):
    """A component that the stack has."""

    version: str | None
    by: str
    """Base, layer or site."""


@dataclass(frozen=True, slots=True)
class WantedLayer:
    """A layer that somebody wants."""

    layer: str
    versions: SpecifierSet = field(default_factory=SpecifierSet)
    because: str = "you asked for it"


@dataclass(frozen=True, slots=True)
class ReleasedLayer:
    """A base or a layer of an image, in one release where it has some."""

    layer: Layer
    release: Release | None

    @property
    def others(self) -> tuple[str, ...]:
        """Arguments by which the user names other sources than those that the layer's facts are of."""
        return ()

    @property
    def name(self) -> str:
        """In the catalogue."""
        return self.layer.name

    @property
    def version(self) -> str | None:
        """Of its release; null for a layer without releases."""
        return self.release.version if self.release else None

    @property
    def title(self) -> str:
        """Its name, with its version where it has one."""
        return f"{self.name} {self.version}" if self.version else self.name

    @property
    def status(self) -> Status:
        """How far it was tried. Of a release that no row has: `read` from a package index, `derived` from the nearest
        row, or `unlisted`, with no facts about it.
        """
        if self.others:  # of them nothing is known
            return "documented"
        return self.release.status if self.release else self.layer.status


@dataclass(frozen=True, slots=True)
class Chosen(ReleasedLayer):
    """A layer of the stack."""

    because: str
    unjudged: tuple[tuple[Need, OfferedComponent], ...] = ()
    """Needs of a version, each with what was there for it, whose version is not known."""
    others: tuple[str, ...] = ()
    """Arguments by which the user names other sources than those that the layer's facts are of."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """Why a release of a layer does not fit."""

    layer: str
    version: str | None
    need: str
    have: str
    because: str
    source: str
    rule: str


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers on a base, bottom first, and what they offer together."""

    offers: Mapping[str, OfferedComponent]
    layers: tuple[Chosen, ...] = ()

    def version(self, component: str) -> str | None:
        """Return the version of a component, as far as it is there and known."""
        offer = self.offers.get(component)
        return offer.version if offer else None


class StackSearch:
    """One search."""

    def __init__(
        self,
        layer: Callable[[str], Layer],
        provider_of: Callable[[str], str | None],
        held: Mapping[str, str],
        arguments: Mapping[tuple[str, str], str],
        absent: Mapping[str, str],
    ) -> None:
        self._layer = layer
        self._absent = absent
        self._arguments = arguments
        self._held = held
        self._provider_of = provider_of
        self._wished_for: dict[str, WantedLayer] = {}
        """By each component that a wished layer brings."""
        self._steps = 0
        self._placed: set[str] = set()
        self._unmet: list[Unmet] = []

    @property
    def unmet(self) -> list[Unmet]:
        """What stood against layers that found no place at all; else, as they do not go together, all that did."""
        return [entry for entry in self._unmet if entry.layer not in self._placed] or self._unmet

    def solve(self, base: Stack, wishes: Sequence[WantedLayer]) -> Stack | None:
        """Return the preferred stack with all wishes, or None.

        Raises BadInputError for layers that require each other in a circle.
        """
        # what is wished for anyway comes earlier where something else needs it
        for wish in reversed(wishes):
            layer = self._layer(wish.layer)
            self._wished_for.update(dict.fromkeys((layer.name, *layer.provides, *layer.has), wish))
        return next(self._all(base, tuple(wishes), ()), None)

    def _all(self, stack: Stack, wishes: tuple[WantedLayer, ...], path: tuple[str, ...]) -> Iterator[Stack]:
        if not wishes:
            yield stack
            return
        for grown in self._add(stack, wishes[0], path):
            yield from self._all(grown, wishes[1:], path)

    def _add(self, stack: Stack, wish: WantedLayer, path: tuple[str, ...]) -> Iterator[Stack]:
        if len(path) > DEPTH_LIMIT:
            raise BadInputError(f"layers require each other more than {DEPTH_LIMIT} deep: {' -> '.join(path[:3])} …")
        if wish.layer in path:
            raise BadInputError(f"layers require each other in a loop: {' -> '.join((*path, wish.layer))}")
        there = next((chosen for chosen in stack.layers if chosen.name == wish.layer), None)
        if there is not None:
            if there.version is None or wish.versions.contains(there.version, prereleases=True):
                yield stack
            else:
                need = Need(wish.layer, wish.versions)
                self._stand_against(there, need, OfferedComponent(there.version, wish.layer))
            return
        layer = self._layer(wish.layer)
        if (offer := stack.offers.get(layer.name)) is not None:
            have = " ".join(filter(None, (layer.name, offer.version)))
            self._against(layer, f"no {layer.name} below", have, f"{offer.by} has {have} already: leave it out")
            return
        for chosen in self._candidates(layer, wish):
            self._steps += 1
            if self._steps > STEP_LIMIT:
                return
            needs = layer.needs_of(chosen.release)
            within = (*path, layer.name)
            for below in self._expected(stack, chosen, needs, within):
                values = values_of(layer, chosen.release, self._arguments)
                others = sources_named_otherwise(layer, chosen.release, values)
                yield from self._on_top(below, replace(chosen, unjudged=_unjudged(below, needs), others=others), within)

    def _candidates(self, layer: Layer, wish: WantedLayer) -> Iterator[Chosen]:
        """Yield releases in their order."""
        if not layer.releases:
            yield from self._without_releases(layer, wish)
            return
        fitting = [r for r in layer.releases if wish.versions.contains(r.version, prereleases=True)]
        is_absent = layer.name in self._absent
        if not fitting and not is_absent and (unlisted := _unlisted(layer, wish)) is not None:
            fitting = [unlisted]
        if not fitting:
            have = f"{layer.name} {', '.join(dict.fromkeys(r.version for r in layer.releases))}"
            why = f"no such release of {layer.name} is known"
            if is_absent:
                have, why = self._absent[layer.name], f"the package index has no such release of {layer.name}"
            self._against(layer, f"{layer.name}{wish.versions}", have, why, rule=_rule_of(layer))
        fitting.sort(key=lambda one: one.version != self._held.get(layer.name))
        yield from (Chosen(layer, release, wish.because) for release in fitting)

    def _without_releases(self, layer: Layer, wish: WantedLayer) -> Iterator[Chosen]:
        """Yield a layer that has no releases; a version that is wished for is its argument VERSION, if it has one."""
        if not wish.versions:
            yield Chosen(layer, None, wish.because)
            return
        argument = layer.arguments.get("VERSION")
        if argument is not None and wish.versions.contains(argument.default, prereleases=True):
            yield Chosen(layer, None, wish.because)
        elif (unlisted := _unlisted(layer, wish)) is not None:
            yield Chosen(layer, unlisted, wish.because)
        else:
            have = f"{layer.name} {argument.default}" if argument else layer.name
            why = f"{layer.name} has only one version: leave the version out"
            self._against(layer, f"{layer.name}{wish.versions}", have, why, rule=_rule_of(layer))

    def _expected(
        self, stack: Stack, chosen: Chosen, needs: tuple[Need, ...], path: tuple[str, ...]
    ) -> Iterator[Stack]:
        """Yield stacks that have all needs, and what the release is made for.

        Of a release that nothing could be read of, that is taken from another: stacks that have it come first.
        """
        expects = chosen.release.expects if chosen.release else ()
        if chosen.release is not None and chosen.release.derived is None:
            yield from self._satisfied(stack, chosen, (*needs, *expects), path)
            return
        offers = {need: stack.offers.get(need.component) for need in expects}
        open_yet = tuple(n for n, offer in offers.items() if offer is None or n.holds_for(offer.version) is not False)
        if open_yet:
            before = len(self._unmet)
            yield from self._satisfied(stack, chosen, (*needs, *open_yet), path)
            del self._unmet[before:]
        yield from self._satisfied(stack, chosen, needs, path)

    def _satisfied(
        self, stack: Stack, chosen: Chosen, needs: tuple[Need, ...], path: tuple[str, ...]
    ) -> Iterator[Stack]:
        """Yield stacks that have all needs, those that lack a component with the layer for it on top."""
        if not needs:
            yield stack
            return
        need, rest = needs[0], needs[1:]
        offer = stack.offers.get(need.component)
        if offer is None and (wish := self._bringing(need, chosen)) is not None and wish.layer not in path:
            for grown in self._add(stack, wish, path):
                if self._holds(need, grown.offers.get(need.component), chosen):
                    yield from self._satisfied(grown, chosen, rest, path)
        elif self._holds(need, offer, chosen):
            yield from self._satisfied(stack, chosen, rest, path)

    def _bringing(self, need: Need, chosen: Chosen) -> WantedLayer | None:
        """Return the layer to add for a component that nothing below has."""
        if (wish := self._wished_for.get(need.component)) is not None:
            return wish
        provider = self._provider_of(need.component)
        return WantedLayer(provider, because=f"{chosen.name} requires {need}") if provider else None

    def _holds(self, need: Need, offer: OfferedComponent | None, chosen: Chosen) -> bool:
        if offer is not None and need.holds_for(offer.version) is not False:
            return True
        self._stand_against(chosen, need, offer)
        return False

    def _stand_against(self, chosen: Chosen, need: Need, offer: OfferedComponent | None) -> None:
        layer, release = chosen.layer, chosen.release
        have = f"{need.component} {offer.version or '(version not known)'}" if offer else f"no {need.component}"
        verb = "is made for" if release and need in release.expects else "requires"
        why = f"{layer.name}{f' {release.version}' if release else ''} {verb} {need}"
        source = release.source if release else layer.source
        self._against(layer, str(need), have, why, version=chosen.version, source=source, rule=_rule_of(layer))

    def _against(
        self,
        layer: Layer,
        need: str,
        have: str,
        because: str,
        *,
        version: str | None = None,
        source: str | None = None,
        rule: str = "layers",
    ) -> None:
        self._unmet.append(Unmet(layer.name, version, need, have, because, source or layer.source, rule))

    def _on_top(self, stack: Stack, chosen: Chosen, path: tuple[str, ...]) -> Iterator[Stack]:
        layer = chosen.layer
        for other in stack.layers:
            if other.layer.name in layer.conflicts or layer.name in other.layer.conflicts:
                why = f"{layer.name} and {other.layer.name} cannot be in one image"
                self._against(layer, f"no {other.layer.name}", other.layer.name, why, version=chosen.version)
                return
        new = offers_of(chosen, self._arguments)
        # the range of versions is that of one plugin
        kept = {name: offer for name, offer in stack.offers.items() if name != "net-api-oldest" or "net-api" not in new}
        grown = replace(stack, offers=kept | new, layers=(*stack.layers, chosen))
        for trouble in troubles_of([chosen.layer for chosen in grown.layers], grown, refused=True):
            if (wish := self._settling(trouble, grown, path)) is not None:
                for below in self._add(stack, wish, path):
                    yield from self._on_top(below, chosen, path)
                return
            need, have = f"not {', '.join(map(str, trouble.given))}", given_in(grown, trouble)
            why, source = trouble.because, trouble.source
            self._against(layer, need, have, why, version=chosen.version, source=source, rule=trouble.rule)
            return
        self._placed.add(layer.name)
        yield grown

    def _settling(self, trouble: KnownTrouble, stack: Stack, path: tuple[str, ...]) -> WantedLayer | None:
        """Return what is wished for anyway, is not there yet, and makes an end of a trouble: it comes earlier then."""
        wishes = [self._wished_for[need.component] for need in trouble.unless if need.component in self._wished_for]
        there = {*path, *(chosen.name for chosen in stack.layers)}
        return next((wish for wish in wishes if wish.layer not in there), None)


def _unjudged(stack: Stack, needs: Iterable[Need]) -> tuple[tuple[Need, OfferedComponent], ...]:
    """Return the needs that nothing stands against only because a version is not known, or cannot be read."""
    offers = ((need, stack.offers[need.component]) for need in needs)
    return tuple((need, offer) for need, offer in offers if need.holds_for(offer.version) is None)


def _unlisted(layer: Layer, wish: WantedLayer) -> Release | None:
    """Return the one release that is wished for, where it is not listed and its source can be had all the same."""
    exact = [spec.version for spec in wish.versions if spec.operator == "==" and "*" not in spec.version]
    argument = layer.arguments.get("VERSION")
    if len(exact) != 1 or argument is None or any(release.wheels for release in layer.releases):
        return None
    if argument.pattern is not None and not argument.pattern.fullmatch(exact[0]):
        return None
    return Release(exact[0], (), {}, {}, (), (), layer.source, status=UNLISTED)


def offers_of(chosen: Chosen, arguments: Mapping[tuple[str, str], str]) -> dict[str, OfferedComponent]:
    """Return what a layer adds: its own name, components, and their versions where it gives them.

    `arguments` are the user's, by (layer, argument). Of other sources than its own it gives no version but those that
    an argument gives.
    """
    layer, release = chosen.layer, chosen.release
    values = values_of(layer, release, arguments)
    versions = {**layer.has, **(release.has if release else {})}
    found = {name: OfferedComponent(None, layer.name) for name in layer.provides}
    found[layer.name] = OfferedComponent(chosen.version, layer.name)
    for name, version in versions.items():
        known = None if chosen.others and not placeholders(version) else expand(version, values)
        found[name] = OfferedComponent(known, layer.name)
    return found


def troubles_of(layers: Iterable[Layer], stack: Stack, *, refused: bool) -> Iterator[KnownTrouble]:
    """Yield the known troubles of layers (or of a base) that hold in the stack."""
    for layer in layers:
        for trouble in layer.troubles:
            held = all(is_met(need, stack) for need in trouble.given)
            if trouble.refused is refused and held and not any(is_met(need, stack) for need in trouble.unless):
                yield trouble


def is_met(need: Need, stack: Stack) -> bool:
    """Return whether the stack has the component, in a version that will do."""
    offer = stack.offers.get(need.component)
    return offer is not None and bool(need.holds_for(offer.version))


def given_in(stack: Stack, trouble: KnownTrouble) -> str:
    """Return what the stack has of that which a trouble is about."""
    return ", ".join(f"{n.component} {stack.version(n.component) or ''}".strip() for n in trouble.given)


def _rule_of(layer: Layer) -> str:
    """Return the rule that a need of the layer belongs to: torch is matched by versions, the others by name."""
    brings = {*layer.has, *(component for release in layer.releases for component in release.has)}
    return "torch" if "torch" in brings else "layers"
