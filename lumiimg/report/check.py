"""What `lumiimg check` says: the answer first, then what stands behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer
from lumiimg.findings import NO_ADVICE, Advice, Family, Finding, Severity
from lumiimg.report.console import INDENT, Priority, detail, evidence, marked, remedies, say
from lumiimg.wording import command_in

if TYPE_CHECKING:
    from lumiimg.report.console import Console

_ALWAYS = frozenset({Family.IMAGE, Family.GPU})
"""Of no weight for the network, and jobs meet it."""
KINDS = {Answer.NO: "problem", Answer.UNDECIDED: "unknown", Answer.NO_OBSTACLE: "ok"}
"""Of headlines."""


def print_finding(out: Console, finding: Finding, advice: Advice = NO_ADVICE, *, verbose: bool = True) -> None:
    """Print one finding with its evidence, cause and remedy; without what `advice` has said above it."""
    kept = finding.severity is not Severity.OK or verbose
    is_said = advice.why == finding.summary
    identity = f"{finding.id}, {finding.level.value}"
    marked(out, finding.severity.value, identity if is_said else f"{finding.summary}  [{identity}]")
    for line in finding.evidence if kept else ():
        evidence(out, line)
    if len(finding.chain) > 1:
        say(out, "via " + " -> ".join(finding.chain), first=INDENT, priority=Priority.MORE)
    if finding.cause:
        detail(out, f"why: {finding.cause}")
    shown = advice.next if is_said else None
    remedies(out, [remedy for remedy in finding.remedy if shown is None or command_in([remedy]) != shown])
    if finding.source and finding.severity is not Severity.OK and verbose:
        detail(out, f"source: {finding.source}", style="dim")
    if kept:
        out.print()
