"""What `bind` prints is what a real engine loads; and what it refuses is what a real loader refuses.

The machine is a stand-in: a folder with a real libfabric (the image's own, changed to need libcxi.so.1) and a libcxi
made by gcc. What is bound into the image, and what the kernel then shows in /proc/self/maps, is real.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from lumiimg.fabric.path import HOST_LIB_DIR
from lumiimg.image import open_image
from tests.engine.conftest import LIBFABRIC, inside, lumiimg
from tests.shared.fabric_builder import versioned
from tests.shared.programs import needs, unwrapped

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

RCCLPROBE = "/opt/lumiimg/netprobe/bin/rcclprobe"


@pytest.fixture(scope="module")
def node(with_plugin: Path, images: Path) -> Path:
    """The snapshot of a machine whose libfabric needs libcxi.so.1, and GLIBC_2.38."""
    needs("patchelf")
    prefix = images / "node" / "cray" / "lib64"
    nl = versioned(images / "node" / "libnl-3.so.200", defines=("libnl_3",))
    versioned(prefix / "libcxi.so.1", defines=("LIBCXI_1.5",), needs={nl: ("libnl_3",)})
    fabric = prefix / "libfabric.so.1"
    with open_image(with_plugin) as image:
        fabric.write_bytes(image.root.read_bytes(LIBFABRIC, 64 << 20))
    subprocess.run(["patchelf", "--add-needed", "libcxi.so.1", fabric], check=True)
    snapshot = images / "node.json"
    scanned = lumiimg("host", "scan", "-o", snapshot, "--include", fabric, "--include", prefix / "libcxi.so.1")
    assert snapshot.is_file(), scanned.err
    return snapshot


def test_apptainer_loads_just_the_predicted_files(
    engine: Engine, with_plugin: Path, node: Path, tmp_path: Path
) -> None:
    result = lumiimg("bind", with_plugin, "--host", node, "--program", RCCLPROBE, "--json")
    assert result.code == 0, result.err
    # the image has a sufficient libnl: only these two come from the machine
    assert sorted(bind["target"] for bind in result.data["binds"]) == [
        f"{HOST_LIB_DIR}/libcxi.so.1",
        f"{HOST_LIB_DIR}/libfabric.so.1",
    ]
    with open_image(with_plugin) as image:
        predicted = {
            item["path"] if item["host_path"] else image.root.resolve(item["path"]) for item in result.data["loaded"]
        } - {image.root.resolve(RCCLPROBE)}
    exports = tmp_path / "exports.sh"
    exports.write_text(lumiimg("bind", with_plugin, "--host", node).out)
    script = f'. "$1"; exec "$2" exec "$3" {RCCLPROBE} "$4"'
    rccl = next(item["path"] for item in result.data["loaded"] if "librccl.so" in item["path"])
    done = subprocess.run(
        ["sh", "-euc", script, "sh", exports, engine.path, with_plugin, rccl],
        capture_output=True,
        text=True,
        check=True,
    )
    mapped = {
        unquote(line.partition("path=")[2].split()[0])
        for line in done.stdout.splitlines()
        if line.startswith("@probe mapped")
    }
    assert {path for path in mapped if path.startswith(HOST_LIB_DIR)} == {
        f"{HOST_LIB_DIR}/libcxi.so.1",
        f"{HOST_LIB_DIR}/libfabric.so.1",
    }
    assert mapped == predicted
    checked = lumiimg("check", with_plugin, "--host", node, "--json")
    assert checked.data["path"]["libfabric"] == f"{HOST_LIB_DIR}/libfabric.so.1"
    loads = next(finding for finding in checked.data["findings"] if finding["id"] == "plugin.loads")
    assert (loads["severity"], loads["level"]) == ("ok", "probe")


def test_an_older_c_library_is_refused_as_its_own_loader_refuses_it(engine: Engine, small: Path, node: Path) -> None:
    result = lumiimg("bind", small, "--host", node, "--json", "--verbose")
    assert (result.code, result.data["fabric"]) == (1, "none")
    refusal = result.data["refusals"][-1]
    assert refusal["attempt"].startswith("the host's ")
    assert refusal["need"] == "GLIBC_2.38 of libc.so.6"
    assert refusal["have"].endswith("/libc.so.6 has up to GLIBC_2.36")
    assert "start from a base with ROCm" in unwrapped(result.err)
    # the real loader, with the same library: it stops at the same version
    folder = node.parent / "node" / "cray" / "lib64"
    words = subprocess.run(
        [engine.path, "exec", "--bind", f"{folder}:{HOST_LIB_DIR}", small, "ldd", f"{HOST_LIB_DIR}/libfabric.so.1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "version `GLIBC_2.38' not found" in words.stdout + words.stderr


@pytest.mark.core
def test_ldd_says_what_ldd_in_the_container_says(engine: Engine, with_plugin: Path) -> None:
    files = ("/usr/bin/python3", "/opt/aws-ofi-nccl/lib/librccl-net.so", LIBFABRIC, RCCLPROBE)
    answer = lumiimg("ldd", with_plugin, *files, "--json")
    for file in files:
        printed = inside(engine, with_plugin, "ldd", file)
        pairs = dict(line.split(" (0x")[0].strip().split(" => ") for line in printed.splitlines() if " => " in line)
        assert "libc.so.6" in pairs
        assert pairs.items() <= answer.data["files"][file]["closure"].items()


def test_images_carry_what_they_want_of_the_machine_in_each_form(
    engine: Engine, with_plugin: Path, node: Path, tmp_path: Path
) -> None:
    rebuilt = tmp_path / "settled.sif"
    words: list[str | Path] = ["--trust-lock", "--host", node]  # its source was named by --source
    again = lumiimg("rebuild", with_plugin, "-o", rebuilt, *words)
    assert again.code == 0, again.err
    assert lumiimg("show", with_plugin, "--json").data["bind_manifest"] is None
    manifest = lumiimg("show", rebuilt, "--json").data["bind_manifest"]
    assert manifest["fabric"] == "host"
    assert [refusal["need"] for refusal in manifest["refusals"]][:1] == ["the cxi provider"]
    labels = subprocess.run([engine.path, "inspect", rebuilt], capture_output=True, text=True, check=True).stdout
    assert "lumiimg.bind-manifest: /.lumiimg/bind-manifest.json" in labels
    carried = json.loads(inside(engine, rebuilt, "cat", "/.lumiimg/bind-manifest.json"))
    bound = lumiimg("bind", rebuilt, "--host", node, "--json").data
    assert [(bind["source"], bind["target"]) for bind in carried["binds"]] == [
        (bind["source"], bind["target"]) for bind in bound["binds"]
    ]
    # a job binds them without the snapshot
    job = ("--site", "lumi", "--nodes", "2", "--", "true")
    script = lumiimg("job", rebuilt, *job).out
    assert all(f"{bind['source']}:{bind['target']}" in script for bind in bound["binds"])
