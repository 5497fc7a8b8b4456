"""Nodes modelled on LUMI's: one with all that a scan reads, one from before the update of January 2026, one after."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.shared import fabric_builder
from tests.shared.elf_builder import LOADER, library
from tests.shared.programs import needs

LIBFABRIC = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"
ENVIRONMENT = {
    "HOME": "/users/lovelace",
    "USER": "lovelace",
    "LD_LIBRARY_PATH": "/opt/cray/libfabric/1.22.0/lib64:/users/lovelace/lib:/scratch/p/lovelace/lib",
}
_ANY = "int f;"
_LIBC = "int f225; int f238;"
_VERSIONS = "GLIBC_2.2.5 { f225; };\nGLIBC_2.38 { f238; } GLIBC_2.2.5;\n"


def ldconfig(root: Path) -> None:
    needs("ldconfig")
    argv = ["ldconfig", "-r", str(root)]
    own = argv if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", *argv]
    subprocess.run(own, check=True, capture_output=True)


def put_files(root: Path, files: Mapping[str, str]) -> None:
    """Write texts to their paths below a root."""
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def make_host(root: Path) -> Path:
    """Build the root of a node modelled on LUMI's: files with the right names and needs, but without real code."""
    if not Path(LOADER).exists():
        needs(LOADER)
    (root / "lib64").mkdir(parents=True)
    shutil.copy(LOADER, root / "lib64")
    put_files(root, {"/versions": _VERSIONS})
    system = root / "usr/lib64"
    libc = library(system / "libc.so.6", f"-Wl,--version-script,{root}/versions", source=_LIBC)
    (root / "versions").unlink()
    nl = library(system / "libnl-3.so.200.26.0", "-Wl,-soname,libnl-3.so.200", source=_ANY)
    json_c, curl = (library(system / name, source=_ANY) for name in ("libjson-c.so.5", "libcurl.so.4"))
    cxi = library(system / "libcxi.so.1.5.0", "-Wl,-soname,libcxi.so.1", nl, libc, source=_ANY)
    for version, file in (("1.15.2.0", "1.18.2"), ("1.22.0", "1.27.0")):
        folder = root / f"opt/cray/libfabric/{version}/lib64"
        source = "extern int f238; int *p = &f238;"
        soname = "-Wl,-soname,libfabric.so.1"
        fabric = library(folder / f"libfabric.so.{file}", soname, cxi, curl, json_c, libc, source=source)
        (folder / "libfabric.so.1").symlink_to(fabric.name)
    library(root / "opt/cray/libfabric/1.22.0/lib64/libfabric/libtcp-fi.so", libc, source=_ANY)
    plugin = "int ncclNetPlugin_v8; int ncclNetPlugin_v9; int ncclNetwork;"
    library(root / "opt/aws-ofi-rccl/lib/librccl-net.so", fabric, libc, source=plugin)
    (root / "opt/aws-ofi-rccl/lib/libnccl-net.so").symlink_to("librccl-net.so")
    library(root / "opt/cray/xpmem/2.9.6/lib64/libxpmem.so.0", libc, source=_ANY)
    (root / "etc").mkdir()
    put_files(root, {"/etc/ld.so.conf": "/usr/lib64\n"})
    ldconfig(root)  # also creates the soname links
    put_files(root, NODES["whole"])
    (root / "opt/rocm").symlink_to("rocm-6.3.4")
    for name, target in (("cxi/cxi0", "cxi/cxi0"), ("net/hsn0", "net/hsn0")):
        link = root / f"sys/class/{name}"
        link.parent.mkdir(parents=True)
        link.symlink_to(f"../../devices/pci0000:20/0000:21:00.0/{target}")
        (root / f"sys/devices/pci0000:20/0000:21:00.0/{target}/device").symlink_to("../..")
    return root


NODES: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parents[1] / "fixtures/nodes.toml").read_text())
KERNEL = "6.4.0-150600.23.73_15.0.14-cray_shasta_c"


def november(root: Path) -> Path:
    """Make a node from before the update."""
    fabric_builder.host(root, glibc=31, needs_glibc=14, json_c="libjson-c.so.3")
    (root / "opt/cray/libfabric/1.22.0").rename(root / "opt/cray/libfabric/1.15.2.0")
    put_files(root, NODES["november"])
    return root


def january(root: Path) -> Path:
    """Make a node of the same kind from after the update."""
    fabric_builder.host(root, glibc=38)
    put_files(root, NODES["january"])
    return root


# the CPU mask of rank i, for GPU i; source: LUMI AI workshop 09_Extreme_scale_AI and lumi-containers
LUMI_MASKS = (
    0x00FE000000000000,
    0xFE00000000000000,
    0x0000000000FE0000,
    0x00000000FE000000,
    0x00000000000000FE,
    0x000000000000FE00,
    0x000000FE00000000,
    0x0000FE0000000000,
)
