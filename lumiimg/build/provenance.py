"""What an image says about how it was made, and how it can be made again from that alone.

    /.lumiimg/chain.json           the definitions in order, and what they need beside them: digest and address, or file
              definitions/NN-*.def the definitions themselves
              files/…              files of layers that no server has
              lumiimg.json         what was asked for, with the lock
              sbom.cdx.json        what is in it
              bind-manifest.json   what it wants of the machine that it runs on (host/image_manifest.py)

The last three are JSON objects of the SIF as well, to be read without its file system.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lumiimg import __version__
from lumiimg.catalog.layers import NAME, SHA256
from lumiimg.catalog.settings import user_cache
from lumiimg.catalog.sites import site_names
from lumiimg.definition.definition import Definition, StagedFile
from lumiimg.definition.reader import check_definition, read_sections
from lumiimg.errors import BadInputError, FailedError
from lumiimg.fetch.mirrors import validated_url
from lumiimg.files import open_regular
from lumiimg.host.image_manifest import read_manifest
from lumiimg.host.manifest import BindManifest  # noqa: TC001 - the schema reads the types of the fields
from lumiimg.image import ImageError, RootFileSystem, open_image
from lumiimg.image.byte_source import ByteSource
from lumiimg.image.sif import DataType, read_sif
from lumiimg.resolve.lock import STAGED_FILE, LockedSource

FOLDER = ".lumiimg"
PLAN = "lumiimg.json"
"""The JSON object of an image of lumiimg: what was asked for."""
SBOM = "sbom.cdx.json"
_FORMAT = 1
_LIMIT_BYTES = 16 << 20
"""Of a document."""
_TEXT_LIMIT_BYTES = 4 << 20
"""Of a definition."""
_FILES_LIMIT_BYTES = 512 << 20
"""Of all files of all layers."""
_MAX_DEFINITIONS = 99
"""As many as their names can count."""
_MAX_FILES = 5_000
"""Of one layer."""
_MAX_DEPTH = 50
_MOST_WORDS = 200
_OF_NAMES = frozenset({"--base", "--fabric", "--exclude-newer"})
_LAYER = re.compile(rf"{NAME.pattern}(?:[=<>!~][\w.*,=<>!~+]*)?", re.ASCII)
_OF_FILES = frozenset({"--layers", "-r", "--source"})
_ADDRESS_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class _Format:
    format: int


@dataclass(frozen=True, slots=True)
class _ChainFile:
    path: str
    source: LockedSource | None = None
    """None of a file that the image carries."""


@dataclass(frozen=True, slots=True)
class _ChainEntry:
    name: str
    layers: tuple[str, ...]
    needs: tuple[str, ...]
    files: tuple[_ChainFile, ...]
    plain_http: bool
    parent: str | None = None
    origin: str | None = None
    origin_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class _Chain:
    """What chain.json says."""

    definitions: tuple[_ChainEntry, ...]
    format: int = _FORMAT
    lumiimg: str = __version__


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
                with open_regular(file.origin) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    (folder / "chain.json").write_bytes(_chain_document(chain))
    for name, data in documents.items():
        (folder / name).write_bytes(data)


def _chain_document(chain: Sequence[Definition]) -> bytes:
    import msgspec  # 40 ms that `build --dry-run` should not cost

    entries = []
    for one in chain:
        files = tuple(
            _ChainFile(file.path, file.origin if isinstance(file.origin, LockedSource) else None) for file in one.files
        )
        origin = f"{one.origin}" if one.origin else None
        entry = _ChainEntry(
            one.name, one.layers, one.needs, files, one.plain_http, one.parent, origin, one.origin_sha256
        )
        entries.append(entry)
    return json.dumps(msgspec.to_builtins(_Chain(tuple(entries))), indent=1, sort_keys=True).encode()


def _refuse_other(version: int, image: Path) -> None:
    if version != _FORMAT:
        what = f"says how it was built in format {str(version)[:20]}, and this lumiimg reads {_FORMAT}"
        raise BadInputError(what, where=str(image), hint="use a newer lumiimg")


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
        document = _json(source.read_at(found.offset, found.size_bytes))
    except (ImageError, ValueError, RecursionError):
        return None
    else:
        return document if isinstance(document, dict) else None
    finally:
        source.close()


def read_plan(image: Path) -> dict[str, Any] | None:
    """Return the plan of an image; None where it has none. Raises BadInputError for one of a newer lumiimg."""
    plan = read_document(image, PLAN)
    if plan is not None and type(version := plan.get("format", _FORMAT)) is int:
        _refuse_other(version, image)
    return plan


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """What an image says of how it was made."""

    image: Path
    """As it was named."""
    plan: dict[str, Any]
    """As it stands in the image, whoever wrote it; schema `plan` is what lumiimg writes."""
    sbom: dict[str, Any] | None
    """Bill of materials, as it stands in the image: CycloneDX 1.6 where lumiimg wrote it; null where it has none."""
    bind_manifest: BindManifest | None
    """What `bind` answered for it when it was built; null where it carries no manifest."""


def read_record(image: Path) -> ImageRecord:
    """Return what an image says of how it was made. Raises BadInputError for one that says nothing."""
    with open_image(image, user_cache) as opened:
        manifest = read_manifest(opened.root)
    plan, bill = read_plan(image), read_document(image, SBOM)
    if plan is None:
        raise BadInputError(
            "does not say how it was built",
            where=str(image),
            hint="what it would use: lumiimg check; its files: lumiimg explain",
        )
    return ImageRecord(image, plan, bill, manifest)


def asked_for(image: Path) -> tuple[str, ...]:
    """Return the options of `lumiimg build` that an image was built with, to be proposed again.

    None where it does not say, or names what a stranger could have written there to be built instead: an address, a
    package of an index, or a file or folder that is not here, not this user's own, or behind a link of somebody else's.
    """
    words = (read_document(image, PLAN) or {}).get("request")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or len(words) > _MOST_WORDS:
        return ()
    options = list(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or not all(_is_harmless(option, value) for option, value in options):
        return ()
    return tuple(words)


def _is_harmless(option: str, value: str) -> bool:
    if option == "--site":
        return value in site_names(os.environ)
    if option == "--add":
        return bool(_LAYER.fullmatch(value))
    if option == "--arg":
        return "://" not in value
    if option in _OF_FILES or (option == "--base" and not NAME.fullmatch(value)):
        return _is_own(value.partition("=")[2] if option == "--source" else value)
    return option in _OF_NAMES


def _is_own(place: str) -> bool:
    """Whether a file or folder is this user's, and nobody else but root can put another in its place by a link."""
    path = Path.cwd() / place
    mine = os.geteuid()
    try:
        links = [seen.st_uid for part in (path, *path.parents) if stat.S_ISLNK((seen := part.lstat()).st_mode)]
        return bool(place) and path.stat().st_uid == mine and {*links} <= {0, mine}
    except (OSError, ValueError):
        return False


def plan_of(image: Path) -> bytes:
    """Return what was asked for, as the image carries it, byte by byte."""
    return json.dumps(read_document(image, PLAN), indent=1, sort_keys=True).encode()


def _json(data: bytes) -> Any:  # noqa: ANN401 - JSON is anything
    """Return what a document says. Raises ValueError for one that no JSON of ours would be read as."""
    import msgspec

    document = msgspec.json.decode(data)  # without NaN, and half characters
    level = [document]
    for _ in range(_MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [child for one in inner for child in one]
        if not level:
            return document
    raise ValueError("is nested too deeply")


def read_chain(
    image: Path, scratch: Path, *, has: Callable[[LockedSource], bool] = lambda _: False
) -> tuple[Definition, ...]:
    """Return the definitions that an image was built from; files of its layers are put into `scratch`.

    All that it says is checked, as any file may say it: what is returned runs nothing on this machine, and of its files
    names only the base (local_base.py), and sources that `has` says are in the store already.

    Raises BadInputError for an image that does not carry them, or carries what lumiimg does not write.
    """
    import msgspec

    hint = "only images built by lumiimg carry it; layers added by other tools are not recorded"
    with open_image(image) as opened:
        if not is_ours(image):
            raise BadInputError("does not say how it was built", where=str(image), hint=hint)
        try:
            data = opened.root.read_bytes(f"/{FOLDER}/chain.json", _LIMIT_BYTES)
        except OSError as error:
            raise BadInputError("does not say how it was built", where=str(image), hint=hint) from error
        try:
            _refuse_other(msgspec.json.decode(data, type=_Format).format, image)
            entries = msgspec.json.decode(data, type=_Chain).definitions
            if not 1 <= len(entries) <= _MAX_DEFINITIONS:
                raise BadInputError(f"has {len(entries)} definitions, not 1 to {_MAX_DEFINITIONS}", where="chain.json")
            chain: list[Definition] = []
            carried = _Carried(opened.root, scratch, has)
            for entry in entries:
                chain.append(_definition(entry, chain, carried))
            return tuple(chain)
        except (ValueError, RecursionError) as error:
            raise BadInputError(f"its /{FOLDER}/chain.json is damaged", where=str(image)) from error


@dataclass
class _Carried:
    """The files that an image brings along, and how many bytes of them were taken."""

    root: RootFileSystem
    scratch: Path
    has: Callable[[LockedSource], bool]
    taken_bytes: int = 0

    def read(self, path: str, limit_bytes: int) -> bytes:
        try:
            return self.root.read_bytes(f"/{FOLDER}/{path}", limit_bytes)
        except OSError as error:
            raise BadInputError(f"is not in the image: {error.strerror}", where=f"/{FOLDER}/{path}") from error

    def put(self, path: str) -> Path:
        data = self.read(path, _FILES_LIMIT_BYTES - self.taken_bytes)
        self.taken_bytes += len(data)
        target = self.scratch / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise FailedError(f"cannot be written: {error.strerror}", where=str(target)) from error
        return target


def _definition(entry: _ChainEntry, below: Sequence[Definition], carried: _Carried) -> Definition:
    number, names = len(below) + 1, [one.name for one in below]
    name, layers, origin, sha256 = entry.name, entry.layers, entry.origin, entry.origin_sha256
    if len(layers) != 1 or not NAME.fullmatch(layers[0]):
        raise BadInputError(f"definition {number} names the layers {str([*layers])[:80]}", where="chain.json")
    if name != f"{number:02}-{layers[0]}":
        raise BadInputError(f"names a definition {name[:80]!r}", where="chain.json")
    if entry.parent != (names[-1] if names else None) or not all(need in names for need in entry.needs):
        raise BadInputError("does not belong on the layer below it", where=name)
    if origin is not None and not Path(origin).is_absolute():
        raise BadInputError(f"starts from {origin[:80]!r}", where=name)
    if sha256 is not None and (origin is None or not SHA256.fullmatch(sha256)):
        raise BadInputError(f"starts from what has the digest {sha256[:80]!r}", where=name)
    if len(entry.files) > _MAX_FILES:
        raise BadInputError(f"has {len(entry.files)} files; {_MAX_FILES} are the limit", where=name)
    found = [_file(file, layers[0], carried) for file in entry.files]
    paths = [file.path for one in below for file in one.files] + [file.path for file in found]
    if len({*paths}) != len(paths):
        raise BadInputError("names a file twice", where=name)
    definition = Definition(
        name=name,
        layers=layers,
        parent=entry.parent,
        sections=read_sections(carried.read(f"definitions/{name}.def", _TEXT_LIMIT_BYTES).decode(), f"{name}.def"),
        files=tuple(found),
        plain_http=entry.plain_http,
        origin=None if origin is None else Path(origin),
        origin_sha256=sha256,
        needs=entry.needs,
    )
    check_definition(definition)
    return definition


def _file(file: _ChainFile, layer: str, carried: _Carried) -> StagedFile:
    """Return a file of a layer: where the writer puts its own, its sources, its wheels, each has its place."""
    path, source = file.path, file.source
    parts = path.split("/")
    places = [["files"]] if source is None else [["source", *parts[3:4]], ["wheels"]]
    if not all(map(STAGED_FILE.fullmatch, parts)) or parts[:-1] not in [["files", layer, *place] for place in places]:
        raise BadInputError(f"names the file {path[:80]!r}", where="chain.json")
    if source is None:
        return StagedFile(path, carried.put(path))
    if not SHA256.fullmatch(source.sha256 or ""):
        raise BadInputError("a source without a digest", where=path)
    if source.is_local:
        if not carried.has(source):
            raise BadInputError(
                f"was {source.location[:200]} of the machine that built the image (sha256 {source.sha256})",
                where=path,
                hint="the image does not carry it; build it again by `lumiimg build` with that --source",
            )
    elif len(source.location) > _ADDRESS_LIMIT or not validated_url(source.location, path):
        raise BadInputError("a source whose address is too long", where=path)
    return StagedFile(path, source)
