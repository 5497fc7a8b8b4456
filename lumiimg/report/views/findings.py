"""Findings as items: one result of a check, with its evidence, cause and remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Family, Finding, Level, Severity
from lumiimg.report.document import Item

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ALWAYS = frozenset({Family.IMAGE, Family.GPU})
"""Of no weight for the network, and jobs meet it."""


def finding_items(findings: Iterable[Finding], of: str = "", *, is_green: bool = False) -> Iterator[Item]:
    """Yield an item for each finding; one that bears on the answer is a case for CI, too, with where it is `of`.

    Beside an answer that `is_green` an open question is none for CI: a higher level has answered what counts.
    """
    for finding in findings:
        is_weighty = finding.level is Level.RUN or finding.id.family in _ALWAYS
        bears = finding.severity is not Severity.INFO
        yield Item(
            finding.severity,
            finding.summary,
            tag=f"{finding.id}, {finding.level.value}",
            evidence=finding.evidence,
            via=finding.chain,
            why=(finding.cause,) if finding.cause else (),
            remedies=finding.remedy,
            source=finding.source,
            verbose=not bears and not is_weighty,
            case=f"{finding.id} ({finding.level.value}){of}" if bears else None,
            is_answered=is_green and finding.severity is Severity.UNKNOWN,
        )
