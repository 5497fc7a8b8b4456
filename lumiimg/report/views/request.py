"""What `explain` answers for a request, and what `build --dry-run` plans: what is chosen, by which rule, or why not."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.findings import Advice, Severity
from lumiimg.report.document import Document, Facts, Item, Lines, Paragraph, Row, Section, Shown, Table
from lumiimg.report.reach import LEGEND, never_built
from lumiimg.resolve.request import Request, in_short, options_of
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.launch import SiteAnnotation, SiteOption
    from lumiimg.catalog.sites import SiteVariable
    from lumiimg.definition.writer import BuildPlan
    from lumiimg.report.reach import StackRow
    from lumiimg.resolve.lock import Lock, LockedLayer
    from lumiimg.resolve.plan import Plan, PossibleBases

_WORDS = {RuleOutcome.WARNING: "warning: ", RuleOutcome.UNKNOWN: "not known: "}
_WORST_FIRST = list(RuleOutcome)[::-1]


def request_document(plan: Plan) -> Document:
    """Return what `explain --base … --add …` says."""
    rules = sorted(plan.rules, key=lambda rule: _WORST_FIRST.index(rule.outcome))
    compared = (Row((rule.id, rule.need, rule.have), rule.outcome.severity) for rule in rules)
    return Document(
        command="explain",
        subject=in_short(plan.asked),
        severity=Severity.PROBLEM if plan.refused else Severity.UNKNOWN if plan.is_doubtful else Severity.OK,
        sentence=_sentence(plan),
        advice=_advice(plan),
        summary=tuple(_summary(plan)),
        sections=(
            Section("What is chosen", () if plan.refused else (stack_table(_rows_of_plan(plan)),), Shown.PAGE),
            Section("The rules", map(_rule, rules)),
            Section("What each rule compares", (Table(("rule", "needs", "has"), tuple(compared)),), Shown.VERBOSE),
            *(() if plan.refused else _of_jobs(plan)),
        ),
    )


def bases_document(found: PossibleBases) -> Document:
    """Return on which bases a request for layers alone can be met."""
    plans, request = found.bases, found.request
    asked = f"{' + '.join(request.add)}{f' on {found.site.name}' if found.site else ''}"
    shown: Plan | None
    if plans:
        sentence = f"{count(len(plans), 'base')} of the catalogue {'take' if len(plans) > 1 else 'takes'} {asked}"
        if sure := sum(not plan.is_doubtful for plan in plans):
            sentence += f", {sure} of them without doubts" if sure < len(plans) else ", without doubts"
        shown = next((plan for plan in plans if plan.missing is None), plans[0])
    else:
        sentence = f"no base of the catalogue takes {asked}"
        shown = next(iter((*found.free, *found.others)), None)
    command = f"lumiimg explain --base {shown.base.name} {request.written}" if shown is not None else None
    return Document(
        command="explain",
        subject=asked,
        severity=Severity.OK if plans else Severity.PROBLEM,
        sentence=sentence,
        advice=Advice(None, command, "more about one" if plans else "why not"),
        sections=(
            Section("Those without doubts come first", _bases(plans), is_headed=True),
            Section("Bases that take another version", _bases(found.free), is_headed=True),
        ),
    )


def plan_document(plan: BuildPlan) -> Document:
    """Return what `build --dry-run` says."""
    lock, chain = plan.plan, plan.definitions
    bootstrap = lock.bootstrap
    base = f"{bootstrap.agent} {bootstrap.origin} ({bootstrap.because}; {lock.base.status})"
    rows = [(_released(lock.base), base)]
    rows += [(_released(layer), f"{layer.layer.summary} ({layer.status})") for layer in lock.layers]
    return Document(
        command="build",
        subject=" + ".join(definition.name for definition in chain),
        sentence=f"would build {' + '.join(layer.layer.name for layer in lock.stack)}",
        summary=() if lock.site is None else (f"for {lock.site}, fabric {lock.fabric.value}",),
        sections=(
            Section("Base and layers", (Facts(tuple(rows)),)),
            *(Section(_released(layer), (Lines(tuple(_made_of(layer))),), is_headed=True) for layer in lock.stack),
            Section("What is not sure", doubts_of(lock)),
        ),
        closing=("nothing was built; --definitions DIR writes the definition files",),
    )


def doubts_of(lock: Lock) -> Iterator[Item]:
    """Yield what was never built, what the compatibility rules warn of, and what they could not decide."""
    if note := never_built(rows_of_lock(lock)):
        yield Item(Severity.UNKNOWN, note)
    for rule in lock.doubts:
        yield Item(Severity.UNKNOWN, f"{_WORDS.get(rule.outcome, '')}{rule.because}", tag=rule.id)


def when_of(variable: SiteVariable | SiteOption | SiteAnnotation) -> str:
    """Return for which jobs a thing of a site is, as a comment of a shell; nothing where it is for all."""
    return {"one": "  # on one node", "several": "  # on several nodes"}.get(variable.nodes, "")


def _sentence(plan: Plan) -> str:
    where = f" on {plan.site.name}" if plan.site else ""
    found = "no obstacle found" if plan.site and not plan.site.is_any else "no obstacle found among the layers"
    answer = "refused" if plan.refused else f"{found}, with doubts" if plan.is_doubtful else found
    return f"{answer}: {in_short(plan.asked)}{where}"


def _advice(plan: Plan) -> Advice:
    """Return the first reason, and a command; of a refusal, the nearest request that works."""
    against = sorted(plan.against, key=lambda rule: _WORST_FIRST.index(rule.outcome))
    why = _against(against[0]) if against else None
    if not plan.refused:
        return Advice(
            f"the base cannot be had here: {plan.missing}" if plan.missing else why,
            f"lumiimg build {plan.asked.written} -o image.sif",
            "where its base is" if plan.missing else None,
        )
    if plan.nearest is None:
        return Advice(why, "lumiimg list", "to ask for less: no request near it works")
    left = _left_out(plan.asked, plan.nearest.asked)
    where = ", where its base is" if plan.nearest.missing else ""
    command = f"lumiimg build {options_of(plan.nearest.asked)} -o image.sif"
    return Advice(why, command, f"the nearest that works{left}{where}")


def _left_out(asked: Request, nearest: Request) -> str:
    left = [name for name in asked.unpinned if name not in nearest.unpinned]
    pinned = {tuple(text.split("==")) for text in asked.add}  # an argument VERSION is one of these
    given = [
        f"--arg {layer}.{name}" for (layer, name), value in asked.arguments.items() if (layer, value) not in pinned
    ]
    left += [*given, *(f"--source {name}" for name in asked.sources)]  # no nearest has one
    return f", without {' and '.join(left)}" if left else ""


def _summary(plan: Plan) -> Iterator[str]:
    if not plan.refused:
        torch = f", torch {plan.torch}" if plan.torch else ""
        yield f"fabric {plan.fabric.value}, plugin {plan.plugin or 'none'}{torch}"
    if plan.site is None or plan.site.is_any:
        yield "no machine is named, so neither its driver nor its network was judged: --site lumi"


def rows_of_lock(lock: Lock) -> list[StackRow]:
    """Return the base and the layers of a lock."""
    return [(layer.layer, layer.release.version if layer.release else None, layer.status) for layer in lock.stack]


def _rows_of_plan(plan: Plan) -> list[StackRow]:
    layers = plan.stack.layers if plan.stack else ()
    return [(plan.base, None, plan.base.status), *((one.layer, one.version, one.status) for one in layers)]


def stack_table(rows: Sequence[StackRow]) -> Table:
    """Return a base and its layers in their order."""
    cells = (Row((layer.name, version or "", status)) for layer, version, status in rows)
    return Table(("layer", "release", "status"), tuple(cells), LEGEND, what="layers")


def _against(rule: RuleResult) -> str:
    """Return what a rule that does not hold says: both sides where they are two numbers, and why."""
    is_doubt_of_layer = rule.id == "layers" and rule.outcome is RuleOutcome.UNKNOWN
    is_compared = rule.have not in {rule.sides, "none"} and not is_doubt_of_layer
    parts = [rule.sides] if is_compared or not rule.because else []
    return _WORDS.get(rule.outcome, "") + ": ".join([*parts, *filter(None, [rule.because])])


def _rule(rule: RuleResult) -> Item:
    severity = rule.outcome.severity
    if rule.outcome is not RuleOutcome.OK:
        return Item(severity, _against(rule), tag=rule.id, source=rule.source)
    return Item(severity, rule.have, tag=rule.id, why=(rule.because,) if rule.because else (), source=rule.source)


def _of_jobs(plan: Plan) -> Iterator[Section]:
    """Yield how far it was tried, and what jobs with such an image want."""
    layers = plan.layers
    rows = [(plan.base, None, plan.base.status), *((chosen.layer, chosen.version, chosen.status) for chosen in layers)]
    if note := never_built(rows):
        yield Section("How far it was tried", (Paragraph(note, Severity.UNKNOWN),))
    if plan.environment and plan.site is not None:
        exports = tuple(f"export {item.name}={item.value}{when_of(item)}" for item in plan.environment)
        because = tuple((item.name, f"{item.because} ({item.source})") for item in plan.environment)
        yield Section(f"For jobs on {plan.site.name}", (Lines(exports, "variables"), Facts(because)), Shown.VERBOSE)


def _bases(plans: Sequence[Plan]) -> tuple[Facts, ...]:
    return (Facts(tuple((plan.base.name, plan.outcome) for plan in plans)),) if plans else ()


def _released(layer: LockedLayer) -> str:
    return f"{layer.layer.name} {layer.release.version}" if layer.release else layer.layer.name


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
        yield f"{count(len(layer.wheels), 'Python distribution')}, each by its sha256"
