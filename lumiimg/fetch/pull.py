"""Images as files: from a registry, with blobs fetched like any download, or from an engine on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError, FailedError, MissingHereError, one_line
from lumiimg.core.files import file_sha256
from lumiimg.core.text import shell_quote, size
from lumiimg.engine.room import require_room_in_cache
from lumiimg.engine.workspace import remove_files, scratch_folder
from lumiimg.fetch.download import claim_partial, download, require_digest, storage_errors
from lumiimg.fetch.http import Bounds
from lumiimg.fetch.registry import (
    DAEMON_SCHEME,
    LAYER_LIMIT_BYTES,
    Descriptor,
    ImageManifest,
    Repository,
    parse_reference,
    resolve_image,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from docker.models.images import Image

    from lumiimg.fetch.http import Http
    from lumiimg.fetch.mirrors import Mirrors

_LAYER_S = 6 * 3600.0
_ANSWER_S, _DAEMON_S = 60, 600
"""Timeouts in seconds: for an engine to identify itself, and for each further part of an image."""
_ID = re.compile(r"sha256:([0-9a-f]{64})")
_OCI, _DAEMON = "oci", "daemon"
"""Folders of the cache: for images from registries, beside unpacked layers, and for images from engines."""
_HEX, _LAYOUT = re.compile("[0-9a-f]{64}"), re.compile(r"index\.json|oci-layout")
_SOCKET = "unix:///var/run/docker.sock"
"""Default socket of an engine. Source: docker(1), DOCKER_HOST."""
_UNIX = re.compile(r"(?:http\+)?unix://")
_START = "start one, or `podman system service --time=0`, and name it: DOCKER_HOST=unix:///path"
_OLDEST_API, _API = "1.24", re.compile(r"1\.\d{1,3}")
"""Given one, the client does not ask before it can be closed. Source: docker-py, MINIMUM_DOCKER_API_VERSION."""


def pull_image(base: str, http: Http, mirrors: Mirrors, cache: Path, on_line: Callable[[str], None]) -> Path:
    """Return the path of an image in the cache, fetched once by its digest from a registry or a Docker engine.

    Raises FailedError if it is not available, MissingHereError if there is no engine.
    """
    if base.startswith(DAEMON_SCHEME):
        return save_from_daemon(base, cache / _DAEMON, on_line)
    found = resolve_image(parse_reference(base, mirrors), http)
    store = cache / _OCI
    target = store / _hex(found.digest)
    with storage_errors(store):
        if target.exists():
            os.utime(target)
        else:
            size_bytes = sum({layer.digest: layer.size for layer in found.layers}.values())
            on_line(f"{base}: {size(size_bytes)} to download")
            require_room_in_cache(store, size_bytes, base)
            save_image(found, target, store, on_line)
    return target


def save_image(found: ImageManifest, target: Path, store: Path, on_line: Callable[[str], None]) -> None:
    """Write an image as a new OCI layout, each blob verified by its digest.

    If the download fails, its partial blobs stay in `store` for the next try. Raises FailedError if a blob is not
    available or differs from the manifest, OSError if it cannot be written. Source: image-spec image-layout.md.
    """
    config, repository = found.document.config, found.repository
    layers = {layer.digest: layer for layer in found.layers}
    with ExitStack() as claims, scratch_folder(store) as scratch:
        blobs: dict[str, Path] = {}
        for number, layer in enumerate(layers.values(), 1):
            on_line(f"fetching layer {number} of {len(layers)} of {repository.reference.repository}")
            blobs[layer.digest] = _blob(layer, repository, store, claims)
        if config is not None:
            blobs[config.digest] = _blob(config, repository, store, claims)
        made = scratch / "image"
        folder = made / "blobs" / "sha256"
        folder.mkdir(parents=True)
        (folder / _hex(found.digest)).write_bytes(found.body)
        described = {"mediaType": found.media_type, "digest": found.digest, "size": len(found.body)}
        (made / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
        (made / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        for digest, blob in blobs.items():
            blob.replace(folder / _hex(digest))
        if not target.exists():  # else another process was faster
            shutil.move(made, target)


def _blob(blob: Descriptor, repository: Repository, store: Path, claims: ExitStack) -> Path:
    """Return the path of a complete, verified blob, valid until `claims` end; it stays in `store` unless moved.

    It may not be larger than the manifest says, because free space was checked for that size.
    """
    url, digest = repository.blob_url(blob.digest), _hex(blob.digest)
    partial = claims.enter_context(claim_partial(store, digest))
    bounds = Bounds(min(blob.size, LAYER_LIMIT_BYTES), _LAYER_S, plain=True)
    require_digest(download(url, partial, repository, digest, bounds), digest, url)
    return partial


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def save_from_daemon(base: str, folder: Path, on_line: Callable[[str], None]) -> Path:
    """Return the path of an engine's image as a docker archive in `folder`, saved there once by its id.

    Raises MissingHereError if there is no engine or this user may not use it, FailedError if the engine does not have
    the image or does not provide it.
    """
    try:
        import docker  # an optional package, and takes 200 ms
    except ImportError as error:
        what = "a Docker engine needs the Python package docker"
        raise MissingHereError(what, where=base, hint="pip install 'lumiimg[docker]'") from error
    _require_engine(base)
    with _errors_of_engine(base), closing(docker.from_env(version=_api(base), timeout=_DAEMON_S)) as client:
        client.api.auth = lambda request: request  # requests would add a login of ~/.netrc, without TLS too
        image = client.images.get(base.removeprefix(DAEMON_SCHEME))
        if (found := _ID.fullmatch(str(image.id))) is None:  # it becomes a file name
            raise FailedError("the engine's name for it is not a sha256 digest", where=base)
        target = folder / f"{found[1]}.tar"
        if target.is_file():
            os.utime(target)
            return target
        if isinstance(size_bytes := image.attrs.get("Size"), int):
            on_line(f"{base}: {size(size_bytes)} to copy from the engine")
            require_room_in_cache(folder, size_bytes, base)
        with storage_errors(folder), scratch_folder(folder) as scratch:
            saved = scratch / target.name
            with saved.open("wb") as file:
                for chunk in _saved(image, base):
                    if file.tell() + len(chunk) > LAYER_LIMIT_BYTES:
                        raise FailedError(f"is larger than {LAYER_LIMIT_BYTES} bytes", where=base)
                    file.write(chunk)
            saved.replace(target)
        return target


def _api(base: str) -> str:
    """Return the API version that the engine itself names: Docker 29 refuses those before 1.44.

    Raises as `_errors_of_engine` does.
    """
    import docker

    with _errors_of_engine(base), closing(docker.from_env(version=_OLDEST_API, timeout=_ANSWER_S)) as client:
        client.api.auth = lambda request: request
        document = client.version(api_version=False)
    version = document.get("ApiVersion") if isinstance(document, dict) else None
    if not isinstance(version, str) or not _API.fullmatch(version):
        raise MissingHereError("no Docker engine answers: the reply names no API version", where=base, hint=_START)
    return version


def _saved(image: Image, base: str) -> Iterator[bytes]:
    """Yield the parts of a saved image. Engine errors are converted here: they are OSErrors, like those of the disk."""
    with _errors_of_engine(base):
        yield from image.save(named=True)


@contextmanager
def _errors_of_engine(base: str) -> Iterator[None]:
    """Raise MissingHereError if no engine answers, FailedError if the engine does not have or provide the image."""
    from docker.errors import APIError, DockerException, ImageNotFound
    from requests import RequestException
    from requests.exceptions import ChunkedEncodingError

    try:
        yield
    except ImageNotFound as error:
        hint = f"docker pull {shell_quote(base.removeprefix(DAEMON_SCHEME))}"
        raise FailedError("the engine does not have it", where=base, hint=hint) from error
    except (APIError, ChunkedEncodingError) as error:
        why = one_line(str(getattr(error, "explanation", None) or error))[:200]
        raise FailedError(f"the engine did not provide it: {why}", where=base) from error
    except (DockerException, RequestException) as error:
        what = f"no Docker engine answers: {one_line(str(error))[:200]}"
        raise MissingHereError(what, where=base, hint=_START) from error


def _require_engine(base: str) -> None:
    """Raise MissingHereError if the engine's socket does not answer, or this user may not use it."""
    at = os.environ.get("DOCKER_HOST") or _SOCKET
    if (path := _UNIX.match(at)) is None:
        return
    try:
        with closing(socket.socket(socket.AF_UNIX)) as asked:
            asked.settimeout(_ANSWER_S)
            asked.connect(at[path.end() :])
    except PermissionError as error:
        hint = "the administrator can add you to the group docker; Podman needs no extra rights"
        raise MissingHereError(f"you may not use the Docker engine at {at}", where=base, hint=hint) from error
    except OSError as error:
        why = error.strerror or f"{error}"
        raise MissingHereError(f"no Docker engine answers at {at}: {why}", where=base, hint=_START) from error


# -- in the cache --


@dataclass(frozen=True, slots=True)
class FetchedImage:
    """An image that was fetched into the cache to be read."""

    path: Path
    key: str
    """The sha256 of its manifest, or the engine's id for it."""
    size_bytes: int
    """Disk space that it takes."""
    used_ns: int
    """Time of its last use, in nanoseconds since 1970."""

    @property
    def is_intact(self) -> bool:
        """Whether each blob has the digest in its name; an image saved by an engine has no blobs to check."""
        try:
            return all(file_sha256(blob) == blob.name for blob in self.path.glob("blobs/sha256/*"))
        except BadInputError:
            return False

    def remove(self) -> None:
        """Remove the image. Raises FailedError, also if its folder contains anything else."""
        blobs = self.path / "blobs"
        if blobs.is_dir():
            folders = ((blobs / "sha256", _HEX), (blobs, _LAYOUT), (self.path, _LAYOUT))
            is_gone = all(remove_files(folder, names) for folder, names in folders)
        else:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            is_gone = not os.path.lexists(self.path)
        if not is_gone:
            raise FailedError("cannot be removed", where=str(self.path), hint="check it, and remove it by hand")


def fetched_images(cache: Path) -> list[FetchedImage]:
    """Return the images that were fetched into a cache."""
    found = []
    for path in (*(cache / _OCI).glob("*"), *(cache / _DAEMON).glob("*.tar")):
        with suppress(OSError):  # another process has just removed it
            seen, folder = path.lstat(), path / "blobs" / "sha256"
            is_layout = stat.S_ISDIR(seen.st_mode) and folder.is_dir()
            if _HEX.fullmatch(path.stem) and (is_layout or path.parent.name == _DAEMON):
                size_bytes = sum(blob.lstat().st_size for blob in folder.iterdir()) if is_layout else seen.st_size
                found.append(FetchedImage(path, path.stem, size_bytes, seen.st_mtime_ns))
    return sorted(found, key=lambda image: image.key)


def drop_damaged(path: Path) -> None:
    """Remove an unreadable image from the cache if it is damaged, so that it is fetched again.

    An image saved by an engine is always removed: an error in its middle looks like its end. Source: moby,
    api/server/router/image, getImagesGet.
    """
    for image in fetched_images(path.parent.parent):
        if image.path == path and (path.suffix == ".tar" or not image.is_intact):
            with suppress(FailedError):
                image.remove()
