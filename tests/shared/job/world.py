"""Images and nodes whose jobs can be run: a real Python and glibc, and stand-ins of the libraries on the way to the NIC."""

from __future__ import annotations

import os
import shutil
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.fabric.rccl import generation_of
from lumiimg.host.scan import scan_host
from lumiimg.image import open_image
from tests.shared.elf_builder import LOADER, library, rpath, runpath
from tests.shared.fabric_builder import c_library, symbol, versioned
from tests.shared.job import sources
from tests.shared.job.system import LOCALE

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot
    from tests.shared.job.system import SystemFiles

ROCM = "/opt/rocm/lib"
PLUGIN = "/opt/plugin/lib"
FABRIC_VERSIONS = tuple(f"FABRIC_1.{minor}" for minor in range(8))
CXI_VERSIONS = tuple(f"LIBCXI_1.{minor}" for minor in range(6))
OLD_GLIBC = ("GLIBC_2.14",)


@dataclass
class World:
    """An image that a job is started in."""

    root: Path
    system: SystemFiles
    parts: Path
    """A folder for what libraries are linked with and the image does not have."""
    variables: dict[str, str] = field(default_factory=dict)
    """What the image's environment scripts set."""
    program: str | None = None
    """What jobs start; None for the Python on PATH."""
    jobs: tuple[str, ...] = ()
    """What jobs do, each a program of Python that ends with the network in `network`."""
    rccl_files: tuple[str, ...] = (f"{ROCM}/librccl.so.1",)
    """Those that jobs use."""
    plugin_file: str = f"{PLUGIN}/librccl-net.so"
    package: str | None = None
    """Folder of the torch that jobs import."""

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def put(self, path: str, content: bytes | str, mode: int = 0o755) -> Path:
        """Write a file; what was there may be a hard link, and is not written to."""
        place = self.new(path)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        place.chmod(mode)
        return place

    def new(self, path: str) -> Path:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        return place

    def link(self, path: str, target: str) -> None:
        self.new(path).symlink_to(target)

    def take(self, path: str, source: Path) -> None:
        """Put a file of the system there, by a hard link."""
        os.link(source, self.new(path))

    def remove(self, *paths: str) -> None:
        for path in paths:
            self.at(path).unlink()

    def move(self, path: str, target: str) -> None:
        self.at(target).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).rename(self.at(target))

    def set(self, **variables: str) -> None:
        """Set variables in the image's environment."""
        self.variables |= variables
        lines = (f"export {name}='{value}'\n" for name, value in self.variables.items())
        self.put("/.singularity.d/env/90-environment.sh", "".join(lines))

    def prepend(self, name: str, folder: str) -> None:
        self.set(**{name: ":".join(filter(None, (folder, self.variables.get(name))))})

    # -- what is in it --

    def folder_of(self, prefix: str) -> str:
        """Return where a Python looks for packages."""
        if prefix == "/usr" and self.system.is_debian:
            return "/usr/lib/python3/dist-packages"
        return f"{prefix}/lib/python{self.system.version}/site-packages"

    def python(self, prefix: str, kind: str = "", search: str = "$ORIGIN/../lib") -> None:
        """Put an interpreter there with its standard library; `kind` is its search path's, `rpath` or `runpath`."""
        name = f"python{self.system.version}"
        self.take(f"{prefix}/bin/{name}", self.system.interpreter(kind, search))
        for link in ("python", "python3"):
            self.link(f"{prefix}/bin/{link}", name)
        library_folder = f"{prefix}/lib/{name}"
        for file in self.system.modules.rglob("*"):
            if file.is_file() and file.suffix in {".py", ".so"}:
                self.take(f"{library_folder}/{file.relative_to(self.system.modules)}", file)
        packages = self.folder_of(prefix)
        self.at(packages).mkdir(parents=True, exist_ok=True)
        if prefix != "/usr" and self.system.is_debian:
            text = f"import site\nsite.addsitedir('{packages}')\n"
            self.put(f"{library_folder}/sitecustomize.py", text, 0o644)

    def venv(self, prefix: str, home: str, *, system: bool = False) -> None:
        self.link(f"{prefix}/bin/python", f"{home}/bin/python{self.system.version}")
        shared = f"include-system-site-packages = {'true' if system else 'false'}\n"
        self.put(f"{prefix}/pyvenv.cfg", f"home = {home}/bin\n{shared}version = {self.system.version}.1\n", 0o644)
        self.at(self.folder_of(prefix)).mkdir(parents=True)

    def rocm(self, folder: str = ROCM, version: str = "2.20.5", *, hip: int = 6) -> None:
        """Put an RCCL there, with HIP and ROCr beside it, as ROCm's packages do."""
        runtime = self.hip(f"{folder}/libamdhip64.so.{hip}")
        library(self.new(f"{folder}/libhsa-runtime64.so.1"), source=sources.HSA)
        self.link(f"{folder}/libhsa-runtime64.so", "libhsa-runtime64.so.1")
        self.rccl(f"{folder}/librccl.so.1", version, runtime)
        self.link(f"{folder}/librccl.so", "librccl.so.1")

    def hip(self, path: str) -> Path:
        return library(self.new(path), "-Wl,-Bsymbolic", source=sources.HIP)

    def rccl(self, path: str, version: str, hip: Path | None = None, *arguments: str) -> Path:
        generation = generation_of(version)
        assert generation is not None
        source = sources.rccl(version, generation.files, generation.accepts, generation.naming)
        hip = hip or library(self.parts / "libamdhip64.so.6", "-Wl,-Bsymbolic", source=sources.HIP)
        return library(
            self.new(path), hip, *c_library_of(self.parts), *(arguments or runpath("$ORIGIN")), source=source
        )

    def torch(self, prefix: str, rccl: str | None = None, version: str = "2.20.5", kind: str = "rpath") -> str:
        """Put a torch there, as a wheel: with an RCCL of its own (`rccl` is its name), or with that of ROCm."""
        package = f"{self.folder_of(prefix)}/torch"
        search = (rpath if kind == "rpath" else runpath)("$ORIGIN")
        if rccl is not None:
            self.hip(f"{package}/lib/libamdhip64.so.6")
            used = self.rccl(f"{package}/lib/{rccl}", version, self.at(f"{package}/lib/libamdhip64.so.6"), *search)
        else:
            used = self.rccl_of_rocm(version)
        hip = library(self.new(f"{package}/lib/libtorch_hip.so"), *search, used, source=sources.TORCH_HIP)
        library(self.new(f"{package}/lib/libtorch_global_deps.so"), *search)
        name = f"_C.cpython-{self.system.version.replace('.', '')}-x86_64-linux-gnu.so"
        own = (rpath if kind == "rpath" else runpath)("$ORIGIN/lib")
        library(self.new(f"{package}/{name}"), *own, hip, source=sources.EXTENSION)
        self.put(f"{package}/__init__.py", TORCH, 0o644)
        self.package, self.jobs = package, (BY_TORCH,)
        if rccl is not None:
            self.rccl_files = (f"{package}/lib/{rccl}",)
        return package

    def rccl_of_rocm(self, version: str) -> Path:
        """Return an RCCL to link with, that the image has elsewhere."""
        generation = generation_of(version)
        assert generation is not None
        source = sources.rccl(version, generation.files, generation.accepts, generation.naming)
        return library(self.parts / "librccl.so.1", source=source)

    def module(self, prefix: str, name: str, text: str) -> None:
        self.put(f"{self.folder_of(prefix)}/{name}/__init__.py", text, 0o644)

    def plugin(self, path: str = f"{PLUGIN}/librccl-net.so", *arguments: str | Path, **details: object) -> Path:
        return plugin_of(self.new(path), self.parts, *arguments, **details)  # type: ignore[arg-type]

    def fabric(self, folder: str | None = None, **details: object) -> None:
        """Put a libfabric with cxi and a libcxi there."""
        folder = folder or self.system.folder
        cxi = cxi_of(self.new(f"{folder}/libcxi.so.1"))
        fabric_of(self.new(f"{folder}/libfabric.so.1"), cxi, **details)  # type: ignore[arg-type]


def plugin_of(
    path: Path,
    parts: Path,
    *arguments: str | Path,
    fabric: str = "FABRIC_1.3",
    apis: tuple[int, ...] = (8, 7, 6, 5),
    hip: str | None = None,
    extra: str = "",
) -> Path:
    """Link a net plugin on libfabric; `hip` is the runtime that it needs itself."""
    defines = tuple(dict.fromkeys(("FABRIC_1.0", fabric)))
    stub = versioned(
        parts / "libfabric.so.1", defines=defines, source="void fi_network(void) {}", function="fi_network"
    )
    source = sources.plugin(*apis, with_hip=hip is not None) + extra
    linked: list[str | Path] = [*c_library_of(parts), *arguments]
    if hip is not None:
        linked.append(library(parts / hip, "-Wl,-Bsymbolic", source=sources.HIP))
    own = symbol(fabric)
    return library(path, stub, *linked, source=f"{source}int {own}(void); int use_0(void) {{ return {own}(); }}")


def c_library_of(parts: Path) -> tuple[Path, ...]:
    """Return what to link with for needs of the C library that ask for no version; up to 2.33 dlopen was in libdl."""
    return tuple(library(parts / "any" / name, source="int nothing;") for name in ("libc.so.6", "libdl.so.2"))


def cxi_of(path: Path, versions: tuple[str, ...] = CXI_VERSIONS) -> Path:
    return versioned(path, soname="libcxi.so.1", defines=versions, source=sources.CXI, function="cxil_open_device")


def fabric_of(
    path: Path,
    cxi: Path | None,
    *needed: Path,
    versions: tuple[str, ...] = FABRIC_VERSIONS,
    wants: str = "LIBCXI_1.4",
    **source: object,
) -> Path:
    """Link a libfabric; without a libcxi, cxi is not built into it."""
    needs: dict[Path, tuple[str, ...]] = {cxi: (wants,)} if cxi is not None else {}
    needs |= dict.fromkeys(needed, ())
    text = sources.fabric(built_in=cxi is not None, **source)  # type: ignore[arg-type]
    return versioned(path, soname="libfabric.so.1", defines=versions, needs=needs, source=text, function="fi_network")


_MODULES = tomllib.loads((Path(__file__).parents[2] / "fixtures/job/modules.toml").read_text())
TORCH = _MODULES["torch"]
PROGRAM = sources.source("program")
"""A program that needs RCCL, as rccl-tests are."""
BY_TORCH = "import torch\nnetwork = torch.all_reduce()"
BY_NAME = _MODULES["by_name"].rstrip()
VLLM = _MODULES["vllm"]
BY_VLLM = "import vllm\nnetwork = vllm.all_reduce()"
JAX = _MODULES["jax"]
BY_JAX = "import jax_plugins.xla_rocm7 as it\nnetwork = it.all_reduce()"


def new_world(root: Path, system: SystemFiles) -> World:
    """Return a root with a C library and what engines put into an image."""
    parts = root.with_name(f"{root.name}.parts")
    world = World(root, system, parts)
    for path in ("usr/lib64", "usr/bin", "etc", "dev", "proc", "sys", "tmp", ".singularity.d/env"):
        (root / path).mkdir(parents=True)
    for name in ("lib", "lib64", "bin"):
        (root / name).symlink_to(f"usr/{name}")
    world.take(f"/usr/{LOADER[1:]}", system.loader)
    for file in system.libraries:
        world.take(f"{system.folder}/{file.name}", file)
    if system.folder != "/usr/lib64":
        world.link(f"{system.folder}/{Path(LOADER).name}", LOADER)
    if system.locale is not None:
        world.take(LOCALE, system.locale)
    world.put("/.singularity.d/env/99-base.sh", "", 0o755)
    world.put("/etc/os-release", "ID=debian\n", 0o644)
    world.set(PATH="/usr/bin:/bin")
    return world


@dataclass(frozen=True)
class Node:
    """What a machine has to be bound, and its snapshot."""

    name: str
    root: Path
    snapshot: Snapshot


def node(
    folder: Path,
    name: str,
    *,
    glibc: int = 38,
    needs_glibc: str = "GLIBC_2.14",
    fabric: tuple[str, ...] = FABRIC_VERSIONS,
    cxi: tuple[str, ...] = CXI_VERSIONS,
    wants: str = "LIBCXI_1.4",
) -> Node:
    """Make a node like LUMI's: libfabric under /opt/cray, libcxi and what both need in /usr/lib64."""
    root = folder / name
    libc = c_library(root, max(glibc, 99) if needs_glibc == "GLIBC_2.99" else glibc)
    usr = root / "usr/lib64"
    nl = versioned(usr / "libnl-3.so.200", defines=("libnl_3",), needs={libc: OLD_GLIBC})
    json = versioned(usr / "libjson-c.so.5", defines=("JSONC_0.14",), needs={libc: OLD_GLIBC})
    made = versioned(
        usr / "libcxi.so.1",
        defines=cxi,
        needs={nl: ("libnl_3",), libc: (needs_glibc,)},
        source=sources.CXI,
        function="cxil_open_device",
    )
    cray = root / "opt/cray/libfabric/1.22.0/lib64"
    fabric_of(cray / "libfabric.so.1.27.0", made, json, versions=fabric, wants=wants)
    (cray / "libfabric.so.1").symlink_to("libfabric.so.1.27.0")
    (root / "sys/class/cxi/cxi0/device").mkdir(parents=True)
    (root / "proc").mkdir()
    shutil.copy("/proc/cpuinfo", root / "proc")  # jobs are run here
    with open_image(root) as opened:
        return Node(name, root, scan_host({}, root=opened.root))


def clone(world: World, root: Path) -> World:
    """Return a copy whose files are hard links."""
    shutil.copytree(world.root, root, symlinks=True, copy_function=os.link)
    return replace(world, root=root, variables=dict(world.variables))
