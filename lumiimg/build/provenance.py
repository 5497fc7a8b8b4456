"""What an image says about how it was made, and how it can be made again from that alone.

    /.lumiimg/lumiimg.json         the plan: what was asked for, and all that was locked for it (resolve/lock_file.py)
              layers/N/NAME/…      the folders of its layers, as they were
              sbom.cdx.json        what is in it
              bind-manifest.json   what it wants of the machine that it runs on (host/image_manifest.py)

All but the layers are JSON objects of the SIF as well, to be read without its file system.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lumiimg.catalog.layers import NAME
from lumiimg.catalog.settings import user_cache
from lumiimg.catalog.sites import site_names
from lumiimg.core.decode import DecodeError, decode, parse_json
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import open_regular
from lumiimg.host.image_manifest import read_manifest
from lumiimg.host.manifest import BindManifest  # noqa: TC001 - the schema reads the types of the fields
from lumiimg.image import ImageError, open_image
from lumiimg.image.sif import read_json_object
from lumiimg.resolve.lock import Lock, layer_files
from lumiimg.resolve.lock_file import LockFile, refuse_format, request_of
from lumiimg.resolve.request import LockedRequest, options_of

FOLDER = ".lumiimg"
PLAN = "lumiimg.json"
"""The JSON object of an image of lumiimg: what was asked for, and locked."""
SBOM = "sbom.cdx.json"
LAYERS = "layers"
_LIMIT_BYTES = 16 << 20
"""Of a document."""
_LAYER = re.compile(rf"{NAME.pattern}(?:[=<>!~][\w.*,=<>!~+]*)?", re.ASCII)


def carried_files(lock: Lock) -> dict[str, Path]:
    """Return the files of the layers of a lock, by where an image has them below `/.lumiimg`.

    Layers of one folder stay beside each other, and `lib` with what they share.
    """
    layers = [layer.layer for layer in lock.stack if not layer.layer.is_foreign]
    parents = [*dict.fromkeys(layer.folder.parent for layer in layers)]
    return {
        f"{LAYERS}/{parents.index(layer.folder.parent)}/{place}/{name}": path
        for layer in layers
        for name, path in layer_files(layer).items()
        for place in [layer.folder.name if path.parent == layer.folder else "lib"]
    }


def write_folder(root: Path, carried: Mapping[str, Path], documents: Mapping[str, bytes]) -> None:
    """Write `/.lumiimg` of an image below `root`; files and `documents` are by their paths in it."""
    folder = root / FOLDER
    folder.mkdir(parents=True)
    for path, origin in carried.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(origin) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    for name, data in documents.items():
        (folder / name).write_bytes(data)


def is_ours(image: Path) -> bool:
    """Whether a file is an image that lumiimg has written."""
    return read_document(image, PLAN) is not None


def read_document(image: Path, name: str) -> dict[str, Any] | None:
    """Return a JSON object of a SIF by its name; None where it has none, or cannot be read."""
    try:
        data = read_json_object(image, name, _LIMIT_BYTES)
        document = parse_json(data) if data is not None else None
    except (ImageError, DecodeError):
        return None
    return document if isinstance(document, dict) else None


def read_plan(image: Path) -> LockFile | None:
    """Return the plan of an image; None where it has none.

    Raises BadInputError for one of another format, and for what lumiimg does not write.
    """
    document = read_document(image, PLAN)
    if document is None:
        return None
    refuse_format(document, image, "build it again")
    return decode(document, LockFile, where=f"{image}, {PLAN}")


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """What an image says of how it was made."""

    image: Path
    """As it was named."""
    plan: LockFile
    """What was asked for, and all that was locked for it: schema `plan`."""
    sbom: dict[str, Any] | None
    """Bill of materials, as it stands in the image: CycloneDX 1.5 where lumiimg wrote it; null where it has none."""
    bind_manifest: BindManifest | None
    """What `bind` answered for it on the node of --host when it was built; null where it carries no manifest."""


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

    None unless they are names of the catalogue and sites: a stranger could have written there what is built instead.
    """
    try:
        plan = read_plan(image)
    except BadInputError:
        return ()
    if plan is None:
        return ()
    asked = plan.request
    named = LockedRequest(asked.base, asked.add, fabric=asked.fabric, site=asked.site, until=asked.until)
    is_named = NAME.fullmatch(asked.base) and all(map(_LAYER.fullmatch, asked.add))
    if asked != named or not is_named or asked.site not in {"", *site_names(os.environ)}:
        return ()
    return tuple(shlex.split(options_of(request_of(plan))))
