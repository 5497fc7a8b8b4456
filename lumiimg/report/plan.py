"""What `lumiimg explain --base … --add …` says: what is chosen, by which rule, from which fact; or why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumiimg.errors import one_line
from lumiimg.report.console import MARKS, PLAIN_MARKS, STYLES, console, wrapped
from lumiimg.resolve.plan import command_of
from lumiimg.resolve.rules import Outcome

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site, SiteVariable
    from lumiimg.resolve.plan import Asked, Plan

SCHEMA = 1
_KINDS = {Outcome.OK: "ok", Outcome.WARNING: "unknown", Outcome.UNKNOWN: "unknown", Outcome.REFUSED: "problem"}
_WORDS = {Outcome.OK: "", Outcome.WARNING: "warning: ", Outcome.UNKNOWN: "not known: ", Outcome.REFUSED: "refused: "}
_INDENT = "    "


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


def print_plan(plan: Plan, site: Site | None, *, verbose: bool, stderr: bool = False) -> None:
    """Print the plan for a person."""
    out = console(stderr=stderr)
    where = f" on {site.name}" if site else ""
    doubts = {rule.outcome for rule in plan.rules} & {Outcome.UNKNOWN, Outcome.WARNING}
    answer = "refused" if plan.refused else "no obstacle found, with doubts" if doubts else "no obstacle found"
    style = "bold red" if plan.refused else "bold yellow" if doubts else "bold green"
    out.print(one_line(f"{answer}: {command_of(plan.asked)}{where}"), style=style, soft_wrap=True)
    if not plan.refused:
        out.print(one_line(f"{_INDENT}{_chosen(plan)}"), soft_wrap=True)
    marks = MARKS if out.encoding.startswith("utf") else PLAIN_MARKS
    for rule in plan.rules:
        kind = _KINDS[rule.outcome]
        out.print()
        head = f"{marks[kind]} {_WORDS[rule.outcome]}{rule.have}  [{rule.id}]"
        out.print(wrapped(out, one_line(head)), style=STYLES[kind])
        if rule.outcome is not Outcome.OK or verbose:
            out.print(wrapped(out, one_line(f"needs {rule.need}"), first=_INDENT, rest=_INDENT + "  "))
        out.print(wrapped(out, one_line(rule.because), first=_INDENT, rest=_INDENT + "  "))
        if rule.outcome is not Outcome.OK or verbose:
            source = wrapped(out, one_line(f"source: {rule.source}"), first=_INDENT, rest=_INDENT + "  ")
            out.print(source, style="dim")
    if plan.refused:
        out.print()
        if plan.nearest is None:
            out.print("no request near it works: ask for less (`lumiimg list`)")
        else:
            out.print("the nearest that works:")
            command = command_of(plan.nearest, site.name if site else None)
            out.print(one_line(f"{_INDENT}lumiimg build {command}"), soft_wrap=True)
    if unproved := [c.layer.name for c in (plan.stack.layers if plan.stack else ()) if c.status == "unproved"]:
        names = ", ".join(unproved)
        note = f"documented, never built end to end by the project: {names}"
        out.print()
        out.print(wrapped(out, one_line(note)), style="yellow")
    if plan.environment and site is not None and not plan.refused:
        out.print(f"\nfor jobs on {site.name}:", style="dim")
        for variable in plan.environment:
            out.print(one_line(f"{_INDENT}export {variable.name}={variable.value}{when_of(variable)}"), soft_wrap=True)
            if verbose:
                reason = f"{variable.because} ({variable.source})"
                out.print(wrapped(out, one_line(reason), first=_INDENT * 2, rest=_INDENT * 2), style="dim")
    if plan.changes:
        out.print("\nwith:", style="dim")
        for name, answer in plan.changes:
            out.print(wrapped(out, one_line(f"{name}: {answer}"), first=_INDENT, rest=_INDENT + "  "), style="dim")


def when_of(variable: SiteVariable) -> str:
    """Return for which jobs a variable is, as a comment of a shell; nothing where it is for all."""
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
