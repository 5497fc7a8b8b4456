"""One way from a request to its answer, for every command: the stack and its lock, or a refusal and what works."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.catalog.needs import NO_VERSION, Need, version_of
from lumiimg.core.errors import BadInputError, MissingHereError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.driver_rule import driver_window
from lumiimg.resolve.image_base import ForeignBase, gpu_code, read_bases
from lumiimg.resolve.make_lock import make_lock
from lumiimg.resolve.plan import Plan, PossibleBases
from lumiimg.resolve.request import AUTO, Request, refuse_secrets, wanted, with_releases
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.search import StackSearch
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
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from lumiimg.catalog.layers import Layer
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
    """Return the answer to a request: a refusal names the nearest that works. Raises BadInputError."""
    given = context.images
    request, context = _prepared(request, context)
    if not given:
        images = read_bases(request.base, context.catalogue, context.pull, context.site)
        context = replace(context, images={**images, **context.images})
    plan = _decided(request, context)
    return replace(plan, nearest=_nearest(request, context)) if plan.refused else plan


def possible_bases(request: Request, context: PlanContext) -> PossibleBases:
    """Return on which bases of the catalogue the layers of a request can be put, those without doubts first, then the
    newest: of what was asked for, then of ROCm. Raises BadInputError as `decide` does, if it is so on every base.
    """
    request, context = _prepared(request, context)
    plans, faults = list[Plan](), list[BadInputError]()
    for name in context.catalogue.base_names():
        try:
            plans.append(_decided(structs.replace(request, base=name), context))
        except BadInputError as error:
            faults.append(error)
    found = [plan for plan in plans if not plan.refused]
    if faults and not found:
        raise faults[0]
    newest_first = sorted(found, key=_age, reverse=True)
    refused = sorted((plan for plan in plans if plan.refused), key=lambda plan: len(plan.obstacles))
    by_doubt = sorted(newest_first, key=lambda plan: plan.is_doubtful)
    return PossibleBases(request, context.site, tuple(by_doubt), tuple(refused))


def _age(plan: Plan) -> tuple[list[Version], Version]:
    """Return what a plan is newer or older by than another of the same layers."""
    chosen = {layer.name: layer.version for layer in plan.layers}
    versions = [version_of(chosen.get(name)) or NO_VERSION for name in plan.asked.unpinned]
    return versions, version_of(plan.base.has.get("rocm")) or NO_VERSION


def _prepared(request: Request, context: PlanContext) -> tuple[Request, PlanContext]:
    """Return both with the releases that arguments name, those found that no row has, and the user's own packages."""
    refuse_secrets(request)
    request = with_releases(request, context.catalogue)
    context = _with_found_releases(request, context)
    if OWN_PACKAGES in request.unpinned:
        raise BadInputError(f"--add {OWN_PACKAGES}", hint="name the packages: -r FILE, or --add pip:NAME==VERSION")
    if not request.own:
        return request, context
    from lumiimg.resolve.own_packages import brought_by_layers

    layer = structs.replace(context.catalogue.layer(OWN_PACKAGES), packages=request.own_texts)
    request = structs.replace(request, brought=brought_by_layers(context.layers()))
    return request, replace(context, images={**context.images, OWN_PACKAGES: layer})


def _with_found_releases(request: Request, context: PlanContext) -> PlanContext:
    """Return the context with what is found of versions without a row: those asked for, and those that these expect."""
    asked = [wanted(text) for text in request.add]
    found = dict(context.found)
    while asked:
        need = asked.pop()
        name, versions = need.component, need.versions
        layer = context.catalogue.entry(name) if versions and context.catalogue.knows(name) else None
        if layer is None or layer.is_base or name in found or _is_listed(layer, versions):
            continue
        from lumiimg.resolve.unlisted import find_releases  # 60 ms that only a version without a row should cost

        found[name] = find_releases(layer, versions, context)
        expected = [need for release in found[name].releases for need in release.expects]
        for other in context.layers() if expected and context.web is not None else ():
            brings = {component for release in other.releases for component in release.has if other.unlisted}
            asked += [Need(other.name, need.versions) for need in expected if need.component in brings]
    return replace(context, found=found) if found else context


def _is_listed(layer: Layer, versions: SpecifierSet) -> bool:
    """Whether the catalogue has a release of a layer among some versions."""
    default = layer.arguments.get("VERSION")
    own = [row.version for row in layer.releases] or ([default.default] if default else [])
    return any(versions.contains(version, prereleases=True) for version in own)


def _decided(asked: Request, context: PlanContext) -> Plan:
    """Decide a request; where nobody names the fabric, the image gets its own if that leaves fewer doubts."""
    named = next((fabric for fabric, layer in _OF_FABRIC.items() if layer in asked.unpinned), None)
    _refuse_fabric(asked, named, context.site)
    chosen = named if asked.fabric == AUTO else Fabric(asked.fabric)
    plan = _with_fabric(asked, chosen, context)
    is_open = chosen is None and HEADERS not in asked.sources
    if is_open and plan.fabric is Fabric.HOST and plan.obstacles:
        other = _with_fabric(asked, Fabric.BUNDLED, context)
        if {rule.because for rule in other.obstacles} < {rule.because for rule in plan.obstacles}:
            avoided = next(rule for rule in plan.obstacles if rule not in other.obstacles).because.partition(". ")[0]
            because = f"libcxi and libfabric are built in the image; of the host's: {avoided}"
            results = (replace(rule, because=because) if rule.id == "glibc-gate" else rule for rule in other.rules)
            plan = replace(other, rules=tuple(results))
    if plan.stack is None or plan.refused:
        return plan
    try:
        return replace(plan, lock=make_lock(plan, plan.stack, context))
    except MissingHereError as error:
        return replace(plan, missing=error)


def _nearest(asked: Request, context: PlanContext) -> Plan | None:
    """Return the plan of the nearest request that works; on another base only if that can be had here."""
    from lumiimg.resolve.nearest import nearby_requests  # for a refusal alone

    for other in islice(nearby_requests(asked, context), _NEAREST_REQUESTS):
        try:
            plan = _decided(other, context)
        except BadInputError:  # a layer of the user's that nothing can be built with
            continue
        if not plan.refused and (plan.missing is None or other.base == asked.base):
            return plan
    return None


def _with_fabric(asked: Request, chosen: Fabric | None, context: PlanContext) -> Plan:
    """Decide a request with one fabric; None: the one that the base and the site allow."""
    base, site = context.base(asked.base), context.site
    fabric, results = Fabric.NONE, list[RuleResult]()
    if isinstance(base, ForeignBase):
        results += gpu_code(base, site)
    if base.by_name:
        has = ", ".join(f"{component} {version}" for component, version in base.has.items())
        because = f"by its name, and what follows from that, it has {has}; where the image is, it is read first"
        results.append(RuleResult("layers", RuleOutcome.UNKNOWN, "its files", "its name alone", because, base.source))
    start = Stack(_offers(base, site))
    if site is not None:
        fabric, gate = rules.glibc_gate(start, site, asked=chosen)
        results += [gate] if gate else []
        if fabric is Fabric.HOST and site.fabric is not None:
            host = OfferedComponent(site.fabric.libfabric, site.name)
            of_host = {"libfabric": host, "libcxi": OfferedComponent(None, site.name)}
            of_host |= {HEADERS: host} if HEADERS in asked.sources else {}
            start = Stack({**start.offers, **of_host})
    search = StackSearch(context, asked.arguments)
    stack = search.solve(start, _wishes(asked, base, fabric, context))
    results += driver_window(stack or start, site) if site is not None else ()
    if stack is not None and site is not None:
        results += rules.compiled_for(stack, site, asked.arguments)
    results += rules.base_troubles(base, stack or start)
    if stack is None:
        return Plan(asked, base, None, fabric, (*results, *search.refusals()), site=site)
    results += rules.torch_kind(stack)
    if asked.own:
        from lumiimg.resolve.own_packages import check_own_packages  # with uv's side of it, for those who have some

        results += check_own_packages(asked, stack, base)
    of_fabric = rules.fabric_versions(stack, site, fabric) if site is not None else None
    results += filter(None, [rules.plugin_abi(stack), of_fabric])
    results += rules.layers_chosen(stack)
    return Plan(asked, base, stack, fabric, tuple(results), site=site)


def _refuse_fabric(asked: Request, named: Fabric | None, site: Site | None) -> None:
    """Raise BadInputError for a fabric that says nothing, or that one of the layers denies."""
    if asked.fabric in {AUTO, named}:
        return
    if named is not None:
        raise BadInputError(f"--fabric {asked.fabric} and --add {_OF_FABRIC[named]}", hint="name one of them")
    if asked.fabric != "none" and (site is None or site.fabric is None):
        missing = "no machine is named" if site is None or site.is_any else f"no network of {site.name} is known"
        raise BadInputError(
            f"--fabric {asked.fabric}: {missing}",
            hint="--site names a machine that has one (`lumiimg list`), or a site file",
        )


def _offers(base: Layer, site: Site | None) -> dict[str, OfferedComponent]:
    offers = {name: OfferedComponent(None, base.name) for name in base.provides}
    if "python3" in base.provides:  # there is one, and which it is only reading the image shows
        offers["python"] = OfferedComponent(None, base.name)
    offers |= {name: OfferedComponent(version, base.name) for name, version in base.has.items()}
    if site is not None and site.arch is not None:
        offers[site.arch] = OfferedComponent(None, site.name)
    return offers


def _wishes(asked: Request, base: Layer, fabric: Fabric, context: PlanContext) -> list[WantedLayer]:
    """Return the layers that are asked for, behind those that the fabric takes."""
    wishes = [WantedLayer(wanted(text)) for text in asked.add]
    layers = [context.layer(wish.need.component) for wish in wishes]
    there = {*base.provides, *base.has}
    has_plugin = PLUGIN_COMPONENT in there or any(PLUGIN_COMPONENT in layer.provides for layer in layers)
    named, added = {layer.name for layer in layers}, []
    if fabric is not Fabric.NONE and not {"libcxi", "libfabric"} <= there:
        added.append(WantedLayer(Need.decoded(_OF_FABRIC[fabric]), because=_WHY_FABRIC[fabric]))
    if fabric is not Fabric.NONE and not has_plugin:
        added.append(WantedLayer(Need.decoded(PLUGIN), because="RCCL reaches libfabric through a net plugin"))
    elif fabric is Fabric.HOST and HEADERS in asked.sources and not {PLUGIN, _OLD_PLUGIN} & named:
        because = f"--source {HEADERS}: a plugin compiled against the host's libfabric goes before the image's own"
        added.append(WantedLayer(Need.decoded(PLUGIN), because=because))
    unsettled = f"{asked.own_summary}; what they take from the index is not settled before lock"
    own = [WantedLayer(Need.decoded(OWN_PACKAGES), because=unsettled)] if asked.own else []
    return [wish for wish in added if wish.need.component not in named] + wishes + own
