"""Turn a Dockerfile into the draft of a layer: a folder with layer.toml and post.sh, for the user to continue with.

The draft has the format that lumiimg reads (docs/extend/layer.md), and is read once before it gets its name: a folder
that lumiimg would refuse is never left behind.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.catalog.layers import NAME, SCRIPT_LIMIT_BYTES, read_layer
from lumiimg.core.errors import BadInputError, FailedError, one_line
from lumiimg.core.files import today
from lumiimg.core.findings import NO_ADVICE, Advice
from lumiimg.core.redact import is_secret_name
from lumiimg.definition.docker.read import Dockerfile, Stage, read_dockerfile, resolved, variables
from lumiimg.definition.docker.recognise import Base, KnownSoftware, known_values, recognise
from lumiimg.definition.docker.script import DraftArgument, Script, comment
from lumiimg.definition.text import DefinitionError, checked_body
from lumiimg.engine.workspace import own_folder
from lumiimg.resolve.request import words_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.catalog.catalogue import Catalogue

_PATTERN = r"[A-Za-z0-9._:/@%+~=;,-]*"
"""Allowed values of an argument: without spaces and quotes, as steps use it unquoted."""
_MACHINE = {"PLATFORM": "linux/amd64", "OS": "linux", "ARCH": "amd64", "VARIANT": ""}
_PLATFORM = {side + key: value for side in ("BUILD", "TARGET") for key, value in _MACHINE.items()}
"""Variables that BuildKit defines before the first FROM, with the values for the machines of all sites."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The translation of a Dockerfile, what the catalogue has of it, and what the user must edit."""

    dockerfile: Dockerfile
    stages: tuple[Stage, ...]
    """The stages from the one that starts at the base to the target."""
    script: Script
    base: Base | None
    """The image that the first stage starts from; null for scratch."""
    known: tuple[KnownSoftware, ...]
    """Software that layers of the catalogue include."""
    folder: Path | None = None
    """The folder that was written; null without -o."""

    @property
    def target(self) -> str:
        """The stage that was translated."""
        return self.stages[-1].label

    @property
    def arguments(self) -> tuple[DraftArgument, ...]:
        """Arguments in the order of the file."""
        return tuple(self.script.arguments.values())

    @property
    def layers(self) -> tuple[str, ...]:
        """Values for `--add`: each layer once, with a release if the Dockerfile names one that the catalogue has."""
        versions: dict[str, str | None] = {}
        for one in (one for one in self.known if not one.in_base):
            versions[one.layer] = versions.get(one.layer) or one.version
        return tuple(f"{name}=={version}" if version else name for name, version in versions.items())

    @property
    def open_lines(self) -> tuple[int, ...]:
        """Lines of the Dockerfile at which the build ends until the user has edited the draft."""
        return tuple(dict.fromkeys(entry.line for entry in self.script.left_out if entry.ends_build))

    @property
    def advice(self) -> Advice:
        """The command that tries the folder; without one, that checks the layers with the nearest catalogue base."""
        if self.folder is not None:
            at = ["--layers", str(self.folder.parent), "--add", self.folder.name]
            words = ["build", "--base", self.base.option if self.base else "", *at, "--dry-run"]
            is_edited = self.layers or self.open_lines
            where = f"once {self.folder}/post.sh is edited" if is_edited else None
            return Advice(None, f"lumiimg {shlex.join(words)}", where)
        if not self.layers:
            return NO_ADVICE
        name = self.base and (self.base.name or next(iter(self.base.near), None))
        options = words_of(("--base", (name,)), ("--add", self.layers))
        return Advice(None, f"lumiimg explain {options}", "to see whether they fit together")


def make_draft(file: Path, target: str | None, given: Mapping[str, str], catalogue: Catalogue) -> Draft:
    """Translate a Dockerfile up to `target`, by default its last stage, with `given` as the values of arguments.

    Raises BadInputError with the fault and its line, also for a stage or an argument that does not exist.
    """
    dockerfile = read_dockerfile(file)
    outer = known_values(dockerfile.path, dockerfile.arguments, given, _PLATFORM)
    stages = _chain(dockerfile, target, outer)
    first, image = stages[0], resolved(stages[0].image, outer)
    everywhere = [*dockerfile.arguments, *(step for stage in dockerfile.stages for step in stage.instructions)]
    steps = [step for stage in dockerfile.stages if stage.line <= stages[-1].line for step in stage.instructions]
    names = {name for step in everywhere if step.keyword == "ARG" for name, _ in step.pairs or ()}
    if unknown := sorted(given.keys() - names):
        what, hint = f"--arg {unknown[0][:60]}: no ARG of that name", "a draft without it lists the arguments"
        raise BadInputError(what, where=str(file), hint=hint)
    values = known_values(dockerfile.path, steps, given, outer)
    try:
        found = recognise(None if image == "scratch" else image, steps, values, catalogue)
    except BadInputError as error:
        where, hint = f"{file}:{first.line}", "an argument in it: --arg NAME=VALUE"
        raise BadInputError(f"FROM: {error.what}", where=where, hint=hint) from error
    decided = variables(" ".join([first.image, *(step.text for step in dockerfile.arguments)]))
    pairs = (pair for step in everywhere if step.keyword in {"ARG", "ENV"} for pair in step.pairs or ())
    of_secrets = {other for name, text in pairs if is_secret_name(name) for other in variables(text or "")}
    script = Script(given, outer, frozenset(decided), of_secrets & names)
    for flag in first.start.flags:
        if resolved(flag, outer) != f"--platform={_MACHINE['PLATFORM']}":
            script.leave_out(first.start, f"{flag}: a layer is for {_MACHINE['PLATFORM']}", ends=False)
    for step in (step for stage in stages for step in stage.instructions):
        script.add(step)
    return Draft(dockerfile, stages, script, *found)


def _chain(dockerfile: Dockerfile, target: str | None, outer: Mapping[str, str]) -> tuple[Stage, ...]:
    """Return the stages that a target consists of, from the one that starts from an image."""
    by_name = [(name, one) for number, one in enumerate(dockerfile.stages) for name in (str(number), one.label.lower())]
    stage = dockerfile.stages[-1] if target is None else dict(by_name).get(target.lower())
    if stage is None:
        known = ", ".join(stage.label for stage in dockerfile.stages[:30])
        raise BadInputError(f"there is no stage {target!r:.60}", where=dockerfile.path, hint=f"known: {known}")
    chain = [stage]
    for name, one in reversed(by_name):  # FROM means the nearest stage of that name above it
        if one.line < chain[0].line and name == resolved(chain[0].image, outer).lower():
            chain.insert(0, one)
    return tuple(chain)


def write_draft(draft: Draft, folder: Path, catalogue: Catalogue) -> Draft:
    """Write the layer's folder, whole or not at all; return the draft with it.

    Raises BadInputError if the folder exists or cannot be a layer, FailedError if it cannot be written.
    """
    written = replace(draft, folder=folder)
    folder = folder.absolute()
    _check_folder(draft, folder, catalogue)
    files = {"layer.toml": _layer(draft, folder.name), "post.sh": _post(draft)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with own_folder(folder.parent, ".lumiimg-") as scratch:
            inside = scratch / folder.name
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
        hint = f"choose another name, such as {folder.name}-draft: this one would hide the existing layer"
        raise BadInputError(f"{folder.name!r} is already in the catalogue", where=where, hint=hint)
    if draft.base is None:
        what = "the stage is FROM scratch, so it has no base image for a layer"
        raise BadInputError(what, where=f"{draft.dockerfile.path}:{draft.stages[0].line}", hint="--target STAGE")


def _layer(draft: Draft, layer: str) -> str:
    import tomli_w  # needed only to write

    base, script = draft.base, draft.script
    file = one_line(Path(draft.dockerfile.path).name)
    document: dict[str, Any] = {
        "kind": "layer",
        "summary": one_line(f"Draft of {file}, stage {draft.target}"),
        "source": one_line(f"{file}, sha256 {draft.dockerfile.sha256}, on {base.image if base else 'scratch'}"),
        "date": today(),
        "requires": [],
    }
    if lines := draft.open_lines:
        because = f"the build ends at each `todo` of its post.sh, from these lines of {file}: "
        trouble = {"given": [layer], "outcome": "warning", "rule": "layers", "source": "lumiimg draft"}
        document["trouble"] = [trouble | {"because": because + ", ".join(map(str, lines[:8]))}]
    if arguments := {one.name: _argument(one) for one in draft.arguments if not one.is_fixed}:
        document["arguments"] = arguments
    tables = {"set": script.environment, "prepend": script.prepend}
    if environment := {key: table for key, table in tables.items() if table}:
        document["environment"] = environment
    # Terminal control characters are also dangerous in a file that a user views.
    body = "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in tomli_w.dumps(document))
    return (
        "# Written by `lumiimg draft`; docs/extend/layer.md describes the format. In `requires`, name what the steps\n"
        f"# need from the base (rocm, python3, torch), and in [has], what they install.\n\n{body}"
    )


def _argument(one: DraftArgument) -> dict[str, str]:
    table = {"default": one.value or "", "help": f"ARG of the Dockerfile, line {one.line}"}
    return table | ({"pattern": _PATTERN} if re.fullmatch(_PATTERN, table["default"]) else {})


def _post(draft: Draft) -> str:
    base, where = draft.base, draft.dockerfile.path
    head = [
        f"Drafted by `lumiimg draft` from {Path(where).name}, stage {draft.target}. It has not been run.",
        f"It builds on {base.image if base else 'scratch'}: --base {base.option if base else ''}",
    ]
    head += [
        f"Line {known.line}, {known.what}: the layer {known.layer} provides that; delete the step."
        for known in draft.known
    ]
    try:
        text = checked_body("\n".join([*map(comment, head), *draft.script.lines]), "post.sh")
    except DefinitionError as error:
        raise BadInputError(f"its post.sh: {error.what}", where=where, hint=error.hint) from error
    if len(text.encode()) > SCRIPT_LIMIT_BYTES:
        what = f"its post.sh would be larger than {SCRIPT_LIMIT_BYTES} bytes"
        raise BadInputError(what, where=where, hint="draft a stage of it: --target STAGE")
    return text
