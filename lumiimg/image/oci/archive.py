"""An image in the forms that registries and Docker hand out: its config, its layers, its root file system.

OCI layout   folder (or a tar of it) with `oci-layout`, `index.json`, and blobs under `blobs/ALGORITHM/HEX`
             (OCI image-spec `image-layout.md`)
docker save  tar with `manifest.json`, a list of {Config, RepoTags, Layers}, all three by names in the tar; Docker 25
             and later write an OCI layout into the same tar, which is what is read then
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.image.oci.choice import SAVE_ONE, Descriptor, choose_manifest, find_blob, read_blob, read_descriptor
from lumiimg.image.oci.document import Config, config_of, read_document, typed
from lumiimg.image.oci.layer import Blob
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.oci.files import StoredFiles

_MAX_LAYERS = 1000
# application/vnd.oci.image.layer.v1.tar+gzip, application/vnd.docker.image.rootfs.diff.tar.gzip and their like
_LAYER = re.compile(r"application/vnd\.(oci\.image\.layer|docker\.image\.rootfs)\.[a-z0-9.]*tar([.+](gzip|zstd))?")
_KEPT_ELSEWHERE = re.compile(r"nondistributable|foreign")


def read_oci_layout(files: StoredFiles) -> tuple[Config, list[Blob]]:
    """Return what the image of an OCI layout says of itself, and its layers, the lowest first. Raises ImageError."""
    where = files.name
    manifest = choose_manifest(files)
    if "layers" not in manifest:
        raise ImageError("a manifest without layers", where=where, hint="save the image again with a newer engine")
    config = config_of(read_blob(files, read_descriptor(manifest.get("config"), where)), where)
    layers = [read_descriptor(item, where) for item in _bounded(manifest["layers"], where)]
    return config, [_blob(files, item) for item in layers]


def _blob(files: StoredFiles, layer: Descriptor) -> Blob:
    if layer.media_type.endswith("+encrypted"):
        raise ImageError(
            f"layer {layer.digest} is encrypted", where=files.name, hint="fetch the image with its key, unencrypted"
        )
    if not _LAYER.fullmatch(layer.media_type):
        raise ImageError(f"layer {layer.digest} has the unknown type {layer.media_type[:100]}", where=files.name)
    source = find_blob(files, layer)
    if source is None:
        if _KEPT_ELSEWHERE.search(layer.media_type):
            raise ImageError(f"layer {layer.digest} is kept elsewhere by its owner, and not here", where=files.name)
        raise ImageError(f"blob {layer.digest} is not there", where=files.name, hint="fetch the image again")
    return Blob(source, layer.digest)


def read_docker_archive(files: StoredFiles) -> tuple[Config, list[Blob]]:
    """Return what the image of a `docker save` says of itself, and its layers, the lowest first. Raises ImageError."""
    where = files.name
    listing = files.find("manifest.json")
    if listing is None:
        raise ImageError(
            "a tar that holds no image", where=where, hint="unpack it into a folder and give that, if it is a root"
        )
    images = typed(read_document(listing, "manifest.json"), list, "manifest.json", where)
    images = [typed(item, dict, "an image of manifest.json", where) for item in images]
    if len(images) != 1:
        tags = (
            typed(tag, str, "RepoTags", where)
            for item in images
            for tag in typed(item.get("RepoTags"), list, "Tags", where)
        )
        named = f": {', '.join(tags)}" if images else ""
        raise ImageError(f"{len(images)} images{named}", where=where, hint=SAVE_ONE)
    image = images[0]
    stored = files.find(typed(image.get("Config"), str, "Config", where))
    if stored is None:
        raise ImageError("the config is not in the archive", where=where, hint="save the image again")
    config = config_of(typed(read_document(stored, "the config"), dict, "the config", where), where)
    names = [typed(item, str, "Layers", where) for item in _bounded(image.get("Layers"), where)]
    if len(names) != len(config.layers):
        raise ImageError(f"{len(names)} layers where the config has {len(config.layers)}", where=where)
    layers: list[Blob] = []
    for name, digest in zip(names, config.layers, strict=True):
        source = files.find(name)
        if source is None:
            raise ImageError(f"layer {name} is not in the archive", where=where, hint="save the image again")
        layers.append(Blob(source, digest, digest_is_of_content=True))
    return config, layers


def _bounded(layers: object, where: str) -> list[object]:
    items = typed(layers, list, "layers", where)
    if len(items) > _MAX_LAYERS:
        raise ImageError(f"{len(items)} layers; {_MAX_LAYERS} are the limit", where=where)
    return items
