"""Known-good images: each way in which a job comes to its RCCL, with a fabric of its own or with that of a node."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.shared.elf_builder import library, program, runpath
from tests.shared.job import sources
from tests.shared.job.world import (
    BY_JAX,
    BY_NAME,
    BY_TORCH,
    BY_VLLM,
    JAX,
    PLUGIN,
    PROGRAM,
    ROCM,
    VLLM,
    World,
    fabric_of,
    new_world,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.shared.job.system import SystemFiles

SEARCH = f"{ROCM}:{PLUGIN}"
OLD_RCCL, NEW_RCCL = "2.13.4", "2.27.7"


def by_name(world: World) -> None:
    """A program of Python that opens RCCL by its name."""
    world.python("/usr")
    world.rocm()
    world.plugin()
    world.jobs = (BY_NAME,)
    world.set(LD_LIBRARY_PATH=SEARCH)


def torch_of_rocm(world: World) -> None:
    by_name(world)
    world.torch("/usr")


def torch_with_rccl(world: World) -> None:
    """A wheel with DT_RPATH, as PyTorch's."""
    by_name(world)
    world.torch("/usr", "librccl.so", "2.21.5")


def torch_with_runpath(world: World) -> None:
    by_name(world)
    world.torch("/usr", "librccl.so", "2.21.5", kind="runpath")


def torch_mangled(world: World) -> None:
    by_name(world)
    world.torch("/usr", "librccl-1a2b3c4d.so.1", "2.21.5")


def in_a_venv(world: World) -> None:
    by_name(world)
    world.venv("/opt/venv", "/usr")
    world.torch("/opt/venv", "librccl.so", "2.21.5")
    world.prepend("PATH", "/opt/venv/bin")


def two_venvs(world: World) -> None:
    """The one on PATH counts; the other's RCCL is too new for the plugin."""
    by_name(world)
    for name, version in (("other", "2.30.4"), ("mine", "2.21.5")):
        world.venv(f"/opt/{name}", "/usr")
        world.torch(f"/opt/{name}", "librccl.so", version)
    world.prepend("PATH", "/opt/mine/bin")


def conda(world: World) -> None:
    """The plugin is found by the DT_RPATH of the interpreter alone."""
    world.python("/opt/conda", "rpath")
    world.rocm()
    world.torch("/opt/conda", "librccl.so", "2.21.5")
    world.plugin_file = "/opt/conda/lib/librccl-net.so"
    world.plugin(world.plugin_file)
    world.set(PATH="/opt/conda/bin:/usr/bin", LD_LIBRARY_PATH=ROCM)


def conda_below_path(world: World) -> None:
    """A conda that is there, and its Python not the one on PATH."""
    torch_with_rccl(world)
    world.python("/opt/conda", "rpath")
    world.plugin("/opt/conda/lib/librccl-net.so", apis=(4,))


_DISTRIBUTION = """\
PackageEntry("libraries", "rocm-sdk-libraries-{target_family}", pure_py_package_name="rocm_sdk_libraries")
LibraryEntry("amdhip64", "libraries", "libamdhip64.so*", "amdhip64*.dll")
LibraryEntry("rccl", "libraries", "librccl.so*", "")
DEFAULT_TARGET_FAMILY = "gfx90a"
AVAILABLE_TARGET_FAMILIES = ["gfx90a"]
"""


def wheels_of_therock(world: World) -> None:
    by_name(world)
    package = world.torch("/usr")
    folder = world.folder_of("/usr")
    sdk = f"{folder}/_rocm_sdk_libraries_gfx90a/lib"
    world.hip(f"{sdk}/libamdhip64.so.6")
    world.rccl(f"{sdk}/librccl.so.1", "2.26.6", world.at(f"{sdk}/libamdhip64.so.6"))
    world.module(
        "/usr",
        "rocm_sdk",
        "import ctypes, os\n"
        f"FOLDERS = ['{sdk}']\n"
        "def initialize_process(*, preload_shortnames):\n"
        "    for name in preload_shortnames:\n"
        "        for folder in FOLDERS:\n"
        "            files = [file for file in sorted(os.listdir(folder)) if file.startswith(f'lib{name}.so')]\n"
        "            if not files:\n"
        "                raise FileNotFoundError(name)\n"
        "            ctypes.CDLL(os.path.join(folder, files[0]), mode=ctypes.RTLD_GLOBAL)\n",
    )
    world.put(f"{folder}/rocm_sdk/_dist_info.py", _DISTRIBUTION, 0o644)
    world.put(
        f"{package}/_rocm_init.py",
        "def initialize():\n    import rocm_sdk\n    rocm_sdk.initialize_process(preload_shortnames=['amdhip64', 'rccl'])\n",
        0o644,
    )
    world.rccl_files = (f"{sdk}/librccl.so.1",)


def jax(world: World) -> None:
    """AMD's plugin of JAX finds ROCm by a RUNPATH of its own."""
    by_name(world)
    path = f"{world.folder_of('/usr')}/jax_plugins/xla_rocm7/xla_rocm_plugin.so"
    used = world.rccl_of_rocm("2.20.5")
    library(world.new(path), *runpath(ROCM), used, source=sources.TORCH_HIP)
    world.module("/usr", "jax_plugins", "")
    world.module("/usr", "jax_plugins/xla_rocm7", JAX)
    world.link(f"{PLUGIN}/libhsa-runtime64.so", f"{ROCM}/libhsa-runtime64.so.1")
    world.jobs = (BY_JAX,)
    world.set(LD_LIBRARY_PATH=PLUGIN)


def vllm(world: World) -> None:
    """It opens the RCCL that a variable names."""
    torch_with_rccl(world)
    world.set(VLLM_NCCL_SO_PATH=world.rccl_files[0])
    world.module("/usr", "vllm", VLLM)
    world.jobs = (BY_TORCH, BY_VLLM)


def old_rccl(world: World) -> None:
    by_name(world)
    world.rocm(version=OLD_RCCL)


def new_rccl(world: World) -> None:
    """It looks for the plugin of NCCL's name."""
    by_name(world)
    world.rocm(version=NEW_RCCL)
    world.remove(world.plugin_file)
    world.plugin_file = f"{PLUGIN}/libnccl-net.so"
    world.plugin(world.plugin_file)


def rccl_with_runpath(world: World) -> None:
    """RCCL's own RUNPATH finds the plugin, and no variable is needed."""
    by_name(world)
    world.rccl(
        f"{ROCM}/librccl.so.1", "2.20.5", world.at(f"{ROCM}/libamdhip64.so.6"), *runpath("$ORIGIN:/opt/plugin/lib")
    )
    world.set(LD_LIBRARY_PATH=ROCM)


def in_the_cache(world: World) -> None:
    """Nothing is set: ldconfig knows the folders."""
    torch_of_rocm(world)
    world.set(LD_LIBRARY_PATH="")
    world.put("/etc/ld.so.conf", f"{ROCM}\n{PLUGIN}\n", 0o644)
    ldconfig(world.root)


def a_program(world: World) -> None:
    """What jobs start is named, as rccl-tests."""
    by_name(world)
    world.program = "/opt/tests/all_reduce_perf"
    program(
        world.new(world.program),
        world.at(f"{ROCM}/librccl.so.1"),
        world.at(f"{world.system.folder}/libc.so.6"),
        *runpath(ROCM),
        source=PROGRAM,
    )
    world.link(f"{PLUGIN}/libhsa-runtime64.so", f"{ROCM}/libhsa-runtime64.so.1")
    world.jobs = ("",)
    world.set(LD_LIBRARY_PATH=PLUGIN)


def provider_in_a_file(world: World) -> None:
    torch_with_rccl(world)
    folder = world.system.folder
    world.remove(f"{folder}/libfabric.so.1")
    fabric_of(world.new(f"{folder}/libfabric.so.1"), None, default=f"{folder}/libfabric")
    library(world.new(f"{folder}/libfabric/libcxi-fi.so"), world.at(f"{folder}/libcxi.so.1"), source=sources.PROVIDER)


def ldconfig(root: Path) -> None:
    subprocess.run(
        ["unshare", "--user", "--map-root-user", "/sbin/ldconfig", "-r", str(root)], check=True, capture_output=True
    )


BASES: dict[str, Callable[[World], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        *(by_name, torch_of_rocm, torch_with_rccl, torch_with_runpath, torch_mangled, in_a_venv, two_venvs, conda),
        *(
            conda_below_path,
            wheels_of_therock,
            jax,
            vllm,
            old_rccl,
            new_rccl,
            rccl_with_runpath,
            in_the_cache,
            a_program,
        ),
        provider_in_a_file,
    )
}


def make(name: str, root: Path, system: SystemFiles, *, bundled: bool = True) -> World:
    """Return a known-good image; `bundled`: with a fabric of its own, else it needs a node's."""
    world = new_world(root, system)
    world.fabric()
    BASES[name](world)
    if not bundled:
        drop_fabric(world)
    return world


def drop_fabric(world: World) -> None:
    for name in ("libfabric.so.1", "libcxi.so.1", "libfabric/libcxi-fi.so"):
        world.at(f"{world.system.folder}/{name}").unlink(missing_ok=True)
