"""Search for a stack: which layers, in which order and release, by wishes, needs, and what base and site offer.

A depth-first search over releases, the preferred first; a need that nothing below meets adds a layer for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.catalog.needs import Need
from lumiimg.core.errors import BadInputError
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import (
    Chosen,
    OfferedComponent,
    Stack,
    WantedLayer,
    as_offered,
    given_in,
    offers_of,
    troubles_of,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.catalog.layers import KnownTrouble, Layer
    from lumiimg.resolve.context import PlanContext

_DEPTH_LIMIT = 40
_STEP_LIMIT = 5_000
"""Number of layers tried after which the search is given up."""
_SOURCES = 2
"""Most sources named in one refusal."""


class _Rejection(NamedTuple):
    """Why a release of a layer does not fit."""

    layer: str
    version: str | None
    result: RuleResult
    is_last: bool
    """Whether everything that the release needs was available."""


class StackSearch:
    """A search for a stack that fits."""

    def __init__(self, context: PlanContext, arguments: Mapping[str, str]) -> None:
        self._context = context
        self._arguments = arguments
        self._wished_for: dict[str, WantedLayer] = {}
        """Wishes by component that their layer provides."""
        self._may_bring: dict[str, WantedLayer] = {}
        """Wishes by component that their layer provides in some release."""
        self._steps = 0
        self._placed: set[str] = set()
        self._rejections: list[_Rejection] = []

    def solve(self, base: Stack, wishes: Sequence[WantedLayer]) -> Stack | None:
        """Return the preferred stack with all wishes; None if there is none (see `refusals`). Raises BadInputError."""
        # a layer that is wished for anyway is added earlier if another needs it
        for wish in reversed(wishes):
            layer = self._context.layer(wish.need.component)
            self._wished_for.update(dict.fromkeys((layer.name, *layer.provides, *layer.has), wish))
            rows = (row for row in layer.releases if wish.need.versions.contains(row.version, prereleases=True))
            self._may_bring.update({component: wish for row in rows for component in row.has})
        return next(self._all(base, tuple(wishes), ()), None)

    def refusals(self) -> list[RuleResult]:
        """Return the obstacles of layers that were never placed; if there are none, the layers conflict: all obstacles.

        For each layer, what all its releases need of a component is one result. Last obstacles of a release are first.
        """
        found = [each for each in self._rejections if each.layer not in self._placed] or self._rejections
        found = sorted(found, key=lambda each: not each.is_last)
        groups: dict[tuple[str, str], list[_Rejection]] = {}
        for each in found:
            groups.setdefault((each.layer, each.result.have.partition(" ")[0]), []).append(each)
        return [_joined(layer, group) for (layer, _), group in groups.items()]

    def _all(self, stack: Stack, wishes: tuple[WantedLayer, ...], path: tuple[str, ...]) -> Iterator[Stack]:
        if not wishes:
            yield stack
            return
        for grown in self._add(stack, wishes[0], path):
            yield from self._all(grown, wishes[1:], path)

    def _add(self, stack: Stack, wish: WantedLayer, path: tuple[str, ...]) -> Iterator[Stack]:
        if len(path) > _DEPTH_LIMIT:
            raise BadInputError(
                f"layers require each other more than {_DEPTH_LIMIT} levels deep: {' -> '.join(path[:3])} …"
            )
        name = wish.need.component
        there = next((chosen for chosen in stack.layers if chosen.name == name), None)
        if there is not None:
            if there.version is None or self._holds(wish.need, OfferedComponent(there.version, name), there):
                yield stack
            return
        layer = self._context.layer(wish.need.component)
        if (offer := stack.offers.get(layer.name)) is not None:
            have = " ".join(filter(None, (layer.name, offer.version)))
            self._reject(layer, f"no {layer.name} below", have, f"{offer.by} already has {have}: leave it out")
            return
        within = (*path, layer.name)
        for chosen in self._candidates(layer, wish):
            self._steps += 1
            if self._steps > _STEP_LIMIT:
                return
            for below in self._with_needs(stack, chosen, within):
                # a version that is not known, or cannot be read, does not refuse them
                offers = ((need, below.offers[need.component]) for need in layer.needs_of(chosen.release))
                unknown = tuple((need, offer) for need, offer in offers if need.holds_for(offer.version) is None)
                yield from self._on_top(below, replace(chosen, unknown=unknown), within)

    def _candidates(self, layer: Layer, wish: WantedLayer) -> Iterator[Chosen]:
        """Yield releases in order of preference; for a layer without rows, first the one that its arguments name."""
        version = layer.arguments.get("VERSION")
        is_listed = any(not release.is_unlisted for release in layer.releases)
        versions = wish.need.versions
        is_default = not versions or (version and versions.contains(version.default, prereleases=True))
        rows = [one for one in layer.releases if versions.contains(one.version, prereleases=True)]
        rows.sort(key=lambda one: one.version != self._context.preferred.get(layer.name))
        fitting = [None, *rows] if is_default and not is_listed else rows
        if fitting:
            for release in fitting:
                yield Chosen(layer, release, values_of(layer, release, self._arguments), wish.because)
            return
        found = self._context.found.get(layer.name)
        if found and found.instead:
            have = found.instead
            why = f"the package index has no such release of {layer.name}"
        elif layer.releases:
            have = f"{layer.name} {', '.join(dict.fromkeys(one.version for one in layer.releases))}"
            why = f"no such release of {layer.name} is known"
        else:
            have = f"{layer.name} {version.default}" if version else layer.name
            why = f"{layer.name} has only one version: leave the version out"
        self._reject(layer, f"{layer.name}{versions}", have, why, rule=_rule_of(layer))

    def _with_needs(self, stack: Stack, chosen: Chosen, path: tuple[str, ...]) -> Iterator[Stack]:
        """Yield stacks with all needs of a release and all that it is made for; a derived one only prefers these."""
        release, needs = chosen.release, chosen.layer.needs_of(chosen.release)
        expects = release.expects if release else ()
        if release is None or release.derived is None:
            yield from self._satisfied(stack, chosen, (*needs, *expects), path)
            return
        offers = {need: stack.offers.get(need.component) for need in expects}
        open_yet = tuple(n for n, offer in offers.items() if offer is None or n.holds_for(offer.version) is not False)
        before = len(self._rejections)
        yield from self._satisfied(stack, chosen, (*needs, *open_yet), path)
        del self._rejections[before:]
        yield from self._satisfied(stack, chosen, needs, path)

    def _satisfied(
        self, stack: Stack, chosen: Chosen, needs: tuple[Need, ...], path: tuple[str, ...]
    ) -> Iterator[Stack]:
        """Yield stacks that meet all needs, with a layer added for each missing component."""
        if not needs:
            yield stack
            return
        need, rest = needs[0], needs[1:]
        offer = stack.offers.get(need.component)
        wishes = self._bringing(need, chosen) if offer is None else []
        wishes = [wish for wish in wishes if wish.need.component not in path]
        for wish in wishes:
            for grown in self._add(stack, wish, path):
                if self._holds(need, grown.offers.get(need.component), chosen):
                    yield from self._satisfied(grown, chosen, rest, path)
        if not wishes and self._holds(need, offer, chosen):
            yield from self._satisfied(stack, chosen, rest, path)

    def _bringing(self, need: Need, chosen: Chosen) -> list[WantedLayer]:
        """Return the layers that may be added for a missing component, the preferred first."""
        if (wish := self._wished_for.get(need.component)) is not None:
            return [wish]
        found = [self._may_bring[need.component]] if need.component in self._may_bring else []
        provider = self._context.provider_of(need.component)
        return [*found, *([WantedLayer(Need.decoded(provider), f"{chosen.name} requires {need}")] if provider else [])]

    def _on_top(self, stack: Stack, chosen: Chosen, path: tuple[str, ...]) -> Iterator[Stack]:
        layer = chosen.layer
        for other in stack.layers:
            if other.name in layer.conflicts or layer.name in other.layer.conflicts:
                why = f"{layer.name} and {other.name} cannot be in one image"
                self._reject(layer, f"no {other.name}", other.name, why, version=chosen.version, is_last=True)
                return
        if (torch := _replaced_torch(stack, chosen)) is not None and chosen.release is not None:
            why = f"{chosen.title} brings its own torch, {chosen.release.own_torch}, and a layer cannot replace another"
            have = f"torch {torch.version or '(version not known)'} of {torch.by}"
            source = chosen.release.source
            self._reject(layer, "no torch below", have, why, chosen.version, source, rule="torch", is_last=True)
            return
        new = offers_of(chosen)
        # a range of versions belongs to one plugin
        below = {
            name: offer for name, offer in stack.offers.items() if name != "net-api-oldest" or "net-api" not in new
        }
        grown = replace(stack, offers=below | new, layers=(*stack.layers, chosen))
        trouble = next(troubles_of([one.layer for one in grown.layers], grown, refused=True), None)
        if trouble is None:
            self._placed.add(layer.name)
            yield grown
        elif (wish := self._wish_to_settle(trouble, grown, path)) is not None:
            for earlier in self._add(stack, wish, path):
                yield from self._on_top(earlier, chosen, path)
        else:
            need, have = f"not {', '.join(map(str, trouble.given))}", given_in(grown, trouble)
            because, source = trouble.because, trouble.source
            self._reject(layer, need, have, because, chosen.version, source, trouble.rule, is_last=True)

    def _wish_to_settle(self, trouble: KnownTrouble, stack: Stack, path: tuple[str, ...]) -> WantedLayer | None:
        """Return a wish that ends a known trouble and is not in the stack yet: its layer is added earlier then."""
        wishes = [self._wished_for[need.component] for need in trouble.unless if need.component in self._wished_for]
        there = {*path, *(chosen.name for chosen in stack.layers)}
        return next((wish for wish in wishes if wish.need.component not in there), None)

    def _holds(self, need: Need, offer: OfferedComponent | None, chosen: Chosen) -> bool:
        if offer is not None and need.holds_for(offer.version) is not False:
            return True
        layer, release = chosen.layer, chosen.release
        have = as_offered(need, offer)
        verb = "is made for" if release and need in release.expects else "requires"
        source = release.source if release else layer.source
        self._reject(
            layer, str(need), have, f"{chosen.title} {verb} {need}", chosen.version, source, rule=_rule_of(layer)
        )
        return False

    def _reject(
        self,
        layer: Layer,
        need: str,
        have: str,
        because: str,
        version: str | None = None,
        source: str | None = None,
        rule: str = "layers",
        *,
        is_last: bool = False,
    ) -> None:
        result = RuleResult(rule, RuleOutcome.REFUSED, need, have, because, source or layer.source)
        self._rejections.append(_Rejection(layer.name, version, result, is_last))


def _joined(layer: str, group: Sequence[_Rejection]) -> RuleResult:
    """Return the obstacles of several releases of a layer as one result."""
    results = [each.result for each in group]
    needs = " or ".join(dict.fromkeys(result.need for result in results))
    releases = dict.fromkeys(each.version for each in group if each.version)
    because = results[0].because
    if len(releases) > 1 and any(result.because != because for result in results):
        because = f"no release of {layer} fits ({', '.join(releases)})"
    elif needs != results[0].need:
        because = f"{' '.join((layer, *releases))} requires {needs}"
    have = " or ".join(dict.fromkeys(result.have for result in results))
    source = "; ".join(list(dict.fromkeys(result.source for result in results))[:_SOURCES])
    return replace(results[0], need=needs, have=have, because=because, source=source)


def _replaced_torch(stack: Stack, chosen: Chosen) -> OfferedComponent | None:
    """Return the torch that a layer would replace by its own; None if it has none, or the layer is a torch."""
    torch, own = stack.offers.get("torch"), chosen.release.own_torch if chosen.release else None
    if torch is None or own is None or torch.version == own:
        return None
    is_of_base = all(torch.by != other.name for other in stack.layers)
    return None if is_of_base and "torch" in chosen.layer.provides else torch


def _rule_of(layer: Layer) -> str:
    """Return the rule that a need of the layer belongs to: torch is matched by versions, the others by name."""
    return "torch" if "torch" in layer.provides else "layers"
