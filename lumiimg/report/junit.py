"""JUnit XML, as CI systems read it: what is not fit is a failure, what cannot be decided is an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from lumiimg.errors import ExitCode, printable
from lumiimg.findings import Severity
from lumiimg.report.document import Item

if TYPE_CHECKING:
    from lumiimg.report.document import Document

_CODES = {Severity.PROBLEM: ExitCode.NO, Severity.UNKNOWN: ExitCode.UNDECIDED}


@dataclass(frozen=True, slots=True)
class Case:
    """One question and its answer."""

    name: str
    answer: ExitCode
    message: str
    details: tuple[str, ...] = ()


def to_junit(suite: str, cases: Sequence[Case]) -> str:
    """Return the cases as one test suite."""
    root = ET.Element(
        "testsuite",
        name=suite,
        tests=str(len(cases)),
        failures=str(sum(case.answer is ExitCode.NO for case in cases)),
        errors=str(sum(case.answer not in {ExitCode.GOOD, ExitCode.NO} for case in cases)),
    )
    for case in cases:
        element = ET.SubElement(root, "testcase", classname=suite, name=printable(case.name))
        text = "\n".join(printable(line) for line in (case.message, *case.details))
        if case.answer is ExitCode.GOOD:
            ET.SubElement(element, "system-out").text = text
        else:
            kind = "failure" if case.answer is ExitCode.NO else "error"
            ET.SubElement(element, kind, message=printable(case.message)).text = text
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def junit_text(document: Document) -> str:
    """Return a document as JUnit XML: a case for its answer, and one for each item that bears on it."""
    return to_junit(printable(f"lumiimg {document.command}"), list(_cases(document)))


def _cases(document: Document) -> Iterator[Case]:
    yield Case(document.case, _CODES.get(document.severity, ExitCode.GOOD), document.sentence)
    items = (block for section in document.sections for block in section.blocks if isinstance(block, Item))
    for item in items:
        if item.case:
            code = ExitCode.GOOD if item.is_answered else _CODES.get(item.severity, ExitCode.GOOD)
            yield Case(item.case, code, item.text, (*item.notes, *item.evidence, *item.remedies))
