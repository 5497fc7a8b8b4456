"""`explain --html` of a request: what is chosen, by which rule, or what stands against it and what works instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Advice
from lumiimg.report.html.findings import block
from lumiimg.report.html.page import Node, Section, element, page, table
from lumiimg.report.plan import KINDS, next_step, sentence, told_unbuilt, when_of
from lumiimg.report.reach import LEGEND
from lumiimg.resolve.plan import Plan, outcome_of
from lumiimg.resolve.request import in_short
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.sites import Site


def request_page(plan: Plan) -> str:
    """Return the answer to a request as a page."""
    site = plan.site
    parts = [
        Section("What works instead" if plan.refused else "What is chosen", list(_chosen(plan))),
        Section("The rules", list(_rules(plan))),
        Section(f"Variables for jobs on {site.name}" if site else "", list(_environment(plan))),
    ]
    kind = "problem" if plan.refused else "unknown" if plan.is_doubtful else "ok"
    facts = [f"site {site.name}" if site else "no machine is named: neither its driver nor its network was judged"]
    subject = in_short(plan.asked)
    return page("explain", subject, kind, sentence(plan), facts, parts, _advice(plan))


def bases_page(plans: Sequence[Plan], add: Sequence[str], site: Site | None) -> str:
    """Return on which bases layers can be put, as a page."""
    asked = f"{' + '.join(add)}{f' on {site.name}' if site else ''}"
    rows = [(plan.base.name, "with doubts" if plan.is_doubtful else "", outcome_of(plan)) for plan in plans]
    bases = [table("Those without doubts first", ("base", "doubts", "answer"), rows)] if plans else []
    parts = [Section("Bases that take it", bases)]
    found = f"{count(len(plans), 'base')} of the catalogue take {asked}" if plans else f"no base takes {asked}"
    return page("explain", asked, "ok" if plans else "problem", found, [], parts)


def _advice(plan: Plan) -> Advice:
    """Return why, and the first command; the others stand below."""
    against = [rule for rule in plan.rules if rule.outcome is not RuleOutcome.OK]
    against.sort(key=lambda rule: rule.outcome is not RuleOutcome.REFUSED)
    why = f"{against[0].sides}: {against[0].because}" if against else None
    word, command = next_step(plan)
    where = word.removeprefix("next").removeprefix(", ")
    return Advice(why, command, where or None) if command else Advice(f"{why}; {word}")


def _chosen(plan: Plan) -> Iterator[Node]:
    if plan.refused:
        return
    rows: list[Sequence[Node]] = [("base", plan.base.name, plan.base.status)]
    rows += [(c.layer.name, c.version or "", c.status) for c in (plan.stack.layers if plan.stack else ())]
    rows += [("fabric", plan.fabric.value, ""), ("net plugin", plan.plugin or "none", "")]
    rows += [("torch", plan.torch, "")] if plan.torch else []
    yield table(LEGEND, ("what", "which", "status"), rows)
    if note := told_unbuilt(plan):
        yield element("p", f"{note[0].upper()}{note[1:]}.")
    if plan.missing is not None:
        yield element("p", f"Not here: {plan.missing}")


def _rules(plan: Plan) -> Iterator[Node]:
    for rule in sorted(plan.rules, key=lambda rule: list(RuleOutcome)[::-1].index(rule.outcome)):
        yield block(
            kind=KINDS[rule.outcome],
            summary=f"{rule.have if rule.outcome is RuleOutcome.OK else rule.sides}: {rule.because}",
            identity=rule.id,
            word={RuleOutcome.WARNING: "warning", RuleOutcome.REFUSED: "refused"}.get(rule.outcome),
            is_open=rule.outcome is not RuleOutcome.OK,
            source=rule.source,
        )


def _environment(plan: Plan) -> Iterator[Node]:
    if plan.environment and not plan.refused:
        rows = [
            (element("code", f"{v.name}=", element("br"), v.value), f"{v.because}{when_of(v).replace('  #', ',')}")
            for v in plan.environment
        ]
        yield table("What jobs with such an image want", ("variable", "because"), rows)
