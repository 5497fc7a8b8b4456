"""Answer of `draft`: what a Dockerfile does, which parts exist here already, and what is left for a person to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.core.findings import Severity
from lumiimg.core.text import count
from lumiimg.report.document import Document, Item, Paragraph, Section, facts_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lumiimg.definition.docker.draft import Draft

_TEXT = 400
"""Maximum number of characters shown of a step."""


def draft_document(draft: Draft) -> Document:
    """Return the answer of `draft FILE` or `draft FILE -o FOLDER`."""
    if draft.folder is not None:
        return _written(draft, draft.folder)
    base = draft.base
    stages = [base.image if base else "scratch", *(f"stage {one.label} (line {one.line})" for one in draft.stages)]
    known = (
        (one.layer, f"{one.what} (line {one.line}, stage {one.stage}){'; the base has it' if one.in_base else ''}")
        for one in draft.known
    )
    return Document(
        "draft",
        draft.dockerfile.path,
        " → ".join(stages),
        advice=draft.advice,
        sections=(
            Section("Base", _base(draft), is_headed=True),
            facts_section("Layers that provide what is in it", known, is_headed=True),
            facts_section("Arguments", _arguments(draft), is_headed=True),
            facts_section("Steps", _steps(draft), is_headed=True),
            Section("Not carried over", _left_out(draft), is_headed=True),
        ),
        closing=("to write it as a layer: -o layers/NAME",),
        is_list=True,
        is_named=True,
    )


def _written(draft: Draft, folder: Path) -> Document:
    return Document(
        "draft",
        str(folder),
        f"{count(len(draft.script.steps), 'step')} as a layer that has never been built",
        advice=draft.advice,
        sections=(Section("What is left to do", _to_do(draft)),),
        is_list=True,
        is_named=True,
    )


def _base(draft: Draft) -> Iterator[Paragraph | Item]:
    base = draft.base
    if base is None:
        yield Paragraph("scratch: no image; a layer needs one")
    elif base.name:
        yield Paragraph(f"{base.image} is the base {base.name}: --base {base.name}")
    else:
        yield Paragraph(f"{base.image} is not in the catalogue: --base {base.option}")
        if base.near:
            yield Paragraph(f"other tags of it in the catalogue: {', '.join(base.near)}")


def _arguments(draft: Draft) -> Iterator[tuple[str, str]]:
    for one in draft.arguments:
        value = "no value" if one.value is None else f"= {one.value or '(empty)'}"
        yield one.name, f"{value} (line {one.line})"


def _steps(draft: Draft) -> Iterator[tuple[str, str]]:
    """Yield the lines of the Dockerfile that make the image, with their keywords; long ones are truncated."""
    for step in draft.script.steps:
        text = " ".join(step.text[:_TEXT].split())
        yield f"line {step.line}", f"{step.keyword} {text}{' …' if len(step.text) > _TEXT else ''}"


def _left_out(draft: Draft) -> Iterator[Item]:
    for entry in draft.script.left_out:
        yield Item(entry.severity, f"line {entry.line} {entry.keyword}: {entry.what}")


def _to_do(draft: Draft) -> Iterator[Item]:
    if ends := [entry.line for entry in draft.script.left_out if entry.ends_build]:
        places = count(len(ends), "place")
        text = f"{places} where its build stops until you finish it (`todo` in post.sh): {_lines(ends)}"
        yield Item(Severity.UNKNOWN, text)
    for name in draft.layers:
        layer = name.partition("==")[0]
        where = _lines(known.line for known in draft.known if known.layer == layer)
        text = f"the layer {layer} provides part of it ({where}): remove that part and use --add {name}"
        yield Item(Severity.UNKNOWN, text)
    yield from (one for one in _left_out(draft) if one.severity is Severity.PROBLEM)


def _lines(numbers: Iterable[int]) -> str:
    shown = list(dict.fromkeys(map(str, numbers)))
    return f"line{'s' * (len(shown) > 1)} {', '.join(shown)}"
