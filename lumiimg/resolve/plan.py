"""A request against the rules: the stack that answers it, or what stands against it and the nearest that works."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from lumiimg.catalog.table import CatalogError
from lumiimg.errors import BadInputError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.arguments import for_gpu
from lumiimg.resolve.mpi import mpi_type
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import OfferedComponent, Stack, StackSearch, Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.sites import Site, SiteVariable

PLUGIN = "aws-ofi-nccl"
"""Put in where a site's fabric is used and nobody asked for another: RCCL of every release takes it."""
PLUGIN_COMPONENT = "net-plugin"
HEADERS = "host-libfabric"
"""The host's own libfabric with its headers: an archive for compilers (observed_node.py), and its component."""
_OF_FABRIC = {Fabric.HOST: "fabric-host", Fabric.BUNDLED: "fabric-bundled"}
_FABRIC_TOLD = {
    Fabric.HOST: "the machine's own libfabric and libcxi, bound when the image runs",
    Fabric.BUNDLED: "libfabric and libcxi inside the image",
}
NEAREST_S = 5.0
"""Spent on looking for the nearest request that works."""
_PLAIN = {"os", "glibc", "python", "rocm", "rccl"}
"""What a base has that is only there to be built on."""
_WISH_LIMIT = 300
_LAYER_HINT = "a name (the newest that fits), or a name with a version: 'vllm==0.10.1'; one --add for each layer"
_PREFERRED = {"net-plugin": PLUGIN, "libfabric": "fabric-bundled"}
"""Component -> the layer to bring in, where several could."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be judged."""

    base: str
    add: tuple[str, ...] = ()
    """Layers, with versions where the user names them: `vllm==0.10.1`."""
    fabric: Fabric | None = None
    """None: what fits."""
    arguments: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Values of layers' arguments that the user gives, by (layer, argument)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    asked: Asked
    base: Layer
    stack: Stack | None
    """None where it is refused."""
    fabric: Fabric
    rules: tuple[RuleResult, ...]
    nearest: Asked | None = None
    keeping: Asked | None = None
    """Of a refusal whose nearest gives up a version that was asked for: a request that keeps it, on another base."""
    surer: Asked | None = None
    """Of a plan with doubts: the same with libfabric and libcxi in the image, where that leaves none."""
    changes: tuple[tuple[str, str], ...] = field(default=())
    """What would come out if something were otherwise: what, and the answer in short."""
    environment: tuple[SiteVariable, ...] = ()
    """Variables of the site that jobs with such an image want."""

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


class Planner:
    """Judges requests against one catalogue and one site; reads each entry of the catalogue once."""

    def __init__(
        self,
        catalogue: Catalogue,
        site: Site | None,
        held: Mapping[str, str] | None = None,
        foreign: Mapping[str, Layer] | None = None,
        *,
        has_headers: bool = False,
    ) -> None:
        """Take `held`, releases of layers that come first where they fit, and `foreign` bases, both by name.

        `has_headers`: whether layers can be compiled against the host's own libfabric.
        """
        self._catalogue = catalogue
        self._site = site
        self._held = held or {}
        self._has_headers = has_headers
        self._read = Shelf(catalogue, foreign or {}, site.arch if site else None)

    def plan(self, asked: Asked) -> Plan:
        """Judge a request; a refusal names the nearest one that works.

        Raises BadInputError for names that are not there, or that cannot be read.
        """
        plan = self._judge(asked)
        if not plan.refused:
            return plan
        deadline = time.monotonic() + NEAREST_S
        nearest = self._first(self._others(asked), deadline)
        keeping = None
        if nearest is not None and not set(asked.add) <= set(nearest.add) and any(map(_is_pinned, asked.add)):
            bases = (replace(asked, base=name, arguments={}) for name in self._bases_by_distance(asked.base))
            keeping = self._first(bases, deadline)
        return replace(plan, nearest=nearest, keeping=keeping)

    def with_changes(self, plan: Plan) -> Plan:
        """Return the plan with what would come out if the driver, the base, or the fabric were another."""
        return replace(plan, changes=tuple(self._changes(plan.asked, plan)), surer=self._surer(plan))

    def _surer(self, plan: Plan) -> Asked | None:
        chosen = plan.asked.fabric or _named_fabric(plan.asked)
        if plan.refused or not plan.is_doubtful or plan.fabric is not Fabric.HOST or chosen is not None:
            return None
        other = self._judge(replace(plan.asked, fabric=Fabric.BUNDLED))
        return None if other.refused or other.is_doubtful else other.asked

    def _judge(self, asked: Asked) -> Plan:
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
            of_host |= {HEADERS: host} if self._has_headers else {}
            start = replace(start, offers={**start.offers, **of_host})
        search = StackSearch(self._read.layer, self._provider_of, self._held, asked.arguments)
        stack = search.solve(start, self._wishes(asked, base, fabric))
        if stack is None:
            results += rules.driver_window(start, self._site) if self._site is not None else ()
            results += rules.base_troubles(base, start)
            return Plan(asked, base, None, fabric, (*results, *rules.refusals(search.unmet)))
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
        return Plan(asked, base, stack, fabric, (*results, *rules.layers_told(stack)), environment=variables)

    def _check_fabric(self, asked: Asked) -> None:
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

    def _wishes(self, asked: Asked, base: Layer, fabric: Fabric) -> list[Wish]:
        wishes = [_wish(text) for text in asked.add]
        named = {wish.layer for wish in wishes}
        for name in named:
            self._read.layer(name)
        added = []
        if fabric is not Fabric.NONE and not {"libcxi", "libfabric"} <= {*base.provides, *base.has}:
            added.append(Wish(_OF_FABRIC[fabric], because=_FABRIC_TOLD[fabric]))
        has_plugin = PLUGIN_COMPONENT in {*base.provides, *base.has} or any(
            PLUGIN_COMPONENT in self._read.layer(name).provides for name in named
        )
        if fabric is not Fabric.NONE and not has_plugin:
            added.append(Wish(PLUGIN, because="RCCL reaches libfabric through a net plugin"))
        return [wish for wish in added if wish.layer not in named] + wishes

    def working(self, add: tuple[str, ...], fabric: Fabric | None) -> Iterator[Plan]:
        """Yield the plans of layers on every base that takes them, those without doubts first.

        Raises BadInputError as `plan` does.
        """
        plans = []
        for name in self._catalogue.base_names():
            plan = self._judge(Asked(name, add, fabric))
            plans += [] if plan.refused else [plan]
        yield from sorted(plans, key=lambda plan: plan.is_doubtful)

    def _first(self, requests: Iterable[Asked], deadline: float) -> Asked | None:
        for other in requests:
            if time.monotonic() > deadline:
                break
            if not self._judge(other).refused:
                return other
        return None

    def _others(self, asked: Asked) -> Iterator[Asked]:
        """Yield other requests, those that differ least first: in fabric, release, plugin, base, or a layer.

        None has arguments: they can be what is at fault, and can be of a layer that another request does not have.
        """
        if asked.arguments:
            asked = replace(asked, arguments={})
            yield asked
        free = replace(asked, add=unpinned(asked.add))
        has = self._read.base(asked.base).has
        missing = tuple(text for text in asked.add if name_of(text) not in has)
        if missing != asked.add:
            yield replace(asked, add=missing)
        if asked.fabric is not None:
            yield replace(asked, fabric=None)
        for at, text in enumerate(asked.add):  # the pin at fault alone, before all of them
            if free.add[at] != text:
                yield replace(asked, add=(*asked.add[:at], free.add[at], *asked.add[at + 1 :]))
        if free != asked:
            yield free
        plugins = [text for text in free.add if PLUGIN_COMPONENT in self._read.layer(text).provides]
        for plugin in reversed(plugins):
            yield replace(free, add=tuple(text for text in free.add if text != plugin))
        without_plugin = tuple(text for text in free.add if text not in plugins)
        if PLUGIN not in plugins and PLUGIN in self._catalogue.layer_names():
            yield replace(free, add=(*without_plugin, PLUGIN))
        for at, text in enumerate(free.add):
            for like in (other for other in self._layers_like(text) if other not in free.add):
                yield replace(free, add=(*free.add[:at], like, *free.add[at + 1 :]))
        bases = self._bases_by_distance(asked.base) if asked.add else self._of_kind(asked.base)
        yield from (replace(asked, base=name) for name in bases)
        yield from (replace(free, base=name, add=without_plugin, fabric=None) for name in bases)
        for at, text in enumerate(free.add):
            for like in (other for other in self._layers_like(text) if other not in free.add):
                add = (*free.add[:at], like, *free.add[at + 1 :])
                yield from (replace(free, base=name, add=add, fabric=None) for name in bases)
        for text in free.add:
            less = tuple(other for other in free.add if other != text)
            yield from (replace(free, base=name, add=less, fabric=None) for name in (asked.base, *bases) if less)
        if asked.add:
            yield replace(free, add=(), fabric=None)

    def _provider_of(self, component: str) -> str | None:
        """Return the layer that brings a component: the preferred one, or the only one."""
        if component in _PREFERRED:
            return _PREFERRED[component]
        found = [name for name, layer in self._all_layers() if component in {name, *layer.provides, *layer.has}]
        return found[0] if len(found) == 1 else None

    def _all_layers(self) -> Iterator[tuple[str, Layer]]:
        for name in self._catalogue.layer_names():
            try:
                entry = self._read.entry(name)
            except CatalogError:
                continue  # a broken folder of the user's must not hide the others
            if not entry.is_base:
                yield name, entry

    def _layers_like(self, name: str) -> Iterator[str]:
        """Yield other layers that provide something that this one does."""
        provides = set(self._read.layer(name).provides)
        for other, layer in self._all_layers():
            if other != name and provides & set(layer.provides):
                yield other

    def _bases_by_distance(self, name: str) -> list[str]:
        """Return the other bases of the same kind, then those that have nothing yet which layers bring.

        Of each, the one whose ROCm is nearest comes first; of two as near the older.
        """
        here = self._read.base(name)
        rocm = _number(here.has.get("rocm")) or 0.0
        found = []
        for other in self._catalogue.base_names():
            try:
                base = self._read.base(other)
            except CatalogError:
                continue
            version = _number(base.has.get("rocm"))
            is_other_kind = base.folder != here.folder
            if other != name and version is not None and (not is_other_kind or base.has.keys() <= _PLAIN):
                found.append((is_other_kind, abs(version - rocm), version, other))
        return [other for *_, other in sorted(found)]

    def _of_kind(self, name: str) -> list[str]:
        folder = self._read.base(name).folder
        return [other for other in self._bases_by_distance(name) if self._read.base(other).folder == folder]

    def _changes(self, asked: Asked, plan: Plan) -> Iterator[tuple[str, str]]:
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
            yield f"with another driver on {site.name}", in_short(other._judge(asked))
        yield from self._on_other_bases(asked)

    def _on_other_bases(self, asked: Asked) -> Iterator[tuple[str, str]]:
        """Yield what would come out on the next older and the next newer base."""
        near = self._of_kind(asked.base)
        rocm = {name: _number(self._read.base(name).has.get("rocm")) or 0.0 for name in (asked.base, *near)}
        older = [name for name in near if rocm[name] < rocm[asked.base]]
        newer = [name for name in near if rocm[name] > rocm[asked.base]]
        for names in filter(None, (older, newer)):
            plans = [self._judge(replace(asked, base=name)) for name in names]
            plan = next((plan for plan in plans if not plan.refused), plans[0])
            yield f"on {plan.base.name}", in_short(plan)


def _is_pinned(text: str) -> bool:
    return bool(_wish(text).versions)


def unpinned(add: Iterable[str]) -> tuple[str, ...]:
    """Return the layers that are asked for, without versions. Raises BadInputError for what is no layer."""
    return tuple(map(name_of, add))


def command_of(asked: Asked, site: str | None = None, host: Path | None = None) -> str:
    """Return a request as options of `lumiimg build`, for a shell."""
    words = ["--base", asked.base, *(word for text in asked.add for word in ("--add", text))]
    words += ["--site", site] if site else []
    words += ["--host", str(host)] if host else []
    words += ["--fabric", asked.fabric.value] if asked.fabric else []
    return shlex.join(words)


def _check_twice(asked: Asked) -> None:
    names = [name_of(text) for text in asked.add]
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"layer {name!r} is asked for twice")


def _named_fabric(asked: Asked) -> Fabric | None:
    """Return the fabric whose layer is among those that are asked for."""
    named = {name_of(text) for text in asked.add}
    return next((fabric for fabric, layer in _OF_FABRIC.items() if layer in named), None)


def name_of(text: str) -> str:
    """Return the layer of `vllm==0.10.1`. Raises BadInputError for what is no layer."""
    return _wish(text).layer


def in_short(plan: Plan) -> str:
    """Return a plan in a line: what it chooses, or what stands against it."""
    if plan.refused or plan.stack is None:
        against = next(rule for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED)
        return f"refused ({against.id}): {against.sides}"
    chosen = [f"{c.layer.name} {c.version}" for c in plan.stack.layers if c.version and c.layer.name != "pytorch"]
    parts = [f"fabric {plan.fabric.value}", *([f"torch {plan.torch}"] if plan.torch else []), *chosen]
    return ", ".join(parts) + (" (with doubts)" if plan.is_doubtful else "")


class Shelf:
    """Entries of the catalogue, each read once; layers as they are for the site's GPU."""

    def __init__(self, catalogue: Catalogue, foreign: Mapping[str, Layer], arch: str | None) -> None:
        self._arch = arch
        self._catalogue = catalogue
        self._kept: dict[str, Layer] = dict(foreign)

    def base(self, name: str) -> Layer:
        return self._kept.get(name) or self._kept.setdefault(name, self._catalogue.base(name))

    def layer(self, name: str) -> Layer:
        kept = self._kept.get(name)
        if kept is not None and not kept.is_base:
            return kept
        return self._kept.setdefault(name, for_gpu(self._catalogue.layer(name), self._arch))

    def entry(self, name: str) -> Layer:
        return self._kept.get(name) or self._kept.setdefault(name, for_gpu(self._catalogue.entry(name), self._arch))


def _wish(text: str) -> Wish:
    if len(text) > _WISH_LIMIT:
        raise BadInputError(f"{text[:40]!r}… is no layer", hint=_LAYER_HINT)
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise BadInputError(f"{text!r} is no layer", hint=_LAYER_HINT) from error
    if requirement.extras or requirement.url or requirement.marker:
        raise BadInputError(f"{text!r} is no layer", hint=_LAYER_HINT)
    return Wish(requirement.name, requirement.specifier)


def _number(version: str | None) -> float | None:
    """Return a release of ROCm as a number, so that 6.2.4 is nearer to 6.3 than to 7.0."""
    try:
        release = Version(version or "").release
    except InvalidVersion:
        return None
    return sum((part / 100**place for place, part in enumerate(release[:3])), start=0.0)
