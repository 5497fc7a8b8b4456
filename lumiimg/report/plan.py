"""What `lumiimg explain --base … --add …` says: what is chosen, by which rule, from which fact; or why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lumiimg.errors import one_line
from lumiimg.report.console import MARKS, PLAIN_MARKS, STYLES, console, wrapped
from lumiimg.resolve.plan import command_of, in_short, name_of
from lumiimg.resolve.rules import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from lumiimg.catalog.launch import SiteAnnotation, SiteOption
    from lumiimg.catalog.sites import Site, SiteVariable
    from lumiimg.resolve.plan import Asked, Plan
    from lumiimg.resolve.rules import RuleResult

SCHEMA = 1
KINDS = {Outcome.OK: "ok", Outcome.WARNING: "unknown", Outcome.UNKNOWN: "unknown", Outcome.REFUSED: "problem"}
_WORDS = {Outcome.OK: "", Outcome.WARNING: "warning: ", Outcome.UNKNOWN: "not known: ", Outcome.REFUSED: "refused: "}
_INDENT = "    "
_SEE_LIST = "`lumiimg list`"


class RequestWords(NamedTuple):
    """A request as its user wrote it, for commands to go on with."""

    same: str
    """All of its options."""
    site: str
    """Those that name the machine, with a blank in front."""


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON data (schema 1)."""
    stack = plan.stack
    return {
        "schema": SCHEMA,
        "decision": "refused" if plan.refused else "ok",
        "fabric": plan.fabric.value,
        "plugin": plan.plugin,
        "torch": plan.torch,
        "rules": [
            {
                "id": rule.id,
                "outcome": rule.outcome.value,
                "need": rule.need,
                "have": rule.have,
                "because": rule.because,
                "source": rule.source,
            }
            for rule in plan.rules
        ],
        "nearest": plan.nearest and _asked_data(plan.nearest),
        "base": plan.base.name,
        "layers": [
            {"name": c.layer.name, "version": c.version, "status": c.status} for c in (stack.layers if stack else ())
        ],
        "changes": dict(plan.changes),
        "environment": [] if plan.refused else [variable_data(variable) for variable in plan.environment],
    }


def print_plan(plan: Plan, site: Site | None, words: RequestWords, *, verbose: bool, stderr: bool = False) -> None:
    """Print the plan for a person."""
    out = console(stderr=stderr)
    style = "bold red" if plan.refused else "bold yellow" if plan.is_doubtful else "bold green"
    out.print(one_line(sentence(plan, site)), style=style, soft_wrap=True)
    if not plan.refused:
        out.print(one_line(f"{_INDENT}{_chosen(plan)}"), soft_wrap=True)
    if site is None:
        note = "no machine is named, so neither its driver nor its network was judged: --site lumi"
        out.print(wrapped(out, note, first=_INDENT, rest=_INDENT), style="yellow")
    for rule in plan.rules:
        _print_rule(out, rule, verbose=verbose)
    if plan.refused:
        _print_nearest(out, plan, words)
    else:
        _print_jobs(out, plan, site, verbose=verbose)
    if plan.changes:
        out.print("\nthe same request:", style="dim")
        for what, answer in plan.changes:
            out.print(wrapped(out, one_line(f"{what}: {answer}"), first=_INDENT, rest=_INDENT + "  "), style="dim")
    if not plan.refused:
        out.print()
        out.print(one_line(f"next: lumiimg build {words.same} -o image.sif"), soft_wrap=True)


def sentence(plan: Plan, site: Site | None) -> str:
    """Return the answer in one line."""
    where = f" on {site.name}" if site else ""
    found = "no obstacle found" if site else "no obstacle found among the layers"
    answer = "refused" if plan.refused else f"{found}, with doubts" if plan.is_doubtful else found
    return f"{answer}: {command_of(plan.asked)}{where}"


def _print_rule(out: Console, rule: RuleResult, *, verbose: bool) -> None:
    marks = MARKS if out.encoding.startswith("utf") else PLAIN_MARKS
    kind = KINDS[rule.outcome]
    is_doubt = rule.outcome is not Outcome.OK
    out.print()
    out.print(
        wrapped(out, one_line(f"{marks[kind]} {_WORDS[rule.outcome]}{rule.have}  [{rule.id}]")), style=STYLES[kind]
    )
    if verbose or (is_doubt and not rule.need.startswith("not ")):  # else the reason says it better
        out.print(wrapped(out, one_line(f"needs {rule.need}"), first=_INDENT, rest=_INDENT + "  "))
    out.print(wrapped(out, one_line(rule.because), first=_INDENT, rest=_INDENT + "  "))
    if is_doubt or verbose:
        source = wrapped(out, one_line(f"source: {rule.source}"), first=_INDENT, rest=_INDENT + "  ")
        out.print(source, style="dim")


def _print_nearest(out: Console, plan: Plan, words: RequestWords) -> None:
    out.print()
    for title, command in told_nearest(plan, words):
        out.print(one_line(title))
        if command:
            out.print(one_line(f"{_INDENT}{command}"), soft_wrap=True)


def told_nearest(plan: Plan, words: RequestWords) -> Iterator[tuple[str, str | None]]:
    """Yield what works instead of a request that is refused: a sentence, and the command."""
    if plan.nearest is None:
        yield "no request near it works: ask for less (`lumiimg list`)", None
    for asked, title in (
        (plan.nearest, f"the nearest that works{_left_out(plan.asked, plan.nearest)}:"),
        (plan.keeping, "with the versions that you name, on another base:"),
    ):
        if asked is not None:
            yield title, f"lumiimg build {command_of(asked)}{words.site} -o image.sif"


def _print_jobs(out: Console, plan: Plan, site: Site | None, *, verbose: bool) -> None:
    entries = [(plan.base.name, plan.base.status)]
    entries += [(c.layer.name, c.status) for c in (plan.stack.layers if plan.stack else ())]
    if unproved := [name for name, status in entries if status == "unproved"]:
        note = f"documented, never built end to end by the project: {', '.join(unproved)}"
        out.print()
        out.print(wrapped(out, one_line(note)), style="yellow")
    if not plan.environment or site is None:
        return
    out.print(f"\nfor jobs on {site.name}:", style="dim")
    for variable in plan.environment:
        out.print(one_line(f"{_INDENT}export {variable.name}={variable.value}{when_of(variable)}"), soft_wrap=True)
        if verbose:
            reason = f"{variable.because} ({variable.source})"
            out.print(wrapped(out, one_line(reason), first=_INDENT * 2, rest=_INDENT * 2), style="dim")


def _left_out(asked: Asked, nearest: Asked | None) -> str:
    if nearest is None:
        return ""
    left = [name for name in map(name_of, asked.add) if name not in map(name_of, nearest.add)]
    return f", without {' and '.join(left)}" if left else ""


def bases_data(plans: Sequence[Plan]) -> dict[str, Any]:
    """Return on which bases a request for layers alone can be met, as JSON data (schema 1)."""
    return {
        "schema": SCHEMA,
        "bases": [{"base": plan.base.name, "doubts": plan.is_doubtful, "answer": in_short(plan)} for plan in plans],
    }


def print_bases(
    plans: Sequence[Plan], add: Sequence[str], site: Site | None, words: RequestWords, *, stderr: bool = False
) -> None:
    """Print on which bases a request for layers alone can be met."""
    out = console(stderr=stderr)
    asked = f"{' + '.join(add)}{f' on {site.name}' if site else ''}"
    if not plans:
        out.print(one_line(f"no base of the catalogue takes {asked}"), style="bold red", soft_wrap=True)
        out.print(one_line(f"why not: lumiimg explain --base NAME {words.same}  ({_SEE_LIST})"), soft_wrap=True)
        return
    out.print(one_line(f"bases that take {asked}, those without doubts first:"), style="bold", soft_wrap=True)
    width = max(len(plan.base.name) for plan in plans)
    for plan in plans:
        first = f"{_INDENT}{plan.base.name:<{width}}  "
        out.print(wrapped(out, one_line(in_short(plan)), first=first, rest=" " * len(first)))
    out.print()
    out.print(one_line(f"more of one: lumiimg explain --base {plans[0].base.name} {words.same}"), soft_wrap=True)


def when_of(variable: SiteVariable | SiteOption | SiteAnnotation) -> str:
    """Return for which jobs a thing of a site is, as a comment of a shell; nothing where it is for all."""
    return {"one": "  # on one node", "several": "  # on several nodes"}.get(variable.nodes, "")


def variable_data(variable: SiteVariable) -> dict[str, str]:
    """Return a variable of a site as JSON data."""
    return {
        "name": variable.name,
        "value": variable.value,
        "nodes": variable.nodes,
        "because": variable.because,
        "source": variable.source,
    }


def _chosen(plan: Plan) -> str:
    parts = [f"fabric {plan.fabric.value}", f"plugin {plan.plugin or 'none'}"]
    parts += [f"torch {plan.torch}"] if plan.torch else []
    return ", ".join(parts)


def _asked_data(asked: Asked) -> dict[str, Any]:
    return {"base": asked.base, "add": list(asked.add), "fabric": asked.fabric.value if asked.fabric else "auto"}
