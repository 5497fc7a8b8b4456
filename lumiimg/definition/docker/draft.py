"""A Dockerfile as the draft of a layer: a folder with layer.toml and post.sh, for a person to go on with.

The draft is what lumiimg reads (docs/extend/layer.md), and is read once before it gets its name: a folder that would be
refused is never left behind.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.catalog.layers import NAME, SCRIPT_LIMIT_BYTES, read_layer
from lumiimg.catalog.releases import placeholders
from lumiimg.definition.docker.dockerfile import ArgumentText, Reference, read_dockerfile, text_of
from lumiimg.definition.docker.recognition import Recognised, recognise
from lumiimg.definition.docker.script import FOLDERS, SHELL_NAME, LeftOut, comment, layer_arguments, script_of
from lumiimg.definition.docker.steps import BuildPath, Declared, follow
from lumiimg.definition.text import DefinitionError, checked_body
from lumiimg.engine.workspace import own_folder
from lumiimg.errors import BadInputError, FailedError, one_line
from lumiimg.findings import NO_ADVICE, Advice
from lumiimg.resolve.request import words_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.catalog.catalogue import Catalogue

_PATTERN = r"[A-Za-z0-9._:/@%+~=;,-]*"
"""What an argument may be: no blank or quote, as steps use it without quotes."""


@dataclass(frozen=True, slots=True)
class DraftEnvironment:
    """What the steps leave set for whoever runs the image."""

    set: Mapping[str, str]
    """Values with `{NAME}` for an argument, as layer.toml has them."""
    prepend: Mapping[str, str]
    notes: tuple[str, ...]
    """What else was not carried over."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a Dockerfile does, what the catalogue has of it, what a person must see to."""

    path: BuildPath
    recognised: Recognised
    environment: DraftEnvironment
    left_out: tuple[LeftOut, ...]
    """In the order of the file."""
    body: str
    """Of post.sh."""
    folder: Path | None = None
    """That was written; null without -o."""

    @property
    def open_lines(self) -> tuple[int, ...]:
        """Lines of the Dockerfile at which the build ends until somebody has seen to it."""
        return tuple(dict.fromkeys(entry.line for entry in self.left_out if entry.ends_build))

    @property
    def advice(self) -> Advice:
        """What judges all layers together, with the nearest base of the catalogue; of a folder, what tries it."""
        found = self.recognised
        if self.folder is not None:
            words = ["show", "--layers", str(self.folder.parent), self.folder.name]
            if found.base is not None:
                at = ["--layers", str(self.folder.parent), "--add", self.folder.name]
                words = ["build", "--base", found.base.option, *at, "--dry-run"]
            is_edited = found.layers or self.open_lines
            where = f"once {self.folder}/post.sh is edited" if is_edited else None
            return Advice(None, f"lumiimg {shlex.join(words)}", where)
        if not found.layers:
            return NO_ADVICE
        name = found.base and (found.base.name or next(iter(found.base.near), None))
        options = words_of(("--base", (name,)), ("--add", found.layers))
        return Advice(None, f"lumiimg explain {options}", "to see whether they fit together")


def make_draft(file: Path, target: str | None, given: Mapping[str, str], catalogue: Catalogue) -> Draft:
    """Read a Dockerfile. Raises BadInputError, which says what is wrong in which line."""
    path = follow(read_dockerfile(file), target, given)
    body, left_out = script_of(path)
    return Draft(path, recognise(path, catalogue), _environment(path), tuple(left_out), body)


def write_draft(draft: Draft, folder: Path, catalogue: Catalogue) -> Draft:
    """Write the layer's folder, whole or not at all; return the draft with it.

    Raises BadInputError if the folder is there, or can be no layer; FailedError if it cannot be written.
    """
    written = replace(draft, folder=folder)
    folder = folder.absolute()
    _check_folder(draft, folder, catalogue)
    files = {"layer.toml": _layer(draft, folder.name), "post.sh": _post(draft)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with own_folder(folder.parent, ".lumiimg-") as beside:
            inside = beside / folder.name
            inside.mkdir()
            for name, text in files.items():
                (inside / name).write_text(text, encoding="utf-8")
            read_layer(inside)
            inside.rename(folder)
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror or error}", where=str(folder)) from error
    return written


def _check_folder(draft: Draft, folder: Path, catalogue: Catalogue) -> None:
    where = str(folder)
    if folder.is_symlink() or folder.exists():
        raise BadInputError("exists already", where=where, hint="a draft goes into a new folder")
    if not NAME.fullmatch(folder.name):
        hint = "lower-case letters, digits, dots, dashes: it is the layer's name"
        raise BadInputError(f"{folder.name!r} is not a valid layer name", where=where, hint=hint)
    if catalogue.knows(folder.name):
        hint = f"choose another name, such as {folder.name}-draft: it would hide that one"
        raise BadInputError(f"{folder.name!r} is already in the catalogue", where=where, hint=hint)
    if draft.path.base is None:
        where = draft.path.dockerfile.where(draft.path.stages[0].line)
        what = "the stage is FROM scratch, so it has no base image for a layer"
        raise BadInputError(what, where=where, hint="--target STAGE")


def _layer(draft: Draft, layer: str) -> str:
    import tomli_w  # needed where something is written only

    path, base = draft.path, draft.recognised.base
    file = one_line(Path(path.dockerfile.path).name)
    document: dict[str, Any] = {
        "kind": "layer",
        "summary": one_line(f"Draft of {file}, stage {path.stages[-1].label}"),
        "source": one_line(f"{file}, sha256 {path.dockerfile.sha256}, on {base.image if base else 'scratch'}"),
        "date": dt.datetime.now(tz=dt.UTC).date(),
        "requires": [],
    }
    if lines := draft.open_lines:
        because = f"the build ends at each `todo` of its post.sh, which are from these lines of {file}: "
        trouble = {"given": [layer], "outcome": "warning", "rule": "layers", "source": "lumiimg draft"}
        document["trouble"] = [trouble | {"because": because + ", ".join(map(str, lines[:8]))}]
    if arguments := layer_arguments(path):
        document["arguments"] = {name: _argument(text_of(one.value), one.line) for name, one in arguments.items()}
    environment = {"set": draft.environment.set, "prepend": draft.environment.prepend}
    if environment := {key: table for key, table in environment.items() if table}:
        document["environment"] = environment
    notes = "".join(f"{comment(note)}\n" for note in draft.environment.notes)
    # What a terminal would obey is just as bad in a file that a person looks at.
    body = "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in tomli_w.dumps(document))
    return (
        "# Written by `lumiimg draft`; docs/extend/layer.md says what stands here. Name in `requires` what the steps\n"
        f"# need of the base (rocm, python3, torch), and in [has] what they bring.\n{notes}\n{body}"
    )


def _argument(default: str, line: int) -> dict[str, str]:
    table = {"default": default, "help": f"ARG of the Dockerfile, line {line}"}
    return table | ({"pattern": _PATTERN} if re.fullmatch(_PATTERN, default) else {})


def _post(draft: Draft) -> str:
    path, base, where = draft.path, draft.recognised.base, draft.path.dockerfile.path
    head = [
        f"Drafted by `lumiimg draft` from {Path(where).name}, stage {path.stages[-1].label}. Nobody has run it.",
        f"It goes on {base.image if base else 'scratch'}: --base {base.option if base else ''}",
    ]
    if path.needed:
        stages = ", ".join(f"{stage.label} (line {stage.line})" for stage in path.needed)
        head.append(f"Files are taken from these stages, whose steps are not in here: {stages}")
    head += [
        f"Line {known.line}, {known.what}: the layer {known.layer} brings that; leave the step out."
        for known in draft.recognised.known
    ]
    try:
        text = checked_body("\n".join([*map(comment, head), draft.body]), "post.sh")
    except DefinitionError as error:
        raise BadInputError(f"its post.sh: {error.what}", where=where, hint=error.hint) from error
    if len(text.encode()) > SCRIPT_LIMIT_BYTES:
        what = f"its post.sh would be larger than {SCRIPT_LIMIT_BYTES} bytes"
        raise BadInputError(what, where=where, hint="draft a stage of it: --target STAGE")
    return text


def _environment(path: BuildPath) -> DraftEnvironment:
    put: dict[str, str] = {}
    before: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    arguments = layer_arguments(path)
    for name, value in path.environment.items():
        text = "".join(_template(part, arguments) for part in value)
        opened = [part.name for part in value if isinstance(part, Reference)]
        added = re.fullmatch(rf"(?:(.*):)?\$\{{{re.escape(name)}\}}(?::(.*))?", text) if opened == [name] else None
        note = ""
        if not SHELL_NAME.fullmatch(name):
            note = "no name of a variable"
        elif not text.isprintable() or placeholders("".join(part for part in value if isinstance(part, str))):
            note = "set while this is built only, as layer.toml cannot hold the value"
        elif added and any(added.groups()):
            before[name] = ":".join(filter(None, added.groups()))
        elif opened:
            note = "set while this is built only, as it is made of variables that are known there"
        elif name in FOLDERS and text.strip(": "):
            before[name] = text.strip(": ")
            note = "put in front of what the base has, where the Dockerfile replaces it"
        elif text.strip():
            put[name] = text
        else:
            note = "empty in the Dockerfile's image; a layer sets no empty variable"
        if note:
            notes.setdefault(note, []).append(name)
    return DraftEnvironment(put, before, tuple(f"{', '.join(names)}: {note}" for note, names in notes.items()))


def _template(part: str | ArgumentText | Reference, arguments: Mapping[str, Declared]) -> str:
    """Return a part of a value with `{NAME}` for an argument, as layer.toml has it."""
    is_layers = isinstance(part, ArgumentText) and part.name in arguments and arguments[part.name].value == (part,)
    return f"{{{part.name}}}" if isinstance(part, ArgumentText) and is_layers else text_of((part,))
