"""`lumiimg adapt` on a foreign image: without a plugin before, with one that the handshake finds afterwards."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.errors import ExitCode
from tests.engine.conftest import lumiimg, standin_archive
from tests.shared import oci_builder
from tests.shared.layer_builder import SITE
from tests.shared.programs import unwrapped
from tests.shared.registries import layer_of

if TYPE_CHECKING:
    from pathlib import Path


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
