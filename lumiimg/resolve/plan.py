"""A request against the rules: the stack that answers it, or what stands against it and the nearest that works."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.mpi import mpi_type
from lumiimg.resolve.nearest import Neighbourhood
from lumiimg.resolve.request import name_of, wanted
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.shelf import Shelf
from lumiimg.resolve.stack import HEADERS, PLUGIN, PLUGIN_COMPONENT, OfferedComponent, Stack, StackSearch, WantedLayer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.sites import Site, SiteVariable
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.request import Request

_OF_FABRIC = {Fabric.HOST: "fabric-host", Fabric.BUNDLED: "fabric-bundled"}
_FABRIC_TOLD = {
    Fabric.HOST: "the machine's own libfabric and libcxi, bound when the image runs",
    Fabric.BUNDLED: "libfabric and libcxi inside the image",
}
NEAREST_REQUESTS = 1000
"""Judged at most on the way to the nearest that works: a thousand take about two seconds."""
_PREFERRED = {"net-plugin": PLUGIN, "libfabric": "fabric-bundled"}
"""Component -> the layer to bring in, where several could."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    asked: Request
    base: Layer
    stack: Stack | None
    """None where it is refused."""
    fabric: Fabric
    rules: tuple[RuleResult, ...]
    nearest: Request | None = None
    keeping: Request | None = None
    """Of a refusal whose nearest gives up a version that was asked for: a request that keeps it, on another base."""
    surer: Request | None = None
    """Of a plan with doubts: the same with libfabric and libcxi in the image, where that leaves none."""
    changes: tuple[tuple[str, str], ...] = field(default=())
    """What would come out if something were otherwise: what, and the answer in short."""
    environment: tuple[SiteVariable, ...] = ()
    """Variables of the site that jobs with such an image want."""
    site: Site | None = None
    """None where no machine is named."""
    lock: Lock | None = None
    """None where it is refused, or its base cannot be had here."""
    missing: MissingHereError | None = None
    """Why the base cannot be had on this machine."""

    @property
    def refused(self) -> bool:
        return self.stack is None or any(rule.outcome is RuleOutcome.REFUSED for rule in self.rules)

    @property
    def is_doubtful(self) -> bool:
        """Whether something is known against it, or not known."""
        return any(rule.outcome in {RuleOutcome.WARNING, RuleOutcome.UNKNOWN} for rule in self.rules)

    @property
    def plugin(self) -> str | None:
        """The layer, or the base, that brings the net plugin."""
        offer = self.stack.offers.get(PLUGIN_COMPONENT) if self.stack else None
        return offer.by if offer else None

    @property
    def torch(self) -> str | None:
        return self.stack.version("torch") if self.stack else None


class Settle(Protocol):
    """Makes the lock of a stack (locking.py)."""

    def __call__(
        self, request: Request, base: Layer, stack: Stack, fabric: Fabric, rules: tuple[RuleResult, ...], /
    ) -> Lock: ...


class Planner:
    """Judges requests against one catalogue and one site."""

    def __init__(
        self,
        catalogue: Catalogue,
        site: Site | None,
        held: Mapping[str, str] | None = None,
        images: Mapping[str, Layer] | None = None,
        *,
        has_headers: bool = False,
        settle: Settle | None = None,
    ) -> None:
        """Take `held`, releases of layers that come first where they fit, and `images` as bases, both by name.

        `has_headers`: whether layers can be compiled against the host's own libfabric. Without `settle` a plan has no
        lock, and arguments and sources are not checked.
        """
        self._catalogue = catalogue
        self._site = site
        self._held = held or {}
        self._has_headers = has_headers
        self._settle = settle
        self._read = Shelf(catalogue, images or {}, site.arch if site else None)
        self._near = Neighbourhood(catalogue, self._read)

    def plan(self, asked: Request) -> Plan:
        """Judge a request; a refusal names the nearest one that works.

        Raises BadInputError for names that are not there or that cannot be read, and as `settle` does.
        """
        plan = self._settled(self._judge(asked))
        if not plan.refused:
            return plan
        nearest = self._first(self._near.others(asked), asked)
        keeping = None
        if nearest is not None and asked.pinned and not set(asked.add) <= set(nearest.add):
            bases = self._near.by_distance(asked.base)
            keeping = self._first((asked.plainly(base) for base in bases), asked)
        return replace(plan, nearest=nearest, keeping=keeping)

    def _settled(self, plan: Plan) -> Plan:
        """Return a plan with its lock, if it is not refused."""
        if self._settle is None or plan.stack is None or plan.refused:
            return plan
        try:
            return replace(plan, lock=self._settle(plan.asked, plan.base, plan.stack, plan.fabric, plan.rules))
        except MissingHereError as error:
            return replace(plan, missing=error)

    def _first(self, requests: Iterable[Request], asked: Request) -> Request | None:
        """Return the first request that works; on another base only if that can be had here."""
        for other in islice(requests, NEAREST_REQUESTS):
            try:
                plan = self._settled(self._judge(other))
            except BadInputError:  # a layer of the user's that nothing can be built with
                continue
            if not plan.refused and (plan.missing is None or other.base == asked.base):
                return other
        return None

    def with_changes(self, plan: Plan) -> Plan:
        """Return the plan with what would come out if the driver, the base, or the fabric were another."""
        return replace(plan, changes=tuple(self._changes(plan.asked, plan)), surer=self._surer(plan))

    def _surer(self, plan: Plan) -> Request | None:
        chosen = plan.asked.fabric or _named_fabric(plan.asked)
        if plan.refused or not plan.is_doubtful or plan.fabric is not Fabric.HOST or chosen is not None:
            return None
        try:
            other = self._settled(self._judge(replace(plan.asked, fabric=Fabric.BUNDLED)))
        except BadInputError:  # an argument or a source is for the host's fabric
            return None
        return None if other.refused or other.is_doubtful else other.asked

    def _judge(self, asked: Request) -> Plan:
        base = self._read.base(asked.base)
        start = Stack(offers=self._offers(base))
        fabric, results = Fabric.NONE, list[RuleResult]()
        _check_twice(asked)
        self._check_fabric(asked)
        if self._site is not None:
            fabric, gate = rules.glibc_gate(start, self._site, asked=asked.fabric or _named_fabric(asked))
            results += [gate] if gate else []
        if fabric is Fabric.HOST and self._site is not None and self._site.fabric is not None:
            host = OfferedComponent(self._site.fabric.libfabric, self._site.name)
            of_host = {"libfabric": host, "libcxi": OfferedComponent(None, self._site.name)}
            of_host |= {HEADERS: host} if self._has_headers or HEADERS in asked.sources else {}
            start = replace(start, offers={**start.offers, **of_host})
        search = StackSearch(self._read.layer, self._provider_of, self._held, asked.arguments)
        stack = search.solve(start, self._wishes(asked, base, fabric))
        if stack is None:
            results += rules.driver_window(start, self._site) if self._site is not None else ()
            results += rules.base_troubles(base, start)
            return Plan(asked, base, None, fabric, (*results, *rules.refusals(search.unmet)), site=self._site)
        if self._site is not None:
            results += rules.driver_window(stack, self._site)
            results += rules.compiled_for(stack, self._site, asked.arguments)
        results += rules.base_troubles(base, stack)
        results += rules.torch_kind(stack)
        abi = rules.plugin_abi(stack)
        results += [abi] if abi else []
        if self._site is not None and (versions := rules.fabric_versions(stack, self._site, fabric)) is not None:
            results.append(versions)
        variables: tuple[SiteVariable, ...] = ()
        if self._site is not None:
            found = mpi_type(stack, self._site)
            variables = (*rules.environment(stack, self._site), *([found] if found else []))
        return Plan(
            asked, base, stack, fabric, (*results, *rules.layers_told(stack)), environment=variables, site=self._site
        )

    def _check_fabric(self, asked: Request) -> None:
        """Raise BadInputError for a fabric that says nothing, or that one of the layers denies."""
        named = _named_fabric(asked)
        if asked.fabric is None or asked.fabric is named:
            return
        if named is not None:
            raise BadInputError(f"--fabric {asked.fabric.value} and --add {_OF_FABRIC[named]}", hint="name one of them")
        if self._site is None and asked.fabric is not Fabric.NONE:
            raise BadInputError(
                f"--fabric {asked.fabric.value} of which machine?",
                hint="add --site NAME (`lumiimg list`), or a site file",
            )

    def _offers(self, base: Layer) -> dict[str, OfferedComponent]:
        offers = {name: OfferedComponent(None, base.name) for name in base.provides}
        offers |= {name: OfferedComponent(version, base.name) for name, version in base.has.items()}
        if self._site is not None and self._site.arch is not None:
            offers[self._site.arch] = OfferedComponent(None, self._site.name)
        return offers

    def _wishes(self, asked: Request, base: Layer, fabric: Fabric) -> list[WantedLayer]:
        wishes = [WantedLayer(*wanted(text)) for text in asked.add]
        named = {wish.layer for wish in wishes}
        for name in named:
            self._read.layer(name)
        added = []
        if fabric is not Fabric.NONE and not {"libcxi", "libfabric"} <= {*base.provides, *base.has}:
            added.append(WantedLayer(_OF_FABRIC[fabric], because=_FABRIC_TOLD[fabric]))
        has_plugin = PLUGIN_COMPONENT in {*base.provides, *base.has} or any(
            PLUGIN_COMPONENT in self._read.layer(name).provides for name in named
        )
        if fabric is not Fabric.NONE and not has_plugin:
            added.append(WantedLayer(PLUGIN, because="RCCL reaches libfabric through a net plugin"))
        return [wish for wish in added if wish.layer not in named] + wishes

    def working(self, request: Request) -> tuple[list[Plan], list[Plan]]:
        """Return the plans of a request on every base that takes it, those without doubts first; and the refused ones.

        Raises BadInputError as `plan` does, if it is not the fault of single bases.
        """
        plans, faults = list[Plan](), list[BadInputError]()
        for name in self._catalogue.base_names():
            try:
                plans.append(self._settled(self._judge(replace(request, base=name))))
            except BadInputError as error:
                faults.append(error)
        found = [plan for plan in plans if not plan.refused]
        if faults and not found:
            raise faults[0]
        return sorted(found, key=lambda plan: plan.is_doubtful), [plan for plan in plans if plan.refused]

    def _provider_of(self, component: str) -> str | None:
        """Return the layer that brings a component: the preferred one, or the only one."""
        if component in _PREFERRED:
            return _PREFERRED[component]
        found = [name for name, layer in self._read.layers() if component in {name, *layer.provides, *layer.has}]
        return found[0] if len(found) == 1 else None

    def _changes(self, asked: Request, plan: Plan) -> Iterator[tuple[str, str]]:
        """Yield what would come out if the driver, or the base, were another."""
        site = self._site
        if site is not None and any(r.id == "driver-window" and r.outcome is not RuleOutcome.OK for r in plan.rules):
            other = Planner(
                self._catalogue,
                replace(site, driver=None),
                self._held,
                {asked.base: plan.base},
                has_headers=self._has_headers,
            )
            yield f"with another driver on {site.name}", outcome_of(other._judge(asked))
        yield from self._on_other_bases(asked)

    def _on_other_bases(self, asked: Request) -> Iterator[tuple[str, str]]:
        """Yield what would come out on the next older and the next newer base."""
        near = self._near.of_kind(asked.base)
        here = self._near.rocm(asked.base)
        older = [name for name in near if self._near.rocm(name) < here]
        newer = [name for name in near if self._near.rocm(name) > here]
        for names in filter(None, (older, newer)):
            plans = [self._judge(replace(asked, base=name)) for name in names]
            plan = next((plan for plan in plans if not plan.refused), plans[0])
            yield f"on {plan.base.name}", outcome_of(plan)


def _check_twice(asked: Request) -> None:
    names = [name_of(text) for text in asked.add]
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"layer {name!r} is asked for twice")


def _named_fabric(asked: Request) -> Fabric | None:
    """Return the fabric whose layer is among those that are asked for."""
    named = {name_of(text) for text in asked.add}
    return next((fabric for fabric, layer in _OF_FABRIC.items() if layer in named), None)


def outcome_of(plan: Plan) -> str:
    """Return a plan in a line: what it chooses, or what stands against it."""
    if plan.refused or plan.stack is None:
        against = next(rule for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED)
        return f"refused ({against.id}): {against.sides}"
    chosen = [f"{c.layer.name} {c.version}" for c in plan.stack.layers if c.version and c.layer.name != "pytorch"]
    parts = [f"fabric {plan.fabric.value}", *([f"torch {plan.torch}"] if plan.torch else []), *chosen]
    return ", ".join(parts) + (" (with doubts)" if plan.is_doubtful else "")
