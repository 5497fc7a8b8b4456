"""Answers of `explain` for a request and of `build --dry-run`: what is chosen, by which rule, or why not."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from lumiimg.catalog.folders import shipped_layers
from lumiimg.catalog.ledger import LEGEND, MEANING, REACHES
from lumiimg.core.findings import Severity
from lumiimg.core.text import count, rough_duration, size
from lumiimg.report.document import (
    Document,
    Facts,
    Item,
    Lines,
    Row,
    Section,
    Shown,
    Table,
    facts_section,
    severity_of,
)
from lumiimg.resolve.request import main_options
from lumiimg.resolve.rules import RuleOutcome, RuleResult, worst_first
from lumiimg.resolve.stack import ready_wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.build.cost import BuildCost, BuildPlan, ExplainedRequest
    from lumiimg.resolve.lock import Lock, LockedLayer
    from lumiimg.resolve.plan import Plan, PossibleBases
    from lumiimg.resolve.request import Request
    from lumiimg.resolve.stack import ReleasedLayer

_NAMED = 3
"""Maximum number of names in a line."""
_TELLING_BYTES = 1 << 30
"""If the parts that are known are smaller than this in total, they say nothing about the whole."""


def request_document(found: ExplainedRequest) -> Document:
    """Return the answer of `explain --base … --add …`."""
    plan = found.plan
    rules = worst_first(plan.rules)
    compared = tuple(Row((rule.id, rule.need, rule.have), rule.outcome.severity) for rule in rules)
    return Document(
        "explain",
        main_options(plan.asked),
        plan.sentence,
        plan.severity,
        plan.advice,
        (
            *_summary(plan),
            *(cost_lines(found.cost) if found.cost else ()),
            *(() if plan.refused else time_lines(plan.base_and_layers, plan.asked, found.cost)),
            *((plan.newer.sentence,) if plan.newer else ()),
        ),
        sections=(
            Section("What is chosen", () if plan.refused else (stack_table(plan.base_and_layers),), Shown.PAGE),
            Section("The rules", map(_rule, rules)),
            Section("What each rule compares", (Table(("rule", "needs", "has"), compared),), Shown.VERBOSE),
            Section("How far it was tried", () if plan.refused else _never_built(plan.base_and_layers)),
            Section(f"For jobs on {plan.site.name if plan.site else 'a machine'}", _of_jobs(plan), Shown.VERBOSE),
        ),
    )


def bases_document(found: PossibleBases) -> Document:
    """Return the bases on which a request that names only layers can be met."""
    plans = ((plan.base.name, plan.outcome) for plan in found.bases)
    return Document(
        "explain",
        found.asked,
        found.sentence,
        severity_of(found.exit_code),
        found.advice,
        sections=(facts_section("Those without doubts come first", plans, is_headed=True),),
    )


def plan_document(plan: BuildPlan) -> Document:
    """Return the answer of `build --dry-run`."""
    lock = plan.plan
    bootstrap = lock.bootstrap
    base = f"{bootstrap.agent} {bootstrap.origin} ({bootstrap.because}; {lock.base.status})"
    layers = ((layer.title, f"{layer.layer.summary} ({layer.status})") for layer in lock.layers)
    return Document(
        "build",
        " + ".join(definition.name for definition in plan.definitions),
        f"would build {' + '.join(layer.name for layer in lock.stack)}",
        summary=(
            *(() if lock.site is None else (f"for {lock.site}, fabric {lock.fabric.value}",)),
            *cost_lines(plan.cost),
            *time_lines(lock.stack, lock.request, plan.cost),
        ),
        sections=(
            facts_section("Base and layers", ((lock.base.title, base), *layers)),
            *(Section(layer.title, (Lines(tuple(_made_of(layer))),), is_headed=True) for layer in lock.stack),
            doubts_section(lock),
        ),
        closing=("nothing was built; --definitions DIR writes the definition files",),
    )


def cost_lines(cost: BuildCost) -> Iterator[str]:
    """Yield one line with the cost of a build, one with the free space, and one if it does not fit."""
    parts = cost.parts
    unknown = [part.title for part in parts if part.size_bytes is None]
    amounts = [
        f"download {_amount(cost.download_bytes, [part.download_bytes for part in parts], size)}",
        f"cache {_amount(cost.cache_bytes, [part.new_bytes for part in parts], size)}",
        f"image {'' if unknown else 'at most '}{_amount(cost.image_bytes, [part.size_bytes for part in parts], size)}",
        f"time {_amount(cost.seconds, [part.seconds for part in parts], rough_duration)}",
    ]
    more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
    nobody = f"no build is recorded of {', '.join(unknown[:_NAMED])}{more}"
    if all(part.known_by in {"cache", "file"} for part in parts):
        yield f"cost: nothing, everything is here already; image at most {size(cost.image_bytes or 0)}"
    elif all(amount.endswith("not known") for amount in amounts):
        yield f"cost: not known ({nobody})"
    else:
        yield f"cost: {', '.join(amounts)}{f' ({nobody})' if unknown else ''}"
    free: dict[str, list[str]] = {}
    for place in cost.places:
        room = place.room
        of = " of the quota" if room.quota_bytes == room.left_bytes else ""
        note = f", {room.note}" if room.note else ""
        free.setdefault(f"{size(room.left_bytes)}{of}{note}", []).append(place.use)
    left = (f"{room} ({', '.join(uses)})" for room, uses in free.items())
    yield f"free: {'; '.join(left)}"
    if cost.lacking is not None:
        place = cost.lacking.place
        yield f"does not fit: {cost.lacking.sentence} in {place.room.folder}; {place.hint}"


def time_lines(stack: Sequence[ReleasedLayer], asked: Request, cost: BuildCost | None) -> Iterator[str]:
    """Yield whether each layer that can take hours will, and why: with the known time, else a rough class."""
    base, *layers = stack
    known = {part.title: rough_duration(part.seconds) for part in (cost.parts if cost else ()) if part.seconds}
    torches = [one.name for one in layers if "torch" in one.layer.provides and one.name in asked.unpinned]
    for one in layers:
        hours = one.layer.from_source
        if hours is None or one.release is None:
            continue
        if one.release.wheels:
            torch = " with their own torch" if one.release.own_torch else ""
            yield f"{one.title}: ready wheels{torch}: {known.get(one.title, 'minutes')}; from source: {hours}"
            continue
        ready = ready_wheels(one.layer, base.layer)
        other = f"ready wheels with their own torch, minutes: --add {one.name}=={ready.version}" if ready else ""
        other += f", without {' and '.join(torches)}" if ready and torches else ""
        yield f"{one.title}: from source: {known.get(one.title, hours)}; {other or f'no ready wheels fit {base.name}'}"


def _amount(whole: float | None, parts: Sequence[float | None], words: Callable[[Any], str]) -> str:
    if whole is None or (None in parts and whole < (_TELLING_BYTES if words is size else 1)):
        return "not known"
    return f"{'more than ' if None in parts else ''}{words(whole)}"


def doubts_section(lock: Lock) -> Section:
    """Return what was never built, what the compatibility rules warn about, and what they could not decide."""
    rules = (Item(Severity.UNKNOWN, f"{rule.outcome.word}{rule.because}", tag=rule.id) for rule in lock.doubts)
    return Section("What is not certain", (*_never_built(lock.stack), *rules))


def _never_built(stack: Sequence[ReleasedLayer]) -> Iterator[Item]:
    """Yield which parts of a base and layers were never built.

    Only layers shipped with lumiimg are considered: about their own layers, and about an image, users know more.
    """
    parts = []
    for reach in REACHES[: REACHES.index("built")]:
        found = [one.title for one in stack if one.status == reach and one.layer.folder.parent == shipped_layers()]
        if found:
            parts.append(f"{', '.join(found)} ({reach}: {MEANING[reach]})")
    if parts:
        yield Item(Severity.UNKNOWN, f"never built by this project: {'; '.join(parts)}")


def stack_table(stack: Sequence[ReleasedLayer]) -> Table:
    """Return the table of a base and its layers, in order."""
    rows = (Row((one.name, one.version or "", one.status)) for one in stack)
    return Table(("layer", "release", "status"), tuple(rows), LEGEND)


def _summary(plan: Plan) -> Iterator[str]:
    if not plan.refused:
        torch = f", torch {plan.torch}" if plan.torch else ""
        yield f"fabric {plan.fabric.value}, plugin {plan.plugin or 'none'}{torch}"
    if not plan.is_for_machine:
        yield "no machine is named, so driver and network were not checked: --site lumi"


def _rule(rule: RuleResult) -> Item:
    severity = rule.outcome.severity
    if rule.outcome is not RuleOutcome.OK:
        return Item(severity, rule.in_words, tag=rule.id, source=rule.source)
    return Item(severity, rule.have, tag=rule.id, why=(rule.because,) if rule.because else (), source=rule.source)


def _of_jobs(plan: Plan) -> tuple[Lines, Facts]:
    """Return the variables that jobs with such an image need, and why."""
    exports = (f"export {item.name}={item.value}{item.nodes.note}" for item in plan.environment)
    because = ((item.name, f"{item.because} ({item.source})") for item in plan.environment)
    return Lines(tuple(exports)), Facts(tuple(because))


def _made_of(layer: LockedLayer) -> Iterator[str]:
    """Yield the arguments, sources and packages of a layer."""
    yield from (f"{name}={shlex.quote(value)}" for name, value in layer.arguments.items() if value)
    for source in layer.sources:
        yield source.location
        digest = f"sha256 {source.sha256} " if source.sha256 else ""
        if note := f"{digest}{f'({source.note})' if source.note else ''}".rstrip():
            yield note
    yield from layer.release.wheels if layer.release else ()
    if layer.wheels:
        yield f"{count(len(layer.wheels), 'Python distribution')}, each with its sha256"
