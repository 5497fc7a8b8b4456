"""Render a document as an HTML page: one file that fetches nothing, runs nothing, and shows foreign text as text.

Pages are built from elements (xml.etree), so that separating markup from text never depends on escaping by hand. Pages
contain no scripts, no external links and no styles except the sheet next to this file, which the policy in the head
names by its digest. Whatever is too much for a page is left out and counted. Mark, word and line show what is well and
what is not; colour only repeats it.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from lumiimg import __version__
from lumiimg.core.findings import Severity
from lumiimg.core.text import count
from lumiimg.report.curve import curve_figure
from lumiimg.report.document import MARKS, Curve, Facts, Item, Lines, Meter, Paragraph, PathSteps, Table, Tree
from lumiimg.report.markup import LIMIT, Node, element, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.core.findings import Remedy
    from lumiimg.fabric.path import Step
    from lumiimg.report.document import Block, Document

WORDS = {Severity.OK: "ok", Severity.INFO: "note", Severity.UNKNOWN: "not known", Severity.PROBLEM: "problem"}
_STEP_WORDS = {Severity.OK: "holds", Severity.UNKNOWN: "not known", Severity.PROBLEM: "broken"}
_CELL_LIMIT = 20_000
"""Maximum number of characters of a cell; large, because a list of nodes may be the answer."""
ROWS, LINES, EVIDENCE = 400, 200, 20
"""Maximum numbers: rows of a table, lines of a list, evidence lines of an item."""
DEPTH = 40
_MAX_BLOCKS = {Item: 100, PathSteps: 6, Curve: 8}
"""Maximum number of blocks of a kind on a page; ROWS for every other kind."""
_BLOCKS = {Item: "findings", PathSteps: "paths", Curve: "curves", Meter: "bars"}
_FOLDED = 8
"""Maximum number of evidence lines shown; more are collapsed."""
_WORD = 80
"""Number of characters beyond which a word may be placed on its own line."""
_WIDE = 5
"""Maximum number of columns; more, or one with long words, do not fit on a tablet."""


def to_page(document: Document) -> str:
    """Return a document as HTML."""
    severity = document.severity
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", ": ".join(filter(None, (document.subject, document.sentence)))),
        ET.Element("style"),
    )
    head[-1].text = _style()  # the only text that is not foreign
    subject: list[Node] = [" ", element("strong", element("code", document.subject))] if document.subject else []
    body = element(
        "body",
        element(
            "header",
            element("p", f"lumiimg {document.command}", *subject, class_="kicker"),
            element("h1", *_mark(severity, has_word=True), document.sentence, class_=severity.value),
            *_advice(document),
            *(element("p", line, class_="quiet") for line in document.summary),
        ),
        element("main", *_sections(document), *(element("p", line) for line in document.closing)),
        element("footer", element("p", _footer(), class_="quiet")),
    )
    text = ET.tostring(element("html", head, body, lang="en"), encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n"


@cache
def _style() -> str:
    return resources.files(__package__).joinpath("page.css").read_text("utf-8")


def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _footer() -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"Written {now} by lumiimg {__version__}. This page names paths, hosts and variables of the machine that it "
        "was written on; values that look like secrets are left out. Read it before you share it."
    )


def _advice(document: Document) -> Iterator[ET.Element]:
    advice = document.advice
    if advice.why:
        yield element("p", f"why: {advice.why}")
    if advice.likely:
        yield element("p", f"likely: {advice.likely}")
    if advice.next:
        where = f"next, {advice.where}: " if advice.where else "next: "
        yield element("p", where, element("code", _unbroken(advice.next)), class_="next")


# -- text and elements --


def _unbroken(text: str, limit: int = LIMIT) -> ET.Element:
    """Return text to be copied, without line breaks within words: a browser would break `--add`."""
    made = ET.Element("span")
    for number, word in enumerate(shown(text, limit).split(" ")):
        kind = "long" if len(word) > _WORD else "typed" if "-" in word else ""
        between = f"{' ' if number else ''}{'' if kind else word}"
        if len(made):
            made[-1].tail = f"{made[-1].tail or ''}{between}"
        else:
            made.text = f"{made.text or ''}{between}"
        if kind:
            ET.SubElement(made, "span", {"class": kind}).text = word
    return made


def _mark(severity: Severity | None, *, has_word: bool = False) -> list[Node]:
    """Return a mark; a screen reader reads it unless its word is next to it."""
    if severity is None:
        return []
    read = {"aria_hidden": "true"} if has_word else {"role": "img", "aria_label": WORDS[severity]}
    return [element("span", MARKS[severity], class_=f"mark {severity.value}", **read), " "]


def _left_out(number: int, what: str) -> list[ET.Element]:
    return [element("p", f"{number} more {what}; --json has all", class_="quiet")] if number > 0 else []


# -- sections --


def _sections(document: Document) -> Iterator[ET.Element]:
    """Yield the sections that have content, and a note about what was left out."""
    seen: Counter[type[Block]] = Counter()
    for number, section in enumerate(document.sections, 1):
        blocks = []
        for block in section.blocks:
            seen[type(block)] += 1
            if seen[type(block)] <= _MAX_BLOCKS.get(type(block), ROWS):
                blocks.append(block)
        content = [node for block in blocks for node in _block(block, document.advice.next)]
        if content and section.title:
            title = element("h2", section.title, id=f"part-{number}")
            yield element("section", title, *content, aria_labelledby=f"part-{number}")
        elif content:
            yield element("section", *content)
    for kind, found in seen.items():
        yield from _left_out(found - _MAX_BLOCKS.get(kind, ROWS), _BLOCKS.get(kind, "parts"))


def _block(block: Block, page_command: str | None) -> Iterable[ET.Element]:
    """Return the elements of a block; `page_command` is shown at the top of the page and not repeated."""
    match block:
        case Item():
            return [_item(block, page_command)]
        case Paragraph():
            return [element("p", block.text, class_="quiet" if block.quiet else "")]
        case Lines():
            return _lines(block.lines, LINES)
        case Facts():
            shown_facts = _facts((name, [value]) for name, value in block.rows[:ROWS])
            return [shown_facts, *_left_out(len(block.rows) - ROWS, "facts")]
        case Table():
            return [_table(block), *_left_out(len(block.rows) - ROWS, "rows")]
        case Tree():
            return _tree(block)
        case Meter():
            return [_meter(block)]
        case PathSteps():
            return [_path(block)]
        case Curve():
            figure, others = curve_figure(block)
            return [*figure, *_left_out(others, "lines")]


# -- blocks --


def _item(item: Item, page_command: str | None) -> ET.Element:
    """Return an item with its details, which are expanded for problems and open questions."""
    tag: list[Node] = [" ", element("span", f"[{item.tag}]", class_="quiet")] if item.tag else []
    word = element("span", f"{WORDS[item.severity]}: ", class_=f"word {item.severity.value}")
    head: list[Node] = [*_mark(item.severity, has_word=True), word, item.text, *tag]
    below = [element("p", _unbroken(", ".join(item.names), _CELL_LIMIT))] if item.names else []
    below += (element("p", note) for note in item.notes[:EVIDENCE])
    below += _left_out(len(item.notes) - EVIDENCE, "notes")
    evidence = _lines(item.evidence, EVIDENCE)
    if len(item.evidence) > _FOLDED:
        evidence = [element("details", element("summary", count(len(item.evidence), "line")), *evidence)]
    below += evidence
    if rows := list(_detail_rows(item, page_command)):
        below.append(_facts(rows))
    if not below:
        return element("p", *head, class_=f"finding {item.severity.value}")
    made = element("details", element("summary", *head), *below, class_=f"finding {item.severity.value}")
    if item.severity in {Severity.PROBLEM, Severity.UNKNOWN}:
        made.set("open", "open")
    return made


def _detail_rows(item: Item, page_command: str | None) -> Iterator[tuple[str, list[Node]]]:
    """Yield the chain that leads to an item, its reasons, its remedies, and the source of the rule."""
    if len(item.via) > 1:
        yield "via", [element("code", " → ".join(item.via))]
    word = "likely" if item.is_likely else "why"
    if len(item.why) == 1:
        yield word, [item.why[0]]
    elif item.why:
        yield word, [element("ul", *(element("li", text) for text in item.why))]
    if remedies := [one for one in item.remedies if page_command is None or page_command != one.command]:
        made = element("ul", *map(_remedy, remedies[:EVIDENCE]), class_="remedies")
        yield "one of" if item.any_one and len(remedies) > 1 else "do", [made]
    if item.source:
        yield "source", [element("span", item.source, class_="quiet")]


def _remedy(remedy: Remedy) -> ET.Element:
    if remedy.command is None:
        return element("li", remedy)
    return element("li", f"{remedy.reason}: " if remedy.reason else "", element("code", _unbroken(remedy.command)))


def _facts(rows: Iterable[tuple[str, list[Node]]]) -> ET.Element:
    pairs = ((element("dt", name), element("dd", *value)) for name, value in rows)
    return element("dl", *(part for pair in pairs for part in pair))


def _lines(lines: Sequence[str], limit: int) -> list[ET.Element]:
    if not lines:
        return []
    code = ET.Element("code")
    code.text = "\n".join(shown(line.rstrip()) for line in lines[:limit])
    return [element("pre", code), *_left_out(len(lines) - limit, "lines")]


def _table(table: Table) -> ET.Element:
    """Return a table; on a narrow screen each cell stands on a line of its own, with its head (page.css)."""
    longest = max((len(word) for row in table.rows[:ROWS] for cell in row.cells for word in cell.split()), default=0)
    made = element("table", class_="wide" if len(table.heads) > _WIDE or longest > _WORD // 2 else "")
    made.extend([element("caption", table.caption)] if table.caption else [])
    if any(table.heads):
        made.append(element("thead", element("tr", *(element("th", head, scope="col") for head in table.heads))))
    body = ET.SubElement(made, "tbody")
    for row in table.rows[:ROWS]:
        made_row = ET.SubElement(body, "tr")
        for number, (head, text) in enumerate(zip(table.heads, row.cells, strict=True)):
            mark = [] if number else _mark(row.severity)
            made_row.append(element("td", *mark, *([_unbroken(text, _CELL_LIMIT)] if text else []), data_head=head))
    return element("div", made, class_="table")


def _tree(tree: Tree) -> Iterator[ET.Element]:
    """Yield a tree as nested lists, limited to ROWS and DEPTH."""
    shown_branches = cut = 0

    def branch(one: Tree, depth: int) -> ET.Element:
        nonlocal shown_branches, cut
        shown_branches += 1
        made = element("li", *_mark(one.severity), one.text)
        if one.note:
            made.append(element("span", f" {one.note}", class_="quiet"))
        inner = []
        for each in one.branches:
            if depth < DEPTH and shown_branches < ROWS:
                inner.append(branch(each, depth + 1))
            else:
                cut += 1
        if inner:
            made.append(element("ul", *inner))
        return made

    yield element("ul", branch(tree, 0), class_="tree")
    yield from _left_out(cut, "branches, with everything below them")


def _meter(meter: Meter) -> ET.Element:
    text = element("p", *_mark(meter.severity), element("strong", meter.label), f" {meter.words}")
    if meter.share is None:
        return text
    share = f"{max(0.0, min(1.0, meter.share)):.3f}"
    bar = {"min": "0", "max": "1", "value": share, "aria_label": f"{meter.label} {meter.words}"}
    return element("div", text, element("meter", class_=(meter.severity or Severity.INFO).value, **bar), class_="bar")


# -- the path --


def _path(path: PathSteps) -> ET.Element:
    """Return a path as boxes connected by edges; if nothing of it is known, only its sentence."""
    whose: list[Node] = [element("strong", path.of), ": "] if path.of else []
    if all(step.severity is Severity.UNKNOWN for step in path.steps):
        return element("p", *whose, path.sentence)
    named = f"Fabric path{f' of {path.of}' if path.of else ''}"
    boxes = element("ol", *map(_box, path.steps), class_="path", aria_label=named)
    return element("figure", element("figcaption", *whose, path.sentence), boxes)


def _box(step: Step) -> ET.Element:
    severity = step.severity
    side: list[Node] = [" ", element("span", step.side.value, class_=f"side {step.side.value}")] if step.side else []
    level = f" ({step.level.value})" if step.level else ""
    about = " · ".join(filter(None, (step.version, step.interface)))
    return element(
        "li",
        element("p", *_mark(severity, has_word=True), element("strong", step.title), *side),
        element("p", f"{_STEP_WORDS[severity]}{level}", class_="state"),
        *([element("p", about)] if about else []),
        *([element("p", element("code", step.file))] if step.file else []),
        element("p", step.why, class_="why"),
        class_=f"step {severity.value}",
    )
