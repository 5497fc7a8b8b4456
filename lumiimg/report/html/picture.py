"""The fabric path as a picture: six boxes and the edges between them, and the same in words beside it.

Drawn twice, side by side for a wide window and one below the other for a narrow one; the sheet shows one of them. What
holds has a solid edge, what is not known a dashed one, and a broken edge is thick and crossed: mark, word and line say
it, colour only repeats it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from lumiimg.check.steps import in_one_sentence
from lumiimg.fabric.path import State, Step
from lumiimg.report.html.findings import unsaid
from lumiimg.report.html.page import Node, element, short, shown, without_folders

_MARKS = {State.HOLDS: "✓", State.BROKEN: "✗", State.UNKNOWN: "?"}
_CLASSES = {State.HOLDS: "ok", State.BROKEN: "problem", State.UNKNOWN: "unknown"}
_LINE = 15
"""Pixels from one line of text to the next."""
_PAD = 10
_CHARACTER, _BOLD, _MONO = 6.4, 7.3, 6.9
"""Pixels, about, of a character in each of the picture's fonts."""


@dataclass(frozen=True, slots=True)
class _Layout:
    name: str
    width: int
    box_width: int
    gap: int
    across: bool
    """Whether the boxes stand side by side."""
    why_lines: int


_WIDE = _Layout("wide", 1096, 162, 24, across=True, why_lines=5)
_NARROW = _Layout("narrow", 340, 337, 26, across=False, why_lines=3)


def path_figure(steps: Sequence[Step], identity: str, of: str = "", said: str | None = None) -> ET.Element:
    """Return the picture of a path with its words; `identity` is its id on the page, `of` whose it is.

    `said` is the command at the top of the page, which is not repeated.

    The words of a path that is one of several are folded where nothing is wrong with it.
    """
    sentence = in_one_sentence(steps)
    words = element(
        "details",
        element("summary", "The same in words"),
        element("ol", *(_in_words(step) for step in steps), class_="steps"),
        open="" if of and all(step.state is State.HOLDS for step in steps) else "open",
    )
    title = f"Fabric path{f' of {of}' if of else ''}"
    return element(
        "figure",
        *(_drawing(steps, layout, f"{identity}-{layout.name}", title, sentence, said) for layout in (_WIDE, _NARROW)),
        element("div", element("figcaption", sentence), words),
        class_="path",
    )


def _in_words(step: Step) -> ET.Element:
    level = f" (level {step.level.value})" if step.level else ""
    content: list[Node] = [
        element("span", f"{_MARKS[step.state]} ", class_="mark", aria_hidden="true"),
        element("strong", step.title),
        " · ".join(["", f"{step.state.value}{level}", *filter(None, (step.version, step.interface))]),
        f" · of the {step.side.value}" if step.side else "",
    ]
    if step.file:
        content += [" · ", element("code", step.file)]
    content += [ET.Element("br"), step.why]
    return element("li", *content, class_=_CLASSES[step.state])


def _drawing(
    steps: Sequence[Step], layout: _Layout, identity: str, title: str, sentence: str, said: str | None
) -> ET.Element:
    call = _called_out(steps, said)
    called = _call_lines(call, layout.width - 3 * _PAD, said) if call is not None else []
    texts = [_texts(step, layout) for step in steps]
    heights = [_height(lines, layout) for lines in texts]
    if layout.across:
        heights = [max(heights)] * len(heights)
    parts: list[ET.Element] = []
    x, y = 1, 2
    for number, (step, lines, box_height) in enumerate(zip(steps, texts, heights, strict=True)):
        if number:
            parts += _edge(step, x, y, layout)
        parts.append(_box(step, lines, x, y, box_height, layout))
        if step is call and layout.across:
            middle = x + layout.box_width // 2
            parts.append(_line(middle, y + box_height - 1, middle, y + box_height + 14, _CLASSES[step.state]))
        x, y = (x + layout.box_width + layout.gap, y) if layout.across else (x, y + box_height + layout.gap)
    height = y + heights[-1] + 2 if layout.across else y - layout.gap + 2
    if call is not None:
        parts += _callout(call, called, height, layout)
        height += len(called) * _LINE + 2 * _PAD + 12
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


def _texts(step: Step, layout: _Layout) -> list[tuple[str, str]]:
    """Return the lines of a box, each with its class."""
    room = layout.box_width - 2 * _PAD
    level = f" ({step.level.value})" if step.level else ""
    texts = [("name", f"{_MARKS[step.state]} {step.title}"), ("state", f"{step.state.value}{level}")]
    if about := ", ".join(text for text in (step.version, step.interface) if text):
        texts.append(("about", short(shown(about), int(room / _BOLD))))
    if step.file:
        texts.append(("file", short(shown(step.file.rpartition("/")[2]), int(room / _MONO))))
    why = _wrapped(without_folders(step.why), int(room / _CHARACTER), layout.why_lines)
    return texts + [("why", line) for line in why]


def _height(texts: Sequence[tuple[str, str]], layout: _Layout) -> int:
    return 2 * _PAD + 4 + len(texts) * _LINE + (26 if layout.across else 0)


def _box(step: Step, texts: Sequence[tuple[str, str]], x: int, y: int, height: int, layout: _Layout) -> ET.Element:
    """Draw one step in a frame of its own, that cuts off what is too wide for it."""
    width = layout.box_width
    drawn = [element("rect", x="1.5", y="1.5", width=str(width - 3), height=str(height - 3), rx="7", class_="box")]
    at = _PAD + 11
    for class_, text in texts:
        drawn.append(element("text", text, x=str(_PAD), y=str(at), class_=class_))
        at += _LINE + 4 if class_ == "name" else _LINE
    if step.side:
        side, top = step.side.value, height - 28 if layout.across else 9
        drawn += [
            element("rect", x=str(width - 60), y=str(top), width="52", height="19", rx="4", class_=f"tag {side}"),
            element("text", side.upper(), x=str(width - 34), y=str(top + 14), class_=f"tag-text {side}"),
        ]
    kind = _CLASSES[step.state]
    return element("svg", *drawn, x=str(x), y=str(y), width=str(width), height=str(height), class_=kind)


def _line(x1: int, y1: int, x2: int, y2: int, kind: str) -> ET.Element:
    return element("line", x1=str(x1), y1=str(y1), x2=str(x2), y2=str(y2), class_=f"edge {kind}")


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
    yield _line(x1, y1, x2, y2, kind)
    if step.state is State.BROKEN:
        cx, cy = (x1 + x2) // 2, (y1 + y2) // 2
        yield element(
            "path",
            d=f"M{cx - 8} {cy - 8}L{cx + 8} {cy + 8}M{cx + 8} {cy - 8}L{cx - 8} {cy + 8}",
            class_="edge problem cross",
        )
    else:
        yield element("path", d=arrow, class_=f"edge {kind} head")


def _called_out(steps: Sequence[Step], said: str | None) -> Step | None:
    """Return the step that the picture explains: the first broken one, else the first that something would decide.

    None where nothing is left to do about it but what the top of the page says.
    """
    broken = (step for step in steps if step.state is State.BROKEN)
    undecided = (step for step in steps if step.state is State.UNKNOWN and step.remedy)
    found = next(broken, None) or next(undecided, None)
    return found if found is not None and unsaid(found.remedy, said) else None


def _call_lines(step: Step, room: int, said: str | None) -> list[tuple[str, str]]:
    found = [("strong", line) for line in _wrapped(f"{_MARKS[step.state]} {step.why}", int(room / _BOLD), 4)]
    for remedy in unsaid(step.remedy, said)[:2]:
        found += [("do", line) for line in _wrapped(f"do: {remedy}", int(room / _MONO), 5)]
    return found


def _callout(step: Step, texts: Sequence[tuple[str, str]], top: int, layout: _Layout) -> Iterator[ET.Element]:
    """Draw what is wrong and what to do, under the boxes."""
    kind, height = _CLASSES[step.state], len(texts) * _LINE + 2 * _PAD - 2
    yield element(
        "rect",
        x="1.5",
        y=str(top + 12),
        width=str(layout.width - 3),
        height=str(height),
        rx="7",
        class_=f"call {kind}",
    )
    for line, (class_, text) in enumerate(texts):
        yield element("text", text, x=str(_PAD + 4), y=str(top + 12 + _PAD + 11 + line * _LINE), class_=class_)


def _wrapped(text: str, characters: int, most: int) -> list[str]:
    """Return a text in lines of this width, `most` of them at most."""
    return textwrap.wrap(shown(text), max(characters, 8), max_lines=most, placeholder=" …", break_on_hyphens=False)
