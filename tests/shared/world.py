"""A small world on loopback: a registry, two package indexes, archives. It replaces Docker Hub, PyTorch's index, PyPI
and GitHub, which tests cannot reach; requests go through the same code as those to the real ones.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import PYPI, Mirrors
from lumiimg.fetch.store import Sources, Store
from lumiimg.resolve.python_project import LayerRequirements, ResolvedWheels, resolve_wheels
from lumiimg.resolve.python_target import PythonTarget
from tests.fuzz.locks import signed
from tests.shared.loopback import Asked, Reply, listening, part
from tests.shared.oci_builder import MANIFEST, Layout, digest

if TYPE_CHECKING:
    import ssl

JSON = "application/vnd.pypi.simple.v1+json"
_PROJECT = '[project]\nname = "project"\nversion = "1.0"\n'


@dataclass
class World:
    """The content of the server; tests change it while it serves."""

    url: str = ""
    wheels: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """Requirements by project and version in the general index (`/pypi/simple`)."""
    of_layers: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """The same for the index that layers name (`/whl`)."""
    files: tuple[Path, ...] = ()
    """Wheels on disk, served by the index that layers name, without separate metadata."""
    hashes: bool = True
    """Whether the indexes offer digests."""
    image: bytes = b"layer"
    earlier: tuple[bytes, ...] = ()
    """Images to which the tag pointed before; the registry still serves them by digest."""
    archives: bytes = b"archive of "
    requirements: dict[str, str] = field(default_factory=dict)
    """Requirement files in archives of vLLM, by path; those of other projects list nothing."""
    uploaded: dict[str, str] = field(default_factory=dict)
    """Upload times, by project and version: `egg 2.0`; if any is given, the index offers one for every file."""
    yanked: tuple[str, ...] = ()
    """Withdrawn files, as `egg 2.0`."""
    down: tuple[str, ...] = ()
    """Projects for which the indexes return a server error."""
    asked: list[str] = field(default_factory=list)
    """Requested paths, in order."""

    @property
    def mirrors(self) -> list[str]:
        """Return the options that redirect requests from the real world to this one."""
        host = self.url.removeprefix("http://")
        pairs = (
            ("docker.io", f"http://{host}"),
            ("https://download.pytorch.org", self.url),
            ("https://wheels.vllm.ai", f"{self.url}/whl-vllm"),
            (PYPI, f"{self.url}/pypi/simple"),
            ("https://github.com", f"{self.url}/archives"),
        )
        return [word for source, target in pairs for word in ("--mirror", f"{source}={target}")]


def wheel(name: str, version: str, requires: tuple[str, ...], module: str | None = None) -> bytes:
    """Return a wheel with its metadata, and perhaps a module of its name; the same bytes each time."""
    name_in_files = name.replace("-", "_")
    info = f"{name_in_files}-{version}.dist-info"
    texts = {
        f"{info}/METADATA": metadata_of(name, version, requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    if module is not None:
        texts[f"{name_in_files}/__init__.py"] = module
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for file, text in texts.items():
            archive.writestr(zipfile.ZipInfo(file, (2026, 11, 21, 0, 0, 0)), text)
    return out.getvalue()


def metadata_of(name: str, version: str, requires: tuple[str, ...]) -> str:
    """Return the METADATA of a wheel."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for one in requires for extra in re.findall(r"extra == '(\w+)'", one)]
    return "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires), ""])


def wheels_of_layers() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return every distribution that a shipped layer pins or requests, without requirements."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    catalogue = open_catalogue({"HOME": "/nonexistent"})
    for name in catalogue.layer_names():
        for release in catalogue.entry(name).releases:
            for pin in map(Requirement, release.wheels):
                (version,) = (spec.version for spec in pin.specifier)
                found.setdefault(canonicalize_name(pin.name), {})[version] = ()
        for wanted in map(Requirement, catalogue.entry(name).packages):
            versions = [spec.version for spec in wanted.specifier if spec.operator in {"==", ">="}]
            found.setdefault(wanted.name, {})[(versions or ["1.0"])[0]] = ()
    return found


@cache
def _files_of_projects() -> dict[str, str]:
    """Return the file with a project's requirements, by the prefix of the addresses of its archives."""
    catalogue = open_catalogue({"HOME": "/nonexistent"})
    sources = [source for name in catalogue.layer_names() for source in catalogue.entry(name).sources]
    return {
        source.url.partition("{")[0].replace("https://github.com", "/archives"): source.requirements[0].partition("[")[
            0
        ]
        for source in sources
        if source.requirements
    }


def archive_of(files: dict[str, str]) -> bytes:
    """Return a `.tar.gz` of text files by path, in the layout of GitHub; the same bytes each time."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"project-1/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


@contextmanager
def serve(world: World, tls: ssl.SSLContext | None = None) -> Iterator[World]:
    """Serve a world until the block ends, over TLS if a context is given."""

    def answered(asked: Asked) -> Reply:
        world.asked.append(asked.path)
        status, kind, body = answer(world, unquote(asked.path))
        headers = {"Content-Type": kind} | ({"Docker-Content-Digest": digest(body)} if kind == MANIFEST else {})
        reply = Reply(status, body, headers)
        return part(reply, asked) if asked.path.endswith(".whl") else reply

    with listening(answered, tls) as world.url:
        yield world


def answer(world: World, path: str) -> tuple[int, str, bytes]:
    """Return status, type and body."""
    if path.startswith("/v2/"):
        return _registry(world, path)
    if path.startswith("/archives/vllm-project/"):
        return 200, "application/gzip", archive_of({"requirements/rocm.txt": "", **world.requirements})
    if file := next((file for start, file in _files_of_projects().items() if path.startswith(start)), None):
        return 200, "application/gzip", archive_of({file: _PROJECT if file.endswith(".toml") else ""})
    if path.startswith("/archives/"):
        return 200, "application/gzip", world.archives + path.encode()
    if path.startswith("/whl") and (found := _on_disk(world, path)):
        return found
    for prefix, projects in (("/pypi/simple", world.wheels), ("/whl", world.of_layers)):
        if path.startswith(prefix):
            return _index(world, path, projects)
    return 404, "text/plain", b"not here"


def _registry(world: World, path: str) -> tuple[int, str, bytes]:
    answers = [_of_image(image, path) for image in (world.image, *world.earlier)]
    return next((one for one in answers if one[0] == 200), answers[0])


def _of_image(image: bytes, path: str) -> tuple[int, str, bytes]:
    if path == "/v2/":
        return 200, "application/json", b"{}"
    layout = Layout()
    about = {"architecture": "amd64", "os": "linux", "config": {}}
    manifest = layout.manifest(
        image, pack="", config=about | {"rootfs": {"type": "layers", "diff_ids": [digest(image)]}}
    )
    wanted, is_manifest = path.rpartition("/")[2], "/manifests/" in path
    if is_manifest and not wanted.startswith("sha256:"):
        wanted = manifest["digest"]
    found = layout.files.get(f"blobs/sha256/{wanted.removeprefix('sha256:')}")
    if found is None or is_manifest != (wanted == manifest["digest"]):
        return 404, "application/json", b"{}"
    return 200, MANIFEST if is_manifest else "application/octet-stream", found


def _on_disk(world: World, path: str) -> tuple[int, str, bytes] | None:
    """Return a wheel that is on disk, or the page of its project."""
    page: list[dict[str, object]] = []
    wanted = path.rstrip("/").rpartition("/")[2]
    for file in world.files:
        url = f"/whl/files/{file.name}"
        if path == url:
            return 200, "application/octet-stream", file.read_bytes()
        if wanted == file.name.partition("-")[0].lower().replace("_", "-"):
            hashes = {"sha256": digest(file.read_bytes()).removeprefix("sha256:")}
            page.append({"filename": file.name, "url": quote(url), "hashes": hashes})
    return _page(wanted, page) if page else None


def _page(name: str, files: list[dict[str, object]]) -> tuple[int, str, bytes]:
    return 200, JSON, json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}).encode()


def _index(world: World, path: str, projects: dict[str, dict[str, tuple[str, ...]]]) -> tuple[int, str, bytes]:
    if file := re.search(r"/files/([^/]+?)/([^/]+?)/[^/]+\.whl(\.metadata)?$", path):
        about = (file[1], file[2], projects[file[1]][file[2]])
        body = metadata_of(*about).encode() if file[3] else wheel(*about)
        return 200, "application/octet-stream", body
    name = path.rstrip("/").rpartition("/")[2]
    if name not in projects:
        return 404, "text/plain", b"no such project"
    if name in world.down:
        return 500, "text/plain", b"out of order"
    root = path[: path.rindex(f"/{name}")]
    files: list[dict[str, object]] = []
    for version, requires in projects[name].items():
        filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        data = wheel(name, version, requires)
        hashes = {"sha256": digest(data).removeprefix("sha256:")} if world.hashes else {}
        url = f"{root}/files/{name}/{version}/{filename}"
        offered: dict[str, object] = {"filename": filename, "url": url, "hashes": hashes}
        if world.uploaded:
            offered["upload-time"] = world.uploaded.get(f"{name} {version}", "2020-01-01T00:00:00Z")
        yanked = "it was wrong" if f"{name} {version}" in world.yanked else False
        files.append({**offered, "core-metadata": True, "yanked": yanked})
    return _page(name, files)


def sources_at(index: str, folder: Path, on_line: Callable[[str], None] = print) -> Sources:
    """Return the sources of downloads: this package index, and a cache in a folder."""
    web, mirrors = Http(), Mirrors({PYPI: index})
    return Sources(web, Store(folder / "sources", web, mirrors), mirrors, folder, on_line)


def resolved_at(index: str, folder: Path, **wants: Any) -> ResolvedWheels:
    """Resolve the requirements of a layer `a` for Ubuntu 24.04 with this package index."""
    layer, target = LayerRequirements("a", "1", **wants), PythonTarget((3, 12), (2, 39))
    return resolve_wheels([layer], target, sources_at(index, folder), until=None, preferred={})


def forged(text: str) -> None:
    """Write a lock that a stranger has changed, with a matching digest."""
    Path("lumiimg.lock").write_bytes(signed(text.encode()))
