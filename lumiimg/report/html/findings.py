"""Findings on a page: each can be opened and closed by mouse and keyboard; what stands against the answer is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Finding, Remedy, Severity
from lumiimg.report.console import MARKS
from lumiimg.report.html.page import WORDS, Node, element, left_out, lines, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from xml.etree import ElementTree as ET


FINDINGS = 100
"""On one page."""
_EVIDENCE = 20
REMEDIES = 8


def findings_list(findings: Sequence[Finding], said: str | None = None) -> list[ET.Element]:
    """Return findings, in their order; `said` is the command at the top of the page, which is not repeated."""
    shown = [_finding(finding, said) for finding in findings[:FINDINGS]]
    return [*shown, *left_out(len(findings), FINDINGS, "findings")]


def unsaid(remedies: Iterable[Remedy], said: str | None) -> tuple[Remedy, ...]:
    """Return remedies but for the one whose command is said already."""
    return tuple(one for one in remedies if said is None or one.command != said)


def _finding(finding: Finding, said: str | None) -> ET.Element:
    return block(
        kind=finding.severity.value,
        summary=finding.summary,
        identity=f"{finding.id}, {finding.level.value}",
        is_open=finding.severity in {Severity.PROBLEM, Severity.UNKNOWN},
        where=finding.where,
        evidence=finding.evidence,
        chain=finding.chain,
        reasons=(finding.cause,) if finding.cause else (),
        remedy=unsaid(finding.remedy, said),
        source=finding.source,
    )


def block(
    *,
    kind: str,
    summary: str,
    is_open: bool,
    identity: str | None = None,
    word: str | None = None,
    where: str | None = None,
    evidence: Iterable[str] = (),
    chain: Sequence[str] = (),
    reasons: Sequence[str] = (),
    remedy: Sequence[str] = (),
    source: str | None = None,
    content: Sequence[Node] = (),
) -> ET.Element:
    """Return one thing that was found, whatever found it; `kind` is one of MARKS, `word` what it is called instead."""
    named: list[Node] = [" ", element("span", f"[{identity}]", class_="quiet")] if identity else []
    inner: list[Node] = [
        element(
            "summary",
            element("span", f"{MARKS[kind]} ", class_="mark", aria_hidden="true"),
            element("span", f"{word or WORDS[kind]}: ", class_="word"),
            summary,
            *named,
        ),
        *lines(evidence, _EVIDENCE, "lines"),
        *content,
    ]
    rows: list[tuple[str, Node]] = []
    if where:
        rows.append(("where", element("code", where)))
    if len(chain) > 1:
        rows.append(("via", element("code", " → ".join(chain))))
    if reasons:
        rows.append(("why", reasons[0] if len(reasons) == 1 else listed(reasons)))
    if remedy:
        rows.append(("do", listed(remedy[:REMEDIES], "remedy")))
    if source:
        rows.append(("source", element("span", source, class_="quiet")))
    if rows:
        inner.append(
            element("dl", *(part for name, value in rows for part in (element("dt", name), element("dd", value))))
        )
    made = element("details", *inner, class_=f"finding {kind}")
    if is_open:
        made.set("open", "open")
    return made
