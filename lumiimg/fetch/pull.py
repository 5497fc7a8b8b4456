"""Images as files: out of a registry, whose blobs are got as any download is, or out of an engine on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError, MissingHereError, one_line
from lumiimg.core.text import shell_quote, size
from lumiimg.engine.room import require_room_in_cache
from lumiimg.engine.workspace import remove_files, scratch_folder, written_by_rename
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

    from lumiimg.fetch.http import Http
    from lumiimg.fetch.mirrors import Mirrors

_LAYER_S = 6 * 3600.0
_DAEMON_S = 600
_ID = re.compile(r"sha256:([0-9a-f]{64})")
_OCI, _DAEMON = "oci", "daemon"
"""Folders of the cache: images of registries, beside unpacked layers, and of engines."""
_HEX, _LAYOUT = re.compile("[0-9a-f]{64}"), re.compile(r"index\.json|oci-layout")
_SOCKET = "unix:///var/run/docker.sock"
"""Where an engine answers if nobody says otherwise. Source: docker(1), DOCKER_HOST."""
_UNIX = re.compile(r"(?:http\+)?unix://")
_START = "start one, or `podman system service --time=0`, and name it: DOCKER_HOST=unix:///path"
_API = "1.40"
"""Of Docker 19.03 and of Podman; naming one keeps the client from asking before it can be closed."""


def pull_image(base: str, http: Http, mirrors: Mirrors, cache: Path, on_line: Callable[[str], None]) -> Path:
    """Return an image in the cache, to be read: of a registry, or of a Docker engine; got there once by its digest.

    Raises FailedError if it cannot be had, MissingHereError if there is no engine.
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

    Raises MissingHereError if there is no engine to ask, or this user may not, FailedError if it does not have the
    image or does not give it.
    """
    try:
        import docker  # an extra, and 200 ms
        from docker.errors import APIError, DockerException, ImageNotFound
        from requests import RequestException
    except ImportError as error:
        what = "asking a Docker engine needs the package docker"
        raise MissingHereError(what, where=base, hint="pip install 'lumiimg[docker]'") from error
    name = base.removeprefix(DAEMON_SCHEME)
    _require_engine(base)
    try:
        with closing(docker.from_env(version=_API, timeout=_DAEMON_S)) as client:
            client.api.auth = lambda request: request  # requests would add a login of ~/.netrc, without TLS too
            image = client.images.get(name)
            if (found := _ID.fullmatch(str(image.id))) is None:  # it becomes the name of a file
                raise FailedError("the engine's name for it is not a sha256 digest", where=base)
            target = folder / f"{found[1]}.tar"
            if target.is_file():
                os.utime(target)
                return target
            if isinstance(size_bytes := image.attrs.get("Size"), int):
                on_line(f"{base}: {size(size_bytes)} to copy from the engine")
                require_room_in_cache(folder, size_bytes, base)
            folder.mkdir(parents=True, exist_ok=True)
            with written_by_rename(target) as partial, partial.open("wb") as file:
                for chunk in image.save(named=True):
                    if file.tell() + len(chunk) > LAYER_LIMIT_BYTES:
                        raise FailedError(f"is larger than {LAYER_LIMIT_BYTES} bytes", where=base)
                    file.write(chunk)
            return target
    except ImageNotFound as error:
        raise FailedError("the engine does not have it", where=base, hint=f"docker pull {shell_quote(name)}") from error
    except APIError as error:
        said = one_line(str(error.explanation or error))[:200]
        raise FailedError(f"the engine does not give it: {said}", where=base) from error
    except (DockerException, RequestException) as error:
        what = f"no Docker engine answers: {one_line(str(error))[:200]}"
        raise MissingHereError(what, where=base, hint=_START) from error


def _require_engine(base: str) -> None:
    """Raise MissingHereError where nothing answers at the socket of the engine, or not to this user."""
    at = os.environ.get("DOCKER_HOST") or _SOCKET
    if (path := _UNIX.match(at)) is None:
        return
    try:
        with closing(socket.socket(socket.AF_UNIX)) as asked:
            asked.settimeout(_DAEMON_S)
            asked.connect(at[path.end() :])
    except PermissionError as error:
        hint = "whoever administers this machine can let you (group docker); Podman needs no rights"
        raise MissingHereError(f"you may not use the Docker engine at {at}", where=base, hint=hint) from error
    except OSError as error:
        why = error.strerror or f"{error}"
        raise MissingHereError(f"no Docker engine answers at {at}: {why}", where=base, hint=_START) from error


# -- in the cache --


@dataclass(frozen=True, slots=True)
class FetchedImage:
    """An image in the cache, that was got to be read."""

    path: Path
    key: str
    """The sha256 of its manifest, or the id that the engine has for it."""
    size_bytes: int
    """That it takes."""
    used_ns: int
    """When it was used the last time, in nanoseconds since 1970."""
    is_whole: bool = True
    """Each file in it is read against its digest when the image is opened."""

    def remove(self) -> None:
        """Remove it. Raises FailedError, also where something else is in its folder."""
        blobs = self.path / "blobs"
        if blobs.is_dir():
            folders = ((blobs / "sha256", _HEX), (blobs, _LAYOUT), (self.path, _LAYOUT))
            is_gone = all(remove_files(folder, names) for folder, names in folders)
        else:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            is_gone = not os.path.lexists(self.path)
        if not is_gone:
            raise FailedError("cannot be removed", where=str(self.path), hint="look at it, and remove it by hand")


def fetched_images(cache: Path) -> list[FetchedImage]:
    """Return the images of a cache."""
    found = []
    for path in (*(cache / _OCI).glob("*"), *(cache / _DAEMON).glob("*.tar")):
        with suppress(OSError):  # another has just removed it
            seen, folder = path.lstat(), path / "blobs" / "sha256"
            is_layout = stat.S_ISDIR(seen.st_mode) and folder.is_dir()
            if _HEX.fullmatch(path.stem) and (is_layout or path.parent.name == _DAEMON):
                size_bytes = sum(blob.lstat().st_size for blob in folder.iterdir()) if is_layout else seen.st_size
                found.append(FetchedImage(path, path.stem, size_bytes, seen.st_mtime_ns))
    return sorted(found, key=lambda image: image.key)
