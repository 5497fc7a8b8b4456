"""Nodes as a grid: one cell per node, in the order of their names, with the letter of its kind; the kinds in words."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.nccl.node_names import folded
from lumiimg.report.console import MARKS
from lumiimg.report.html.page import element, left_out, short
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree import ElementTree as ET

CELLS = 4096
"""Drawn at most; the words below name every node, as far as they are not cut."""
KINDS = 40
_HEADING, _NAME, _NAMES = 60, 100, 1500
"""Characters of the names of one kind."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes that are the same."""

    nodes: tuple[str, ...]
    kind: str
    """One of `page.MARKS`."""
    words: str
    details: tuple[str, ...] = ()


def grid_figure(kinds: Sequence[NodeKind]) -> ET.Element:
    """Return the grid and its words."""
    total = sum(len(kind.nodes) for kind in kinds)
    of_node = [(name, number) for number, kind in enumerate(kinds) for name in kind.nodes]
    of_node.sort(key=lambda item: _by_number(item[0]))
    tally = "; ".join(
        f"{_letter(number)}: {count(len(kind.nodes), 'node')}, {kind.words}"
        for number, kind in enumerate(kinds[:KINDS])
    )
    cells = [
        element("span", _letter(number), class_=f"cell {kinds[number].kind}", title=short(name, _NAME))
        for name, number in of_node[:CELLS]
    ]
    return element(
        "figure",
        element("div", *cells, class_="grid", role="img", aria_label=f"{count(total, 'node')}, one cell each. {tally}"),
        element(
            "figcaption",
            f"{count(total, 'node')}, one cell each, in the order of their names; the letter is the kind.",
            class_="quiet",
        ),
        element("ul", *(_in_words(number, kind) for number, kind in enumerate(kinds[:KINDS])), class_="kinds"),
        *left_out(total, CELLS, "nodes"),
        *left_out(len(kinds), KINDS, "kinds of nodes"),
    )


def named(number: int, nodes: Sequence[str]) -> str:
    """Return nodes of a kind for a heading: letter, number, names as far as there is room."""
    return f"{_letter(number)}: {count(len(nodes), 'node')}, {short(folded(nodes), _HEADING)}"


def _in_words(number: int, kind: NodeKind) -> ET.Element:
    return element(
        "li",
        element("span", _letter(number), class_=f"cell {kind.kind}", aria_hidden="true"),
        element(
            "div",
            element(
                "p",
                element("strong", f"{_letter(number)}: {count(len(kind.nodes), 'node')}"),
                f" {MARKS[kind.kind]} {kind.words}",
            ),
            *(element("p", detail, class_="quiet") for detail in kind.details),
            element("p", element("code", short(folded(kind.nodes), _NAMES))),
        ),
    )


def _letter(number: int) -> str:
    letters = string.ascii_uppercase
    return letters[number] if number < len(letters) else "…"


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return what names are sorted by: nid2 before nid10."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d{1,12})", name[:200])]
