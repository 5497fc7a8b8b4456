"""From a request to its answer, for every command: the stack and its lock, or a refusal and what works instead."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.catalog.needs import NO_VERSION, Need, version_of
from lumiimg.core.decode import DecodeError
from lumiimg.core.errors import BadInputError, MissingHereError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.driver_rule import driver_window
from lumiimg.resolve.image_base import ForeignBase, gpu_code, known_troubles, read_bases
from lumiimg.resolve.make_lock import make_lock
from lumiimg.resolve.plan import NewerRecipe, Plan, PossibleBases
from lumiimg.resolve.request import AUTO, Request, name_of, refuse_secrets, wanted, with_releases
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
    components_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from lumiimg.catalog.catalogue import FabricOption
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.sites import Site
    from lumiimg.resolve.context import PlanContext

_OLD_PLUGIN = "aws-ofi-rccl"
_OF_FABRIC = {Fabric.HOST: "fabric-host", Fabric.BUNDLED: "fabric-bundled"}
_WHY_FABRIC = {
    Fabric.HOST: "the machine's own libfabric and libcxi, bound when the image runs",
    Fabric.BUNDLED: "libfabric and libcxi inside the image",
}
_PLAIN = {"os", "glibc", "python", "rocm", "rccl"}
"""Contents of a base that only serves to be built on."""
_SERVER = "llm-server"
_NEAREST_REQUESTS = 1000
"""Most requests that are tried to find the nearest that works: a thousand take about two seconds."""


def decide(request: Request, context: PlanContext) -> Plan:
    """Return the answer to a request; a refusal names the nearest request that works. Raises BadInputError."""
    given = context.images
    request, context = _prepared(request, context)
    if not given:
        images = read_bases(request.base, context.catalogue, context.pull, context.site)
        context = replace(context, images={**images, **context.images})
    plan = _decided(request, context)
    if plan.refused:
        return replace(plan, nearest=_nearest(request, context))
    return replace(plan, newer=_newer(plan, context))


def possible_bases(request: Request, context: PlanContext) -> PossibleBases:
    """Return the bases of the catalogue on which the layers of a request can be put, those without doubts first, then
    the newest by requested layers and by ROCm. Raises BadInputError as `decide` does if no base fits for that reason.
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
    newer = _newer(by_doubt[0], context) if by_doubt else None
    return PossibleBases(request, context.site, tuple(by_doubt), tuple(refused), newer)


def _age(plan: Plan) -> tuple[list[Version], Version]:
    """Return a sort key for how new a plan is, compared with others of the same layers."""
    chosen = {layer.name: layer.version for layer in plan.layers}
    versions = [version_of(chosen.get(name)) or NO_VERSION for name in plan.asked.unpinned]
    return versions, version_of(plan.base.has.get("rocm")) or NO_VERSION


def _prepared(request: Request, context: PlanContext) -> tuple[Request, PlanContext]:
    """Return both, with releases that arguments name, releases found without a row, and the user's own packages."""
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
    """Return the context with what is found of versions without a row: requested ones, and those that they expect."""
    asked = [wanted(text) for text in request.add]
    found = dict(context.found)
    while asked:
        need = asked.pop()
        name, versions = need.component, need.versions
        layer = context.catalogue.entry(name) if versions and context.catalogue.knows(name) else None
        if layer is None or layer.is_base or name in found or _is_listed(layer, versions):
            continue
        from lumiimg.resolve.unlisted import find_releases  # 60 ms, only for a version without a row

        found[name] = find_releases(layer, versions, context)
        expected = [need for release in found[name].releases for need in release.expects]
        for other in context.layers() if expected and context.web is not None else ():
            brings = {component for release in other.releases for component in release.has if other.unlisted}
            asked += [Need(other.name, need.versions) for need in expected if need.component in brings]
    return replace(context, found=found) if found else context


def _is_listed(layer: Layer, versions: SpecifierSet) -> bool:
    """Return whether the catalogue has a release of a layer in a range of versions."""
    default = layer.arguments.get("VERSION")
    own = [row.version for row in layer.releases] or ([default.default] if default else [])
    return any(versions.contains(version, prereleases=True) for version in own)


def _decided(asked: Request, context: PlanContext) -> Plan:
    """Return the plan of a request; if no fabric is named, the image gets its own if that leaves fewer obstacles."""
    named = next((fabric for fabric, layer in _OF_FABRIC.items() if layer in asked.unpinned), None)
    _refuse_fabric(asked, named, context.site)
    chosen = named if asked.fabric == AUTO else Fabric(asked.fabric)
    plan = _with_fabric(asked, chosen, context)
    is_open = chosen is None and HEADERS not in asked.sources
    if is_open and plan.fabric is Fabric.HOST and plan.obstacles:
        other = _with_fabric(asked, Fabric.BUNDLED, context)
        if {rule.because for rule in other.obstacles} < {rule.because for rule in plan.obstacles}:
            avoided = next(rule for rule in plan.obstacles if rule not in other.obstacles).because.partition(". ")[0]
            because = f"libcxi and libfabric are built in the image, not taken from the host: {avoided}"
            results = (replace(rule, because=because) if rule.id == "glibc-gate" else rule for rule in other.rules)
            plan = replace(other, rules=tuple(results))
    if plan.stack is None or plan.refused:
        return plan
    try:
        return replace(plan, lock=make_lock(plan, plan.stack, context))
    except MissingHereError as error:
        return replace(plan, missing=error)


def _with_fabric(asked: Request, chosen: Fabric | None, context: PlanContext) -> Plan:
    """Return the plan of a request with one fabric; None: the one that the base and the site allow."""
    base, site = context.base(asked.base), context.site
    fabric, results = Fabric.NONE, list[RuleResult]()
    if isinstance(base, ForeignBase):
        results += gpu_code(base, site)
        base = structs.replace(base, troubles=(*base.troubles, *known_troubles(base, context.layers())))
    if base.by_name:
        has = ", ".join(f"{component} {version}" for component, version in base.has.items())
        because = f"judging by its name, it has {has}; on a machine that has the image, the image is read first"
        results.append(RuleResult("layers", RuleOutcome.UNKNOWN, "its files", "only its name", because, base.source))
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
        from lumiimg.resolve.own_packages import check_own_packages  # loads the part for uv, only when needed

        results += check_own_packages(asked, stack, base)
    of_fabric = rules.fabric_versions(stack, site, fabric) if site is not None else None
    results += filter(None, [rules.plugin_abi(stack), of_fabric])
    results += rules.layers_chosen(stack)
    return Plan(asked, base, stack, fabric, tuple(results), site=site)


def _refuse_fabric(asked: Request, named: Fabric | None, site: Site | None) -> None:
    """Raise BadInputError for a fabric that has no effect, or that contradicts one of the layers."""
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
    if "python3" in base.provides:  # its version is known only after reading the image
        offers["python"] = OfferedComponent(None, base.name)
    offers |= {name: OfferedComponent(version, base.name) for name, version in base.has.items()}
    if site is not None and site.arch is not None:
        offers[site.arch] = OfferedComponent(None, site.name)
    return offers


def _wishes(asked: Request, base: Layer, fabric: Fabric, context: PlanContext) -> list[WantedLayer]:
    """Return the requested layers, after those that the fabric needs."""
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
        because = f"--source {HEADERS}: a plugin compiled for the host's libfabric takes precedence over the image's"
        added.append(WantedLayer(Need.decoded(PLUGIN), because=because))
    not_locked = f"{asked.own_summary}; `lumiimg lock` chooses their packages from the index"
    own = [WantedLayer(Need.decoded(OWN_PACKAGES), because=not_locked)] if asked.own else []
    return [wish for wish in added if wish.need.component not in named] + wishes + own


def _newer(plan: Plan, context: PlanContext) -> NewerRecipe | None:
    """Return a recipe of the same layers for the same machine with newer releases and without doubts."""
    asked, site = plan.asked, plan.site
    if site is None or site.is_any or not asked.add or asked.add != asked.unpinned or asked.own:
        return None
    for name in context.catalogue.recipe_names():
        with suppress(BadInputError):  # a faulty recipe of the user's
            recipe = context.catalogue.recipe(name)
            same = {name_of(text) for text in recipe.add} == {*asked.add} and recipe.site == site.name
            if not same or recipe.base == asked.base:
                continue
            request = Request(base=recipe.base, add=recipe.add, fabric=recipe.fabric, arguments=recipe.options)
            found = _decided(request, context)
            if not found.refused and not found.is_doubtful and _age(found)[0] > _age(plan)[0]:
                layers = (layer.title for layer in found.layers if layer.name in asked.add)
                return NewerRecipe(name, f"{', '.join(layers)} on {found.base.name}")
    return None


# -- after a refusal: similar requests, each adding or dropping something, the smallest change first --


def _nearest(asked: Request, context: PlanContext) -> Plan | None:
    """Return the plan of the nearest request that works; on another base only if that is available here."""
    for other in islice(_nearby_requests(asked, context), _NEAREST_REQUESTS):
        try:
            plan = _decided(other, context)
        except BadInputError:  # a faulty layer of the user's
            continue
        if not plan.refused and (plan.missing is None or other.base == asked.base):
            return plan
    return None


def _nearby_requests(request: Request, context: PlanContext) -> Iterator[Request]:
    """Yield similar requests, the least different first. None has arguments or sources."""
    asked = structs.replace(request, arguments={}, sources={})
    here, names, equivalents = asked.base, asked.unpinned, partial(_equivalent_layers, context=context)
    plugins = [name for name in names if PLUGIN_COMPONENT in context.layer(name).provides]

    def each(bases: Iterable[str], adds: Iterable[tuple[str, ...]], fabric: FabricOption = AUTO) -> Iterator[Request]:
        yield from (structs.replace(asked, base=base, add=add, fabric=fabric) for add in adds for base in bases)

    if asked != request:
        yield asked
    if main := _main_layer(here, context):
        # the main software of an image, or what does the same, and the layers on it
        same = (main, *(name for name in names if name != main))
        yield from each(_bases_near(here, context), (same, *equivalents(same)))
    if asked.fabric != AUTO:
        yield structs.replace(asked, fabric=AUTO)
    elif not {"rccl", "rocm"} & {*context.base(here).provides, *context.base(here).has}:
        yield structs.replace(asked, fabric="none")  # nothing for GPUs: there is no RCCL to load a plugin
    yield from each([here], _same_software(asked, plugins, context), asked.fabric)
    # only bases of the same kind if nothing is added
    folder = context.base(here).folder
    bases = [base for base in _bases_near(here, context) if names or context.base(base).folder == folder]
    yield from each(bases, [asked.add], asked.fabric)
    yield from each(bases, [tuple(name for name in names if name not in plugins)])
    # other software only if the same works on no base
    yield from each([here], equivalents(names), asked.fabric)
    yield from each(bases, equivalents(names))
    for left_out in names if len(names) > 1 else ():
        less = tuple(name for name in names if name != left_out)
        yield from each([here], [less], asked.fabric)
        yield from each([here, *bases], [less])
    if names:
        yield from each([here], [()])


def _same_software(asked: Request, plugins: Sequence[str], context: PlanContext) -> Iterator[tuple[str, ...]]:
    """Yield layers that can be added in place of the requested ones and give the image the same software."""
    has, add, names = context.base(asked.base).has, asked.add, asked.unpinned
    if has.keys() & {*names}:
        yield tuple(text for text, name in zip(add, names, strict=True) if name not in has)
    for at, name in enumerate(names):  # layers without which a requested one does not run
        fatal = (trouble for trouble in context.layer(name).troubles if trouble.refused)
        for component in sorted({need.component for trouble in fatal for need in trouble.unless}):
            layer = context.provider_of(component)
            if layer is not None and layer not in names:
                yield (*add[:at], layer, *add[at:])
    # without a single version, then without all of them
    for at, (text, name) in enumerate(zip(add, names, strict=True)):
        if name != text:
            yield (*add[:at], name, *add[at + 1 :])
    if names != add:
        yield names
    for plugin in reversed(plugins):
        yield tuple(name for name in names if name != plugin)
    if PLUGIN not in plugins and context.catalogue.knows(PLUGIN):
        yield (*(name for name in names if name not in plugins), PLUGIN)


def _main_layer(name: str, context: PlanContext) -> str | None:
    """Return the layer for the main software of an image used as a base: a server, else torch, else JAX."""
    base = context.base(name)
    layers = list(context.layers()) if base.is_foreign else []
    servers = [layer.name for layer in layers if _SERVER in layer.provides]
    for component in (*servers, "torch", "jax"):
        found = (layer.name for layer in layers if component in base.has and component in components_of(layer))
        if (first := next(found, None)) is not None:
            return first
    return None


def _equivalent_layers(names: tuple[str, ...], context: PlanContext) -> Iterator[tuple[str, ...]]:
    """Yield the layers with one replaced by another that provides the same."""
    layers = list(context.layers())
    for at, name in enumerate(names):
        provides = set(context.layer(name).provides)
        for other in layers:
            if other.name not in names and provides & set(other.provides):
                yield (*names[:at], other.name, *names[at + 1 :])


def _bases_near(name: str, context: PlanContext) -> list[str]:
    """Return the other bases of the same kind, then those that have nothing yet that layers provide.

    In each group the nearest ROCm comes first; of two equally near, the older.
    """
    here, found = context.base(name), []
    for other in context.catalogue.base_names():
        try:
            base = context.base(other)
        except DecodeError:
            continue
        version, is_other_kind = _rocm(base.has.get("rocm")), base.folder != here.folder
        if other != name and version and (not is_other_kind or base.has.keys() <= _PLAIN):
            found.append((is_other_kind, abs(version - _rocm(here.has.get("rocm"))), version, other))
    return [other for *_, other in sorted(found)]


def _rocm(version: str | None) -> float:
    """Return a release of ROCm as a number, so that 6.2.4 is nearer to 6.3 than to 7.0; 0 if it is not known."""
    found = version_of(version)
    return sum((part / 100**place for place, part in enumerate(found.release[:3])), start=0.0) if found else 0.0
