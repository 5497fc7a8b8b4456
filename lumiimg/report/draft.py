"""What `lumiimg draft` prints."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.definition.docker.dockerfile import text_of
from lumiimg.definition.docker.recognition import GPU
from lumiimg.definition.docker.steps import PLATFORM
from lumiimg.errors import printable
from lumiimg.report.console import STYLES, Console, console, cut, heading, headline, marked, print_json, proposal, say
from lumiimg.report.json_builds import DraftArgument
from lumiimg.wording import count

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.definition.docker.draft import Draft

_TEXT = 400
"""Characters of a step that a line is cut out of."""
_LINES = 12
"""Line numbers that are shown of what uses an argument."""


def print_draft(draft: Draft, folder: Path | None, *, as_json: bool) -> None:
    """Print what the Dockerfile does, what is here already, and what a person must see to."""
    if as_json:
        _print_json(draft, folder)
        return
    out = console()
    if folder is not None:
        _written(out, draft, folder)
        return
    path = draft.path
    stages = " → ".join(
        [path.base or "scratch", *(f"stage {stage.label} (line {stage.line})" for stage in path.stages)]
    )
    headline(out, f"{path.dockerfile.path}: {stages}")
    _base(out, draft)
    _known(out, draft)
    _gpus(out, draft)
    _arguments(out, draft)
    _steps(out, draft)
    _left_out(out, draft)
    out.print("\nas a layer: the same with -o layers/NAME", style="dim")


def _row(out: Console, text: str, style: str = "") -> None:
    say(out, text, first="  ", rest="      ", style=style or None)


def _base(out: Console, draft: Draft) -> None:
    heading(out, "base")
    base = draft.recognised.base
    if base is None:
        _row(out, "scratch: no image; a layer needs one")
    elif base.name:
        _row(out, f"{base.image} is the base {base.name}: --base {base.name}")
    else:
        _row(out, f"{base.image}, which the catalogue does not have: --base {base.option}")
        if base.near:
            _row(out, f"other tags of it in the catalogue: {', '.join(base.near)}")
    if draft.path.platform not in {None, PLATFORM["TARGETPLATFORM"]}:
        _row(out, f"FROM asks for {draft.path.platform}; lumiimg builds for {PLATFORM['TARGETPLATFORM']}", "yellow")


def _known(out: Console, draft: Draft) -> None:
    found = draft.recognised
    if not found.known:
        return
    heading(out, "layers that bring what is in it")
    width = max(len(known.layer) for known in found.known)
    for known in found.known:
        has = "; the base has it" if known.in_base else ""
        _row(out, f"{known.layer:<{width}}  {known.what} (line {known.line}, stage {known.stage}){has}")
    if found.layers:
        proposal(out, f"lumiimg explain {_request(draft)}", word="do they fit together")


def _request(draft: Draft) -> str:
    """Return the options for all layers; BASE where the catalogue has no tag of that image."""
    base = draft.recognised.base
    name = "BASE" if base is None else base.name or (base.near[0] if base.near else "BASE")
    return shlex.join(["--base", name, *(word for layer in draft.recognised.layers for word in ("--add", layer))])


def _gpus(out: Console, draft: Draft) -> None:
    found = draft.recognised
    if not found.architectures:
        return
    heading(out, "GPUs")
    for entry in found.architectures:
        kind = "problem" if entry in found.without_gpu else "ok" if entry.gpus else "unknown"
        without = f"; without {GPU} (MI250X, LUMI's)" if kind == "problem" else ""
        gpus = " ".join(entry.gpus) or "what the base image has"
        marked(out, kind, f"{entry.name} (line {entry.line}): {gpus}{without}", first="  ")


def _arguments(out: Console, draft: Draft) -> None:
    if not draft.path.arguments:
        return
    heading(out, "arguments")
    for declared in draft.path.arguments:
        uses = [str(line) for line in declared.used]
        used = ", ".join(uses[:_LINES]) + (" and more" if len(uses) > _LINES else "")
        value = "without a value" if declared.value is None else f"= {text_of(declared.value) or '(empty)'}"
        _row(out, f"{declared.name} {value} (line {declared.line}{f'; used in {used}' if used else '; not used'})")


def _steps(out: Console, draft: Draft) -> None:
    heading(out, "steps")
    stage = None
    for step in draft.path.steps:
        if step.stage != stage:
            stage = step.stage
            say(out, f"stage {stage}", first="  ", style="dim")
        text = " ".join(step.text[:_TEXT].split())
        out.print(cut(out, printable(f"  {step.line:>5}  {step.keyword} {text}"), ""))
    if draft.path.needed:
        stages = ", ".join(f"{stage.label} (line {stage.line})" for stage in draft.path.needed)
        _row(out, f"files are taken from {count(len(draft.path.needed), 'other stage')}: {stages}")


def _left_out(out: Console, draft: Draft) -> None:
    if draft.left_out or draft.environment.notes:
        heading(out, "not carried over")
    for entry in draft.left_out:
        _row(out, f"line {entry.line} {entry.keyword}: {entry.what}", "yellow" if entry.ends_build else "dim")
    for note in draft.environment.notes:
        _row(out, note, "dim")


def _written(out: Console, draft: Draft, folder: Path) -> None:
    open_ends = [entry for entry in draft.left_out if entry.ends_build]
    headline(out, f"{folder}: {count(len(draft.path.steps), 'step')} as a layer that nobody has built yet")
    if open_ends:
        numbers = list(dict.fromkeys(str(entry.line) for entry in open_ends))
        lines = f"line{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        places = count(len(open_ends), "place")
        _row(out, f"{places} where its build ends until you see to it (`todo` in post.sh): {lines}")
    for left in draft.left_out:
        if left.is_secret:
            _row(out, f"line {left.line} {left.keyword}: {left.what}", STYLES["problem"])
    for name in draft.recognised.layers:
        layer = name.partition("==")[0]
        found = list(dict.fromkeys(str(known.line) for known in draft.recognised.known if known.layer == layer))
        where = f"line{'s' * (len(found) > 1)} {', '.join(found)}"
        _row(out, f"the layer {layer} brings part of it ({where}): take that out and --add {name}")
    for entry in draft.recognised.without_gpu:
        _row(out, f"{entry.name} (line {entry.line}) leaves out {GPU} (MI250X, LUMI's)", STYLES["problem"])
    base = draft.recognised.base
    words = [
        "--base",
        base.option if base else "NAME",
        "--layers",
        str(folder.parent),
        "--add",
        folder.name,
        "--dry-run",
    ]
    command = f"lumiimg build {shlex.join(words)}"
    if open_ends or draft.recognised.layers:
        _row(out, f"edit {folder}/post.sh first")
    proposal(out, command)


def _print_json(draft: Draft, folder: Path | None) -> None:
    path = draft.path
    arguments = [
        DraftArgument(one.name, None if one.value is None else text_of(one.value), one.line, one.used)
        for one in path.arguments
    ]
    environment = {name: text_of(value) for name, value in path.environment.items()}
    print_json("draft", draft=draft, arguments=arguments, environment=environment, folder=folder)
