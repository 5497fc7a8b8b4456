"""Write the files that engines look for in an image, and lumiimg's own record, as a final layer in an empty folder.

So none of them is written into a root folder that an image or a script has filled. Apptainer 1.4.5 writes the same
files when it builds the same definitions. Sources: its `internal/pkg/build/sources/base_environment.go`,
`conveyorPacker_oci.go` and `metadata.go`; its texts are in `apptainer/`, with their licence.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import stat
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lumiimg.build.safe_fs import MOUNT_FILES, MOUNT_FOLDERS, OWN, folder, open_file, resolve_missing
from lumiimg.core.decode import decode
from lumiimg.core.errors import FailedError
from lumiimg.core.files import EPOCH
from lumiimg.definition.definition import export
from lumiimg.image import ImageError, RootFileSystem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.definition.definition import Definition, Sections

VERSION = "1.4.5"
"""The Apptainer version that writes the same files; labels name it."""
LABELS = f"{OWN}/labels.json"
ENVIRONMENT = f"{OWN}/env/90-environment.sh"
_LINKS = {
    "/singularity": "runscript",
    "/.run": "actions/run",
    "/.exec": "actions/exec",
    "/.test": "actions/test",
    "/.shell": "actions/shell",
    "/environment": "env/90-environment.sh",
}
_TEXTS = (
    *(f"actions/{name}" for name in ("exec", "run", "shell", "start", "test")),
    *(f"env/{name}.sh" for name in ("01-base", "90-environment", "95-apps", "99-base", "99-runtimevars")),
    "runscript",
    "startscript",
)
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SCHEMA = "org.label-schema"
_DATE = f"{_SCHEMA}.build-date"
_LIMIT_BYTES = 8 << 20


class _RunConfig(Struct, rename="pascal"):
    """The fields of `config` that are used (OCI image-spec config.md)."""

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None
    labels: dict[str, str | None] | None = None


def write_config(root: Path, config: Mapping[str, object]) -> None:
    """Write the settings in `config` of an OCI image's config into the new folder where its files will be unpacked.

    Raises DecodeError if the config has values of wrong types.
    """
    settings = decode(config, _RunConfig, where="the config of the image")
    exports = "".join(map(_export, _utf8(settings.env)))
    texts = {
        "runscript": (_runscript(_utf8(settings.entrypoint), _utf8(settings.cmd)), 0o755),
        "env/10-docker2singularity.sh": (f"#!/bin/sh\n{exports}", 0o755),
        "labels.json": (_json({name: value or "" for name, value in (settings.labels or {}).items()}), 0o644),
    }
    for name, (text, permissions) in texts.items():
        target = root / OWN[1:] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(permissions)


def write_metadata(
    root: Path, below: RootFileSystem, definitions: Sequence[Definition], labels: Mapping[str, str]
) -> None:
    """Write the metadata of definitions, and files that the image lacks, into an empty folder to be laid over it.

    `definitions` are those that no engine has built; `labels` are added to theirs. Raises FailedError if labels in the
    image are malformed.
    """
    own = _Files(root, below)
    root.chmod(below.stat("/").permissions | stat.S_IWUSR)
    for path in (*MOUNT_FOLDERS, f"{OWN}/libs"):
        if (target := own.path_to_create(path)) is not None:
            target.mkdir(0o755, exist_ok=True)  # two paths may lead to one place
    for path, text in _LINKS.items():
        if (target := own.path_to_create(path)) is not None:
            target.symlink_to(f"{OWN.removeprefix('/')}/{text}")
    folder_of_texts = resources.files(__package__).joinpath("apptainer")
    texts = {f"{OWN}/{name}": folder_of_texts.joinpath(*name.split("/")).read_text(encoding="utf-8") for name in _TEXTS}
    for path, text in {**dict.fromkeys((*MOUNT_FILES, f"{OWN}/env/94-appsbase.sh"), ""), **texts}.items():
        if (target := own.path_to_create(path)) is not None:
            target.write_text(text, encoding="utf-8")
            target.chmod(0o644 if path in MOUNT_FILES else 0o755)
    own.write(LABELS, _json({**_labels(own.read(LABELS), definitions), **labels}), 0o644)
    parts = [definition.sections for definition in definitions]
    if environment := "".join(_environment(sections) for sections in parts if sections.environment):
        own.write(ENVIRONMENT, (own.read(ENVIRONMENT) or texts[ENVIRONMENT]) + environment, 0o755)
    if tests := [sections.test for sections in parts if sections.test]:
        own.write(f"{OWN}/test", _script(tests[-1]), 0o755)  # the test of the top layer includes those of all layers
    for sections in parts[-1:]:
        own.write(f"{OWN}/Singularity", sections.body, 0o644)


def date_labels(root: Path) -> None:
    """Set the date in labels that an engine has just written to that of all files in an image.

    The same base then has the same bytes on another day. Raises FailedError if the labels are malformed, OSError if a
    link is in their place.
    """
    with folder(root, OWN) as at, open(open_file(at, LABELS.rpartition("/")[2], os.O_RDWR), "r+b") as file:  # noqa: PTH123
        labels = _read_labels(file.read(_LIMIT_BYTES).decode("utf-8", "replace"))
        file.seek(0)
        file.write(_json({**labels, _DATE: build_date()}).encode())
        file.truncate()


def build_date() -> str:
    """Return the date of all files in an image, in the format of engines' labels."""
    return dt.datetime.fromtimestamp(EPOCH, tz=dt.UTC).strftime("%A_%d_%B_%Y_%H:%M:%S_UTC")


@dataclass(frozen=True, slots=True)
class _Files:
    """Our own empty folder, and the image that it will be laid over."""

    root: Path
    below: RootFileSystem

    def read(self, path: str) -> str | None:
        """Return the content of a file of the image; None if it does not exist, or only through a link."""
        if not self.below.is_file(path) or self.below.resolve(path) != path:
            return None
        try:
            return self.below.read_bytes(path, _LIMIT_BYTES).decode("utf-8", "surrogateescape")
        except ImageError as error:
            raise FailedError(error.what, where=path) from error

    def write(self, path: str, text: str, permissions: int) -> None:
        """Write a file; if it hides one of the image, with that one's permissions."""
        is_below = self.below.is_file(path) and self.below.resolve(path) == path
        target = self._place(path)
        target.write_bytes(text.encode("utf-8", "surrogateescape"))
        target.chmod(self.below.stat(path).permissions if is_below else permissions)

    def path_to_create(self, path: str) -> Path | None:
        """Return where in the folder to create a path that the image lacks; None if the image has it.

        Engines' own files must not be reached through links.
        """
        above, is_own = path.rpartition("/")[0] or "/", path.startswith(OWN)
        if self.below.exists(path) and not (is_own and self.below.resolve(above) != above):
            return None
        place = path if is_own else resolve_missing(self.below, path)
        return None if place is None else self._place(place)

    def _place(self, path: str) -> Path:
        """Return the path of a file in the folder; create its parents with the permissions that the image has."""
        here = self.root
        for name in path.split("/")[1:-1]:
            here /= name
            if not here.exists():
                here.mkdir(parents=True)
                there = f"/{here.relative_to(self.root)}"
                here.chmod(self.below.stat(there).permissions if self.below.is_dir(there) else 0o755)
        return here / path.rpartition("/")[2]


def _utf8(texts: Sequence[str] | None) -> list[str]:
    return [text.encode("utf-8", "replace").decode() for text in texts or ()]  # JSON may have lone surrogates


def _runscript(entrypoint: Sequence[str], command: Sequence[str]) -> str:
    """Return the script that runs the entrypoint of an OCI image with its command or the given arguments."""
    default = f"[ $# -gt 0 ] || set -- {shlex.join(command)}\n" if command else ""
    return f'#!/bin/sh\n{default}exec {shlex.join(entrypoint)} "$@"\n'


def _export(variable: str) -> str:
    """Return the line that sets a variable of an OCI image unless the user has set it; empty for an invalid name."""
    name, equals, value = variable.partition("=")
    if not _VARIABLE.fullmatch(name):
        return ""
    if not equals:
        return f'export {name}="${{{name}:-}}"\n'
    for character in '\\"`$':
        value = value.replace(character, f"\\{character}")
    return f'export {name}="{value}"\n' if name == "PATH" else f'export {name}="${{{name}:-"{value}"}}"\n'


def _environment(sections: Sections) -> str:
    return "\n" + "".join(f"    {export(variable)}\n" for variable in sections.environment) + "\n\n"


def _script(test: str) -> str:
    """Return a script, whose first line is a shebang, in the form in which engines write it."""
    shebang, _, text = test.partition("\n")
    return f"{shebang}\n\n{text}\n\n"


def _labels(known: str | None, definitions: Sequence[Definition]) -> dict[str, str]:
    """Return all labels: those of definitions do not replace existing ones."""
    labels = _read_labels(known)
    for definition in definitions:
        keywords = (line.partition(": ")[::2] for line in definition.sections.header.text.splitlines())
        labels |= {
            f"{_SCHEMA}.schema-version": "1.0",
            _DATE: build_date(),
            f"{_SCHEMA}.usage.apptainer.version": VERSION,
            f"{_SCHEMA}.build-arch": "amd64",
            **{f"{_SCHEMA}.usage.singularity.deffile.{key.lower()}": value for key, value in keywords},
        }
        labels = dict(definition.sections.labels) | labels
    return labels


def _read_labels(text: str | None) -> dict[str, str]:
    try:
        labels = json.loads(text) if text is not None else None
    except (ValueError, RecursionError) as error:
        raise FailedError("is not JSON", where=LABELS) from error
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise FailedError("is not a JSON object", where=LABELS)
    for name, value in labels.items():
        if not isinstance(value, str | None):
            raise FailedError(f"the label {name[:40]!r} is not text", where=LABELS)
    return {name: value or "" for name, value in labels.items()}


def _json(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(labels.items())), indent="\t")
