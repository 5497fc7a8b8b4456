"""Images out of a registry as files: each blob is got as any download is, and goes on where it broke off."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lumiimg.errors import FailedError
from lumiimg.fetch.deadline import Bounds
from lumiimg.fetch.download import claim_partial, download
from lumiimg.fetch.registry import LAYER_LIMIT_BYTES, SIF_LAYER, ImageManifest, Repository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.fetch.http import Http

_LAYER_S = 6 * 3600.0


def save_sif(found: ImageManifest, http: Http, target: Path) -> None:
    """Write the SIF that a registry holds to a file, verified by its digest.

    What came of it stays beside `target` for the next time, if the rest does not come. Raises FailedError if it is not
    a SIF, cannot be had, or is not what the manifest says, OSError if it cannot be written.
    """
    if found.media_type != SIF_LAYER:
        raise FailedError("is not a SIF", where=f"oras://{found.reference}", hint="an image of Docker's is docker://…")
    with ExitStack() as claims:
        _blob(found.layers[0], Repository(found.reference, http), target.parent, claims).replace(target)


def save_image(found: ImageManifest, http: Http, folder: Path, store: Path, on_line: Callable[[str], None]) -> None:
    """Write an image into a new folder as an OCI layout: its manifest, config and layers, each verified by its digest.

    What came of it stays in `store`, on the same file system, for the next time, if the rest does not come. Raises
    FailedError if one cannot be had or is not what the manifest says, OSError if it cannot be written. Source:
    image-spec image-layout.md.
    """
    repository = Repository(found.reference, http)
    manifest = repository.manifest(found.digest)
    config = () if manifest.document.config is None else (manifest.document.config.digest,)
    layers = tuple(dict.fromkeys(found.layers))
    with ExitStack() as claims:
        blobs: dict[str, Path] = {}
        for number, digest in enumerate(dict.fromkeys((*config, *layers))):
            if number:
                on_line(f"fetching layer {number} of {len(layers)} of {found.reference.repository}")
            blobs[digest] = _blob(digest, repository, store, claims)
            for blob in blobs.values():
                os.utime(blob)  # on another node they must not look as if they were left
        target = folder / "blobs" / "sha256"
        target.mkdir(parents=True)
        (target / _hex(found.digest)).write_bytes(manifest.body)
        described = {"mediaType": manifest.media_type, "digest": manifest.digest, "size": len(manifest.body)}
        (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
        for digest, blob in blobs.items():
            blob.replace(target / _hex(digest))
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _blob(digest: str, repository: Repository, store: Path, claims: ExitStack) -> Path:
    """Return a blob, whole and verified, which is kept in `store` until `claims` end, unless it is moved."""
    url = repository.blob_url(digest)
    partial = claims.enter_context(claim_partial(store, _hex(digest)))
    actual = download(url, partial, repository, _hex(digest), Bounds(LAYER_LIMIT_BYTES, _LAYER_S))
    if actual != _hex(digest):
        raise FailedError(f"has another digest: it is sha256:{actual}, not {digest}", where=url)
    return partial


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
