"""`check --html`: one image on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer
from lumiimg.findings import Level
from lumiimg.report.html.findings import findings_list
from lumiimg.report.html.page import Section, page, table
from lumiimg.report.html.picture import path_figure
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.answer import CheckReport
    from lumiimg.report.html.page import Node

KINDS = {Answer.NO: "problem", Answer.UNDECIDED: "unknown", Answer.NO_OBSTACLE: "ok"}
PATH, FINDINGS, LEVELS = "The path to the fast network", "What was found", "How far was looked"


def check_page(report: CheckReport) -> str:
    """Return the report of a check as a page."""
    parts = [
        Section(PATH, [path_figure(report.steps, "path")]),
        Section(FINDINGS, findings_list(report.findings)),
        Section(LEVELS, [levels_table([(level.value, report.levels.of(level)) for level in Level])]),
    ]
    facts = [f"looked as far as level {report.level.value}"]
    if ran := report.collective:
        ranks = f"{count(ran.ranks, 'rank')} on {count(ran.nodes, 'node')}"
        facts.append(f"{ran.program}, {ranks}: {ran.verdict} ({ran.confidence})")
    return page("check", report.image, KINDS[report.answer], report.sentence, facts, parts)


def levels_table(levels: Sequence[tuple[str, str]]) -> Node:
    """Return what became of each level."""
    caption = "A lower level never claims what only a higher one can see"
    return table(caption, ("level", "what became of it"), levels)
