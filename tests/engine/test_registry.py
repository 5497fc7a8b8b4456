"""A base from a registry: Debian's own docker-registry on the loopback, and an image that these tests make and push."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING

import pytest
import requests

from lumiimg.catalog.folders import shipped_layers
from lumiimg.engine.engine import Engine, build
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import ExitCode
from lumiimg.image import FileKind, open_image
from lumiimg.resolve.network.mirrors import apt_mirror
from tests.engine.conftest import built, lumiimg, only_from_registry
from tests.shared.programs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture(scope="module")
def mirror() -> str:
    found = apt_mirror("debian")
    if found is None:
        pytest.skip("this machine's apt sources name no Debian mirror")
    return found


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty registry, without TLS."""
    needs("docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder / "data", port=port))
    address = f"127.0.0.1:{port}"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log) as server,
    ):
        deadline = time.monotonic() + 20
        while True:
            try:
                requests.get(f"http://{address}/v2/", timeout=1).raise_for_status()
                break
            except requests.RequestException:
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
        yield address
        server.terminate()


def push(address: str, name: str, tag: str, layer: bytes) -> None:
    """Push a one-layer image (OCI distribution specification)."""
    base = f"http://{address}/v2/{name}"

    def blob(data: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        place = requests.post(f"{base}/blobs/uploads/", timeout=30).headers["Location"]
        requests.put(place, params={"digest": digest}, data=data, timeout=300).raise_for_status()
        return {"digest": digest, "size": len(data)}

    diff_id = f"sha256:{hashlib.sha256(gzip.decompress(layer)).hexdigest()}"
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff_id]}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(json.dumps(config).encode())},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **blob(layer)}],
    }
    headers = {"Content-Type": MANIFEST}
    data = json.dumps(manifest)
    requests.put(f"{base}/manifests/{tag}", data=data, headers=headers, timeout=30).raise_for_status()


def layer_of(image: Path) -> bytes:
    """Return the files of an image as a layer, read by our own reader."""
    buffer = io.BytesIO()
    with open_image(image) as opened, tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, kind in opened.root.walk():
            if path.startswith(("/.", "/dev/", "/proc/", "/sys/")) or path in {"/singularity", "/environment"}:
                continue  # the engine's own
            stat = opened.root.stat(path, follow=False)
            info = tarfile.TarInfo(path[1:])
            info.mode, info.uid, info.gid, info.mtime = stat.permissions, stat.uid, stat.gid, stat.mtime_s
            data = b""
            if kind is FileKind.DIRECTORY:
                info.type = tarfile.DIRTYPE
            elif kind is FileKind.SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, opened.root.readlink(path)
            elif kind is FileKind.FILE:
                data = opened.root.read_bytes(path, 1 << 30)
                info.size = len(data)
            else:
                continue
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), 1, mtime=0)


@pytest.fixture(scope="module")
def slim(engine: Engine, mirror: str, images: Path) -> bytes:
    """A small Debian 13, as `debian:trixie-slim` is: no RCCL, no certificates."""
    with scratch_folder(images / "slim-work") as folder:
        definition = folder / "slim.def"
        definition.write_text(f"Bootstrap: debootstrap\nOSVersion: trixie\nMirrorURL: {mirror}\n")
        done = build(engine, definition, images / "slim.sif", environment=os.environ, scratch=folder)
        assert done.ok, done.output[-2000:]
    return layer_of(images / "slim.sif")


def test_debian_13_comes_from_a_registry_where_debootstrap_is_not_to_be_had(
    registry: str, mirror: str, slim: bytes, images: Path, tmp_path: Path
) -> None:
    push(registry, "library/debian", "trixie-slim", slim)
    # A base of the user's: the shipped one without its debootstrap, as if this machine had none.
    base = tmp_path / "layers" / "debian-13"
    shutil.copytree(shipped_layers() / "debian-13", base)
    only_from_registry(base)
    argv: list[str | Path] = ["--layers", tmp_path / "layers", "--base", "debian-13"]
    mirrors = ["--mirror", f"docker.io=http://{registry}", "--mirror", f"debian={mirror}"]
    image = built(images / "from-registry.sif", *argv, *mirrors)
    result = lumiimg("check", image, "--level", "static", "--json")
    assert result.code == ExitCode.NO
    assert result.data["path"]["rccl_version"] == "2.13.4"


def test_a_registry_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    layer = tmp_path / "layers" / "base"
    layer.mkdir(parents=True)
    (layer / "layer.toml").write_text(
        'kind = "base"\nsummary = "x"\nstatus = "unproved"\nsource = "x"\ndate = 2026-11-21\n'
        '[[bootstrap]]\nagent = "docker"\nfrom = "busybox"\n'
    )
    (layer / "post.sh").write_text("true\n")
    argv: list[str | Path] = ["build", "--layers", tmp_path / "layers", "--base", "base", "-o", tmp_path / "x.sif"]
    result = lumiimg(*argv, "--mirror", "docker.io=http://127.0.0.1:9")
    assert result.code == ExitCode.NO
    assert "the registry did not give the image" in result.err.strip().splitlines()[-1]
    assert not (tmp_path / "x.sif").exists()
