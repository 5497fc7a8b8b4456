"""Images out of a registry as files: each blob is got as any download is, and goes on where it broke off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from lumiimg.errors import FailedError
from lumiimg.resolve.network.download import download
from lumiimg.resolve.network.registry import LAYER_LIMIT_BYTES, SIF_LAYER, ImageManifest, Repository
from lumiimg.resolve.network.resume import Partial, taken
from lumiimg.resolve.network.web import Bounds, Web

_LAYER_S = 6 * 3600.0


def save_sif(found: ImageManifest, web: Web, target: Path) -> None:
    """Write the SIF that a registry holds to a file, verified by its digest.

    What came of it stays beside `target` for the next time, if the rest does not come. Raises FailedError if it is
    none, cannot be had, or is not what the manifest says, OSError if it cannot be written.
    """
    if found.media_type != SIF_LAYER:
        raise FailedError("is not a SIF", where=f"oras://{found.reference}", hint="an image of Docker's is docker://…")
    with ExitStack() as held:
        _blob(found.layers[0], Repository(found.reference, web), target.parent, held).data.replace(target)


def save_image(found: ImageManifest, web: Web, folder: Path, store: Path, on_line: Callable[[str], None]) -> None:
    """Write an image into a new folder as an OCI layout: its manifest, config and layers, each verified by its digest.

    What came of it stays in `store`, on the same file system, for the next time, if the rest does not come. Raises
    FailedError if one cannot be had or is not what the manifest says, OSError if it cannot be written. Source:
    image-spec image-layout.md.
    """
    repository = Repository(found.reference, web)
    manifest = repository.manifest(found.digest)
    layers = tuple(dict.fromkeys(found.layers))
    with ExitStack() as held:
        blobs: dict[str, Partial] = {}
        for number, digest in enumerate(dict.fromkeys((manifest.config.digest, *layers))):
            if number:
                on_line(f"fetching layer {number} of {len(layers)} of {found.reference.repository}")
            blobs[digest] = _blob(digest, repository, store, held)
            for partial in blobs.values():
                os.utime(partial.data)  # on another node they must not look as if they were left
        target = folder / "blobs" / "sha256"
        target.mkdir(parents=True)
        (target / _hex(found.digest)).write_bytes(manifest.body)
        described = {"mediaType": manifest.media_type, "digest": manifest.digest, "size": len(manifest.body)}
        (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
        for digest, partial in blobs.items():
            partial.data.replace(target / _hex(digest))
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _blob(digest: str, repository: Repository, store: Path, held: ExitStack) -> Partial:
    """Return a blob, whole and verified, which is kept in `store` until `held` ends, unless it is moved."""
    url = repository.blob_url(digest)
    partial = held.enter_context(taken(store, url, _hex(digest)))
    actual = download(url, partial, repository, _hex(digest), Bounds(LAYER_LIMIT_BYTES, _LAYER_S))
    if actual != _hex(digest):
        raise FailedError(f"has another digest: it is sha256:{actual}, not {digest}", where=url)
    return partial


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
