"""The record in an image of how it was made, and rebuilding the image from that record alone.

    /.lumiimg/lumiimg.json         the plan: the request, and everything that was locked for it (resolve/lock_file.py)
              layers/N/NAME/…      the folders of its layers, as they were
              sbom.cdx.json        the bill of materials
              bind-manifest.json   what it needs from the machine that it runs on (host/image_manifest.py)
              dockerfile.json      the plan, if Docker built the image

All but the layers are also JSON objects in the SIF, readable without its file system. The record may be a stranger's:
nothing of it is run or interpreted outside a container; it is data until `build --locked` and a container.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import structs

from lumiimg import __version__
from lumiimg.catalog.catalogue import Catalogue
from lumiimg.catalog.layers import NAME
from lumiimg.catalog.settings import user_cache
from lumiimg.catalog.sites import site_names
from lumiimg.core.decode import FILE_LIMIT_BYTES, DecodeError, decode, parse_json
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import open_regular
from lumiimg.host.image_manifest import read_manifest
from lumiimg.host.manifest import BindManifest  # noqa: TC001 - the schema reads the types of the fields
from lumiimg.image import FileKind, ImageError, RootFileSystem, open_image, open_squashfs
from lumiimg.image.sif import read_json_object
from lumiimg.inventory.system import packages_of_dpkg
from lumiimg.resolve.bootstrap import digest_of_file
from lumiimg.resolve.image_base import LOCAL_AGENTS
from lumiimg.resolve.lock import STAGED_FILE, Lock, layer_files
from lumiimg.resolve.lock_file import LockFile, refuse_format, request_of
from lumiimg.resolve.request import LockedRequest, options_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.fetch.store import Store
    from lumiimg.inventory.components import Inventory
    from lumiimg.resolve.lock import LockedSource

FOLDER = ".lumiimg"
PLAN = "lumiimg.json"
"""The JSON object in an image of lumiimg with the request and everything that was locked for it."""
PLAN_OF_DOCKERFILE = "dockerfile.json"
"""The same in an image that Docker built. Its name differs, because an image that is built on one of lumiimg also has
that one's files.
"""
SBOM = "sbom.cdx.json"
LAYERS = "layers"
INCOMPLETE = "lumiimg:incomplete"
_NOT_READ = {
    "rpm": ("/usr/lib/sysimage/rpm", "/var/lib/rpm", "/usr/share/rpm"),
    "apk": ("/lib/apk/db", "/usr/lib/apk/db"),
}
"""Databases of other package managers: rpm of SUSE and Fedora, an older rpm, rpm-ostree; apk before and since the merge
of /lib and /usr/lib."""
_LIMIT_BYTES = 16 << 20
"""Maximum size of a document."""
_FILES_LIMIT_BYTES = 512 << 20
"""Maximum total size of the files of all layers."""
_MAX_FILES = 5_000
_LAYER = re.compile(rf"{NAME.pattern}(?:[=<>!~][\w.*,=<>!~+]*)?", re.ASCII)


def carried_files(lock: Lock) -> dict[str, Path]:
    """Return the files of the layers of a lock, by their paths below `/.lumiimg` in an image.

    Layers from one folder stay together, beside the `lib` that they share.
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
    """Write `/.lumiimg` of an image below `root`; `carried` and `documents` map paths in it to files and content."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for path, origin in carried.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(origin) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    for name, data in documents.items():
        (folder / name).write_bytes(data)


def is_ours(image: Path) -> bool:
    """Return whether a file is an image that lumiimg has written."""
    return read_document(image, PLAN) is not None


def read_document(image: Path, name: str) -> dict[str, Any] | None:
    """Return a JSON object of a SIF by its name; None if it does not exist or cannot be read."""
    return _document(lambda: read_json_object(image, name, _LIMIT_BYTES))


def _document(read: Callable[[], bytes]) -> dict[str, Any] | None:
    try:
        document = parse_json(read())
    except (OSError, ImageError, DecodeError):
        return None
    return document if isinstance(document, dict) else None


def read_plan(image: Path, root: RootFileSystem | None = None) -> LockFile | None:
    """Return the plan of an image; None if it has none.

    An image that Docker built has it in a file, which is read if `root`, the image's files, is given.
    Raises BadInputError if the plan has another format, or content that lumiimg does not write.
    """
    document = read_document(image, PLAN)
    if document is None and root is not None:
        document = _document(lambda: root.read_bytes(f"/{FOLDER}/{PLAN_OF_DOCKERFILE}", _LIMIT_BYTES))
    if document is None:
        return None
    refuse_format(document, image, "build it again")
    return decode(document, LockFile, where=f"{image}, {PLAN}")


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """The record of how an image was made."""

    image: str
    """The image, as the user named it."""
    plan: LockFile
    """The request, and everything that was locked for it: schema `plan`."""
    sbom: dict[str, Any] | None
    """Bill of materials, as it is in the image: CycloneDX 1.5 if lumiimg wrote it; null if there is none."""
    bind_manifest: BindManifest | None
    """Answer of `bind` for the node of --host when the image was built; null if it has no manifest."""


def read_record(image: Path, address: str | None = None) -> ImageRecord:
    """Return the record of how an image was made; `address`: where it was fetched from.

    Raises BadInputError if it has none.
    """
    with open_image(image, user_cache) as opened:
        manifest = read_manifest(opened.root)
        plan, bill = read_plan(image, opened.root), read_document(image, SBOM)
    if plan is None:
        raise BadInputError(
            "does not say how it was built",
            where=address or str(image),
            hint="to see the network it would use: lumiimg check; its libraries: lumiimg explain",
        )
    return ImageRecord(address or str(image), plan, bill, manifest)


def asked_for(image: Path) -> tuple[str, ...]:
    """Return the options of `lumiimg build` that an image was built with, to be suggested again.

    Empty unless all are names of the catalogue and sites: a stranger could have written other things to build there.
    """
    try:
        with open_squashfs([image]) as tree:  # not layers of an archive, which would have to be read whole
            plan = read_plan(image, RootFileSystem(tree))
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


# -- rebuilding from the record --


def read_carried(image: Path, scratch: Path) -> tuple[LockFile, Catalogue]:
    """Return the plan of an image and its layers, whose files are copied into `scratch`; other files are not copied.

    Any file may claim this: `lock_of` checks the content, and the scripts are code by the maker of the image.

    Raises BadInputError if an image does not include them, or includes more than lumiimg writes.
    """
    there = f"/{FOLDER}/{LAYERS}"
    with open_image(image) as opened:
        plan = read_plan(image, opened.root)
        if plan is None:
            hint = "only images built by lumiimg record it; layers added by other tools are not recorded"
            raise BadInputError("does not say how it was built", where=str(image), hint=hint)
        left_bytes = _FILES_LIMIT_BYTES
        for number, entry in enumerate(opened.root.walk(there) if opened.root.is_dir(there) else ()):
            if number >= _MAX_FILES:
                raise BadInputError(f"contains more than {_MAX_FILES} files and folders", where=there)
            place = PurePosixPath(entry.path.removeprefix(f"{there}/"))  # elsewhere, if a link led there
            is_plain = len(place.parts) == 3 and all(map(STAGED_FILE.fullmatch, place.parts))
            if entry.kind is FileKind.FILE and is_plain:
                limit_bytes = FILE_LIMIT_BYTES if place.name == "layer.toml" else left_bytes
                left_bytes -= _copy(opened.root, entry.path, scratch / place, min(limit_bytes, left_bytes))
    return plan, Catalogue(tuple(sorted(scratch.glob("*"))), ())


def _copy(root: RootFileSystem, path: str, target: Path, limit_bytes: int) -> int:
    """Copy a file of an image to `target` on this machine; return its size."""
    try:
        data = root.read_bytes(path, limit_bytes)
    except OSError as error:
        raise BadInputError(f"cannot be read in the image: {error.strerror}", where=path) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return len(data)


def with_base(
    plan: LockFile, given: Path | None, image: Path, cache: Path, on_notice: Callable[[str], None]
) -> LockFile:
    """Return the plan of an image with the file or folder that the user gave for its base.

    Raises BadInputError if one is given but not needed, needed but not given, or has other content.
    """
    base = plan.base
    if base.image is None or base.agent not in LOCAL_AGENTS:
        if given is not None:
            raise BadInputError(f"--base: {image} was not built on a file", hint="leave it out")
        return plan
    wanted, hint = base.image.sha256, "name what the image was built on: --base FILE"
    if given is None:
        what = f"sha256 {wanted}" if wanted else "its digest is not known"
        raise BadInputError(f"was built on {base.origin} ({what}), which is not in it", where=str(image), hint=hint)
    if not given.is_file() and not given.is_dir():
        raise BadInputError("is not a file or folder", where=str(given), hint=hint)
    actual = digest_of_file(given, cache, on_notice)
    if wanted is None:
        on_notice(f"it is not known whether {given} has changed since: the image records no digest of its base")
    elif actual != wanted:
        found = f"its sha256 is {actual}" if actual else "it is a folder"
        raise BadInputError(f"is not the base of {image}: {found}, not {wanted}", where=str(given))
    origin = str(given.absolute())
    base = structs.replace(base, origin=origin, image=structs.replace(base.image, sha256=actual))
    return structs.replace(plan, base=base, request=structs.replace(plan.request, base=origin))


def refuse_files(lock: Lock, store: Store, carried: Path) -> None:
    """Raise BadInputError if a lock names a file of the machine that built the image, as `carried` layers may, too.

    A source that is already in the cache is accepted.
    """
    if lock.base.layer.folder.is_relative_to(carried) and lock.bootstrap.agent in LOCAL_AGENTS:
        hint = "put that layer into your own folder: --layers DIR"
        raise BadInputError(f"its layer {lock.base.name} names the file {lock.bootstrap.origin[:200]}", hint=hint)
    for source in (one for layer in lock.stack for one in layer.sources):
        if source.is_local and not store.has(source):
            raise BadInputError(
                f"{source.name} was {source.location[:200]} on the machine that built the image "
                f"(sha256 {source.sha256})",
                hint="the image does not include it; build it again with `lumiimg build` and that --source",
            )


# -- the bill of materials: CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/ --


def bill(contents: Inventory, sources: Iterable[LockedSource], identity: str) -> bytes:
    """Return the bill of materials of an image, as found in its files; its serial number is derived from `identity`.

    Known gaps are listed as properties (`INCOMPLETE`): the bill must not look like that of an empty image.
    """
    root, system, missing = contents.image.root, contents.os_release, list[str]()
    found = [*_dpkg_components(root, missing)]
    missing += (f"packages of {tool} are not listed" for tool in _NOT_READ if _has_database(root, tool))
    found += _python_components(contents, missing)
    found += (_component("generic", one.name, one.version, one.location, one.sha256) for one in sources)
    by_text = {(one["purl"], str(one)): one for one in found}
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "lumiimg", "version": __version__}]}
    }
    if missing:
        metadata["properties"] = [{"name": INCOMPLETE, "value": what} for what in missing]
    operating_system = {
        "type": "operating-system",
        "name": system.get("ID", "unknown"),
        "version": system.get("VERSION_ID", ""),
    }
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'lumiimg:sbom:{identity}')}",
        "version": 1,
        "metadata": metadata,
        "components": [operating_system, *(by_text[one] for one in sorted(by_text))],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _component(kind: str, name: str, version: str, where: str = "", sha256: str | None = None) -> dict[str, Any]:
    """Return one component of an image; `kind` as in a package URL (https://github.com/package-url/purl-spec)."""
    of_source = f"?download_url={quote(where, safe='')}"
    purl = f"pkg:{kind}/{quote(name)}{of_source if kind == 'generic' else f'@{quote(version)}'}"
    document: dict[str, Any] = {"type": "library", "name": name, "version": version, "purl": purl}
    if where:
        document["properties"] = [{"name": "lumiimg:where", "value": where}]
    if sha256:
        document["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return document


def _dpkg_components(root: RootFileSystem, missing: list[str]) -> Iterator[dict[str, Any]]:
    """Yield installed packages; add gaps to `missing`."""
    try:
        yield from (_component("deb", *package) for package in packages_of_dpkg(root))
    except OSError:
        return
    except ImageError:  # larger than any real one, or damaged
        missing.append("packages of dpkg are not listed: its status file cannot be read")


def _has_database(root: RootFileSystem, tool: str) -> bool:
    """Return whether a tool has more in its folder than `.rpm.lock`, which even a mere query by rpm leaves there."""
    for folder in _NOT_READ[tool]:
        try:
            if any(not entry.name.startswith(".") for entry in root.list_dir(folder)):
                return True
        except OSError:
            continue
        except ImageError:
            return True  # damaged: it may have packages
    return False


def _python_components(contents: Inventory, missing: list[str]) -> Iterator[dict[str, Any]]:
    """Yield Python distributions; add gaps to `missing`."""
    try:
        for distributions in contents.distributions.values():
            yield from (_component("pypi", one.name, one.version, one.metadata) for one in distributions.values())
    except ImageError as error:
        missing.append(f"Python distributions are not listed: {error.what}")
        return
    if not contents.has_all_distributions:
        missing.append("too many Python distributions: not all are listed")
    if contents.has_conda:
        missing.append("conda packages are not listed, except Python distributions")
