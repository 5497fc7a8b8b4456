"""What an image says about how it was made, and how it can be made again from that alone.

    /.lumiimg/chain.json           the definitions in order, and what they need beside them: digest and address, or file
              definitions/NN-*.def the definitions themselves
              files/…              files of layers that no server has
              lumiimg.json         what was asked for, with the lock
              sbom.cdx.json        what is in it

The last two are JSON objects of the SIF as well, to be read without its file system.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from lumiimg import __version__
from lumiimg.definition.writer import Definition, StagedFile
from lumiimg.errors import BadInputError
from lumiimg.image import ImageError, open_image
from lumiimg.image.sif import DataType, read_sif
from lumiimg.image.source import ByteSource
from lumiimg.resolve.lock import LockedSource
from lumiimg.resolve.lockfile import to_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.image import RootFileSystem
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.request import Request

FOLDER = ".lumiimg"
PLAN = "lumiimg.json"
"""The JSON object of an image of lumiimg: what was asked for."""
SBOM = "sbom.cdx.json"
_FORMAT = 1
_LIMIT_BYTES = 64 << 20
_MAX_DEFINITIONS = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_SECTION = re.compile(r"^%(\w+)", re.MULTILINE)
_OURS = {"files", "environment", "post", "test", "labels"}
_FIELDS = ("name", "variable", "file", "sha256", "location", "note", "version")


def plan_document(lock: Lock, request: Request) -> bytes:
    """Return what was asked for: the base, every layer with its arguments and sources; and the lock, if all is settled.

    A base that is named by a tag is pinned only by `lumiimg lock`, or `build --lock`.
    """
    is_open = lock.unsettled or lock.bootstrap.is_open
    plan = {
        "format": _FORMAT,
        "lumiimg": __version__,
        "site": lock.site,
        "fabric": lock.fabric.value,
        "base": {"agent": lock.bootstrap.agent, "from": f"{lock.bootstrap.image or lock.bootstrap.origin}"},
        "layers": [
            {
                "name": layer.layer.name,
                "version": layer.release.version if layer.release else None,
                "arguments": dict(layer.arguments),
                "sources": [
                    {"name": source.name, "file": source.file, "sha256": source.sha256, "from": source.location}
                    for source in (*layer.sources, *layer.wheels)
                ],
            }
            for layer in lock.stack
        ],
        "lock": None if is_open else to_text(lock, request),
    }
    return json.dumps(plan, indent=1, sort_keys=True).encode()


def write_folder(root: Path, chain: Sequence[Definition], documents: Mapping[str, bytes]) -> None:
    """Write `/.lumiimg` of an image below `root`; `documents` are by name."""
    folder = root / FOLDER
    (folder / "definitions").mkdir(parents=True)
    for definition in chain:
        (folder / "definitions" / f"{definition.name}.def").write_text(definition.text, encoding="utf-8")
        for file in definition.files:
            if isinstance(file.origin, Path):
                target = folder / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.origin, target)
    (folder / "chain.json").write_bytes(_chain_document(chain))
    for name, data in documents.items():
        (folder / name).write_bytes(data)
    for each in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        (each / ".wh..wh..opq").touch()  # a base that lumiimg has built says how, too: its word is hidden (inside.py)


def _chain_document(chain: Sequence[Definition]) -> bytes:
    document = {
        "format": _FORMAT,
        "lumiimg": __version__,
        "definitions": [
            {
                "name": one.name,
                "layers": list(one.layers),
                "parent": one.parent,
                "needs": list(one.needs),
                "plain_http": one.plain_http,
                "origin": f"{one.origin}" if one.origin else None,
                "files": [
                    {"path": file.path, "source": {name: getattr(file.origin, name) for name in _FIELDS}}
                    if isinstance(file.origin, LockedSource)
                    else {"path": file.path, "source": None}
                    for file in one.files
                ],
            }
            for one in chain
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def is_ours(image: Path) -> bool:
    """Whether a file is an image that lumiimg has written."""
    return read_document(image, PLAN) is not None


def read_document(image: Path, name: str) -> dict[str, Any] | None:
    """Return a JSON object of a SIF by its name; None where it has none, or cannot be read."""
    try:
        source = ByteSource.open(image)
    except ImageError:
        return None
    try:
        found = read_sif(source).first(DataType.JSON, name)
        if found is None or found.size_bytes > _LIMIT_BYTES:
            return None
        document = json.loads(source.read_at(found.offset, found.size_bytes))
    except (ImageError, ValueError, RecursionError):
        return None
    else:
        return document if isinstance(document, dict) else None
    finally:
        source.close()


def plan_of(image: Path) -> bytes:
    """Return what was asked for, as the image carries it, byte by byte."""
    return json.dumps(read_document(image, PLAN), indent=1, sort_keys=True).encode()


def read_chain(image: Path, scratch: Path) -> tuple[Definition, ...]:
    """Return the definitions that an image was built from; files of its layers are put into `scratch`.

    Raises BadInputError for an image that does not carry them, or carries what lumiimg does not write.
    """
    hint = "only images that lumiimg has built carry it, and not what other builds have put on them"
    if not is_ours(image):
        raise BadInputError("does not say how it was built", where=str(image), hint=hint)
    with open_image(image) as opened:
        try:
            document = json.loads(opened.root.read_bytes(f"/{FOLDER}/chain.json", _LIMIT_BYTES))
            if document["format"] != _FORMAT:
                raise BadInputError(f"is of format {document['format']}", where=str(image), hint="use a newer lumiimg")
            entries = document["definitions"][:_MAX_DEFINITIONS]
            return tuple(_definition(entry, opened.root, scratch) for entry in entries)
        except OSError as error:
            raise BadInputError("does not say how it was built", where=str(image), hint=hint) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadInputError(f"its /{FOLDER}/chain.json is damaged", where=str(image)) from error


def _definition(entry: dict[str, Any], root: RootFileSystem, scratch: Path) -> Definition:
    name, parent = _checked(entry["name"]), entry["parent"] and _checked(entry["parent"])
    text = root.read_bytes(f"/{FOLDER}/definitions/{name}.def", _LIMIT_BYTES).decode("utf-8")
    if not set(_SECTION.findall(text)) <= _OURS:  # %setup and %pre would run on this machine, outside of any image
        raise BadInputError("has sections that lumiimg does not write", where=f"{name}.def")
    return Definition(
        name=name,
        layers=tuple(map(str, entry["layers"])),
        parent=parent,
        text=text,
        files=tuple(_file(file, root, scratch) for file in entry["files"]),
        plain_http=bool(entry["plain_http"]),
        origin=Path(str(entry["origin"])) if entry["origin"] else None,
        needs=tuple(map(_checked, entry["needs"])),
    )


def _file(entry: dict[str, Any], root: RootFileSystem, scratch: Path) -> StagedFile:
    path = PurePosixPath(str(entry["path"]))
    if path.is_absolute() or path.parts[0] != "files" or not all(_NAME.fullmatch(part) for part in path.parts):
        raise BadInputError(f"names the file {str(path)[:80]!r}", where="chain.json")
    source = entry["source"]
    if source is not None:
        fields = {name: source[name] for name in _FIELDS}
        if not all(isinstance(value, str) for value in fields.values()):
            raise BadInputError("a source without a digest", where=str(path))
        return StagedFile(str(path), LockedSource(**fields))
    target = scratch / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(root.read_bytes(f"/{FOLDER}/{path}", _LIMIT_BYTES))
    return StagedFile(str(path), target)


def _checked(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInputError(f"names a definition {str(name)[:80]!r}", where="chain.json")
    return name
