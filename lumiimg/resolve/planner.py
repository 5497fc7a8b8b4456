"""One way from a request to its answer, for every command: the stack and its lock, or a refusal and what works."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.catalog.needs import NO_VERSION, version_of
from lumiimg.decode import DecodeError
from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.driver_rule import driver_window
from lumiimg.resolve.image_base import ForeignBase, read_bases
from lumiimg.resolve.make_lock import make_lock
from lumiimg.resolve.nearest import nearby_requests
from lumiimg.resolve.plan import Plan, PossibleBases
from lumiimg.resolve.request import Request, refuse_secrets, wanted, with_releases
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.search import StackSearch
from lumiimg.resolve.site_catalogue import SiteCatalogue, is_listed
from lumiimg.resolve.stack import (
    HEADERS,
    OWN_PACKAGES,
    PLUGIN,
    PLUGIN_COMPONENT,
    OfferedComponent,
    Stack,
    WantedLayer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from lumiimg.catalog.layers import KnownTrouble, Layer, Release
    from lumiimg.catalog.sites import Site
    from lumiimg.resolve.context import PlanContext

_OLD_PLUGIN = "aws-ofi-rccl"
_OF_FABRIC = {Fabric.HOST: "fabric-host", Fabric.BUNDLED: "fabric-bundled"}
_WHY_FABRIC = {
    Fabric.HOST: "the machine's own libfabric and libcxi, bound when the image runs",
    Fabric.BUNDLED: "libfabric and libcxi inside the image",
}
_NEAREST_REQUESTS = 1000
"""Decided at most on the way to the nearest that works: a thousand take about two seconds."""


def decide(request: Request, context: PlanContext) -> Plan:
    """Return the answer to a request. Raises BadInputError for a wrong name, argument or source."""
    request, context = _prepared(request, context)
    images = context.images or read_bases(request.base, context.catalogue, context.pull, context.site)
    request, context = _with_own_packages(request, replace(context, images=images))
    return Planner(context).plan(request)


def possible_bases(request: Request, context: PlanContext) -> PossibleBases:
    """Return on which bases of the catalogue the layers of a request can be put. Raises as `decide` does."""
    plans, refused = _working(request, context)
    free = [] if plans else _working(replace(request.plainly(), add=request.unpinned), context)[0]
    return PossibleBases(request, context.site, tuple(plans), tuple(refused), tuple(free))


def _working(request: Request, context: PlanContext) -> tuple[list[Plan], list[Plan]]:
    request, context = _with_own_packages(*_prepared(request, context))
    return Planner(context).working(request)


def _prepared(request: Request, context: PlanContext) -> tuple[Request, PlanContext]:
    """Return the request with the releases that its arguments name, and what is found of those that no row has."""
    refuse_secrets(request)
    request = with_releases(request, context.catalogue)
    return request, with_found_releases(request, context)


def _with_own_packages(request: Request, context: PlanContext) -> tuple[Request, PlanContext]:
    """Return both with the layer of the user's own packages, where there are any.

    Raises BadInputError for that layer without packages.
    """
    if OWN_PACKAGES in request.unpinned:
        raise BadInputError(f"--add {OWN_PACKAGES}", hint="name the packages: -r FILE, or --add pip:NAME==VERSION")
    if request.own is None:
        return request, context
    from lumiimg.resolve.own_packages import brought_by_layers

    layer = structs.replace(context.catalogue.layer(OWN_PACKAGES), packages=request.own.texts)
    brought = brought_by_layers(layer for _, layer in SiteCatalogue(context.catalogue).layers())
    own = replace(request.own, brought=brought)
    return replace(request, own=own), replace(context, images={**context.images, OWN_PACKAGES: layer})


def with_found_releases(request: Request, context: PlanContext) -> PlanContext:
    """Return the context with what is found of versions that no row has: those asked for, and those that these expect.

    Raises BadInputError for what is not a layer.
    """
    asked = [wanted(text) for text in request.add]
    found = dict(context.found)
    while asked:
        name, versions = asked.pop()
        layer = context.catalogue.entry(name) if versions and context.catalogue.knows(name) else None
        if layer is None or layer.is_base or name in found or is_listed(layer, versions):
            continue
        from lumiimg.resolve.unlisted import find_releases  # 60 ms that only a version without a row should cost

        found[name] = find_releases(layer, versions, context)
        asked += _expected(found[name].releases, context)
    return replace(context, found=found)


def _expected(releases: Iterable[Release], context: PlanContext) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield the layers that bring what releases expect, with the versions."""
    wishes = [need for release in releases for need in release.expects]
    for name in context.catalogue.layer_names() if wishes and context.web is not None else ():
        with suppress(DecodeError):  # a broken folder of the user's must not hide the others
            entry = context.catalogue.entry(name)
            brings = {component for release in entry.releases for component in release.has}
            yield from ((name, need.versions) for need in wishes if entry.unlisted and need.component in brings)


class Planner:
    """Decides requests in one context; reads each entry of the catalogue once."""

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._site = context.site
        arch = self._site.arch if self._site else None
        self._catalogue = SiteCatalogue(context.catalogue, context.images, arch, context.found)
        self._known: dict[str, tuple[KnownTrouble, ...]] = {}

    def plan(self, asked: Request) -> Plan:
        """Decide a request; a refusal names the nearest one that works.

        Raises BadInputError for a name, an argument or a source that is wrong.
        """
        plan = self._locked(self._decide(asked))
        return replace(plan, nearest=self._nearest(asked)) if plan.refused else plan

    def working(self, request: Request) -> tuple[list[Plan], list[Plan]]:
        """Return the plans of a request on every base that takes it, and the refused ones.

        Those without doubts come first, and of them the newest: of what was asked for, then of ROCm.

        Raises BadInputError as `plan` does, if it is not the fault of single bases.
        """
        plans, faults = list[Plan](), list[BadInputError]()
        for name in self._context.catalogue.base_names():
            try:
                plans.append(self._locked(self._decide(replace(request, base=name))))
            except BadInputError as error:
                faults.append(error)
        found = [plan for plan in plans if not plan.refused]
        if faults and not found:
            raise faults[0]
        newest_first = sorted(found, key=self._age, reverse=True)
        return sorted(newest_first, key=lambda plan: plan.is_doubtful), [plan for plan in plans if plan.refused]

    def _age(self, plan: Plan) -> tuple[list[Version], float]:
        """Return what a plan is newer or older by than another of the same layers."""
        chosen = {layer.name: layer.version for layer in plan.layers}
        versions = [version_of(chosen.get(name)) or NO_VERSION for name in plan.asked.unpinned]
        return versions, self._catalogue.rocm(plan.base.name)

    def _locked(self, plan: Plan) -> Plan:
        """Return a plan with its lock, if it is not refused."""
        if plan.stack is None or plan.refused:
            return plan
        try:
            return replace(plan, lock=make_lock(plan, plan.stack, self._context))
        except MissingHereError as error:
            return replace(plan, missing=error)

    def _nearest(self, asked: Request) -> Plan | None:
        """Return the plan of the nearest request that works; on another base only if that can be had here."""
        for other in islice(nearby_requests(asked, self._catalogue), _NEAREST_REQUESTS):
            try:
                plan = self._locked(self._decide(other))
            except BadInputError:  # a layer of the user's that nothing can be built with
                continue
            if not plan.refused and (plan.missing is None or other.base == asked.base):
                return replace(plan, asked=self._repeatable(plan))
        return None

    def _repeatable(self, plan: Plan) -> Request:
        """Return the request of a plan with the versions that were looked up: without them nobody looks again."""
        chosen = {layer.name: layer.version for layer in plan.layers}
        add = (
            f"{name}=={chosen[name]}" if chosen.get(name) in self._catalogue.versions_found(name) else text
            for text, name in zip(plan.asked.add, plan.asked.unpinned, strict=True)
        )
        return replace(plan.asked, add=tuple(add))

    def _decide(self, asked: Request) -> Plan:
        """Decide a request. Where nobody names the fabric, the image gets its own if that leaves fewer doubts."""
        named = _named_fabric(asked)
        self._refuse_fabric(asked, named)
        chosen = asked.fabric or named
        plan = self._decide_with(asked, chosen)
        if chosen is not None or plan.fabric is not Fabric.HOST or not plan.obstacles or HEADERS in asked.sources:
            return plan
        other = self._decide_with(asked, Fabric.BUNDLED)
        if not {rule.because for rule in other.obstacles} < {rule.because for rule in plan.obstacles}:
            return plan
        avoided = next(rule for rule in plan.obstacles if rule not in other.obstacles)
        because = f"libcxi and libfabric are built in the image; of the host's: {avoided.because.partition('. ')[0]}"
        results = (replace(rule, because=because) if rule.id == "glibc-gate" else rule for rule in other.rules)
        return replace(other, rules=tuple(results))

    def _decide_with(self, asked: Request, chosen: Fabric | None) -> Plan:
        """Decide a request with one fabric; None: the one that the base and the site allow."""
        base, site = self._base(asked.base), self._site
        names = asked.unpinned
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise BadInputError(f"layer {twice!r} is asked for twice")
        start = Stack(self._offers(base))
        fabric, results = Fabric.NONE, [*_by_its_files(base, site), *_by_its_name(base)]
        if site is not None:
            fabric, gate = rules.glibc_gate(start, site, asked=chosen)
            results += [gate] if gate else []
            if fabric is Fabric.HOST and site.fabric is not None:
                host = OfferedComponent(site.fabric.libfabric, site.name)
                of_host = {"libfabric": host, "libcxi": OfferedComponent(None, site.name)}
                of_host |= {HEADERS: host} if HEADERS in asked.sources else {}
                start = Stack({**start.offers, **of_host})
        search = StackSearch(self._catalogue, asked.arguments, self._context.preferred)
        stack = search.solve(start, self._wishes(asked, base, fabric))
        results += driver_window(stack or start, site) if site is not None else ()
        if stack is not None and site is not None:
            results += rules.compiled_for(stack, site, asked.arguments)
        results += rules.base_troubles(base, stack or start)
        if stack is None:
            return Plan(asked, base, None, fabric, (*results, *search.refusals()), site=site)
        results += rules.torch_kind(stack)
        results += _of_own_packages(asked, stack, base)
        results += filter(None, [rules.plugin_abi(stack)])
        if site is not None:
            results += filter(None, [rules.fabric_versions(stack, site, fabric)])
        results += rules.layers_chosen(stack)
        return Plan(asked, base, stack, fabric, tuple(results), site=site)

    def _base(self, name: str) -> Layer:
        """Return a base, and with an image what is known against the software in it."""
        base = self._catalogue.base(name)
        if name not in self._known and isinstance(base, ForeignBase):
            from lumiimg.resolve.gpu_rules import of_found_software

            self._known[name] = of_found_software(base, (layer for _, layer in self._catalogue.layers()))
        known = self._known.get(name, ())
        return structs.replace(base, troubles=(*base.troubles, *known)) if known else base

    def _refuse_fabric(self, asked: Request, named: Fabric | None) -> None:
        """Raise BadInputError for a fabric that says nothing, or that one of the layers denies."""
        if asked.fabric is None or asked.fabric is named:
            return
        if named is not None:
            raise BadInputError(f"--fabric {asked.fabric.value} and --add {_OF_FABRIC[named]}", hint="name one of them")
        if asked.fabric is not Fabric.NONE and (self._site is None or self._site.fabric is None):
            site = self._site.name if self._site is not None and not self._site.is_any else None
            missing = f"no network of {site} is known" if site else "no machine is named"
            raise BadInputError(
                f"--fabric {asked.fabric.value}: {missing}",
                hint="--site names a machine that has one (`lumiimg list`), or a site file",
            )

    def _offers(self, base: Layer) -> dict[str, OfferedComponent]:
        offers = {name: OfferedComponent(None, base.name) for name in base.provides}
        if "python3" in base.provides:  # there is one, and which it is only reading the image shows
            offers["python"] = OfferedComponent(None, base.name)
        offers |= {name: OfferedComponent(version, base.name) for name, version in base.has.items()}
        if self._site is not None and self._site.arch is not None:
            offers[self._site.arch] = OfferedComponent(None, self._site.name)
        return offers

    def _wishes(self, asked: Request, base: Layer, fabric: Fabric) -> list[WantedLayer]:
        """Return the layers that are asked for, behind those that the fabric takes."""
        wishes = [WantedLayer(*wanted(text)) for text in asked.add]
        layers = [self._catalogue.layer(wish.layer) for wish in wishes]
        there = {*base.provides, *base.has}
        has_plugin = PLUGIN_COMPONENT in there or any(PLUGIN_COMPONENT in layer.provides for layer in layers)
        named, added = {layer.name for layer in layers}, []
        if fabric is not Fabric.NONE and not {"libcxi", "libfabric"} <= there:
            added.append(WantedLayer(_OF_FABRIC[fabric], because=_WHY_FABRIC[fabric]))
        if fabric is not Fabric.NONE and not has_plugin:
            added.append(WantedLayer(PLUGIN, because="RCCL reaches libfabric through a net plugin"))
        elif fabric is Fabric.HOST and HEADERS in asked.sources and not {PLUGIN, _OLD_PLUGIN} & named:
            because = f"--source {HEADERS}: a plugin compiled against the host's libfabric goes before the image's own"
            added.append(WantedLayer(PLUGIN, because=because))
        own = [WantedLayer(OWN_PACKAGES, because=asked.own.unsettled)] if asked.own else []
        return [wish for wish in added if wish.layer not in named] + wishes + own


def _by_its_files(base: Layer, site: Site | None) -> Iterator[RuleResult]:
    """Yield what follows from the GPU code of a base that is an image."""
    if isinstance(base, ForeignBase):
        from lumiimg.resolve.gpu_rules import gpu_code  # with what is known of GPUs, for images alone

        yield from gpu_code(base, site)


def _by_its_name(base: Layer) -> Iterator[RuleResult]:
    """Yield what follows for a base that is known by its name alone."""
    if base.by_name:
        has = ", ".join(f"{component} {version}" for component, version in base.has.items())
        because = f"by its name, and what follows from that, it has {has}; where the image is, it is read first"
        yield RuleResult("layers", RuleOutcome.UNKNOWN, "its files", "its name alone", because, base.source)


def _of_own_packages(asked: Request, stack: Stack, base: Layer) -> Iterator[RuleResult]:
    """Yield what is known against the user's own packages on a stack."""
    if asked.own is not None:
        from lumiimg.resolve.own_packages import (
            check_own_packages,  # with uv's side of it, for those alone who have some
        )

        yield from check_own_packages(asked.own, stack, base)


def _named_fabric(asked: Request) -> Fabric | None:
    """Return the fabric whose layer is among those that are asked for."""
    return next((fabric for fabric, layer in _OF_FABRIC.items() if layer in asked.unpinned), None)
