"""Draw curves: both axes are logarithmic, and each line has a form of its own and a description in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from lumiimg.report.markup import element

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumiimg.report.document import Curve

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 250, 40, 12, 24, 40
"""Sizes of the drawing and its margins; a narrow screen shows it at about this size."""
_POINTS = 400
"""Maximum number of points per line."""
_LINES = ("solid line, dots", "dashed line, squares", "dotted line, crosses")
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def curve_figure(curve: Curve) -> tuple[list[ET.Element], int]:
    """Return the elements of a curve with its lines in words, and the number of lines left out; none without points."""
    series = [
        (name, [point for point in points if min(point) > 0 and all(map(math.isfinite, point))][:_POINTS])
        for name, points in curve.series[: len(_LINES)]
    ]
    points = [point for _, of_series in series for point in of_series]
    if not points:
        return [], 0
    across = _Axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT)
    up = _Axis([y for _, y in points], _HEIGHT - _BOTTOM, _TOP)
    drawn = [element("title", curve.title)]
    for tick in across.ticks:
        x = across.place(tick)
        drawn += [
            _line(x, _TOP, x, _HEIGHT - _BOTTOM),
            _text(_short(tick), x, _HEIGHT - _BOTTOM + 14, text_anchor="middle"),
        ]
    for tick in up.ticks:
        y = up.place(tick)
        drawn += [_line(_LEFT, y, _WIDTH - _RIGHT, y), _text(_short(tick), _LEFT - 5, y + 4, text_anchor="end")]
    drawn += [_text(curve.x, _WIDTH - _RIGHT, _HEIGHT - 6, text_anchor="end"), _text(curve.y, 4, 12)]
    for number, (_, of_series) in enumerate(series):
        drawn.append(_series(number, [(across.place(x), up.place(y)) for x, y in of_series]))
    words = [f"{words}: {name}" for words, (name, found) in zip(_LINES, series, strict=False) if found]
    svg = element(
        "svg",
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{curve.title}: {curve.y} over {curve.x}. {'; '.join(words)}.",
    )
    caption = element("figcaption", element("strong", curve.title), "; both scales are logarithmic")
    legend = element("ul", *(element("li", word) for word in words))
    return [element("figure", caption, svg, legend, class_="curve")], len(curve.series) - len(series)


class _Axis:
    """A logarithmic axis that spans whole powers of ten."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        logs = [math.log10(value) for value in values]
        self._low, high = math.floor(min(logs)), math.ceil(max(logs))
        self._decades = max(high - self._low, 1)
        self._start, self._length = start, end - start
        every = -(-self._decades // 8)
        self.ticks = [10.0**power for power in range(self._low, self._low + self._decades + 1, every)]
        if self._decades == 1:
            self.ticks += [factor * 10.0**self._low for factor in (2, 5)]

    def place(self, value: float) -> float:
        """Return the position of a value, in units of the drawing."""
        return self._start + (math.log10(value) - self._low) / self._decades * self._length


def _series(number: int, points: Sequence[tuple[float, float]]) -> ET.Element:
    shapes = ("M{x} {y}m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", "M{x} {y}m-3 -3h6v6h-6z", "M{x} {y}m-3 -3l6 6m0 -6l-6 6")
    places = [{"x": f"{x:.1f}", "y": f"{y:.1f}"} for x, y in points]
    line = ET.Element("polyline", points=" ".join(f"{place['x']},{place['y']}" for place in places))
    dots = ET.Element("path", d="".join(shapes[number].format(**place) for place in places))
    return element("g", line, dots, class_=f"series-{number}")


def _line(x1: float, y1: float, x2: float, y2: float) -> ET.Element:
    return element("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")


def _text(text: str, x: float, y: float, **attributes: str) -> ET.Element:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", **attributes)


def _short(value: float) -> str:
    """Return the label of a number on an axis: `100k`."""
    for size, suffix in _SUFFIXES:
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"
