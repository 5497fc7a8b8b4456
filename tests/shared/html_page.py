"""A parser of our HTML pages, and the rules for every page."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import lumiimg.report

SHEETS = [sheet.read_text() for sheet in Path(lumiimg.report.__path__[0]).rglob("*.css")]
VOID = {"meta", "br"}
FORBIDDEN = {
    *("script", "iframe", "object", "embed", "img", "image", "link", "base", "form"),
    *("foreignobject", "use", "a", "audio", "video"),
}
HOSTILE = [
    "<script>alert(1)</script>",
    "</style><script>alert(2)</script>",
    "--><img src=x onerror=alert(3)>",
    "]]><svg onload=alert(4)>",
    "\"'><details open ontoggle=alert(5)>",
    "a\0b",
    "\u202eright to left\u2066",
    "\ud800 lone",
    "\x1b[31mred",
    "&lt;script&gt; &#60;",
    "</title></head><body onload=alert(6)>",
]


@dataclass
class Page(HTMLParser):
    """A parsed page; parsing fails if a tag is not closed by its own end tag."""

    text: str
    open: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    words: str = ""
    style: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.words += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def policy(self) -> str:
        return next(m["content"] for m in self.attributes("meta") if m.get("http-equiv") == "Content-Security-Policy")


def judge(text: str) -> Page:
    """Assert the rules for every page; return the parsed page."""
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & FORBIDDEN
    for _, attributes in page.tags:
        assert not [
            name
            for name in attributes
            if name.startswith("on") or name in {"style", "src", "href", "srcdoc", "xlink:href"}
        ]
    # the policy allows only this style sheet: nothing else may be loaded, run or sent, and no base URL be set
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert page.policy() == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert page.style in SHEETS
    # accessible without sight or a mouse
    assert page.attributes("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(identities)) == len(identities)
    for _, attributes in page.tags:
        assert set(attributes.get("aria-labelledby", "").split()) <= set(identities)
    pictures = [svg for svg in page.attributes("svg") if "viewbox" in svg]
    assert all(svg["role"] == "img" and (svg.get("aria-label") or svg.get("aria-labelledby")) for svg in pictures)
    return page
