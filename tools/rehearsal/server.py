"""A registry of images and an index of wheels on loopback, in the place of those that are not asked in a rehearsal."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_PAGE = "application/vnd.pypi.simple.v1+json"
_TAR = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class StandInImage:
    """An image of a registry: its layers, as tar files from below, and the variables that it sets."""

    layers: tuple[Path, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Shelves:
    """What the server has."""

    images: dict[str, StandInImage] = field(default_factory=dict)
    """By repository and tag: `rocm/dev-ubuntu-24.04:7.0-complete`."""
    wheels: dict[str, list[Path]] = field(default_factory=dict)
    """By project."""
    digests: dict[Path, str] = field(default_factory=dict)
    """Of the files, in hexadecimal, once they were asked for."""


@contextmanager
def serve(shelves: Shelves) -> Iterator[str]:
    """Serve them until the block ends; the value is the server's address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answer(shelves, unquote(self.path))
            if found is None:
                self.send_error(404)
                return
            kind, body = found
            length = body.stat().st_size if isinstance(body, Path) else len(body)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(length))
            if kind == _MANIFEST and isinstance(body, bytes):
                self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
            self.end_headers()
            if self.command == "HEAD":
                return
            if isinstance(body, bytes):
                self.wfile.write(body)
                return
            with body.open("rb") as stream:
                shutil.copyfileobj(stream, self.wfile, 1 << 20)

        do_HEAD = do_GET  # noqa: N815 - the name that the module calls

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def answer(shelves: Shelves, path: str) -> tuple[str, bytes | Path] | None:
    """Return type and content of what is at a path."""
    if path == "/v2/":
        return "application/json", b"{}"
    if blob := re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", path):
        return _of_registry(shelves, *blob.groups())
    if file := re.fullmatch(r"/whl/files/([^/]+)/([^/]+?)(\.metadata)?", path):
        return _wheel(shelves, *file.groups())
    project = path.rstrip("/").rpartition("/")[2]
    if not path.startswith("/whl") or project not in shelves.wheels:
        return None
    files = [_offered(shelves, project, wheel) for wheel in shelves.wheels[project]]
    return _PAGE, json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": files}).encode()


def _offered(shelves: Shelves, project: str, wheel: Path) -> dict[str, object]:
    url = f"/whl/files/{project}/{quote(wheel.name)}"
    hashes = {"sha256": _digest(shelves, wheel)}
    return {"filename": wheel.name, "url": url, "hashes": hashes, "core-metadata": True}


def _wheel(shelves: Shelves, project: str, name: str, metadata: str | None) -> tuple[str, bytes | Path] | None:
    wheel = next((one for one in shelves.wheels.get(project, ()) if one.name == name), None)
    if wheel is None or not metadata:
        return None if wheel is None else ("application/octet-stream", wheel)
    with zipfile.ZipFile(wheel) as archive:
        about = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return "application/octet-stream", archive.read(about)


def _of_registry(shelves: Shelves, name: str, kind: str, asked: str) -> tuple[str, bytes | Path] | None:
    for image, what in shelves.images.items():
        repository, _, tag = image.rpartition(":")
        if repository != name:
            continue
        manifest, config = _documents(shelves, what)
        if kind == "manifests" and asked in {tag, _named(manifest)}:
            return _MANIFEST, manifest
        blobs: dict[str, bytes | Path] = {f"sha256:{_digest(shelves, layer)}": layer for layer in what.layers}
        blobs[_named(config)] = config
        if kind == "blobs" and asked in blobs:
            return "application/octet-stream", blobs[asked]
    return None


def _documents(shelves: Shelves, image: StandInImage) -> tuple[bytes, bytes]:
    digests = [f"sha256:{_digest(shelves, layer)}" for layer in image.layers]
    variables = [f"{name}={value}" for name, value in image.environment.items()]
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": variables},
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    ).encode()
    about = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": _named(config), "size": len(config)}
    layers = [
        {"mediaType": _TAR, "digest": digest, "size": layer.stat().st_size}
        for digest, layer in zip(digests, image.layers, strict=True)
    ]
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": about, "layers": layers}
    return json.dumps(manifest).encode(), config


def _named(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _digest(shelves: Shelves, file: Path) -> str:
    if file not in shelves.digests:
        with file.open("rb") as stream:
            shelves.digests[file] = hashlib.file_digest(stream, "sha256").hexdigest()
    return shelves.digests[file]
