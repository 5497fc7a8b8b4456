"""`drift` tells of a list of binds what a real engine makes of it after an update of the machine.

The machine is a stand-in as in test_bind.py: a real libfabric, told to need a libcxi that gcc made, both of which change,
and ROCr, as the libfabric of a Slingshot with AMD's GPUs does.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from lumiimg.image import open_image
from tests.engine.conftest import LIBFABRIC, lumiimg
from tests.shared.fabric_builder import versioned
from tests.shared.programs import needs

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


def update(root: Path, version: str, with_plugin: Path, source: str = "int one;") -> list[str | Path]:
    """Put a release of the fabric on the machine in the place of all others; return what a scan is told."""
    needs("patchelf")
    shutil.rmtree(root, ignore_errors=True)
    prefix = root / version / "lib64"
    versioned(prefix / "libcxi.so.1", defines=("LIBCXI_1.5",), source=source)
    with open_image(with_plugin) as image:
        (prefix / "libfabric.so.1").write_bytes(image.root.read_bytes(LIBFABRIC, 64 << 20))
    for needed in ("libcxi.so.1", "libhsa-runtime64.so.1"):
        subprocess.run(["patchelf", "--add-needed", needed, prefix / "libfabric.so.1"], check=True)
    return ["--include", prefix / "libfabric.so.1", "--include", prefix / "libcxi.so.1"]


def starts(engine: Engine, image: Path, exports: str) -> subprocess.CompletedProcess[str]:
    """Start a container as a job script does that has this list of binds."""
    argv: list[str | Path] = [
        "sh",
        "-euc",
        f'{exports}\nexec "$0" exec "$1" cat /opt/lumiimg/host/libcxi.so.1',
        engine.path,
        image,
    ]
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)


def test_binds_that_an_update_leaves_behind_end_a_real_engine_and_those_made_anew_do_not(
    engine: Engine, with_plugin: Path, tmp_path: Path
) -> None:
    before, now, root = tmp_path / "before.json", tmp_path / "now.json", tmp_path / "libfabric"
    lumiimg("host", "scan", "-o", before, *update(root, "1.15.2.0", with_plugin))
    saved = lumiimg("bind", with_plugin, "--host", before).out
    assert starts(engine, with_plugin, saved).returncode == 0

    # another build at the same place: this machine is read, and the list holds
    update(root, "1.15.2.0", with_plugin, "int two; int three;")
    rebuilt = lumiimg("drift", before, "--image", with_plugin, "--json")
    assert (rebuilt.code, rebuilt.data["images"][0]["fate"]) == (0, "fine"), rebuilt.err
    assert {change["what"]: change["kind"] for change in rebuilt.data["changes"]} == {"libcxi.so.1": "rebuilt"}
    assert starts(engine, with_plugin, saved).returncode == 0

    # another release: the files that the list names are gone
    lumiimg("host", "scan", "-o", now, *update(root, "1.22.0", with_plugin))
    moved = lumiimg("drift", before, now, "--image", with_plugin, "--json")
    assert (moved.code, moved.data["images"][0]["fate"]) == (1, "stale-binds"), moved.err
    assert all("/1.15.2.0/" in path for path in moved.data["images"][0]["saved_binds"]["gone"])
    refused = starts(engine, with_plugin, saved)
    assert refused.returncode != 0
    assert "libfabric.so.1" in refused.stderr + refused.stdout
    assert starts(engine, with_plugin, lumiimg("bind", with_plugin, "--host", now).out).returncode == 0
