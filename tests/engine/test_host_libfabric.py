"""A plugin compiled with the libfabric of the host, of which nothing stays in the image; the providers that it lists.

The machine is a stand-in: Debian's libfabric and its headers, as apt offers them here, changed to need a libcxi.so.1
made by gcc.
"""

from __future__ import annotations

import random
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from lumiimg.fabric.path import HOST_LIB_DIR
from lumiimg.fabric.process import allows
from lumiimg.image import open_image
from tests.engine.conftest import inside, lumiimg, standin_archive, write_layer
from tests.shared.fabric_builder import versioned
from tests.shared.programs import EVERYTHING, needs, unwrapped

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
PLUGIN = "/opt/aws-ofi-nccl/lib/librccl-net.so"
SITE = """\
title = "a stand-in for a machine with Slingshot"
source = "the tests"
date = 2026-11-21
"""

PLAIN = """\
kind = "base"
summary = "Debian 13 with its RCCL, and without any libfabric"
source = "packages of Debian 13"
date = 2026-11-21
provides = ["debian", "rccl"]
has = { glibc = "2.41", rccl = "2.13.4" }
include = ["librccl1"]

[[bootstrap]]
agent = "debootstrap"
from = "trixie"
mirror = "debian"
"""


def packages_of_libfabric() -> list[str]:
    """Return the packages of libfabric, its headers, and its dependencies except the C library, by apt here."""
    no = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    words = ["apt-cache", "depends", "--recurse", *no, "libfabric1"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names = [line for line in printed.splitlines() if re.match("[a-z]", line)]
    return ["libfabric-dev", *(name for name in names if not re.match("libc6|libgcc|gcc-", name))]


@pytest.fixture(scope="module")
def node(images: Path) -> Path:
    """The folder of a machine with libfabric, its headers and libcxi; `host.json` is its snapshot."""
    needs("patchelf", "apt-get", "dpkg", "readelf")
    folder = images / "slingshot"
    debs, library = folder / "debs", folder / "libfabric/lib64"
    debs.mkdir(parents=True)
    library.mkdir(parents=True)
    subprocess.run(["apt-get", "download", "-qq", *packages_of_libfabric()], cwd=debs, check=True)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg", "-x", deb, folder / "unpacked"], check=True)
    (folder / "unpacked/usr/include").rename(folder / "libfabric/include")
    for file in folder.glob("unpacked/**/*.so.*"):
        if file.is_file():
            (library / file.name).write_bytes(file.read_bytes())
    versioned(library / "libcxi.so.1", defines=("LIBCXI_1.5",))
    fabric = library / "libfabric.so.1"
    subprocess.run(["patchelf", "--add-needed", "libcxi.so.1", fabric], check=True)
    environment = {"LD_LIBRARY_PATH": str(library)}
    scanned = lumiimg("host", "scan", "-o", folder / "host.json", "--include", fabric, env=environment)
    assert scanned.code == 0, scanned.out
    (library / "libfabric.so").symlink_to("libfabric.so.1")
    # packed as in docs/tutorials/build-vllm.md
    named = ("--transform", "s,^lib64,lib,;s,^,libfabric/,", "-C", folder / "libfabric")
    files = ("include/rdma", "lib64/libfabric.so", "lib64/libfabric.so.1")
    subprocess.run(["tar", "-chf", folder / "host-libfabric.tar", *named, *files], check=True)
    return folder


LISTER = """
#include <rdma/fabric.h>
#include <stdio.h>
int main(void) {
    struct fi_info *info = NULL;
    fi_getinfo(FI_VERSION(1, 11), NULL, NULL, 0, NULL, &info);
    for (; info; info = info->next) puts(info->fabric_attr->prov_name);
}
"""
PROVIDERS = (
    "tcp",
    "TCP",
    "udp",
    "sockets",
    "cxi",
    "tcp;ofi_rxm",
    "ofi_rxm",
    "tc",
    "tcpx",
    " tcp",
    "tcp ",
    "^tcp",
    "",
    "^",
)


def test_fi_provider_lets_through_what_the_real_libfabric_lists(node: Path, tmp_path: Path) -> None:
    needs("gcc")
    (tmp_path / "list.c").write_text(LISTER)
    words: list[str | Path] = ["gcc", "-I", node / "libfabric/include", tmp_path / "list.c", "-o", tmp_path / "list"]
    library = node / "libfabric/lib64"
    subprocess.run([*words, library / "libfabric.so.1", "-Wl,--allow-shlib-undefined"], check=True)
    chance = random.Random("providers")  # noqa: S311 - the same lists each time
    for _ in range(2000 if EVERYTHING else 25):
        text = chance.choice(("", "", "^")) + ",".join(chance.choices(PROVIDERS, k=chance.choice((1, 1, 2, 3))))
        environment = {"LD_LIBRARY_PATH": str(library), "FI_PROVIDER": text}
        done = subprocess.run([tmp_path / "list"], env=environment, capture_output=True, text=True, check=True)
        for name in ("tcp", "udp", "sockets"):
            assert (text, name, allows(text, name)) == (text, name, name in done.stdout.splitlines())


def versions(file: Path, section: str) -> set[str]:
    """Return the libfabric versions that a library defines or needs, according to readelf."""
    printed = subprocess.run(["readelf", "-WV", file], capture_output=True, text=True, check=True).stdout
    return set(
        re.findall(r"Name: (FABRIC_[\d.]+)", printed.partition(f"Version {section} section")[2].split("\n\n")[0])
    )


def test_the_plugin_asks_for_what_the_host_has_and_nothing_of_it_stays(
    engine: Engine, node: Path, tmp_path: Path
) -> None:
    layers = write_layer(tmp_path / "layers/plain", "apt-get clean\n", PLAIN)
    (tmp_path / "somewhere.toml").write_text(SITE)
    source = standin_archive(tmp_path / "standin.tar")
    image = tmp_path / "image.sif"
    words: list[str | Path] = ["--layers", layers, "--base", "plain", "--source", f"aws-ofi-nccl={source}"]
    words += ["--site", tmp_path / "somewhere.toml", "--host", node / "host.json"]
    words += ["--source", f"host-libfabric={node / 'host-libfabric.tar'}"]
    built = lumiimg("build", *words, "-o", image)
    assert built.code == 0, built.err
    assert "compiled against the distribution" not in unwrapped(built.err)

    plugin = tmp_path / "plugin.so"
    with open_image(image) as opened:
        plugin.write_bytes(opened.root.read_bytes(PLUGIN, 64 << 20))
    assert versions(plugin, "needs")
    assert versions(plugin, "needs") <= versions(node / "libfabric/lib64/libfabric.so.1", "definition")

    # no library, no header, no archive: one note that the image needs them bound
    # (/var/tmp is the machine's own there)
    search = "find /etc /opt /usr /var -path /var/tmp -prune -o -name '*fabric*' -print 2>/dev/null; true"
    left = inside(engine, image, "sh", "-c", search)
    assert left.split() == ["/opt/aws-ofi-nccl/share/lumiimg/host-libfabric"]
    assert "libfabric.so.1 => not found" in inside(engine, image, "ldd", PLUGIN)

    exports = tmp_path / "exports.sh"
    exports.write_text(lumiimg("bind", image, "--host", node / "host.json").out)
    script = f'. "$1"; exec "$2" exec "$3" ldd {PLUGIN}'
    shown = subprocess.run(
        ["sh", "-euc", script, "sh", exports, engine.path, image], capture_output=True, text=True, check=True
    )
    assert f"libfabric.so.1 => {HOST_LIB_DIR}/libfabric.so.1" in shown.stdout
    assert "not found" not in shown.stdout
