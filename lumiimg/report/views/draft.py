"""What `draft` says: what a Dockerfile does, what of it is here already, and what a person must see to."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.definition.docker.dockerfile import text_of
from lumiimg.definition.docker.recognition import GPU
from lumiimg.definition.docker.steps import PLATFORM
from lumiimg.findings import NO_ADVICE, Advice, Severity
from lumiimg.report.document import Document, Facts, Item, Paragraph, Row, Section, Table
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lumiimg.definition.docker.draft import Draft

_TEXT = 400
"""Characters of a step."""


def draft_document(draft: Draft) -> Document:
    """Return what `draft FILE` says, and `draft FILE -o FOLDER`."""
    if draft.folder is not None:
        return _written(draft, draft.folder)
    path = draft.path
    stages = [path.base or "scratch", *(f"stage {stage.label} (line {stage.line})" for stage in path.stages)]
    known = (
        (one.layer, f"{one.what} ({_lines([one.line])}, stage {one.stage}){'; the base has it' if one.in_base else ''}")
        for one in draft.recognised.known
    )
    return Document(
        command="draft",
        subject=str(path.dockerfile.path),
        is_list=True,
        is_named=True,
        sentence=" → ".join(stages),
        advice=_advice(draft),
        sections=(
            Section("Base", _base(draft), is_headed=True),
            Section("Layers that bring what is in it", (Facts(tuple(known)),), is_headed=True),
            Section("GPUs", _gpus(draft), is_headed=True),
            Section("Arguments", (Facts(tuple(_arguments(draft))),), is_headed=True),
            Section("Steps", (Table(("line", "", ""), tuple(_steps(draft)), what="steps"),), is_headed=True),
            Section("Not carried over", _left_out(draft), is_headed=True),
        ),
        closing=("as a layer: the same with -o layers/NAME",),
    )


def _written(draft: Draft, folder: Path) -> Document:
    found = draft.recognised
    if found.base is None:
        words = ["show", "--layers", str(folder.parent), folder.name]
    else:
        at = ["--layers", str(folder.parent), "--add", folder.name]
        words = ["build", "--base", found.base.option, *at, "--dry-run"]
    is_edited = found.layers or any(entry.ends_build for entry in draft.left_out)
    return Document(
        command="draft",
        subject=str(folder),
        is_list=True,
        is_named=True,
        sentence=f"{count(len(draft.path.steps), 'step')} as a layer that nobody has built yet",
        advice=Advice(None, f"lumiimg {shlex.join(words)}", f"once {folder}/post.sh is edited" if is_edited else None),
        sections=(Section("What to see to", _to_do(draft)),),
    )


def _lines(numbers: Iterable[int]) -> str:
    shown = list(dict.fromkeys(map(str, numbers)))
    return f"line{'s' * (len(shown) > 1)} {', '.join(shown)}"


def _advice(draft: Draft) -> Advice:
    """Return what judges all layers together; where the catalogue has no such base, it lists those that take them."""
    found = draft.recognised
    if not found.layers:
        return NO_ADVICE
    name = found.base and (found.base.name or next(iter(found.base.near), None))
    words = ["--base", name] if name else []
    for layer in found.layers:
        words += ["--add", layer]
    return Advice(None, f"lumiimg explain {shlex.join(words)}", "to see whether they fit together")


def _base(draft: Draft) -> Iterator[Paragraph]:
    base = draft.recognised.base
    if base is None:
        yield Paragraph("scratch: no image; a layer needs one")
    elif base.name:
        yield Paragraph(f"{base.image} is the base {base.name}: --base {base.name}")
    else:
        yield Paragraph(f"{base.image}, which the catalogue does not have: --base {base.option}")
        if base.near:
            yield Paragraph(f"other tags of it in the catalogue: {', '.join(base.near)}")
    ours = PLATFORM["TARGETPLATFORM"]
    if draft.path.platform not in {None, ours}:
        yield Paragraph(f"FROM asks for {draft.path.platform}; lumiimg builds for {ours}", Severity.UNKNOWN)


def _gpus(draft: Draft) -> Iterator[Paragraph]:
    for entry in draft.recognised.architectures:
        gpus = " ".join(entry.gpus) or "what the base image has"
        text = f"{entry.name} ({_lines([entry.line])}): {gpus}"
        if entry in draft.recognised.without_gpu:
            yield Paragraph(f"{text}; without {GPU} (MI250X, LUMI's)", Severity.PROBLEM)
        else:
            yield Paragraph(text, Severity.OK if entry.gpus else Severity.UNKNOWN)


def _arguments(draft: Draft) -> Iterator[tuple[str, str]]:
    """Yield the arguments of the Dockerfile, each with its value and the lines that use it."""
    for declared in draft.path.arguments:
        value = "no value" if declared.value is None else f"= {text_of(declared.value) or '(empty)'}"
        used = f"used in {_lines(declared.used)}" if declared.used else "not used"
        yield declared.name, f"{value} ({_lines([declared.line])}; {used})"


def _steps(draft: Draft) -> Iterator[Row]:
    """Yield what each line does that makes the image; a long one is cut, as it stands in the Dockerfile."""
    for step in draft.path.steps:
        text = " ".join(step.text[:_TEXT].split())
        yield Row((str(step.line), step.keyword, f"{text} …" if len(step.text) > _TEXT else text))


def _left_out(draft: Draft) -> Iterator[Paragraph]:
    for entry in draft.left_out:
        is_open = Severity.UNKNOWN if entry.ends_build else Severity.INFO
        severity = Severity.PROBLEM if entry.is_secret else is_open
        yield Paragraph(f"line {entry.line} {entry.keyword}: {entry.what}", severity)
    for note in draft.environment.notes:
        yield Paragraph(note, Severity.INFO)


def _to_do(draft: Draft) -> Iterator[Item | Paragraph]:
    found = draft.recognised
    if ends := [entry.line for entry in draft.left_out if entry.ends_build]:
        places = count(len(ends), "place")
        text = f"{places} where its build ends until you see to it (`todo` in post.sh): {_lines(ends)}"
        yield Item(Severity.UNKNOWN, text)
    for name in found.layers:
        layer = name.partition("==")[0]
        where = _lines(known.line for known in found.known if known.layer == layer)
        text = f"the layer {layer} brings part of it ({where}): take that out and --add {name}"
        yield Item(Severity.UNKNOWN, text)
    for one in (*_left_out(draft), *_gpus(draft)):
        if one.severity is Severity.PROBLEM:
            yield one
