"""Render a document as JUnit XML for CI systems: a problem is a failure, and what cannot be decided is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from lumiimg.core.errors import one_safe_line
from lumiimg.core.findings import Severity
from lumiimg.report.document import Item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.report.document import Document

_OUTCOMES = {Severity.PROBLEM: "failure", Severity.UNKNOWN: "error"}
"""JUnit outcomes; anything else has passed."""


def junit_text(document: Document) -> str:
    """Return a document as one test suite: a case for its answer, and one for each item that affects it."""
    suite = one_safe_line(f"lumiimg {document.command}")
    root = ET.Element("testsuite", name=suite)
    for name, severity, lines in _cases(document):
        message, *details = map(one_safe_line, lines)
        case = ET.SubElement(root, "testcase", classname=suite, name=one_safe_line(name))
        outcome = ET.SubElement(case, _OUTCOMES.get(severity, "system-out"))
        if severity in _OUTCOMES:
            outcome.set("message", message)
        outcome.text = "\n".join([message, *details])
    root.set("tests", str(len(root)))
    for outcome_name in _OUTCOMES.values():
        root.set(f"{outcome_name}s", str(len(root.findall(f"testcase/{outcome_name}"))))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _cases(document: Document) -> Iterator[tuple[str, Severity, tuple[str, ...]]]:
    """Yield the name of each case, its severity, and the lines that explain it."""
    yield document.case, document.severity, (document.sentence,)
    for section in document.sections:
        for item in section.blocks:
            if isinstance(item, Item) and item.case:
                severity = Severity.OK if item.is_answered else item.severity
                yield item.case, severity, (item.text, *item.notes, *item.evidence, *item.remedies)
