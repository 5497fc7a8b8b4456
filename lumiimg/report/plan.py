"""What `lumiimg explain --base … --add …` says: what is chosen, by which rule, from which fact; or why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumiimg.report.console import (
    INDENT,
    Priority,
    detail,
    heading,
    headline,
    marked,
    proposal,
    say,
    screen,
    verbatim,
)
from lumiimg.report.reach import never_built
from lumiimg.resolve.plan import Plan, outcome_of
from lumiimg.resolve.request import Request, in_short, options_of
from lumiimg.resolve.rules import RuleOutcome, RuleResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.catalog.launch import SiteAnnotation, SiteOption
    from lumiimg.catalog.sites import Site, SiteVariable
    from lumiimg.report.console import Console

KINDS = {
    RuleOutcome.OK: "ok",
    RuleOutcome.WARNING: "unknown",
    RuleOutcome.UNKNOWN: "unknown",
    RuleOutcome.REFUSED: "problem",
}
_WORDS = {
    RuleOutcome.OK: "",
    RuleOutcome.WARNING: "warning: ",
    RuleOutcome.UNKNOWN: "not known: ",
    RuleOutcome.REFUSED: "refused: ",
}


def json_keys(plan: Plan) -> dict[str, Any]:
    """Return the keys of the JSON beside the attributes of the plan."""
    return {
        "decision": "refused" if plan.refused else "ok",
        "nearest": plan.nearest and _asked_data(plan.nearest.asked),
        "base": plan.base.name,
        "layers": [
            {"name": chosen.layer.name, "version": chosen.version, "status": chosen.status}
            for chosen in (plan.stack.layers if plan.stack else ())
        ],
        "environment": () if plan.refused else plan.environment,
    }


def print_plan(plan: Plan, *, verbose: bool, quiet: bool = False, stderr: bool = False) -> None:
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        kind = "problem" if plan.refused else "unknown" if plan.is_doubtful else "ok"
        headline(out, sentence(plan), kind)
        if not plan.refused:
            detail(out, _chosen(plan), priority=Priority.ALWAYS)
        if plan.site is None or plan.site.is_any:
            note = "no machine is named, so neither its driver nor its network was judged: --site lumi"
            detail(out, note, style="yellow", priority=Priority.ALWAYS)
        if plan.missing is not None and not plan.refused:
            say(out, f"not here: {plan.missing}", style="yellow", priority=Priority.ALWAYS)
        against = [rule for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED]
        for rule in against:
            _print_rule(out, rule, verbose=verbose)
        if plan.refused:
            out.print()
        word, command = next_step(plan)
        if command:
            proposal(out, command, word=word)
        else:
            say(out, word, priority=Priority.ALWAYS)
        others = [rule for rule in plan.rules if rule not in against]
        out.print()
        for rule in sorted(others, key=lambda rule: list(RuleOutcome)[::-1].index(rule.outcome)):
            _print_rule(out, rule, verbose=verbose)
        if not plan.refused:
            _print_jobs(out, plan, verbose=verbose)


def next_step(plan: Plan) -> tuple[str, str | None]:
    """Return what to do with a plan: some words, and the command; none where nothing near a refusal works."""
    if plan.refused:
        return _nearest(plan)
    word = "next" if plan.missing is None else "where its base is"
    return word, f"lumiimg build {plan.asked.written} -o image.sif"


def sentence(plan: Plan) -> str:
    """Return the answer in one line."""
    where = f" on {plan.site.name}" if plan.site else ""
    found = "no obstacle found" if plan.site and not plan.site.is_any else "no obstacle found among the layers"
    answer = "refused" if plan.refused else f"{found}, with doubts" if plan.is_doubtful else found
    return f"{answer}: {in_short(plan.asked)}{where}"


def _print_rule(out: Console, rule: RuleResult, *, verbose: bool) -> None:
    is_doubt = rule.outcome is not RuleOutcome.OK
    if is_doubt or verbose:
        out.print()
    told = rule.sides if is_doubt or verbose else rule.have
    marked(out, KINDS[rule.outcome], f"{_WORDS[rule.outcome]}{told}  [{rule.id}]")
    detail(out, rule.because, priority=Priority.REASON if is_doubt else Priority.MORE)
    if is_doubt or verbose:
        say(out, f"source: {rule.source}", first=INDENT, style="dim", priority=Priority.MORE)


def _nearest(plan: Plan) -> tuple[str, str | None]:
    if plan.nearest is None:
        return "no request near it works: ask for less (`lumiimg list`)", None
    left = _left_out(plan.asked, plan.nearest.asked)
    where = ", where its base is" if plan.nearest.missing else ""
    command = f"lumiimg build {options_of(plan.nearest.asked)} -o image.sif"
    return f"next, the nearest that works{left}{where}", command


def _print_jobs(out: Console, plan: Plan, *, verbose: bool) -> None:
    if note := told_unbuilt(plan):
        out.print()
        say(out, note, style="yellow")
    if not plan.environment or plan.site is None:
        return
    heading(out, f"for jobs on {plan.site.name}:")
    for variable in plan.environment:
        line = f"{INDENT}export {variable.name}={variable.value}{when_of(variable)}"
        verbatim(out, line, priority=Priority.WELL)
        if verbose:
            say(out, f"{variable.because} ({variable.source})", first=INDENT * 2, rest=INDENT * 2, style="dim")


def told_unbuilt(plan: Plan) -> str | None:
    """Return a sentence on what of a plan was never built; None where all of it was."""
    layers = plan.stack.layers if plan.stack else ()
    return never_built([(plan.base, None, plan.base.status), *((c.layer, c.version, c.status) for c in layers)])


def _left_out(asked: Request, nearest: Request) -> str:
    left = [name for name in asked.unpinned if name not in nearest.unpinned]
    pinned = {tuple(text.split("==")) for text in asked.add}  # an argument VERSION is one of these
    given = [
        f"--arg {layer}.{name}" for (layer, name), value in asked.arguments.items() if (layer, value) not in pinned
    ]
    left += [*given, *(f"--source {name}" for name in asked.sources)]  # no nearest has one
    return f", without {' and '.join(left)}" if left else ""


def print_bases(
    plans: Sequence[Plan],
    request: Request,
    site: Site | None,
    *,
    others: Sequence[Plan] = (),
    free: Sequence[Plan] = (),
    verbose: bool,
    quiet: bool = False,
    stderr: bool = False,
) -> None:
    """Print on which bases a request for layers alone can be met; where on none, `free` without versions."""
    asked = f"{' + '.join(request.add)}{f' on {site.name}' if site else ''}"
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        if plans:
            headline(out, f"bases that take {asked}, those without doubts first:")
            one = next((plan for plan in plans if plan.missing is None), plans[0])
            proposal(out, f"lumiimg explain --base {one.base.name} {request.written}", word="next, more of one")
            _print_each(out, plans)
            return
        headline(out, f"no base of the catalogue takes {asked}", "problem")
        for plan in (*free, *others)[:1]:
            proposal(out, f"lumiimg explain --base {plan.base.name} {request.written}", word="next, why not")
        if free:
            say(out, "bases that take another version:")
            _print_each(out, free)


_NAME = 22
"""Columns that are kept for the name of a base; a few are longer."""


def _print_each(out: Console, plans: Sequence[Plan]) -> None:
    width = min(max(len(plan.base.name) for plan in plans), _NAME)
    for plan in plans:
        first = f"{INDENT}{plan.base.name:<{width}}  "
        say(out, outcome_of(plan), first=first, rest=INDENT * 2)


def when_of(variable: SiteVariable | SiteOption | SiteAnnotation) -> str:
    """Return for which jobs a thing of a site is, as a comment of a shell; nothing where it is for all."""
    return {"one": "  # on one node", "several": "  # on several nodes"}.get(variable.nodes, "")


def _chosen(plan: Plan) -> str:
    parts = [f"fabric {plan.fabric.value}", f"plugin {plan.plugin or 'none'}"]
    parts += [f"torch {plan.torch}"] if plan.torch else []
    return ", ".join(parts)


def _asked_data(asked: Request) -> dict[str, Any]:
    return {"base": asked.base, "add": asked.add, "fabric": asked.fabric or "auto"}
