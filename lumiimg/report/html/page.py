"""The frame of a page: one file that fetches nothing, runs nothing, and shows foreign text as text.

Pages are made of elements (xml.etree), so that what is markup and what is text is never a question of escaping by hand.
There is no script, no link out of the page and no style but the sheet beside this file, which the policy in the head
names by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from lumiimg import __version__
from lumiimg.errors import printable
from lumiimg.report.console import MARKS

if TYPE_CHECKING:
    from lumiimg.findings import Advice

Node = ET.Element | str
"""An element, or text."""
WORDS = {"ok": "ok", "info": "note", "unknown": "not known", "problem": "problem"}
"""Beside each mark and colour."""
LIMIT = 2000
"""Characters of one text; a line of a log may have millions."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading of its own."""

    title: str
    content: Sequence[Node]


def element(tag: str, *content: Node, **attributes: str) -> ET.Element:
    """Return an element; `_` in the name of an attribute is `-`, one at its end is dropped: `class_`, `aria_label`."""
    names = {name.rstrip("_").replace("_", "-"): shown(value) for name, value in attributes.items() if value}
    made = ET.Element(tag, names)
    for node in content:
        if isinstance(node, ET.Element):
            made.append(node)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + shown(node)
        else:
            made.text = (made.text or "") + shown(node)
    return made


def page(
    command: str,
    subject: str,
    kind: str,
    sentence: str,
    facts: Iterable[str],
    parts: Iterable[Section],
    advice: Advice | None = None,
) -> str:
    """Return a page; parts without content are left out.

    `kind` is one of MARKS, `facts` are given in short under the sentence.
    """
    title = f"{subject}: {sentence}"
    body = element(
        "body",
        element(
            "header",
            element("p", f"lumiimg {command} ", element("strong", element("code", subject)), class_="kicker"),
            element("h1", element("span", f"{MARKS[kind]} ", class_="mark", aria_hidden="true"), sentence, class_=kind),
            *(_advice(advice) if advice is not None else []),
            *([element("p", " · ".join(facts), class_="quiet")] if facts else []),
        ),
        element("main", *(_section(number, part) for number, part in enumerate(parts, 1) if part.content)),
        element("footer", element("p", _footer(), class_="quiet")),
    )
    style = ET.Element("style")
    style.text = _style()  # the one text that is not foreign
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        style,
    )
    text = ET.tostring(element("html", head, body, lang="en"), encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n"


def _advice(advice: Advice) -> Iterator[ET.Element]:
    if advice.why:
        yield element("p", f"why: {advice.why}")
    if advice.next:
        where = f"next, {advice.where}: " if advice.where else "next: "
        yield element("p", where, element("code", *unbroken(advice.next)), class_="next")


def _section(number: int, part: Section) -> ET.Element:
    identity = f"part-{number}"
    return element("section", element("h2", part.title, id=identity), *part.content, aria_labelledby=identity)


def _footer() -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"Written {now} by lumiimg {__version__}. This page names paths, hosts and variables of the machine that it "
        "was written on; values that look like secrets are left out. Read it before you share it."
    )


@cache
def _style() -> str:
    return resources.files(__package__).joinpath("report.css").read_text("utf-8")


def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


# -- parts that several pages have --


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Node]]) -> ET.Element:
    """Return a table; on a narrow screen each cell stands on a line of its own, with its head (report.css)."""
    head = element("tr", *(element("th", text, scope="col") for text in heads))
    body = [
        element("tr", *(element("td", cell, data_head=name) for name, cell in zip(heads, row, strict=True)))
        for row in rows
    ]
    return element("table", element("caption", caption), element("thead", head), element("tbody", *body))


def lines(texts: Iterable[str], limit: int, what: str) -> list[ET.Element]:
    """Return lines as they were printed, at most `limit` of them, and how many are left out."""
    texts = list(texts)
    if not texts:
        return []
    made: list[Node] = []
    for text in texts[:limit]:
        made += [text.strip(), ET.Element("br")]
    return [element("pre", element("code", *made[:-1])), *left_out(len(texts), limit, what)]


def left_out(number: int, limit: int, what: str) -> list[ET.Element]:
    """Return a word about what is not on the page."""
    return (
        [element("p", f"{number - limit} more {what} are left out here; --json has them.", class_="quiet")]
        if number > limit
        else []
    )


def listed(texts: Iterable[str], class_: str = "") -> ET.Element:
    is_typed = class_ == "remedy"
    return element("ul", *(element("li", *(unbroken(text) if is_typed else [text])) for text in texts), class_=class_)


def unbroken(command: str) -> list[Node]:
    """Return a command whose words go to the next line as a whole: a browser breaks lines within `--add`."""
    words = [element("span", word, class_="typed") for word in shown(command).split(" ")]
    return [words[0], *(node for word in words[1:] for node in (" ", word))]


# -- foreign text --


def shown(text: str) -> str:
    """Return a text as it may stand on a page: control characters spelled out, secrets left out, cut where it is long.

    Control characters are those of `errors.printable`: NUL, which HTML cannot carry, and marks that turn the direction
    of writing are among them.
    """
    is_long = len(text) > LIMIT
    text = printable(text[:LIMIT])
    return f"{text}… (cut)" if is_long else text


def short(text: str, limit: int) -> str:
    """Return a text cut to this number of characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def without_folders(text: str) -> str:
    """Return a text with the last part of each path alone: for a picture, where the whole stands beside it."""
    return re.sub(r"(?<![\w.:/])/(?:[^/\s:,;]+/)+([^/\s:,;]+)", r"\1", text)
