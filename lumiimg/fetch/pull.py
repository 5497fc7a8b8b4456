"""Images as files: out of a registry, whose blobs are got as any download is, or out of an engine on this machine."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError, MissingHereError, one_line
from lumiimg.core.text import size
from lumiimg.engine.workspace import scratch_folder, written_by_rename
from lumiimg.fetch.download import claim_partial, download, require_digest, storage_errors
from lumiimg.fetch.http import Bounds
from lumiimg.fetch.registry import (
    DAEMON_SCHEME,
    LAYER_LIMIT_BYTES,
    ImageManifest,
    Repository,
    parse_reference,
    resolve_image,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.fetch.http import Http
    from lumiimg.fetch.mirrors import Mirrors

_LAYER_S = 6 * 3600.0
_DAEMON_S = 600
_ID = re.compile(r"sha256:([0-9a-f]{64})")
_API = "1.40"
"""Of Docker 19.03 and of Podman; naming one keeps the client from asking before it can be closed."""


def pull_image(base: str, http: Http, mirrors: Mirrors, cache: Path, on_line: Callable[[str], None]) -> Path:
    """Return an image in the cache, to be read: of a registry, or of a Docker engine; got there once by its digest.

    Raises FailedError if it cannot be had, MissingHereError if there is no engine.
    """
    if base.startswith(DAEMON_SCHEME):
        return save_from_daemon(base, cache / "daemon", on_line)
    found = resolve_image(parse_reference(base, mirrors), http)
    store = cache / "oci"
    target = store / _hex(found.digest)
    if not target.exists():
        on_line(f"fetching {base} to read it, {size(sum(layer.size for layer in found.layers))}")
        with storage_errors(store):
            save_image(found, target, store, on_line)
    return target


def save_image(found: ImageManifest, target: Path, store: Path, on_line: Callable[[str], None]) -> None:
    """Write an image as a new OCI layout, each blob verified by its digest.

    What came of it stays in `store` for the next time, if the rest does not come. Raises FailedError if one cannot be
    had or is not what the manifest says, OSError if it cannot be written. Source: image-spec image-layout.md.
    """
    config, repository = found.document.config, found.repository
    layers = dict.fromkeys(layer.digest for layer in found.layers)
    with ExitStack() as claims, scratch_folder(store) as scratch:
        blobs: dict[str, Path] = {}
        for number, digest in enumerate(layers, 1):
            on_line(f"fetching layer {number} of {len(layers)} of {repository.reference.repository}")
            blobs[digest] = _blob(digest, repository, store, claims)
        if config is not None:
            blobs[config.digest] = _blob(config.digest, repository, store, claims)
        made = scratch / "image"
        folder = made / "blobs" / "sha256"
        folder.mkdir(parents=True)
        (folder / _hex(found.digest)).write_bytes(found.body)
        described = {"mediaType": found.media_type, "digest": found.digest, "size": len(found.body)}
        (made / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
        (made / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        for digest, blob in blobs.items():
            blob.replace(folder / _hex(digest))
        if not target.exists():  # else another process was as quick
            shutil.move(made, target)


def _blob(digest: str, repository: Repository, store: Path, claims: ExitStack) -> Path:
    """Return a blob, whole and verified, which is kept in `store` until `claims` end, unless it is moved."""
    url = repository.blob_url(digest)
    partial = claims.enter_context(claim_partial(store, _hex(digest)))
    actual = download(url, partial, repository, _hex(digest), Bounds(LAYER_LIMIT_BYTES, _LAYER_S, plain=True))
    require_digest(actual, _hex(digest), url)
    return partial


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def save_from_daemon(base: str, folder: Path, on_line: Callable[[str], None]) -> Path:
    """Return an image of the engine as a docker archive in `folder`, saved there once by its id.

    Raises MissingHereError if there is no engine to ask, FailedError if it does not have the image.
    """
    try:
        import docker  # an extra, and 200 ms
        from docker.errors import DockerException, ImageNotFound
        from requests import RequestException
    except ImportError as error:
        what = "asking a Docker engine needs the package docker"
        raise MissingHereError(what, hint="pip install 'lumiimg[docker]'") from error
    name = base.removeprefix(DAEMON_SCHEME)
    try:
        with closing(docker.from_env(version=_API, timeout=_DAEMON_S)) as client:
            client.api.auth = lambda request: request  # requests would add a login of ~/.netrc, without TLS too
            image = client.images.get(name)
            if (found := _ID.fullmatch(str(image.id))) is None:  # it becomes the name of a file
                raise FailedError("the engine's name for it is not a sha256 digest", where=base)
            target = folder / f"{found[1]}.tar"
            if target.is_file():
                return target
            on_line(f"saving {name} from the engine")
            folder.mkdir(parents=True, exist_ok=True)
            with written_by_rename(target) as partial, partial.open("wb") as file:
                for chunk in image.save(named=True):
                    if file.tell() + len(chunk) > LAYER_LIMIT_BYTES:
                        raise FailedError(f"is larger than {LAYER_LIMIT_BYTES} bytes", where=base)
                    file.write(chunk)
            return target
    except ImageNotFound as error:
        raise FailedError("the engine does not have it", where=base, hint=f"docker pull {name}") from error
    except (DockerException, RequestException) as error:
        raise MissingHereError(
            f"no Docker engine answers: {one_line(str(error))[:200]}",
            hint="start one, or `podman system service`, and name it: DOCKER_HOST=unix:///path",
        ) from error
