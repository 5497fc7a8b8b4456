"""`lumiimg adapt` on somebody else's image: without a plugin before, with one that the handshake finds after."""

from __future__ import annotations

import gzip
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.errors import ExitCode
from lumiimg.image import open_image
from tests.engine.conftest import lumiimg, standin_archive
from tests.shared import oci_builder
from tests.shared.layer_builder import LAYER, SITE
from tests.shared.programs import unwrapped
from tests.shared.registries import layer_of

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture(scope="module")
def theirs(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real RCCL without a plugin, as docker or podman would have saved it: an OCI layout of one layer."""
    return oci_builder.image(gzip.decompress(layer_of(bare))).write_folder(tmp_path_factory.mktemp("theirs"))


def test_an_image_of_others_gets_the_plugin_that_the_handshake_finds(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE.replace("rocm>=6.0", "rocm>=5"))
    before = lumiimg("check", theirs, "--level", "static", "--json")
    assert before.data["path"]["plugin"] is None
    source = standin_archive(tmp_path / "standin.tar")
    image = tmp_path / "adapted.sif"
    words: list[str | Path] = ["--site", tmp_path / "site.toml", "--fabric", "host", "--add", "netprobe"]
    words += ["--source", f"aws-ofi-nccl={source}", "-o", image]
    done = lumiimg("adapt", theirs, *words)
    assert done.code == ExitCode.GOOD, done.err
    assert "rccl 2.13.4" in unwrapped(done.err)
    result = lumiimg("check", image, "--json")
    severities = {entry["id"]: entry["severity"] for entry in result.data["findings"]}
    assert result.data["level"] == "probe"
    assert severities["rccl.opens-plugin"] == "ok"
    assert severities["plugin.loads"] == "ok"


def test_a_sif_in_a_registry_is_read_and_built_on_by_its_digest(
    engine: Engine, bare: Path, registry: str, tmp_path: Path
) -> None:
    note = tmp_path / "layers/note"
    note.mkdir(parents=True)
    (note / "layer.toml").write_text(f'{LAYER}requires = ["rccl"]\n')
    (note / "post.sh").write_text("echo here > /opt/note\n")
    push: list[str | Path] = ["push", "--allow-unsigned", "--no-https", bare, f"oras://{registry}/library/theirs:1"]
    done = subprocess.run([engine.path, *push], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words: list[str | Path] = ["--base", "oras://theirs:1", "--add", "note", "--layers", note.parent]
    words += ["--mirror", f"docker.io=http://{registry}"]
    locked = lumiimg("lock", *words, cwd=tmp_path)
    assert locked.code == ExitCode.GOOD, locked.err
    base = tomllib.loads((tmp_path / "lumiimg.lock").read_text())["base"]
    assert (base["agent"], base["image"]["has"]["rccl"]) == ("oras", "2.13.4")
    assert base["digest"].startswith("sha256:")
    assert base["from"].endswith(base["digest"])
    built = lumiimg("build", "--locked", "--trust-lock", *words[4:], "-o", "image.sif", cwd=tmp_path)
    assert built.code == ExitCode.GOOD, built.err
    with open_image(tmp_path / "image.sif") as image:
        assert image.root.read_bytes("/opt/note", 10) == b"here\n"
