"""The fabric path as a picture: six boxes and the edges between them, and the same in words beside it.

Drawn twice, side by side for a wide window and one below the other for a narrow one; the sheet shows one of them. What
holds has a solid edge, what is not known a dashed one, and a broken edge is thick and crossed: mark, word and line say
it, colour only repeats it.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.check.steps import State, in_one_sentence
from lumiimg.report.html.page import element
from lumiimg.report.html.text import short, shown, without_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from xml.etree import ElementTree as ET

    from lumiimg.check.steps import Step
    from lumiimg.report.html.page import Node

_MARKS = {State.HOLDS: "✓", State.BROKEN: "✗", State.UNKNOWN: "?"}
_CLASSES = {State.HOLDS: "ok", State.BROKEN: "problem", State.UNKNOWN: "unknown"}
_LINE = 15
"""Pixels from one line of text to the next."""
_PAD = 10
_CHARACTER, _MONO = 6.4, 6.9
"""Pixels, at most, of a character in the picture's two sizes."""


@dataclass(frozen=True, slots=True)
class _Layout:
    name: str
    width: int
    box_width: int
    box_height: int
    gap: int
    across: bool
    """Whether the boxes stand side by side."""
    why_lines: int


_WIDE = _Layout("wide", 1092, 162, 176, 24, across=True, why_lines=5)
_NARROW = _Layout("narrow", 340, 338, 132, 26, across=False, why_lines=3)


def path_figure(steps: Sequence[Step], identity: str, of: str = "") -> ET.Element:
    """Return the picture of a path with its words; `identity` tells it from others on the page, `of` whose it is."""
    sentence = in_one_sentence(steps)
    title = f"Fabric path{f' of {of}' if of else ''}"
    return element(
        "figure",
        *(_drawing(steps, layout, f"{identity}-{layout.name}", title, sentence) for layout in (_WIDE, _NARROW)),
        element("figcaption", *([element("strong", f"{of}: ")] if of else []), sentence),
        element("ol", *(_in_words(step) for step in steps), class_="steps", aria_label=f"{title}, step by step"),
    )


def _in_words(step: Step) -> ET.Element:
    about = [text for text in (step.version, step.interface) if text]
    level = f", seen at level {step.level.value}" if step.level else ""
    content: list[Node] = [
        element("span", f"{_MARKS[step.state]} ", class_="mark", aria_hidden="true"),
        element("strong", f"{step.title}{''.join(f' {text}' for text in about)}"),
        f": {step.state.value}{level}. ",
    ]
    if step.side:
        content.append(f"Of the {step.side.value}. ")
    if step.file:
        content += [element("code", step.file), ". "]
    content.append(f"{step.why}.")
    if step.remedy and step.state is not State.HOLDS:
        content.append(element("ul", *(element("li", remedy) for remedy in step.remedy), class_="remedy"))
    return element("li", *content, class_=_CLASSES[step.state])


def _drawing(steps: Sequence[Step], layout: _Layout, identity: str, title: str, sentence: str) -> ET.Element:
    call = _called_out(steps)
    characters = int((layout.width - 3 * _PAD) / _CHARACTER)
    called = _call_lines(call, characters) if call is not None else []
    if layout.across:
        top, path_height = 2, layout.box_height + 4
    else:
        top, path_height = 2, len(steps) * layout.box_height + (len(steps) - 1) * layout.gap + 4
    call_height = 28 + len(called) * _LINE + _PAD if called else 0
    height = path_height + call_height
    parts: list[ET.Element] = []
    stride = (layout.box_width if layout.across else layout.box_height) + layout.gap
    for number, step in enumerate(steps):
        x, y = (1 + number * stride, top) if layout.across else (1, top + number * stride)
        if number:
            parts += _edge(step, x, y, layout)
        parts.append(_box(step, x, y, layout))
    if call is not None:
        parts += _callout(call, called, list(steps).index(call), stride, path_height, layout)
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", f"{sentence} {'; '.join(_short(step) for step in steps)}.", id=f"{identity}-desc"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {layout.width} {height}",
        width=str(layout.width),
        height=str(height),
        class_=f"path {layout.name}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
    )


def _short(step: Step) -> str:
    side = f" of the {step.side.value}" if step.side else ""
    return f"{step.title}{side}: {step.state.value}"


def _box(step: Step, x: int, y: int, layout: _Layout) -> ET.Element:
    """Draw one step in a frame of its own, that cuts off what is too wide for it."""
    width, height = layout.box_width, layout.box_height
    characters = int((width - 2 * _PAD) / _CHARACTER)
    kind = _CLASSES[step.state]
    texts: list[tuple[str, str]] = [("name", f"{_MARKS[step.state]} {step.title}")]
    level = f" ({step.level.value})" if step.level else ""
    texts.append(("state", f"{step.state.value}{level}"))
    if about := ", ".join(text for text in (step.version, step.interface) if text):
        texts.append(("about", short(shown(about), characters)))
    if step.file:
        name = step.file.rpartition("/")[2]
        texts.append(("file", short(shown(name), int((width - 2 * _PAD) / _MONO))))
    texts += [("why", line) for line in _wrapped(without_folders(step.why), characters, layout.why_lines)]
    drawn = [element("rect", x="1.5", y="1.5", width=str(width - 3), height=str(height - 3), rx="7", class_="box")]
    at = _PAD + 10
    for class_, text in texts:
        drawn.append(element("text", text, x=str(_PAD), y=str(at), class_=class_))
        at += 19 if class_ == "name" else _LINE
    if step.side:
        tag = step.side.value.upper()
        drawn += [
            element(
                "rect",
                x=str(width - 60),
                y=str(height - 27),
                width="52",
                height="19",
                rx="4",
                class_=f"tag {step.side.value}",
            ),
            element("text", tag, x=str(width - 34), y=str(height - 13), class_=f"tag-text {step.side.value}"),
        ]
    return element("svg", *drawn, x=str(x), y=str(y), width=str(width), height=str(height), class_=kind)


def _edge(step: Step, x: int, y: int, layout: _Layout) -> Iterator[ET.Element]:
    """Draw what leads to a step: an arrow, or a crossed line where it is broken."""
    kind = _CLASSES[step.state]
    if layout.across:
        x1, y1, x2, y2 = x - layout.gap + 1, y + 48, x - 2, y + 48
        arrow = f"M{x2 - 7} {y2 - 5}L{x2} {y2}L{x2 - 7} {y2 + 5}"
    else:
        middle = x + 40
        x1, y1, x2, y2 = middle, y - layout.gap + 1, middle, y - 2
        arrow = f"M{x2 - 5} {y2 - 7}L{x2} {y2}L{x2 + 5} {y2 - 7}"
    yield element("line", x1=str(x1), y1=str(y1), x2=str(x2), y2=str(y2), class_=f"edge {kind}")
    if step.state is State.BROKEN:
        cx, cy = (x1 + x2) // 2, (y1 + y2) // 2
        yield element(
            "path",
            d=f"M{cx - 8} {cy - 8}L{cx + 8} {cy + 8}M{cx + 8} {cy - 8}L{cx - 8} {cy + 8}",
            class_="edge problem cross",
        )
    else:
        yield element("path", d=arrow, class_=f"edge {kind} head")


def _called_out(steps: Sequence[Step]) -> Step | None:
    """Return the step that the picture explains: the first broken one, else the first that something would decide."""
    broken = (step for step in steps if step.state is State.BROKEN)
    undecided = (step for step in steps if step.state is State.UNKNOWN and step.remedy)
    return next(broken, None) or next(undecided, None)


def _call_lines(step: Step, characters: int) -> list[tuple[str, str]]:
    found = [("strong", line) for line in _wrapped(f"{_MARKS[step.state]} {step.title}: {step.why}", characters, 4)]
    for remedy in step.remedy[:2]:
        found += [("do", line) for line in _wrapped(f"do: {remedy}", characters - 4, 5)]
    return found


def _callout(
    step: Step, texts: Sequence[tuple[str, str]], number: int, stride: int, top: int, layout: _Layout
) -> Iterator[ET.Element]:
    """Draw what is wrong and what to do, under the boxes, tied to the step that it is about."""
    kind = _CLASSES[step.state]
    height = len(texts) * _LINE + 2 * _PAD - 4
    if layout.across:
        x = 1 + number * stride + layout.box_width // 2
        yield element("path", d=f"M{x} {top - 3}L{x} {top + 14}", class_=f"edge {kind}")
    yield element(
        "rect", x="1.5", y=str(top + 14), width=str(layout.width - 3), height=str(height), rx="7", class_=f"call {kind}"
    )
    for line, (class_, text) in enumerate(texts):
        yield element("text", text, x=str(_PAD + 4), y=str(top + 14 + _PAD + 10 + line * _LINE), class_=class_)


def _wrapped(text: str, characters: int, most: int) -> list[str]:
    """Return a text in lines of so many characters, `most` of them at most."""
    return textwrap.wrap(shown(text), max(characters, 8), max_lines=most, placeholder=" …", break_on_hyphens=False)
