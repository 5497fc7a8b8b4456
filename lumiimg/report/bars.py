"""Horizontal bars as SVG: nothing is fetched, light and dark, told apart by pattern and number, not by colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from lumiimg.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDTH, _LEFT, _RIGHT = 860, 24, 24
_TOP, _ROW, _BAR = 84, 62, 22
_STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #1c2733 }
.title { font-size: 17px; font-weight: 600 }
.quiet { font-size: 12px; fill: #566573 }
.paper { fill: #ffffff }
.solid { fill: #2f6690 }
.hatched { fill: url(#hatch); stroke: #2f6690 }
.line { stroke: #2f6690 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .quiet { fill: #9aa7b4 }
  .paper { fill: #11161c }
  .solid { fill: #7db8e0 }
  .hatched { stroke: #7db8e0 }
  .line { stroke: #7db8e0 }
}
"""
_HATCH = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="line" x1="0" y1="0" x2="0" y2="6" stroke-width="2"/></pattern>'
)


@dataclass(frozen=True, slots=True)
class TerminalBar:
    """One row: two parts of a sum."""

    label: str
    solid: int
    hatched: int
    text: str
    """Behind the bar's label: what it comes to."""


def bars_svg(title: str, legend: tuple[str, str], bars: Sequence[TerminalBar], notes: Sequence[str]) -> str:
    """Return an SVG document; `legend` names the solid and the hatched part."""
    height = _TOP + _ROW * len(bars) + 20 * len(notes) + 16
    box = f"0 0 {_WIDTH} {height}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{_text(title)}</title>',
        f'<desc id="desc">{_text("; ".join(f"{bar.label}: {bar.text}" for bar in bars))}</desc>',
        f"<style>\n{_STYLE}</style>",
        f"<defs>{_HATCH}</defs>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="32">{_text(title)}</text>',
        *_legend(legend),
        *_rows(bars),
    ]
    for number, note in enumerate(notes):
        y = _TOP + _ROW * len(bars) + 20 * number + 14
        lines.append(f'<text class="quiet" x="{_LEFT}" y="{y}">{_text(note)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend(legend: tuple[str, str]) -> Iterator[str]:
    x = _LEFT
    for kind, words in zip(("solid", "hatched"), legend, strict=True):
        yield f'<rect class="{kind}" x="{x}" y="46" width="22" height="12"/>'
        yield f'<text class="quiet" x="{x + 28}" y="57">{_text(words)}</text>'
        x += 60 + 7 * len(words)


def _rows(bars: Sequence[TerminalBar]) -> Iterator[str]:
    room = _WIDTH - _LEFT - _RIGHT
    longest = max((bar.solid + bar.hatched for bar in bars), default=0) or 1
    for number, bar in enumerate(bars):
        y = _TOP + _ROW * number
        yield f'<text x="{_LEFT}" y="{y + 14}">{_text(bar.label)}: {_text(bar.text)}</text>'
        # what is there is seen, however little it is
        solid, hatched = (
            max(round(room * part / longest, 1), 1.0) if part else 0.0 for part in (bar.solid, bar.hatched)
        )
        yield f'<rect class="solid" x="{_LEFT}" y="{y + 22}" width="{solid:g}" height="{_BAR}"/>'
        if hatched:
            yield f'<rect class="hatched" x="{_LEFT + solid:g}" y="{y + 22}" width="{hatched:g}" height="{_BAR}"/>'


def _text(text: str) -> str:
    return escape(one_line(text))
