"""Stand-ins for the libraries of a fabric and for their C library: ELF files of any version.

Only what the loader reads matches the originals: names, needs, symbol versions. Nothing in them can be run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import write_snapshot
from lumiimg.image import open_image
from tests.shared.elf_builder import library
from tests.shared.gpu_builder import fatbin_source

LOADER = "/lib64/ld-linux-x86-64.so.2"
RCCL_ALONE = 'const char banner[] = "RCCL version 2.20.5+hip6.2"; const char file[] = "librccl-net.so"; ' + "".join(
    f'const char v{n}[] = "ncclNetPlugin_v{n}";' for n in (8, 7, 6, 5)
)
RCCL_ALONE += "int ncclCommInitRank(void) { return 0; }"
RCCL = RCCL_ALONE + fatbin_source("gfx90a", "gfx942")
PLUGIN = "int ncclNetPlugin_v8;"
ROCR = 'const char rocr[] = "\\0hsa_amd_pointer_info";'
"""A string found in a libfabric that supports GPU memory and opens ROCr for it."""


# symbols of real libraries, for stand-ins that are linked with them in a real process
_REAL = {"libnl_3": "nl_socket_alloc", "GLIBC_2.14": "memcpy"}


def symbol(version: str) -> str:
    return _REAL.get(version) or re.sub(r"\W", "_", f"s_{version}")


def versioned(
    path: Path,
    *,
    soname: str | None = None,
    defines: tuple[str, ...] = (),
    needs: dict[Path, tuple[str, ...]] | None = None,
    source: str = "",
    function: str | None = None,
) -> Path:
    """Link a library that defines some versions and needs those of others; `function` is in the first it defines."""
    needs = needs or {}
    if path.name.startswith("libfabric.so"):
        source += ROCR
    for version in defines:
        source += f"int {symbol(version)}(void) {{ return 0; }}\n"
    for number, version in enumerate(v for versions in needs.values() for v in versions):
        source += f"int {symbol(version)}(void); int use_{number}(void) {{ return {symbol(version)}(); }}\n"
    arguments: list[str | Path] = [*needs, f"-Wl,-soname,{soname or path.name}"]
    if defines:
        path.parent.mkdir(parents=True, exist_ok=True)
        script = path.with_name(f"{path.name}.map")
        names = [f"{symbol(version)};" for version in defines]
        names[0] += f" {function};" if function else ""
        script.write_text(
            "\n".join(f"{version} {{ global: {name} }};" for version, name in zip(defines, names, strict=True))
        )
        arguments.append(f"-Wl,--version-script={script}")
        if source.count("ncclNetPlugin"):
            raise ValueError("a plugin has no versions")
    made = library(path, *arguments, source=source)
    path.with_name(f"{path.name}.map").unlink(missing_ok=True)
    return made


def c_library(root: Path, newest_minor: int, functions: Sequence[str] = ()) -> Path:
    """Put a loader and a libc.so.6 of glibc 2.<newest_minor> into a root; return the libc, which has the functions."""
    banner = f'const char banner[] = "GNU C Library (stand-in) stable release version 2.{newest_minor}.\\n";'
    versioned(root / LOADER[1:], source=f'{banner} const char dirs[] = "/lib64/\\0/usr/lib64/\\0";')
    versions = ("GLIBC_2.2.5", *(f"GLIBC_2.{minor}" for minor in range(14, newest_minor + 1)), "GLIBC_PRIVATE")
    defined = "".join(f"int {name}(void) {{ return 0; }}" for name in functions)
    return versioned(
        root / "lib64/libc.so.6", defines=versions, source=banner + defined, function="; ".join(functions) or None
    )


def host(root: Path, *, glibc: int = 38, needs_glibc: int | None = None, json_c: str = "libjson-c.so.5") -> Path:
    """Make the root of a node: libfabric with cxi under /opt/cray; libcxi and their dependencies in /usr/lib64."""
    libc = c_library(root, glibc)
    need = (f"GLIBC_2.{needs_glibc or glibc}",)
    usr = root / "usr/lib64"
    nl = versioned(usr / "libnl-3.so.200", defines=("libnl_3",), needs={libc: ("GLIBC_2.14",)})
    json = versioned(usr / json_c, defines=("JSONC_0.14",), needs={libc: ("GLIBC_2.14",)})
    cxi_versions = tuple(f"LIBCXI_1.{n}" for n in range(6))
    cxi = versioned(usr / "libcxi.so.1", defines=cxi_versions, needs={nl: ("libnl_3",), libc: need})
    folder = root / "opt/cray/libfabric/1.22.0/lib64"
    fabric = versioned(
        folder / "libfabric.so.1.27.0",
        soname="libfabric.so.1",
        defines=tuple(f"FABRIC_1.{n}" for n in range(8)),
        needs={cxi: ("LIBCXI_1.4",), json: ("JSONC_0.14",), libc: need},
    )
    (folder / "libfabric.so.1").symlink_to(fabric.name)
    (root / "sys/class/cxi/cxi0/device").mkdir(parents=True)
    return root


def image(root: Path, *, glibc: int = 41, fabric: str = "FABRIC_1.3", plugin: bool = True) -> Path:
    """Make the root of an image: RCCL under /opt/rocm, an OFI plugin, no libfabric."""
    libc = c_library(root, glibc)
    environment = root / ".singularity.d/env"
    environment.mkdir(parents=True)
    (environment / "99-base.sh").touch()
    (environment / "90-environment.sh").write_text("export LD_LIBRARY_PATH=/opt/rocm/lib\n")
    (root / "etc").mkdir()
    versioned(root / "opt/rocm/lib/librccl.so.1", needs={libc: ()}, source=RCCL)
    versioned(root / "opt/rocm/lib/libhsa-runtime64.so", source="int hsa_init;")
    if plugin:
        stub = versioned(root.with_name(f"{root.name}.stub") / "libfabric.so.1", defines=(fabric,))
        versioned(root / "usr/lib64/librccl-net.so", needs={stub: (fabric,), libc: ("GLIBC_2.14",)}, source=PLUGIN)
    return root


def snapshot(root: Path, *include: str, name: str | None = None, **fields: Any) -> Path:
    """Scan the root of a node and write its snapshot beside it; `fields` override those of the snapshot."""
    with open_image(root) as node:
        taken = replace(scan_host({}, root=node.root, include=[Path(path) for path in include]), **fields)
    path = root.with_name(f"{name or root.name}.json")
    write_snapshot(taken, path)
    return path


def bundled(root: Path) -> Path:
    """Make an image that contains libfabric with the cxi provider, libcxi, and an old C library."""
    image(root, glibc=35)
    libc = root / "lib64/libc.so.6"
    cxi = versioned(root / "usr/lib64/libcxi.so.1", defines=("LIBCXI_1.4",), needs={libc: ("GLIBC_2.14",)})
    versioned(
        root / "usr/lib64/libfabric.so.1", defines=("FABRIC_1.3",), needs={cxi: ("LIBCXI_1.4",), libc: ("GLIBC_2.14",)}
    )
    return root


def stand_ins(folder: Path) -> Path:
    """Write snapshots of two states of a node, `host.json` and `now.json`, and the images `fits`, `old` and `bare`."""
    for name, glibc in (("host", 38), ("now", 41)):
        node = host(folder / f"{name}-root", glibc=glibc, needs_glibc=glibc)
        snapshot(node, name=name).rename(folder / f"{name}.json")
    image(folder / "fits")
    image(folder / "old", glibc=28)
    image(folder / "bare", plugin=False)
    return folder


def rocm_image(root: Path, rocm: str, *packages: str) -> Path:
    """Write the files that show which ROCm and Python packages an image contains."""
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    (root / "opt/rocm/.info").mkdir(parents=True)
    (root / "opt/rocm/.info/version").write_text(f"{rocm}-1\n")
    for package in (f"torch-2.9.1+rocm{rocm}", *packages):
        info = root / f"opt/venv/lib/python3.12/site-packages/{package}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").touch()
    return root
