"""What our client reads of a registry is what a real one stores: Debian's docker-registry on the loopback."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest
import requests

from lumiimg.errors import FailedError
from lumiimg.resolve.network.mirrors import Mirrors
from lumiimg.resolve.network.registry import SIF_LAYER, ImageManifest, parse_reference, resolve_image
from lumiimg.resolve.network.web import Web
from tests.shared.programs import patient
from tests.shared.registries import MANIFEST, push

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = pytest.mark.engine

INDEX = "application/vnd.oci.image.index.v1+json"


def resolve(address: str, name: str) -> ImageManifest:
    return resolve_image(parse_reference(name, Mirrors({"docker.io": f"http://{address}"})), Web())


def announced(address: str, name: str, media_type: str) -> str:
    """Return the digest that the registry itself names."""
    answer = requests.head(f"http://{address}/v2/{name}", headers={"Accept": media_type}, timeout=patient(30))
    answer.raise_for_status()
    return answer.headers["Docker-Content-Digest"]


def test_an_image_and_an_index_have_the_digests_that_the_registry_names(registry: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("etc"))
    layer = gzip.compress(buffer.getvalue())
    push(registry, "library/digests", "1", layer)
    image = resolve(registry, "digests:1")
    assert image.digest == announced(registry, "library/digests/manifests/1", MANIFEST)
    assert image.layers == (f"sha256:{hashlib.sha256(layer).hexdigest()}",)
    assert (image.size_bytes, image.config["architecture"]) == (len(layer), "amd64")

    size = len(
        requests.get(f"http://{registry}/v2/library/digests/manifests/{image.digest}", timeout=patient(30)).content
    )
    entry = {"mediaType": MANIFEST, "digest": image.digest, "size": size}
    listed = [entry | {"platform": {"os": "linux", "architecture": name}} for name in ("arm64", "amd64")]
    requests.put(
        f"http://{registry}/v2/library/digests/manifests/all",
        data=json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}),
        headers={"Content-Type": INDEX},
        timeout=patient(30),
    ).raise_for_status()
    chosen = resolve(registry, "docker://digests:all")
    assert chosen.index_digest == announced(registry, "library/digests/manifests/all", INDEX)
    assert chosen.digest == image.digest
    assert str(chosen.reference) == f"{registry}/library/digests@{image.digest}"
    assert resolve(registry, f"digests@{image.digest}").config == image.config
    with pytest.raises(FailedError, match="no such image or tag"):
        resolve(registry, "digests:none")


def test_a_sif_that_the_engine_pushed_is_told_from_an_image(registry: str, engine: Engine, tmp_path: Path) -> None:
    for name in ("etc", "proc", "sys", "dev", "tmp"):
        (tmp_path / "root" / name).mkdir(parents=True)
    sif = tmp_path / "x.sif"
    place = f"oras://{registry}/library/sif:1"
    commands: list[list[str | Path]] = [
        ["build", sif, tmp_path / "root"],
        ["push", "--allow-unsigned", "--no-https", sif, place],
    ]
    for argv in commands:
        done = subprocess.run([engine.path, *argv], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    found = resolve(registry, "oras://sif:1")
    assert (found.media_type, found.config) == (SIF_LAYER, {})
    assert found.layers == (f"sha256:{hashlib.sha256(sif.read_bytes()).hexdigest()}",)
    assert found.size_bytes == sif.stat().st_size
