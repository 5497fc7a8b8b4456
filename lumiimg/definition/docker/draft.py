"""A Dockerfile as the draft of a layer: a folder with layer.toml and post.sh, for a person to go on with.

The draft is what lumiimg reads (docs/extend/layer.md), and is read once before it gets its name: a folder that would be
refused is never left behind.
"""

from __future__ import annotations

import datetime as dt
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.catalog.layers import NAME, SCRIPT_LIMIT_BYTES, read_layer
from lumiimg.definition.docker.dockerfile import read_dockerfile
from lumiimg.definition.docker.leftovers import is_download, left_out, sources_of
from lumiimg.definition.docker.recognition import Recognised, recognise
from lumiimg.definition.docker.script import FOLDERS, usable_arguments, write_script
from lumiimg.definition.docker.shell import comment_text
from lumiimg.definition.docker.stages import follow
from lumiimg.definition.docker.substitution import Piece, PieceKind, Value, text_of
from lumiimg.definition.docker.withheld import without_secrets
from lumiimg.definition.text import DefinitionError
from lumiimg.errors import BadInputError, FailedError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.definition.docker.steps import BuildPath, Declared, DockerStep

_PATTERN = r"[A-Za-z0-9._:/@%+~=;,-]*"
"""What an argument may be: no blank or quote, as steps use it without quotes."""
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_CHECKSUM = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of a step that the draft does not do."""

    line: int
    keyword: str
    what: str
    ends_build: bool
    """Whether the draft ends there until somebody has seen to it."""
    is_secret: bool


@dataclass(frozen=True, slots=True)
class DraftEnvironment:
    """What the steps leave set for whoever runs the image."""

    set: Mapping[str, str]
    """Values with `{NAME}` for an argument, as layer.toml has them."""
    prepend: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """All that is known about a Dockerfile."""

    path: BuildPath
    recognised: Recognised
    environment: DraftEnvironment
    left_out: tuple[LeftOut, ...]


def make_draft(file: Path, target: str | None, given: Mapping[str, str], catalogue: Catalogue) -> Draft:
    """Read a Dockerfile. Raises BadInputError, which says what is wrong in which line."""
    path = without_secrets(follow(read_dockerfile(file), target, given))
    found = [
        LeftOut(step.line, step.keyword, what, ends_build, is_secret=bool(step.withheld))
        for step in path.steps
        for what, ends_build in left_out(step)
    ]
    return Draft(path, recognise(path, catalogue), _environment(path), tuple(found))


def write_draft(draft: Draft, folder: Path, catalogue: Catalogue) -> None:
    """Write the layer's folder, whole or not at all.

    Raises BadInputError if the folder is there, or can be no layer; FailedError if it cannot be written.
    """
    folder = folder.absolute()
    _check_folder(draft, folder, catalogue)
    files = {"layer.toml": _layer(draft, folder.name), "post.sh": _post(draft)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".lumiimg-", dir=folder.parent))
        try:
            inside = beside / folder.name
            inside.mkdir()
            for name, text in files.items():
                (inside / name).write_text(text, encoding="utf-8")
            read_layer(inside)
            if folder.is_symlink() or folder.exists():
                raise BadInputError("exists already", where=str(folder), hint="a draft goes into a new folder")
            inside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror or error}", where=str(folder)) from error


def _check_folder(draft: Draft, folder: Path, catalogue: Catalogue) -> None:
    where = str(folder)
    if folder.is_symlink() or folder.exists():
        raise BadInputError("exists already", where=where, hint="a draft goes into a new folder")
    if not NAME.fullmatch(folder.name):
        hint = "lower-case letters, digits, dots, dashes: it is the layer's name"
        raise BadInputError(f"{folder.name!r} is not a valid layer name", where=where, hint=hint)
    if folder.name in catalogue.layer_names():
        hint = f"choose another name, such as {folder.name}-draft: it would hide that one"
        raise BadInputError(f"{folder.name!r} is already in the catalogue", where=where, hint=hint)
    if draft.path.base is None:
        where = draft.path.dockerfile.where(draft.path.stages[0].line)
        what = "the stage is FROM scratch, so it has no base image for a layer"
        raise BadInputError(what, where=where, hint="--target STAGE")


def _layer(draft: Draft, layer: str) -> str:
    import tomli_w  # needed where something is written only

    path = draft.path
    name = Path(path.dockerfile.path).name
    document: dict[str, Any] = {
        "kind": "layer",
        "summary": one_line(f"Draft of {name}, stage {path.target.label}"),
        "source": one_line(
            f"{name}, sha256 {path.dockerfile.sha256}, on {draft.recognised.base and draft.recognised.base.image}"
        ),
        "date": dt.datetime.now(tz=dt.UTC).date(),
        "requires": [],
    }
    if open_ends := [f"{entry.line}" for entry in draft.left_out if entry.ends_build]:
        document["trouble"] = [
            {
                "given": [layer],
                "outcome": "warning",
                "rule": "layers",
                "because": "the build ends at each `todo` of its post.sh, which are from these lines of "
                f"{one_line(name)}: {', '.join(dict.fromkeys(open_ends[:8]))}",
                "source": "lumiimg draft",
            }
        ]
    usable = usable_arguments(path)
    environment = {"set": dict(draft.environment.set), "prepend": dict(draft.environment.prepend)}
    tables = {
        "arguments": {
            name: _argument(text_of(declared.value or ()), declared.line) for name, declared in usable.items()
        },
        "sources": {f"add-{step.line}": _source(step, usable) for step in path.steps if is_download(step)},
        "environment": {key: table for key, table in environment.items() if table},
    }
    document |= {key: table for key, table in tables.items() if table}
    notes = "".join(f"# {one_line(note)}\n" for note in draft.environment.notes)
    # What a terminal would obey is just as bad in a file that a person looks at.
    body = "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in tomli_w.dumps(document))
    return (
        "# Written by `lumiimg draft`; docs/extend/layer.md says what stands here. Name in `requires` what the steps\n"
        f"# need of the base (rocm, python3, torch), and in [has] what they bring.\n{notes}\n{body}"
    )


def _argument(default: str, line: int) -> dict[str, str]:
    table = {"default": default, "help": f"ARG of the Dockerfile, line {line}"}
    return table | ({"pattern": _PATTERN} if re.fullmatch(_PATTERN, default) else {})


def _source(step: DockerStep, usable: Mapping[str, Declared]) -> dict[str, Any]:
    url = sources_of(step)[0]
    key = [piece for piece in url if _follows(piece, usable)]
    file = re.sub(r"[^A-Za-z0-9._-]", "-", text_of(url).partition("?")[0].rpartition("/")[2]).lstrip(".-")[:100]
    checksum = _CHECKSUM.fullmatch(step.instruction.flag("checksum") or "")
    return {
        "url": _template(url, usable),
        "file": file or "download",
        "key": _template(key, usable) or "as drafted",
        "source": f"ADD of the Dockerfile, line {step.line}",
        "sha256": {text_of(key) or "as drafted": checksum[1]} if checksum else {},
    }


def _follows(piece: Piece, usable: Mapping[str, Declared]) -> bool:
    """Whether a piece is an argument of the layer, so that another value of that changes it."""
    return piece.name in usable and usable[piece.name].value == (piece,)


def _template(value: Iterable[Piece], usable: Mapping[str, Declared]) -> str:
    return "".join(f"{{{piece.name}}}" if _follows(piece, usable) else piece.text for piece in value)


def _post(draft: Draft) -> str:
    path, base = draft.path, draft.recognised.base
    name = Path(path.dockerfile.path).name
    head = [
        f"# Drafted by `lumiimg draft` from {name}, stage {path.target.label}. Nobody has run it.",
        f"# It goes on {base.image if base else 'scratch'}: --base {base.option if base else ''}",
        "#",
        "# Each RUN is as it stands there. `todo` ends the build where files are missing that only Docker has: put in",
        "# what brings them, a source archive in layer.toml or a layer below this one, and take the line out.",
    ]
    if path.needed:
        stages = ", ".join(f"{stage.label} (line {stage.line})" for stage in path.needed)
        head.append(f"# Files are taken from these stages, whose steps are not in here: {stages}")
    head += [
        f"# Line {known.line}, {known.what}: the layer {known.layer} brings that; leave the step out."
        for known in draft.recognised.known
    ]
    downloads = {step.line: f"SOURCE_ADD_{step.line}" for step in path.steps if is_download(step)}
    try:
        text = write_script(path, "\n".join(map(comment_text, head)), downloads)
    except DefinitionError as error:
        raise BadInputError(f"its post.sh: {error.what}", where=path.dockerfile.path, hint=error.hint) from error
    if len(text.encode()) > SCRIPT_LIMIT_BYTES:
        raise BadInputError(
            f"its post.sh would be larger than {SCRIPT_LIMIT_BYTES} bytes",
            where=path.dockerfile.path,
            hint="draft a stage of it: --target STAGE",
        )
    return text


def _environment(path: BuildPath) -> DraftEnvironment:
    usable = usable_arguments(path)
    put: dict[str, str] = {}
    before: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for name, value in path.environment.items():
        text = _template(value, usable)
        opened = [piece for piece in value if piece.kind is PieceKind.BASE]
        note = ""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            note = "no name of a variable"
        elif not text.isprintable() or any(_PLACEHOLDER.search(piece.text) for piece in value):
            note = "set while this is built only, as layer.toml cannot hold the value"
        elif not opened and name in FOLDERS and text.strip(": "):
            before[name] = text.strip(": ")
            note = "put in front of what the base has, where the Dockerfile replaces it"
        elif not opened and text.strip():
            put[name] = text
        elif not opened:
            note = "empty in the Dockerfile's image; a layer sets no empty variable"
        elif [piece.name for piece in opened] == [name] and (added := _added(value, usable)):
            before[name] = added
            if value[-1].kind is not PieceKind.BASE:
                note = "put in front of what the base has, all of it; the Dockerfile puts some behind it"
        else:
            note = "set while this is built only, as it is made of variables of the base"
        if note:
            notes.setdefault(note, []).append(name)
    return DraftEnvironment(put, before, tuple(f"{', '.join(names)}: {note}" for note, names in notes.items()))


def _added(value: Value, usable: Mapping[str, Declared]) -> str:
    """Return what is put before and behind a list of folders with colons between them."""
    at = next(number for number, piece in enumerate(value) if piece.kind is PieceKind.BASE)
    front, back = _template(value[:at], usable), _template(value[at + 1 :], usable)
    if (front and not front.endswith(":")) or (back and not back.startswith(":")):
        return ""
    return ":".join(part for part in (front.strip(":"), back.strip(":")) if part)
