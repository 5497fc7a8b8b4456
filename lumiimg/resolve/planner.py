"""A request against the rules: the stack that answers it, or what stands against it and the nearest that works."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from packaging.version import Version

from lumiimg.catalog.named_images import age_in_name, disagreements
from lumiimg.catalog.needs import version_of
from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.driver_rule import driver_window
from lumiimg.resolve.gpu_rules import gpu_code, of_found_software
from lumiimg.resolve.image_base import ForeignBase
from lumiimg.resolve.locking import lock_stack
from lumiimg.resolve.mpi import mpi_type
from lumiimg.resolve.nearest import others
from lumiimg.resolve.plan import Ground, Plan
from lumiimg.resolve.request import Request, name_of, wanted
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.shelf import Shelf
from lumiimg.resolve.stack import (
    HEADERS,
    OWN_PACKAGES,
    PLUGIN,
    PLUGIN_COMPONENT,
    OfferedComponent,
    Stack,
    StackSearch,
    WantedLayer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.catalog.layers import KnownTrouble, Layer
    from lumiimg.catalog.sites import SiteVariable

_OLD_PLUGIN = "aws-ofi-rccl"
_OF_FABRIC = {Fabric.HOST: "fabric-host", Fabric.BUNDLED: "fabric-bundled"}
_FABRIC_TOLD = {
    Fabric.HOST: "the machine's own libfabric and libcxi, bound when the image runs",
    Fabric.BUNDLED: "libfabric and libcxi inside the image",
}
NEAREST_REQUESTS = 1000
"""Judged at most on the way to the nearest that works: a thousand take about two seconds."""


class Planner:
    """Judges requests on one ground; reads each entry of the catalogue once."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._site = ground.site
        self._shelf = Shelf(ground.catalogue, ground.images, self._site.arch if self._site else None, ground.looked)
        self._known: dict[str, tuple[KnownTrouble, ...]] = {}

    def plan(self, asked: Request) -> Plan:
        """Judge a request; a refusal names the nearest one that works.

        Raises BadInputError for a name, an argument or a source that is wrong.
        """
        plan = self._settled(self._judge(asked))
        if not plan.refused:
            return plan
        return replace(plan, nearest=self._first(others(asked, self._shelf), asked))

    def _settled(self, plan: Plan) -> Plan:
        """Return a plan with its lock, if it is not refused."""
        if plan.stack is None or plan.refused:
            return plan
        try:
            return replace(plan, lock=lock_stack(plan, plan.stack, self._ground))
        except MissingHereError as error:
            return replace(plan, missing=error)

    def _first(self, requests: Iterable[Request], asked: Request) -> Plan | None:
        """Return the plan of the first request that works; on another base only if that can be had here."""
        for other in islice(requests, NEAREST_REQUESTS):
            try:
                plan = self._settled(self._judge(other))
            except BadInputError:  # a layer of the user's that nothing can be built with
                continue
            if not plan.refused and (plan.missing is None or other.base == asked.base):
                return replace(plan, asked=self._repeatable(plan))
        return None

    def _repeatable(self, plan: Plan) -> Request:
        """Return the request of a plan with the versions that were looked up: without them nobody looks again."""
        chosen = {c.name: c.version for c in plan.stack.layers} if plan.stack else {}
        add = (
            f"{name}=={chosen[name]}" if chosen.get(name) in self._shelf.looked_up(name) else text
            for text, name in zip(plan.asked.add, plan.asked.unpinned, strict=True)
        )
        return replace(plan.asked, add=tuple(add))

    def _judge(self, asked: Request) -> Plan:
        """Judge a request. Where nobody names the fabric, the image gets its own if that leaves fewer doubts."""
        chosen = asked.fabric or _named_fabric(asked)
        plan = self._judge_with(asked, chosen)
        against = plan.against
        if chosen is not None or plan.fabric is not Fabric.HOST or not against or HEADERS in asked.sources:
            return plan
        other = self._judge_with(asked, Fabric.BUNDLED)
        if not {rule.because for rule in other.against} < {rule.because for rule in against}:
            return plan
        [avoided, *_] = (rule for rule in against if rule not in other.against)
        because = f"libcxi and libfabric are built in the image; of the host's: {avoided.because.partition('. ')[0]}"
        told = (replace(rule, because=because) if rule.id == "glibc-gate" else rule for rule in other.rules)
        return replace(other, rules=tuple(told))

    def _judge_with(self, asked: Request, chosen: Fabric | None) -> Plan:
        base = self._base(asked.base)
        start = Stack(offers=self._offers(base))
        fabric, results = Fabric.NONE, [*gpu_code(base, self._site), *_of_its_name(base)]
        _check_twice(asked)
        self._check_fabric(asked)
        if self._site is not None:
            fabric, gate = rules.glibc_gate(start, self._site, asked=chosen)
            results += [gate] if gate else []
        if fabric is Fabric.HOST and self._site is not None and self._site.fabric is not None:
            host = OfferedComponent(self._site.fabric.libfabric, self._site.name)
            of_host = {"libfabric": host, "libcxi": OfferedComponent(None, self._site.name)}
            of_host |= {HEADERS: host} if HEADERS in asked.sources else {}
            start = replace(start, offers={**start.offers, **of_host})
        absent = {name: looked.absent for name, looked in self._ground.looked.items() if looked.absent}
        search = StackSearch(self._shelf.layer, self._shelf.provider_of, self._ground.held, asked.arguments, absent)
        stack = search.solve(start, self._wishes(asked, base, fabric))
        if stack is None:
            results += driver_window(start, self._site) if self._site is not None else ()
            results += rules.base_troubles(base, start)
            return Plan(asked, base, None, fabric, (*results, *rules.refusals(search.unmet)), site=self._site)
        if self._site is not None:
            results += driver_window(stack, self._site)
            results += rules.compiled_for(stack, self._site, asked.arguments)
        results += rules.base_troubles(base, stack)
        results += rules.torch_kind(stack)
        results += _of_own(asked, stack, base)
        abi = rules.plugin_abi(stack)
        results += [abi] if abi else []
        if self._site is not None and (versions := rules.fabric_versions(stack, self._site, fabric)) is not None:
            results.append(versions)
        variables: tuple[SiteVariable, ...] = ()
        if self._site is not None:
            found = mpi_type(stack, self._site)
            variables = (*rules.environment(stack, self._site), *([found] if found else []))
        return Plan(
            asked, base, stack, fabric, (*results, *rules.layers_told(stack)), of_jobs=variables, site=self._site
        )

    def _base(self, name: str) -> Layer:
        """Return a base, and with an image what is known against the software in it."""
        base = self._shelf.base(name)
        if name not in self._known:
            self._known[name] = of_found_software(base, (layer for _, layer in self._shelf.layers()))
        return replace(base, troubles=(*base.troubles, *self._known[name])) if self._known[name] else base

    def _check_fabric(self, asked: Request) -> None:
        """Raise BadInputError for a fabric that says nothing, or that one of the layers denies."""
        named = _named_fabric(asked)
        if asked.fabric is None or asked.fabric is named:
            return
        if named is not None:
            raise BadInputError(f"--fabric {asked.fabric.value} and --add {_OF_FABRIC[named]}", hint="name one of them")
        if asked.fabric is not Fabric.NONE and (self._site is None or self._site.fabric is None):
            named_site = self._site.name if self._site is not None and not self._site.is_any else None
            missing = f"no network of {named_site} is known" if named_site else "no machine is named"
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
        wishes = [WantedLayer(*wanted(text)) for text in asked.add]
        named = {wish.layer for wish in wishes}
        for name in named:
            self._shelf.layer(name)
        added = []
        if fabric is not Fabric.NONE and not {"libcxi", "libfabric"} <= {*base.provides, *base.has}:
            added.append(WantedLayer(_OF_FABRIC[fabric], because=_FABRIC_TOLD[fabric]))
        has_plugin = PLUGIN_COMPONENT in {*base.provides, *base.has} or any(
            PLUGIN_COMPONENT in self._shelf.layer(name).provides for name in named
        )
        if fabric is not Fabric.NONE and not has_plugin:
            added.append(WantedLayer(PLUGIN, because="RCCL reaches libfabric through a net plugin"))
        elif fabric is Fabric.HOST and HEADERS in asked.sources and not {PLUGIN, _OLD_PLUGIN} & named:
            because = f"--source {HEADERS}: a plugin compiled against the host's libfabric goes before the image's own"
            added.append(WantedLayer(PLUGIN, because=because))
        own = [WantedLayer(OWN_PACKAGES, because=asked.own.unsettled)] if asked.own else []
        return [wish for wish in added if wish.layer not in named] + wishes + own

    def working(self, request: Request) -> tuple[list[Plan], list[Plan]]:
        """Return the plans of a request on every base that takes it, and the refused ones.

        Those without doubts come first, and of them the newest: of what was asked for, then of ROCm.

        Raises BadInputError as `plan` does, if it is not the fault of single bases.
        """
        plans, faults = list[Plan](), list[BadInputError]()
        for name in self._ground.catalogue.base_names():
            try:
                plans.append(self._settled(self._judge(replace(request, base=name))))
            except BadInputError as error:
                faults.append(error)
        found = [plan for plan in plans if not plan.refused]
        if faults and not found:
            raise faults[0]
        newest_first = sorted(found, key=lambda plan: _versions(plan, self._shelf.rocm(plan.base.name)), reverse=True)
        return sorted(newest_first, key=lambda plan: plan.is_doubtful), [plan for plan in plans if plan.refused]


def _of_its_name(base: Layer) -> Iterator[RuleResult]:
    """Yield what follows for a base that is known by its name alone, or whose name and files are of two minds."""
    if base.by_name:
        has = ", ".join(f"{component} {version}" for component, version in base.has.items())
        because = f"by its name, and what follows from that, it has {has}; where the image is, it is read first"
        if old := age_in_name(base.name):
            because += f". It is {old}, and a newer one may be there"
        yield RuleResult("layers", RuleOutcome.UNKNOWN, "its files", "its name alone", because, base.source)
    for found in disagreements(base.name_says, base.has) if isinstance(base, ForeignBase) else ():
        source = "the name, and what was read in it"
        yield RuleResult("layers", RuleOutcome.WARNING, "a name that holds", base.name, found, source)


def _of_own(asked: Request, stack: Stack, base: Layer) -> Iterator[RuleResult]:
    """Yield what is known against the user's own packages on a stack."""
    if asked.own is not None:
        from lumiimg.resolve.own_packages import judged  # with uv's side of it, for those alone who have some

        yield from judged(asked.own, stack, base)


def _versions(plan: Plan, rocm: float) -> tuple[list[Version], float]:
    """Return what a plan is newer or older by than another of the same layers."""
    chosen = {c.name: c.version for c in plan.stack.layers} if plan.stack else {}
    return [version_of(chosen.get(name)) or Version("0") for name in plan.asked.unpinned], rocm


def _check_twice(asked: Request) -> None:
    names = [name_of(text) for text in asked.add]
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"layer {name!r} is asked for twice")


def _named_fabric(asked: Request) -> Fabric | None:
    """Return the fabric whose layer is among those that are asked for."""
    named = {name_of(text) for text in asked.add}
    return next((fabric for fabric, layer in _OF_FABRIC.items() if layer in named), None)
