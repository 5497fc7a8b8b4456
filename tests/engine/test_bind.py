"""What `bind` prints is what a real engine loads; and what it refuses is what a real loader refuses.

The machine is a stand-in: a folder with a real libfabric (the image's own, told to need libcxi.so.1) and a libcxi made
by gcc. What is bound into the image, and what the kernel then shows in /proc/self/maps, is real.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from lumiimg.fabric.names import PRIVATE
from lumiimg.image import open_image
from tests.engine.conftest import LIBFABRIC, built, debian_12, inside, lumiimg, standin_archive
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


@pytest.fixture(scope="module")
def older(images: Path) -> Path:
    """Debian 12: its glibc, 2.36, is older than what the machine's libraries need."""
    needs("debootstrap")
    layers = images / "layers-of-bind"
    return built(images / "older.sif", "--layers", layers, "--base", debian_12(layers))


def test_apptainer_loads_just_the_predicted_files(
    engine: Engine, with_plugin: Path, node: Path, tmp_path: Path
) -> None:
    result = lumiimg("bind", with_plugin, "--host", node, "--program", RCCLPROBE, "--json")
    assert result.code == 0, result.err
    # the image has a libnl that is good enough: only these two are of the machine
    assert sorted(bind["target"] for bind in result.data["binds"]) == [
        f"{PRIVATE}/libcxi.so.1",
        f"{PRIVATE}/libfabric.so.1",
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
    assert {path for path in mapped if path.startswith(PRIVATE)} == {
        f"{PRIVATE}/libcxi.so.1",
        f"{PRIVATE}/libfabric.so.1",
    }
    assert mapped == predicted


def test_the_check_with_the_host_probes_with_its_binds(with_plugin: Path, node: Path) -> None:
    result = lumiimg("check", with_plugin, "--host", node, "--json")
    assert result.data["path"]["libfabric"] == f"{PRIVATE}/libfabric.so.1"
    assert result.data["path"]["libcxi"] == f"{PRIVATE}/libcxi.so.1"
    assert result.data["level"] == "probe"
    plugin = next(finding for finding in result.data["findings"] if finding["id"] == "plugin.loads")
    assert (plugin["severity"], plugin["level"]) == ("ok", "probe")


def test_an_older_c_library_is_refused_as_its_own_loader_refuses_it(engine: Engine, older: Path, node: Path) -> None:
    result = lumiimg("bind", older, "--host", node, "--json")
    assert (result.code, result.data["fabric"]) == (1, "none")
    refusal = result.data["refusals"][-1]
    assert refusal["attempt"].startswith("the host's ")
    assert refusal["need"] == "GLIBC_2.38 of libc.so.6"
    assert refusal["have"].endswith("/libc.so.6 has up to GLIBC_2.36")
    assert "bundle the fabric" in unwrapped(result.err)
    # the real loader, with the same library: it stops at the same version
    folder = node.parent / "node" / "cray" / "lib64"
    words = subprocess.run(
        [engine.path, "exec", "--bind", f"{folder}:{PRIVATE}", older, "ldd", f"{PRIVATE}/libfabric.so.1"],
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


FABRIC = """\
kind = "layer"
summary = "Stand-ins of a fabric of the image's own"
status = "unproved"
source = "the tests"
date = 2026-11-24
files = ["libfabric.so.1", "libcxi.so.1"]
"""


@pytest.fixture(scope="module")
def with_fabric(with_plugin: Path, node: Path, images: Path) -> Path:
    """The image with the plugin, and over it a libfabric that needs a libcxi, and that libcxi."""
    del with_plugin  # its layers are in the cache
    layer = images / "layers-of-fabric" / "own-fabric"
    layer.mkdir(parents=True)
    (layer / "layer.toml").write_text(FABRIC)
    (layer / "post.sh").write_text('cp "$LAYER_FILES"/*.so.1 /usr/local/lib/\nldconfig\n')
    for name in ("libfabric.so.1", "libcxi.so.1"):
        shutil.copy(node.parent / "node/cray/lib64" / name, layer / name)
    source = standin_archive(images / "for-own-fabric.tar")
    stack = ("--recipe", "demo", "--add", "aws-ofi-nccl", "--source", f"aws-ofi-nccl={source}", "--add", "own-fabric")
    return built(images / "own-fabric.sif", "--layers", layer.parent, *stack)


def test_images_carry_what_they_want_of_the_machine_in_each_form(
    engine: Engine, with_plugin: Path, with_fabric: Path, node: Path, tmp_path: Path
) -> None:
    settled, beside = tmp_path / "settled.sif", tmp_path / "manifest.json"
    again = lumiimg("rebuild", with_plugin, "-o", settled, "--host", node, "--manifest", beside)
    assert again.code == 0, again.err
    expected = {
        with_plugin: ("host", "nothing", ["libfabric.so.1", "libcxi.so.1"]),
        settled: ("host", "host", ["libfabric.so.1", "libcxi.so.1"]),
        with_fabric: ("bundled", "nothing", []),
    }
    for image, (fabric, settled_by, names) in expected.items():
        shown = lumiimg("show", image, "--json").data["bind_manifest"]
        assert (shown["fabric"], shown["settled_by"], shown["basis"]) == (fabric, settled_by, "image")
        assert [library["soname"] for library in shown["libraries"]] == names
        # what the container itself has, and what the engine says of its labels
        own = inside(engine, image, "cat", "/.lumiimg/bind-manifest.json")
        assert json.loads(own)["fabric"] == fabric
    labels = subprocess.run([engine.path, "inspect", settled], capture_output=True, text=True, check=True).stdout
    assert "lumiimg.bind-manifest: /.lumiimg/bind-manifest.json" in labels
    assert beside.read_text() == inside(engine, settled, "cat", "/.lumiimg/bind-manifest.json")
    paths = {library["soname"]: library["host_path"] for library in json.loads(beside.read_text())["libraries"]}
    bound = lumiimg("bind", settled, "--host", node, "--json").data["binds"]
    assert paths == {bind["target"].rpartition("/")[2]: bind["source"] for bind in bound}
    # a job binds them without the snapshot, and nothing for the image that has its own
    job = ("--site", "lumi", "--nodes", "2", "--", "true")
    assert all(f"{path}:{PRIVATE}/{name}" in lumiimg("job", settled, *job).out for name, path in paths.items())
    assert PRIVATE not in lumiimg("job", with_fabric, *job).out
