"""Bars, each with its words above it: what is needed of what is offered, what each part of a build took.

The words are HTML, which a narrow window wraps; only the bar itself is drawn, and stretched to the width that there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.report.console import MARKS
from lumiimg.report.html.page import element

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree import ElementTree as ET

_SCALE = 1000


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: parts of a whole, from 0 to 1."""

    label: str
    """What it is of."""
    words: str
    """What it shows, with its numbers."""
    start: float
    solid: float
    """How long the filled part is."""
    outlined: float = 0.0
    """How long the empty part behind it is."""
    lacking: float = 0.0
    """How long the dashed part at the end is."""
    kind: str = "plain"
    """`plain`, `ok`, `unknown`, `problem`."""


def bars_figure(bars: Sequence[Bar], legend: str) -> ET.Element:
    """Return bars with a sentence that says how to read them."""
    return element(
        "figure", element("ul", *map(_row, bars), class_="bars"), element("figcaption", legend, class_="quiet")
    )


def _row(bar: Bar) -> ET.Element:
    mark = f"{MARKS[bar.kind]} " if bar.kind in MARKS else ""
    return element(
        "li",
        element(
            "p",
            *([element("span", mark, class_="mark", aria_hidden="true")] if mark else []),
            element("strong", bar.label),
            f" {bar.words}",
        ),
        element(
            "svg",
            element("title", f"{bar.label} {bar.words}"),
            element("rect", x="0", y="0", width=str(_SCALE), height="16", class_="rail"),
            *_part("outlined", bar.start + bar.solid, bar.outlined),
            *_part("lacking", bar.start + bar.solid, bar.lacking),
            *_part("solid", bar.start, bar.solid),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_SCALE} 16",
            preserveAspectRatio="none",
            role="img",
            aria_label=f"{bar.label} {bar.words}",
        ),
        class_=bar.kind,
    )


def _part(class_: str, start: float, length: float) -> list[ET.Element]:
    if length <= 0:
        return []
    x = min(max(start, 0.0), 1.0) * _SCALE
    # what is there is seen, however little it is
    width = max(min(length, 1.0) * _SCALE, 3.0)
    x = min(x, _SCALE - width)
    return [element("rect", x=f"{x:.0f}", y="1", width=f"{width:.0f}", height="14", class_=class_)]
