"""An image in the formats of registries and Docker: its config and its layers.

OCI layout   folder (or a tar of it) with `oci-layout`, `index.json`, and blobs under `blobs/ALGORITHM/HEX`
             (OCI image-spec `image-layout.md`)
docker save  tar with `manifest.json`, a list of {Config, RepoTags, Layers}, which name files in the tar; Docker 25 and
             later also write an OCI layout into the tar, which is then read instead
"""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from msgspec import Struct, field

from lumiimg.core.decode import DecodeError, decode_json, matching
from lumiimg.core.errors import shortened
from lumiimg.image.oci.layers import FETCH_AGAIN, Layer
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumiimg.core.access import OpenFile
    from lumiimg.image.root import RootFileSystem

_PLATFORM = "linux/amd64"
_MAX_DEPTH, _MAX_MANIFESTS, _MAX_LAYERS = 4, 1000, 500
_MAX_BYTES = 8 << 20
"""Registries accept manifests of up to 4 MiB; a config with a long history has a similar size."""
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
# application/vnd.oci.image.layer.v1.tar+gzip, application/vnd.docker.image.rootfs.diff.tar.gzip and similar types
_LAYER = re.compile(r"application/vnd\.(oci\.image\.layer|docker\.image\.rootfs)\.[a-z0-9.]*tar([.+](gzip|zstd))?")
_SAVE_ONE = "save only one of them"
_Digest = Annotated[str, matching(r"sha256:[0-9a-f]{64}", "a sha256 digest")]
T = TypeVar("T")


class _Descriptor(Struct, frozen=True, rename="camel"):
    """A pointer to a blob (OCI image-spec `descriptor.md`)."""

    digest: _Digest
    media_type: str = ""
    platform: dict[str, Any] | None = None
    annotations: dict[str, str] | None = None

    @property
    def notes(self) -> dict[str, str]:
        """Annotations; empty without any."""
        return self.annotations or {}

    @property
    def name(self) -> str:
        """Name from the annotations; empty if there is none."""
        return next((self.notes[key] for key in _NAMES if key in self.notes), "")

    @property
    def made_for(self) -> str:
        """Platform, such as `linux/amd64`; empty if not stated."""
        return f"{self.platform.get('os')}/{self.platform.get('architecture')}" if self.platform else ""

    @property
    def is_attestation(self) -> bool:
        """Whether it is a BuildKit attestation rather than an image."""
        return self.notes.get("vnd.docker.reference.type") == "attestation-manifest"


class _Index(Struct, frozen=True):
    manifests: tuple[_Descriptor, ...] | None = None


class _Manifest(Struct, frozen=True):
    config: _Descriptor
    layers: tuple[_Descriptor, ...] | None


class _Saved(Struct, frozen=True, rename="pascal"):
    """One image of a docker archive."""

    config: str
    layers: tuple[str, ...] | None = None
    repo_tags: tuple[str, ...] | None = None


class _Run(Struct, frozen=True, rename="pascal"):
    env: tuple[str, ...] | None = None
    labels: dict[str, str | None] | None = None


class _RootFs(Struct, frozen=True):
    diff_ids: tuple[_Digest, ...] | None = None


class Config(Struct, frozen=True):
    """The parts of an image's config that describe its content (OCI image-spec `config.md`)."""

    warnings: ClassVar[tuple[str, ...]] = ()
    doubts: ClassVar[dict[str, str]] = {}
    lost: ClassVar[str] = ""

    run: _Run | None = field(name="config", default=None)
    rootfs: _RootFs = _RootFs()
    architecture: str | None = None
    """Go name of the architecture: `amd64`."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that it sets."""
        variables = (text.partition("=") for text in (self.run and self.run.env) or ())
        return {name: value for name, equals, value in variables if name and equals}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the image."""
        return {name: text or "" for name, text in ((self.run and self.run.labels) or {}).items()}


def is_oci_layout(files: RootFileSystem) -> bool:
    """Return whether the files contain an OCI image layout."""
    return files.is_file("oci-layout") and files.is_file("index.json")


def read_oci_layout(files: RootFileSystem, where: str) -> tuple[Config, list[Layer]]:
    """Return the config of the image in an OCI layout, and its layers, the lowest first. Raises ImageError."""
    manifest = _read_blob(files, _choose(files, where), _Manifest, where)
    config = _read_blob(files, manifest.config, Config, where)
    layers = manifest.layers or ()
    for layer in layers:
        if not _LAYER.fullmatch(layer.media_type):
            what = f"layer {layer.digest} has the unsupported type {shortened(layer.media_type)}"
            raise ImageError(what, where=where, hint="fetch the image unencrypted, with tar layers")
    return config, _layers(files, config, [_path(layer) for layer in layers], where)


def read_docker_archive(files: RootFileSystem, where: str) -> tuple[Config, list[Layer]]:
    """Return the config of the image in a `docker save` tar, and its layers, the lowest first. Raises ImageError."""
    if not files.is_file("manifest.json"):
        hint = "if it contains a root file system, unpack it into a folder and give that"
        raise ImageError("a tar without an image", where=where, hint=hint)
    images = _read(files, "manifest.json", tuple[_Saved, ...], where)
    if len(images) != 1:
        tags = [tag for image in images for tag in image.repo_tags or ()]
        raise ImageError(f"{len(images)} images: {', '.join(tags)}", where=where, hint=_SAVE_ONE)
    config = _read(files, images[0].config, Config, where)
    return config, _layers(files, config, images[0].layers or (), where)


def _layers(files: RootFileSystem, config: Config, paths: Sequence[str], where: str) -> list[Layer]:
    digests = config.rootfs.diff_ids or ()
    if len(paths) != len(digests) or len(paths) > _MAX_LAYERS:
        what = f"{len(paths)} layers, and {len(digests)} in the config; the limit is {_MAX_LAYERS}"
        raise ImageError(what, where=where)
    return [Layer(_open(files, path, where), _hex(digest), where) for path, digest in zip(paths, digests, strict=True)]


def _choose(files: RootFileSystem, where: str) -> _Descriptor:
    """Return the image to read (OCI image-spec `image-index.md`): the only one, or that for our platform.

    An index lists manifests, one for each platform, or further indexes.
    """
    found = _listed([_read(files, "index.json", _Index, where)], where)
    if len(found) > 1 and (len({item.name for item in found}) > 1 or not all(item.platform for item in found)):
        names = sorted({item.name or item.digest for item in found})
        raise ImageError(f"{len(found)} images: {', '.join(names)}", where=where, hint=_SAVE_ONE)
    for _ in range(_MAX_DEPTH):
        indexes = [item for item in found if item.media_type in _INDEXES]
        inside = _listed([_read_blob(files, item, _Index, where) for item in indexes], where)
        found = [item for item in found if item not in indexes] + inside
    if len(found) == 1:
        return found[0]
    if not (fitting := [item for item in found if item.made_for == _PLATFORM]):
        there = ", ".join(sorted({item.made_for or "one without a platform" for item in found})) or "none"
        raise ImageError(f"no image for {_PLATFORM}; there is: {there}", where=where, hint=_SAVE_ONE)
    return fitting[0]


def _listed(indexes: Iterable[_Index], where: str) -> list[_Descriptor]:
    """Return the images and indexes listed in indexes, each once even if it has several tags."""
    items = [item for index in indexes for item in index.manifests or ()]
    if len(items) > _MAX_MANIFESTS:
        raise ImageError(f"{len(items)} manifests; the limit is {_MAX_MANIFESTS}", where=where)
    return [*{item.digest: item for item in items if not item.is_attestation}.values()]


def _path(blob: _Descriptor) -> str:
    return f"blobs/sha256/{_hex(blob.digest)}"


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _read_blob(files: RootFileSystem, blob: _Descriptor, kind: type[T], where: str) -> T:
    return _read(files, _path(blob), kind, where, blob.digest)


def _read(files: RootFileSystem, path: str, kind: type[T], where: str, digest: str = "") -> T:
    """Return a decoded JSON document, verified if its digest is known."""
    with closing(_open(files, path, where)) as file:
        if file.size > _MAX_BYTES:
            raise ImageError(f"{path} has {file.size} bytes; the limit is {_MAX_BYTES}", where=where)
        data = file.read_at(0, file.size)
    if digest and hashlib.sha256(data, usedforsecurity=False).hexdigest() != _hex(digest):
        raise ImageError(f"{path} does not match its digest", where=where, hint=FETCH_AGAIN)
    try:
        return decode_json(data, kind, where=where)
    except DecodeError as error:
        raise ImageError(f"{path}: {error.what}", where=where) from error


def _open(files: RootFileSystem, path: str, where: str) -> OpenFile:
    try:
        return files.open(path)
    except OSError as error:
        raise ImageError(f"{path} cannot be opened: {error.strerror}", where=where, hint=FETCH_AGAIN) from error
