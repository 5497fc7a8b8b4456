"""The rows of the catalogue: each release of each layer, on each Python that the bases have which take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.catalog.needs import NOT_PYTHON
from lumiimg.core.errors import LumiimgError
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock import Lock, LockedLayer, wants_python
from lumiimg.resolve.planner import possible_bases
from lumiimg.resolve.python_target import PythonTarget
from lumiimg.resolve.request import Request, name_of
from lumiimg.resolve.stack import OWN_PACKAGES

if TYPE_CHECKING:
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.releases import Release
    from lumiimg.resolve.plan import Plan

PROGRAMS = "/usr/bin:/bin:/usr/sbin"


@dataclass(frozen=True, slots=True)
class Row:
    """One release of a layer for one Python, and the plans of it that the rules take."""

    name: str
    """Of the layer."""
    release: str
    """Empty where the layer has none."""
    python: str
    """Of the base; empty where nothing of the stack is for a Python."""
    kind: str
    """Which of several wheels of the release: the ROCm of its torch, such as `rocm6.4`; empty where there is one."""
    facts: Layer
    """The layer."""
    plans: tuple[Plan, ...]

    @property
    def chosen(self) -> Release | None:
        """The release, as the plans have it; None where the layer has none."""
        own = (layer for plan in self.plans for layer in lock_of(plan).layers if layer.name == self.name)
        return next((layer.release for layer in own), None)

    def same_release(self, other: Row) -> bool:
        """Return whether another row is of the same release, for whatever Python."""
        return (self.name, self.release, self.kind) == (other.name, other.release, other.kind)

    @property
    def uses_python(self) -> bool:
        """Whether a layer of the stack puts something into the image's Python."""
        return any(_uses_python(plan) for plan in self.plans)

    def __str__(self) -> str:
        return f"{self.name} {self.release}".strip()


def rows(names: frozenset[str], catalogue: Catalogue | None = None) -> Iterator[Row]:
    """Yield the rows of the layers of these names, of all where there are none; a row without plans fits no base."""
    catalogue = catalogue or open_catalogue({"HOME": "/nonexistent"})
    context = PlanContext(catalogue=catalogue, mirrors=Mirrors({}), path=PROGRAMS)
    for name in catalogue.layer_names():
        layer = catalogue.entry(name)
        # What is in the layer of one's own packages is the user's: it has no row that could be tried.
        if layer.is_base or name == OWN_PACKAGES or (names and name not in names):
            continue
        for release in dict.fromkeys(one.version for one in layer.releases) or ("",):
            asked = f"{name}=={release}" if release else name
            plans = possible_bases(Request(base="", add=(asked,)), context).bases
            yield from _by_python(layer, release, [plan for plan in plans if plan.lock and not _is_unread(plan)])


def unread(catalogue: Catalogue | None = None) -> list[str]:
    """Return the bases on which nothing of Python can be locked before they are read: no name says their Python."""
    catalogue = catalogue or open_catalogue({"HOME": "/nonexistent"})
    bases = map(catalogue.base, catalogue.base_names())
    return [base.name for base in bases if "python3" in base.provides and "python" not in base.has]


def _is_unread(plan: Plan) -> bool:
    return _uses_python(plan) and PythonTarget.from_versions(lock_of(plan).versions) is None


def _by_python(layer: Layer, release: str, plans: list[Plan]) -> Iterator[Row]:
    found: dict[tuple[str, str], list[Plan]] = {}
    for plan in plans:
        found.setdefault((_python_of(plan), _kind_of(plan, layer.name)), []).append(plan)
    for (python, kind), several in sorted(found.items()) or [(("", ""), [])]:
        yield Row(layer.name, release, python, kind, layer, tuple(several))


def _kind_of(plan: Plan, name: str) -> str:
    own = next((layer.release for layer in lock_of(plan).layers if layer.name == name), None)
    return own.has.get("torch", "").partition("+")[2] if own else ""


def _uses_python(plan: Plan) -> bool:
    return any("python.sh" in layer.layer.staged for layer in lock_of(plan).layers)


def _python_of(plan: Plan) -> str:
    """Return the version of the base's Python, where a layer of the plan uses it."""
    python = PythonTarget.from_versions(lock_of(plan).versions)
    return ".".join(map(str, python.version)) if python and _uses_python(plan) else ""


def lock_of(plan: Plan) -> Lock:
    """Return the lock of a plan that has one. Raises LumiimgError for another."""
    if plan.lock is None:
        raise LumiimgError(f"{name_of(plan.asked.add[0])} on {plan.base.name} has no lock")
    return plan.lock


def closure_of(plan: Plan) -> object:
    """Return what the resolver is asked of a plan: plans with the same answer of it have the same closure."""
    lock = lock_of(plan)
    there = tuple((name, version) for name, version in lock.base.layer.has.items() if name not in NOT_PYTHON)
    return (
        PythonTarget.from_versions(lock.versions),
        there,
        tuple(_wants(layer) for layer in lock.layers if wants_python(layer)),
    )


def _wants(layer: LockedLayer) -> tuple[object, ...]:
    wheels = layer.release.wheels if layer.release else ()
    return layer.name, wheels, tuple(layer.arguments.items()), tuple(source.location for source in layer.sources)
