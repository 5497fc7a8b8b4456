"""One way from a request to its answer, for every command that takes one: refused alike, or a lock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.errors import BadInputError, RefusedError
from lumiimg.resolve.image_base import read_bases
from lumiimg.resolve.planner import Planner
from lumiimg.resolve.request import options_of, refuse_secrets, with_releases
from lumiimg.resolve.rules import RuleOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.plan import Ground, Plan
    from lumiimg.resolve.request import Request


def decide(request: Request, ground: Ground, *, changes: bool = False) -> Plan:
    """Return the answer to a request; with `changes`, what it would be if something were otherwise, too.

    Raises BadInputError for a wrong name, argument or source.
    """
    refuse_secrets(request)
    images = ground.images or read_bases(request.base, ground.catalogue, ground.pull)
    planner = Planner(replace(ground, images=images))
    plan = planner.plan(with_releases(request, ground.catalogue))
    return planner.with_changes(plan) if changes else plan


def working(request: Request, ground: Ground) -> tuple[list[Plan], list[Plan]]:
    """Return the plans of a request on every base that takes it, and on those that do not. Raises as `decide` does."""
    refuse_secrets(request)
    return Planner(ground).working(with_releases(request, ground.catalogue))


def locked(plan: Plan) -> Lock:
    """Return the lock of a plan. Raises RefusedError, MissingHereError where it has none."""
    if plan.refused:
        raise _refusal(plan)
    if plan.missing is not None:
        raise plan.missing
    if plan.lock is None:
        raise ValueError(plan)
    return plan.lock


def _refusal(plan: Plan) -> RefusedError:
    """Return what stands against a plan as an error: the rule, both numbers, and the nearest request that works."""
    against = next(rule for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED)
    nearest = None
    if plan.nearest is not None:
        where = ", where its base is" if plan.nearest.missing else ""
        nearest = f"the nearest that works{where}: lumiimg build {options_of(plan.nearest.asked)}"
    return RefusedError(
        f"{against.because} (rule {against.id}: {against.sides})",
        hint=nearest or f"what stands against it: lumiimg explain {options_of(plan.asked)}",
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
    layers = {layer.layer.name: layer.release.version for layer in lock.layers if layer.release}
    wheels = {wheel.name: wheel.version for layer in lock.stack for wheel in layer.wheels}
    for name in upgraded:
        if name not in {*layers, *wheels, "all"}:
            known = ", ".join(sorted({*layers, *wheels}))
            raise BadInputError(f"the lock has no {name!r}", where="--upgrade", hint=f"it has: {known or 'nothing'}")
    if "all" in upgraded:
        return Held({}, {}, None)
    kept = [{name: version for name, version in part.items() if name not in upgraded} for part in (layers, wheels)]
    return Held(kept[0], kept[1], lock)
