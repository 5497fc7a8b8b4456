"""What only the network can tell a lock: the digest of the base, digests that nobody has published, the wheels."""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.metadata import Metadata
from packaging.utils import canonicalize_name

from lumiimg.catalog.layers import expand
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError, one_line
from lumiimg.resolve.lock import LockedSource, file_sha256
from lumiimg.resolve.network.daemon import SCHEME, saved
from lumiimg.resolve.network.mirrors import general_index
from lumiimg.resolve.network.pull import save_image, save_sif
from lumiimg.resolve.network.registry import parse_reference, resolve_image
from lumiimg.resolve.network.web import ReplacedError, place
from lumiimg.resolve.python_requirements import RequiredWheels, complete
from lumiimg.resolve.wheels import METADATA_LIMIT_BYTES, requirements_of
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from packaging.requirements import Requirement

    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.lock import Lock, LockedLayer
    from lumiimg.resolve.network.mirrors import Mirrors
    from lumiimg.resolve.network.registry import ImageManifest
    from lumiimg.resolve.network.web import Web
    from lumiimg.resolve.network.wheel_index import IndexFile
    from lumiimg.resolve.store import Store

_PACKED = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Of the others, LZMA takes as much memory as the file says."""
# AttributeError: packaging before 24.1, of a body that calls itself multipart
_NO_WHEEL = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, ValueError, RuntimeError, NotImplementedError),
    *(AttributeError, struct.error),
)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where answers come from."""

    web: Web
    store: Store
    mirrors: Mirrors
    on_line: Callable[[str], None]


def pulled(base: str, sources: Sources, cache: Path) -> Path:
    """Return an image in the cache, to be read: of a registry, or of a Docker engine; got there once by its digest.

    What came of one goes on where it ended the next time. Raises FailedError if it cannot be had, MissingHereError if
    there is no engine.
    """
    if base.startswith(SCHEME):
        return saved(base, cache / "daemon", sources.on_line)
    found = resolve_image(parse_reference(base, sources.mirrors), sources.web)
    store = cache / ("oras" if base.startswith("oras://") else "oci")
    name = found.digest.removeprefix("sha256:")
    target = store / (f"{name}.sif" if base.startswith("oras://") else name)
    try:
        return _in_store(base, found, sources, target)
    except OSError as error:
        raise FailedError(
            f"cannot be kept: {error.strerror or error}",
            where=str(store),
            hint="LUMIIMG_CACHE says where what was fetched is kept",
        ) from error


def _in_store(base: str, found: ImageManifest, sources: Sources, target: Path) -> Path:
    """Return a SIF, or an OCI layout, named by the digest of its manifest, which is what an engine takes it by."""
    if target.is_file() or (target / "oci-layout").is_file():
        return target
    sources.on_line(f"fetching {base} to read it, {size(found.size_bytes)}")
    if target.suffix == ".sif":
        save_sif(found, sources.web, target)
        return target
    with scratch_folder(target.parent) as scratch:
        save_image(found, sources.web, scratch / "image", target.parent, sources.on_line)
        with contextlib.suppress(OSError):  # another process was as quick
            (scratch / "image").rename(target)
    return target


def settle(
    lock: Lock,
    sources: Sources,
    *,
    pin_base: bool,
    held: Mapping[str, str] | None = None,
    before: Lock | None = None,
) -> Lock:
    """Return the lock with nothing left open; the base stays a tag unless it is to be pinned.

    `held` are versions of Python distributions to keep where they still fit, by name; `before` is the lock whose base
    and sources keep their digests, once registry and files were held against them: whoever wrote it may be a stranger.

    Raises FailedError for what cannot be had or does not go together.
    """
    bootstrap = _as_before(lock.bootstrap, before)
    if bootstrap.image is not None:
        bootstrap.image.refuse_unproved()
    if pin_base and lock.bootstrap.is_open and bootstrap.image is not None:
        sources.on_line(f"looking up {bootstrap.image}")
        with _held(before):
            found = resolve_image(bootstrap.image, sources.web)
        digest = found.index_digest or found.digest
        bootstrap = replace(bootstrap, image=replace(bootstrap.image, digest=digest))
    if pin_base and lock.base.layer.is_foreign and Path(bootstrap.origin).is_file():
        sources.on_line(f"reading {bootstrap.origin}, for its digest")
        bootstrap = replace(bootstrap, sha256=file_sha256(Path(bootstrap.origin)))
    unknown = {s.location for layer in lock.stack for s in layer.sources if not s.sha256}
    kept = [s for layer in (before.stack if before else ()) for s in layer.sources if s.location in unknown]
    with _held(before):
        sources.store.sources(kept, sources.on_line)
    known = {s.location: s.sha256 for s in kept if s.sha256}
    known |= sources.store.digests(sorted(unknown - known.keys()), sources.on_line)
    layers: list[LockedLayer] = []
    installed: dict[str, str] = {}
    for layer in lock.stack:
        layer = _with_known(layer, known)  # noqa: PLW2901
        settled = _settled(layer, lock, sources, installed, held or {})
        layers.append(settled)
        installed |= _brought_by(settled)
    return replace(lock, bootstrap=bootstrap, base=layers[0], layers=tuple(layers[1:]))


@contextlib.contextmanager
def _held(before: Lock | None) -> Iterator[None]:
    """Say how what is there now is taken, where it is not what the lock before has."""
    try:
        yield
    except ReplacedError as error:
        if before is None:
            raise
        hint = "the lock that is there names it; lumiimg lock --upgrade all takes what is there now"
        raise FailedError(error.what, where=error.where, hint=hint) from error


def _as_before(bootstrap: LockedBootstrap, before: Lock | None) -> LockedBootstrap:
    """Return the bootstrap with the digest that it had, if it is the same image."""
    if before is None or bootstrap.image is None or before.bootstrap.image is None:
        return bootstrap
    if (bootstrap.origin, bootstrap.image.digest) != (before.bootstrap.origin, None):
        return bootstrap
    return replace(bootstrap, image=replace(bootstrap.image, digest=before.bootstrap.image.digest))


def _with_known(layer: LockedLayer, known: Mapping[str, str]) -> LockedLayer:
    """Return the layer with the digests that its sources had: one that was replaced at its address stops the build."""
    kept = (s if s.sha256 else replace(s, sha256=known.get(s.location)) for s in layer.sources)
    return replace(layer, sources=tuple(kept))


def _brought_by(layer: LockedLayer) -> dict[str, str]:
    """Return the versions of what is in the image with this layer, by the names of Python distributions."""
    versions = {**layer.layer.has, **(layer.release.has if layer.release else {})}
    told = {canonicalize_name(name): expand(version, layer.arguments) for name, version in versions.items()}
    return told | {wheel.name: wheel.version for wheel in layer.wheels}


def _settled(
    layer: LockedLayer, lock: Lock, sources: Sources, installed: Mapping[str, str], held: Mapping[str, str]
) -> LockedLayer:
    release = layer.release
    if release is None or not release.wheels or layer.wheels:
        return layer
    if lock.python is None:
        raise FailedError(
            f"no wheels can be chosen for {layer.layer.name}: the Python of {lock.base.layer.name} is not known",
            hint="read the base first: lumiimg adapt",
        )
    sources.on_line(f"looking up the wheels of {layer.layer.name} for {lock.python}")
    general = general_index(sources.mirrors)
    wheels = complete(
        RequiredWheels(
            release.wheels,
            [sources.mirrors.rewrite(index) for index in release.indexes] or [general],
            general,
            lock.python,
            sources.web,
            installed=installed,
            held=held,
            fetch_metadata=lambda wheel: _required_by(_fetched(wheel, sources), wheel),
        )
    )
    made = sources.store.digests([wheel.url for wheel in wheels if wheel.sha256 is None], sources.on_line)
    return replace(layer, wheels=tuple(_as_source(wheel, made, sources) for wheel in wheels))


def _as_source(wheel: IndexFile, made: Mapping[str, str], sources: Sources) -> LockedSource:
    sha256 = wheel.sha256 or made[wheel.url]
    url = sources.mirrors.restore(wheel.url)
    note = "" if wheel.sha256 else "its index gives no digest; it was made at the first download"
    return LockedSource(wheel.name, "", wheel.filename, sha256, url, note, str(wheel.version))


def _fetched(wheel: IndexFile, sources: Sources) -> Path:
    sources.on_line(f"fetching {place(wheel.url)}, for its metadata")
    return sources.store.get(wheel.url, wheel.sha256 or sources.store.add(wheel.url))


def _required_by(file: Path, wheel: IndexFile) -> tuple[Requirement, ...]:
    """Read METADATA out of a wheel. Source: PEP 427. Raises FailedError for what is no wheel."""
    name = f"{'-'.join(wheel.filename.split('-')[:2])}.dist-info/METADATA"
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.getinfo(name).compress_type not in _PACKED:
                raise zipfile.BadZipFile("packed as no wheel is")
            with archive.open(name) as stream:
                text = stream.read(METADATA_LIMIT_BYTES)
        return requirements_of(Metadata.from_email(text, validate=False))
    except _NO_WHEEL as error:
        raise FailedError(f"is no wheel: {one_line(str(error))[:200]}", where=wheel.url) from error
