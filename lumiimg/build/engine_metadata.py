"""What an engine writes about an image: environment, labels, test, history. The engine itself writes it.

A definition without `%post` and `%files`, built on a folder that holds only `/.singularity.d`, takes a tenth of a
second and runs nothing. So what stands there is that engine's, of that version, however the layer's script was run.
"""

from __future__ import annotations

import datetime as dt
import json
import stat
from dataclasses import replace
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

from lumiimg.build.capabilities import LOSES_ENVIRONMENT
from lumiimg.build.safe_fs import folder, mode_of, new_file, new_link, read_file
from lumiimg.definition.definition import Header
from lumiimg.engine import engine as engines
from lumiimg.errors import FailedError, one_line
from lumiimg.files import EPOCH
from lumiimg.image import FileKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.engine.engine import Engine
    from lumiimg.engine.process import Completed
    from lumiimg.image import RootFileSystem

FOLDER = ".singularity.d"
_LABELS = f"/{FOLDER}/labels.json"
_SCRIPT = "90-environment.sh"
_TRIAL = "Bootstrap: localimage\nFrom: below.sif\n\n%environment\n    export LUMIIMG_HERE=1\n"
_FILE_LIMIT_BYTES = 8 << 20
_MAX_FILES = 2_000
_DATE = "org.label-schema.build-date"
_FROM = "org.label-schema.usage.singularity.deffile.from"


def write_facts(step: LayerBuild, seen: RootFileSystem, target: Path) -> None:
    """Write into `target`, a root folder, what the engine says of an image that `seen` becomes by the definition.

    Raises FailedError if the engine does not take it.
    """
    definition, engine = step.definition, step.machine.engine
    scratch = step.folder / "facts"
    scratch.mkdir()
    below = scratch / "below.sif"  # a folder; an engine goes by what it is
    _copy(seen, below)
    sections = definition.sections
    facts = replace(sections, header=Header("localimage", below.name), files=(), post="")
    completed = _build_facts(engine, facts.text, step.environment, scratch, step.log)
    if not completed.ok:
        raise FailedError(
            f"the engine does not take the definition: {completed.last_line[:300]}", where=definition.name
        )
    made = scratch / "facts"
    _check_environment(below / FOLDER / "env" / _SCRIPT, made / FOLDER / "env" / _SCRIPT, engine)
    _rewrite(made, f"/{FOLDER}/Singularity", sections.body)
    date_labels(made, {_FROM: sections.header.origin})
    _put(made, target, seen)


def _build_facts(
    engine: Engine, text: str, environment: Mapping[str, str], scratch: Path, log: IO[bytes] | None = None
) -> Completed:
    """Have the engine build a definition that runs nothing, in the folder `facts`."""
    definition, target = scratch / "facts.def", scratch / "facts"
    definition.write_text(text, encoding="utf-8")
    return engines.build(
        engine, definition, target, environment=environment, scratch=scratch, sandbox=True, runs=False, log=log
    )


def date_labels(root: Path, others: Mapping[str, str]) -> None:
    """Have the labels say the date that everything in the image has, so that the same build is the same bytes.

    Raises FailedError for labels that no engine has written, and for a link in their place: what the engine wrote is
    then where the link leads, and not in the image.
    """
    try:
        labels = json.loads(read_file(root, _LABELS, _FILE_LIMIT_BYTES))
    except (ValueError, RecursionError) as error:
        raise FailedError("is not JSON", where=_LABELS) from error
    if not isinstance(labels, dict):
        raise FailedError("is not a JSON object", where=_LABELS)
    date = dt.datetime.fromtimestamp(EPOCH, tz=dt.UTC)
    labels |= {_DATE: date.strftime("%A_%d_%B_%Y_%H:%M:%S_UTC"), **others}
    _rewrite(root, _LABELS, json.dumps(labels, indent="\t", sort_keys=True))


def _rewrite(root: Path, path: str, text: str) -> None:
    """Write a file again with the permissions that it has."""
    with new_file(root, path, stat.S_IMODE(mode_of(root, path) or 0o644)) as file:
        file.write(text.encode())


def keeps_environment(engine: Engine, environment: Mapping[str, str], scratch: Path) -> tuple[bool | None, str]:
    """Try whether an engine keeps what layers below have set, None where that cannot be tried; and what it said.

    SingularityCE 4.1.5 to 4.2.1, and Apptainer before 1.3.5, write it again.
    """
    below = scratch / "below.sif"
    (below / FOLDER / "env").mkdir(parents=True)
    (below / FOLDER / "env" / _SCRIPT).write_text("#!/bin/sh\nexport LUMIIMG_BELOW=1\n", encoding="utf-8")
    completed = _build_facts(engine, _TRIAL, environment, scratch)
    if not completed.ok:
        return None, one_line(completed.last_line)[:200]
    try:
        _check_environment(below / FOLDER / "env" / _SCRIPT, scratch / "facts" / FOLDER / "env" / _SCRIPT, engine)
    except FailedError as error:
        return False, error.what
    return True, "an image has it"


def _check_environment(before: Path, after: Path, engine: Engine) -> None:
    """Raise FailedError if what is below is not at the beginning of what the engine wrote."""
    lines = [
        line for line in (before.read_text("utf-8", "replace") if before.is_file() else "").splitlines() if line.strip()
    ]
    written = after.read_text("utf-8", "replace").splitlines() if after.is_file() else []
    if not set(lines) <= set(written):
        raise FailedError(
            f"{engine.name} loses the environment of the layers below",
            hint=f"{LOSES_ENVIRONMENT}: take another version",
        )


def _copy(seen: RootFileSystem, target: Path) -> None:
    """Copy what engines keep in an image into a folder of its own.

    The engine will write there, on this machine and through links, so that only links that stay in it are copied.
    """
    target.mkdir()
    if not _is_itself(seen, f"/{FOLDER}") or not seen.is_dir(f"/{FOLDER}"):
        return
    (target / FOLDER).mkdir()
    for number, entry in enumerate(seen.walk(f"/{FOLDER}")):
        if number > _MAX_FILES:
            raise FailedError(f"more than {_MAX_FILES} files", where=f"/{FOLDER}")
        if entry.kind is FileKind.DIRECTORY:
            (target / entry.path.lstrip("/")).mkdir()
        elif entry.kind is FileKind.FILE:
            with new_file(target, entry.path, seen.stat(entry.path).permissions | 0o600) as file:
                file.write(seen.read_bytes(entry.path, _FILE_LIMIT_BYTES))
        elif entry.kind is FileKind.SYMLINK and _stays(seen.readlink(entry.path)):
            new_link(target, entry.path, seen.readlink(entry.path))
    for name, kind in seen.list_dir("/"):
        if kind is FileKind.SYMLINK and (text := seen.readlink(f"/{name}")).startswith(f"{FOLDER}/") and _stays(text):
            new_link(target, f"/{name}", text)


def _stays(link: str) -> bool:
    """Whether a link leads to what is below the folder that it is in, if all links there are such."""
    path = PurePosixPath(link)
    return not path.is_absolute() and ".." not in path.parts


def _put(made: Path, target: Path, seen: RootFileSystem) -> None:
    """Copy what is new or another into the target; nothing else of what the engine made, which the image has itself.

    Where a script has put a link, or anything else, in the place of the engine's folder, it makes way, as an engine
    writes its own into each image again: followed, it would lead to files of this machine.
    """
    for path in (made / FOLDER, *sorted((made / FOLDER).rglob("*"))):
        inside = f"/{path.relative_to(made)}"
        there = mode_of(target, inside)
        if path.is_symlink():
            new_link(target, inside, str(path.readlink()))
        elif path.is_file():
            if not _is_same(path, seen, inside):  # else a script may have changed it, over an overlay
                with new_file(target, inside, stat.S_IMODE(path.stat().st_mode), replaces=True) as file:
                    file.write(path.read_bytes())
        elif not stat.S_ISDIR(there) if there is not None else not seen.is_dir(inside):
            with folder(target, inside, makes=True, replaces=True):
                pass
    for link in sorted(made.iterdir()):
        if link.is_symlink() and mode_of(target, f"/{link.name}") is None and not seen.exists(f"/{link.name}"):
            new_link(target, f"/{link.name}", str(link.readlink()))


def _is_same(path: Path, seen: RootFileSystem, inside: str) -> bool:
    if not _is_itself(seen, inside) or not seen.is_file(inside):
        return False
    return (
        seen.stat(inside).permissions == path.stat().st_mode & 0o7777
        and seen.read_bytes(inside, _FILE_LIMIT_BYTES) == path.read_bytes()
    )


def _is_itself(seen: RootFileSystem, path: str) -> bool:
    """Tell whether a path leads to something, and through no link."""
    return seen.exists(path) and seen.resolve(path) == path
