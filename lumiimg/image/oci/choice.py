"""Which image of an index is meant (OCI image-spec `image-index.md`): the only one, in the platform that we check.

An index lists manifests, one per platform, or further indexes. Attestations of BuildKit among them are not images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.image.oci.document import Digest, read_document, typed
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.byte_source import ByteSource
    from lumiimg.image.oci.files import StoredFiles

_PLATFORM = "linux/amd64"
_MAX_DEPTH = 4
_MAX_MANIFESTS = 1000
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
SAVE_ONE = "save only one of them"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A pointer to a blob (OCI image-spec `descriptor.md`)."""

    media_type: str
    digest: Digest
    size_bytes: int
    platform: str | None = None
    """`linux/amd64`; None where it is not said."""
    name: str = ""
    is_attestation: bool = False


def read_descriptor(value: object, where: str) -> Descriptor:
    """Return a checked descriptor. Raises ImageError."""
    item = typed(value, dict, "a descriptor", where)
    size = item.get("size")
    if not isinstance(size, int) or size < 0:
        raise ImageError(f"a descriptor with the size {str(size)[:20]}", where=where)
    annotations = typed(item.get("annotations"), dict, "annotations", where)
    platform = typed(item.get("platform"), dict, "platform", where)
    parts = [typed(platform.get(key), str, "platform", where) for key in ("os", "architecture")]
    return Descriptor(
        media_type=typed(item.get("mediaType"), str, "mediaType", where),
        digest=Digest.parse(item.get("digest"), where),
        size_bytes=size,
        platform="/".join(parts) if any(parts) else None,
        name=next((typed(annotations[key], str, key, where) for key in _NAMES if annotations.get(key)), ""),
        is_attestation=annotations.get("vnd.docker.reference.type") == "attestation-manifest",
    )


def find_blob(files: StoredFiles, descriptor: Descriptor) -> ByteSource | None:
    """Return a blob of the right size, its content not yet verified; None where it is not there. Raises ImageError."""
    blob = files.find(f"blobs/{descriptor.digest.algorithm}/{descriptor.digest.hexadecimal}")
    if blob is not None and blob.size != descriptor.size_bytes:
        raise ImageError(
            f"blob {descriptor.digest} has {blob.size} bytes where {descriptor.size_bytes} are announced",
            where=files.name,
            hint="fetch the image again",
        )
    return blob


def read_blob(files: StoredFiles, descriptor: Descriptor) -> dict[str, Any]:
    """Return a verified JSON object. Raises ImageError."""
    blob = find_blob(files, descriptor)
    if blob is None:
        raise ImageError(f"blob {descriptor.digest} is not there", where=files.name, hint="fetch the image again")
    name = f"blob {descriptor.digest}"
    value = read_document(blob, name)
    seen = descriptor.digest.new_hash()
    seen.update(blob.read_exactly(0, blob.size))
    descriptor.digest.check(seen, files.name)
    return typed(value, dict, name, files.name)


def choose_manifest(files: StoredFiles) -> dict[str, Any]:
    """Return the manifest of the image that is meant. Raises ImageError."""
    index = files.find("index.json")
    if index is None:
        raise ImageError("no index.json", where=files.name)
    document = typed(read_document(index, "index.json"), dict, "index.json", files.name)
    listed = _unique(_listed(document, files.name))
    names = sorted({item.name or str(item.digest) for item in listed})
    if len(listed) > 1 and (len({item.name for item in listed}) > 1 or any(item.platform is None for item in listed)):
        raise ImageError(f"{len(listed)} images: {', '.join(names)}", where=files.name, hint=SAVE_ONE)
    return read_blob(files, _of_platform(_unique(_manifests(files, listed, 1)), files.name))


def _manifests(files: StoredFiles, listed: list[Descriptor], depth: int) -> list[Descriptor]:
    """Return the manifests that indexes lead to."""
    found: list[Descriptor] = []
    for item in listed:
        if item.media_type not in _INDEXES:
            found.append(item)
        elif depth == _MAX_DEPTH:
            raise ImageError(f"indexes nested more than {_MAX_DEPTH} deep", where=files.name)
        else:
            found += _manifests(files, _unique(_listed(read_blob(files, item), files.name)), depth + 1)
        if len(found) > _MAX_MANIFESTS:
            raise ImageError(f"more than {_MAX_MANIFESTS} manifests", where=files.name)
    return found


def _listed(index: dict[str, Any], where: str) -> list[Descriptor]:
    items = typed(index.get("manifests"), list, "manifests", where)
    if len(items) > _MAX_MANIFESTS:
        raise ImageError(f"an index of {len(items)} manifests", where=where)
    descriptors = [read_descriptor(item, where) for item in items]
    return [item for item in descriptors if not item.is_attestation]


def _unique(items: list[Descriptor]) -> list[Descriptor]:
    """Return the first of those that have one digest: one image of several tags."""
    return list({item.digest: item for item in reversed(items)}.values())[::-1]


def _of_platform(manifests: list[Descriptor], where: str) -> Descriptor:
    if not manifests:
        raise ImageError("no image", where=where)
    if len(manifests) == 1:
        return manifests[0]
    fitting = [item for item in manifests if item.platform == _PLATFORM]
    if not fitting:
        there = ", ".join(sorted({item.platform or "one without a platform" for item in manifests}))
        raise ImageError(f"no image for {_PLATFORM}; there is: {there}", where=where, hint=SAVE_ONE)
    return fitting[0]
