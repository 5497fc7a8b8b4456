"""A stack that is locked and built from the lock alone: a base by its digest out of a registry, wheels with all that they require,
a plugin from its source archive.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import shipped_layers
from lumiimg.errors import ExitCode
from tests.engine.conftest import inside, lumiimg, only_from_registry, standin_archive
from tests.engine.test_registry import layer_of, mirror, push, registry

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
__all__ = ["mirror", "registry"]

WEB = """\
kind = "layer"
summary = "A Python layer of the tests: real wheels from the package index"
status = "proved"
source = "the tests"
date = 2026-11-21
requires = ["python3"]
files = ["python.sh", "packages.sh"]

[[release]]
version = "2.32.3"
wheels = ["requests==2.32.3"]
indexes = ["https://pypi.org/simple"]
status = "proved"
source = "the tests"
"""
POST = """\
layer=web
. "$LAYER_FILES/python.sh"
use_venv
install_wheels
finish_python requests
"""


def test_what_is_locked_is_what_the_image_has(
    engine: Engine, bare: Path, registry: str, mirror: str, tmp_path: Path
) -> None:
    push(registry, "library/debian", "trixie-slim", layer_of(bare))
    layers = tmp_path / "layers"
    shutil.copytree(shipped_layers() / "debian-13", layers / "debian-13")
    only_from_registry(layers / "debian-13")
    web = layers / "web"
    web.mkdir()
    (web / "layer.toml").write_text(WEB)
    (web / "post.sh").write_text(POST)
    for file in ("python.sh", "packages.sh"):
        shutil.copyfile(shipped_layers() / "pytorch" / file, web / file)
    common: list[str | Path] = ["--layers", layers, "--mirror", f"docker.io=http://{registry}"]
    common += ["--mirror", f"debian={mirror}"]
    source = standin_archive(tmp_path / "standin.tar")
    words: list[str | Path] = ["--base", "debian-13", "--add", "web", "--add", "aws-ofi-nccl"]
    locked = lumiimg("lock", *common, *words, "--source", f"aws-ofi-nccl={source}", cwd=tmp_path)
    assert locked.code == ExitCode.GOOD, locked.err
    document = tomllib.loads((tmp_path / "lumiimg.lock").read_text())
    assert document["base"]["digest"].startswith("sha256:")
    built = lumiimg("build", *common, "--locked", "-o", "image.sif", cwd=tmp_path)
    assert built.code == ExitCode.GOOD, built.err
    wanted = {package["name"]: package["version"] for package in document["python"]["packages"]}
    assert {"requests", "urllib3", "idna", "certifi", "charset-normalizer"} == wanted.keys()
    listed = inside(engine, tmp_path / "image.sif", "/opt/venv/bin/python", "-m", "pip", "list", "--format", "json")
    has = {entry["name"].lower(): entry["version"] for entry in json.loads(listed)}
    assert {name: has.get(name) for name in wanted} == wanted
    checked = lumiimg("check", tmp_path / "image.sif", "--level", "static", "--json")
    assert checked.data["path"]["plugin"] is not None
