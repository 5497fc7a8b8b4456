"""What is planted into a known-good image: faults, and beside each a decoy that looks like it and does no harm.

Whether it does harm depends on the image. Nothing here says so: what happens is asked of the loader (`oracle.py`).
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING

from tests.shared.elf_builder import library, rpath, runpath
from tests.shared.fabric_builder import versioned
from tests.shared.job import sources
from tests.shared.job.bases import ldconfig
from tests.shared.job.world import BY_TORCH, FABRIC_VERSIONS, PLUGIN, ROCM, World, cxi_of, fabric_of

if TYPE_CHECKING:
    from collections.abc import Callable


class NotHereError(Exception):
    """An image has nothing that this could be done to."""


def _torch(world: World) -> str:
    if world.package is None:
        raise NotHereError
    return world.package


def _prefix(world: World) -> str:
    """Return where the interpreter of the jobs lies."""
    return "/opt/conda" if world.variables["PATH"].startswith("/opt/conda") else "/usr"


def _libfabric(world: World) -> str:
    path = f"{world.ground.folder}/libfabric.so.1"
    if not world.at(path).exists():
        raise NotHereError
    return path


def _bytes(world: World, path: str) -> bytes:
    return world.at(path).read_bytes()


# -- the process: what the interpreter and its environment bring --


def stray_plugin_by_rpath(world: World) -> None:
    world.plugin(f"{_prefix(world)}/lib/{_name(world)}", apis=(4,))
    _interpreter(world, "rpath")


def stray_plugin_by_runpath(world: World) -> None:
    """A RUNPATH of the program counts for its own needs alone."""
    world.plugin(f"{_prefix(world)}/stray/{_name(world)}", apis=(4,))
    _interpreter(world, "runpath", "$ORIGIN/../lib:$ORIGIN/../stray")


def stray_libfabric_by_rpath(world: World) -> None:
    fabric_of(world.new(f"{_prefix(world)}/stray/libfabric.so.1"), None)
    _interpreter(world, "rpath", "$ORIGIN/../lib:$ORIGIN/../stray")


def stray_libfabric_by_runpath(world: World) -> None:
    fabric_of(world.new(f"{_prefix(world)}/stray/libfabric.so.1"), None)
    _interpreter(world, "runpath", "$ORIGIN/../lib:$ORIGIN/../stray")


def stray_libcxi_by_rpath(world: World) -> None:
    cxi_of(world.new(f"{_prefix(world)}/stray/libcxi.so.1"), ("LIBCXI_1.0",))
    _interpreter(world, "rpath", "$ORIGIN/../lib:$ORIGIN/../stray")


def interpreter_behind_a_link(world: World) -> None:
    """$ORIGIN of what the kernel starts is the folder of the file itself."""
    if world.program is not None:
        raise NotHereError
    world.move(f"{_prefix(world)}/bin/python{world.ground.version}", f"{_prefix(world)}/bin/real")
    world.link(f"{_prefix(world)}/bin/python{world.ground.version}", "real")


def link_to_no_interpreter_first_on_path(world: World) -> None:
    world.link("/opt/broken/bin/python", "/opt/gone/bin/python")
    world.prepend("PATH", "/opt/broken/bin")


def text_that_none_may_run_first_on_path(world: World) -> None:
    world.put("/opt/broken/bin/python", "#!/bin/sh\n", 0o644)
    world.prepend("PATH", "/opt/broken/bin")


def another_torch_by_pythonpath(world: World) -> None:
    _other_torch(world, "2.30.4")
    world.set(PYTHONPATH=world.folder_of("/opt/second"))


def another_torch_by_pth(world: World) -> None:
    """A folder of a `.pth` file comes behind the one that it is in."""
    _other_torch(world, "2.30.4")
    folder = world.folder_of(_prefix(world))
    world.put(f"{folder}/more.pth", f"# a comment\n{world.folder_of('/opt/second')}\n", 0o644)


def another_torch_that_nothing_names(world: World) -> None:
    _other_torch(world, "2.30.4")


def another_torch_by_a_venv_on_path(world: World) -> None:
    world.venv("/opt/second", _prefix(world))
    _other_torch(world, "2.30.4", make=False)
    world.jobs = (BY_TORCH,)
    world.prepend("PATH", "/opt/second/bin")


def same_torch_by_a_venv_that_sees_it(world: World) -> None:
    """With include-system-site-packages."""
    world.venv("/opt/second", _prefix(world), system=True)
    world.prepend("PATH", "/opt/second/bin")


def a_home_without_packages(world: World) -> None:
    world.python("/opt/home")
    world.set(PYTHONHOME="/opt/home")


# -- torch and RCCL --


def torch_needs_what_is_not_there(world: World) -> None:
    package = _torch(world)
    gone = library(world.parts / "libMIOpen.so.1")
    used = world.at(world.rccl_files[0])
    library(world.new(f"{package}/lib/libtorch_hip.so"), *rpath("$ORIGIN"), used, gone, source=sources.TORCH_HIP)


def file_beside_torch_needs_what_is_not_there(world: World) -> None:
    gone = library(world.parts / "libMIOpen.so.1")
    library(world.new(f"{_torch(world)}/lib/libtorch_extra.so"), *rpath("$ORIGIN"), gone)


def torch_of_cuda(world: World) -> None:
    package = _torch(world)
    cuda = library(
        world.new(f"{package}/lib/libtorch_cuda.so"), source='const char *all_reduce(void) { return "nccl"; }'
    )
    world.remove(f"{package}/lib/libtorch_hip.so")
    name = f"_C.cpython-{world.ground.version.replace('.', '')}-x86_64-linux-gnu.so"
    library(world.new(f"{package}/{name}"), *rpath("$ORIGIN/lib"), cuda, source=sources.EXTENSION)
    text = world.at(f"{package}/__init__.py").read_text().replace("libtorch_hip", "libtorch_cuda")
    world.put(f"{package}/__init__.py", text, 0o644)


def second_rccl_on_the_path(world: World) -> None:
    """It is too new for the plugin."""
    world.rccl("/opt/newer/lib/librccl.so.1", "2.30.4", world.at(f"{ROCM}/libamdhip64.so.6"), *runpath(ROCM))
    world.prepend("LD_LIBRARY_PATH", "/opt/newer/lib")


def second_rccl_off_the_path(world: World) -> None:
    world.rccl("/opt/newer/lib/librccl.so.1", "2.30.4")


def rccl_preloaded(world: World) -> None:
    world.rccl("/opt/newer/lib/librccl.so.1", "2.30.4", world.at(f"{ROCM}/libamdhip64.so.6"), *runpath(ROCM))
    world.set(LD_PRELOAD="/opt/newer/lib/librccl.so.1")


def nothing_preloaded(world: World) -> None:
    """The loader says so, and goes on."""
    world.set(LD_PRELOAD="/opt/gone/libnothing.so")


def hip_is_gone(world: World) -> None:
    folder = world.rccl_files[0].rpartition("/")[0]
    world.remove(f"{folder}/libamdhip64.so.6")


def rccl_for_another_hip(world: World) -> None:
    """It asks for a function that the HIP beside it does not have."""
    for path in world.rccl_files:
        runtime = f"{path.rpartition('/')[0]}/libamdhip64.so.6"
        library(world.new(runtime), "-Wl,-Bsymbolic", source="int hip_of_another_release;")


def conf_names_another_plugin(world: World) -> None:
    world.put("/etc/rccl.conf", "NCCL_NET_PLUGIN=gone\n", 0o644)


def conf_takes_sockets(world: World) -> None:
    world.put("/etc/rccl.conf", "NCCL_DEBUG=INFO\nNCCL_NET=Socket\n", 0o644)


def conf_of_other_things(world: World) -> None:
    world.put("/etc/rccl.conf", "#NCCL_NET=Socket\nNCCL_DEBUG=INFO\n", 0o644)


def conf_behind_a_variable(world: World) -> None:
    """What is set already stays."""
    world.put("/etc/rccl.conf", "NCCL_NET=Socket\n", 0o644)
    world.set(NCCL_NET="AWS Libfabric")


# -- the plugin --


def _name(world: World) -> str:
    return world.plugin_file.rpartition("/")[2]


def no_plugin(world: World) -> None:
    world.remove(world.plugin_file)


def plugin_off_the_path(world: World) -> None:
    world.move(world.plugin_file, f"/opt/elsewhere/{_name(world)}")


def plugin_in_a_default_folder(world: World) -> None:
    world.move(world.plugin_file, f"{world.ground.folder}/{_name(world)}")


def plugin_in_the_cache(world: World) -> None:
    world.move(world.plugin_file, f"/opt/elsewhere/{_name(world)}")
    world.put("/etc/ld.so.conf", "/opt/elsewhere\n", 0o644)
    ldconfig(world.root)


def plugin_the_cache_knew(world: World) -> None:
    """The cache says where a file was."""
    plugin_in_the_cache(world)
    world.move(f"/opt/elsewhere/{_name(world)}", f"/opt/moved/{_name(world)}")


def plugin_of_another_name(world: World) -> None:
    world.move(world.plugin_file, f"{PLUGIN}/librccl-net-ofi.so")


def plugin_behind_a_link(world: World) -> None:
    world.move(world.plugin_file, f"/opt/elsewhere/{_name(world)}.1.18.0")
    world.link(world.plugin_file, f"/opt/elsewhere/{_name(world)}.1.18.0")


def plugin_behind_a_link_to_nothing(world: World) -> None:
    world.remove(world.plugin_file)
    world.link(world.plugin_file, "/opt/cray/librccl-net.so")


def plugin_of_old_api(world: World) -> None:
    world.plugin(world.plugin_file, apis=(4,))


def plugin_of_new_api_alone(world: World) -> None:
    world.plugin(world.plugin_file, apis=(11, 10))


def plugin_of_every_api(world: World) -> None:
    world.plugin(world.plugin_file, apis=(12, 11, 10, 9, 8, 7, 6, 5, 4))


def plugin_cut_off(world: World) -> None:
    content = _bytes(world, world.plugin_file)
    world.put(world.plugin_file, content[: int(len(content) * 0.7)])


def plugin_that_is_empty(world: World) -> None:
    world.put(world.plugin_file, b"")


def plugin_that_is_a_pointer(world: World) -> None:
    world.put(world.plugin_file, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")


def plugin_for_another_machine(world: World) -> None:
    content = bytearray(_bytes(world, world.plugin_file))
    struct.pack_into("<H", content, 18, 183)
    world.put(world.plugin_file, bytes(content))


def plugin_for_another_machine_in_front(world: World) -> None:
    """The loader goes past it to the good one."""
    content = bytearray(_bytes(world, world.plugin_file))
    struct.pack_into("<H", content, 18, 183)
    world.put(f"/opt/arm/{_name(world)}", bytes(content))
    world.prepend("LD_LIBRARY_PATH", "/opt/arm")


def plugin_with_a_symbol_of_nobody(world: World) -> None:
    world.plugin(world.plugin_file, extra="int nowhere(void); int use(void) { return nowhere(); }")


def plugin_with_a_weak_symbol_of_nobody(world: World) -> None:
    world.plugin(
        world.plugin_file,
        extra="__attribute__((weak)) int nowhere(void); int use(void) { return nowhere ? nowhere() : 0; }",
    )


def plugin_with_data_of_nobody(world: World) -> None:
    world.plugin(world.plugin_file, extra="extern int nowhere; int *use = &nowhere;")


def plugin_for_a_newer_libfabric(world: World) -> None:
    world.plugin(world.plugin_file, fabric="FABRIC_1.9")


def plugin_with_a_search_path(world: World) -> None:
    """To a libfabric without cxi, before the loader's own folders."""
    fabric_of(world.new("/opt/plain/lib/libfabric.so.1"), None)
    world.plugin(world.plugin_file, *runpath("/opt/plain/lib"))


def plugin_with_a_search_path_behind(world: World) -> None:
    """LD_LIBRARY_PATH comes before a RUNPATH."""
    fabric_of(world.new("/opt/plain/lib/libfabric.so.1"), None)
    world.plugin(world.plugin_file, *runpath("/opt/plain/lib"))
    world.prepend("LD_LIBRARY_PATH", world.ground.folder)


def plugin_with_a_search_path_of_old_kind(world: World) -> None:
    """And after a DT_RPATH."""
    fabric_of(world.new("/opt/plain/lib/libfabric.so.1"), None)
    world.plugin(world.plugin_file, *rpath("/opt/plain/lib"))
    world.prepend("LD_LIBRARY_PATH", world.ground.folder)


def plugin_with_another_hip(world: World) -> None:
    world.hip(f"{ROCM}/libamdhip64.so.7")
    world.plugin(world.plugin_file, hip="libamdhip64.so.7")
    world.prepend("LD_LIBRARY_PATH", ROCM)


def plugin_with_the_same_hip(world: World) -> None:
    world.plugin(world.plugin_file, hip="libamdhip64.so.6")


def plugin_with_an_executable_stack(world: World) -> None:
    """glibc 2.41 refuses it where the stack is not executable."""
    world.plugin(world.plugin_file, "-Wl,-z,execstack")


def plugin_with_much_static_tls(world: World) -> None:
    world.plugin(
        world.plugin_file,
        "-ftls-model=initial-exec",
        extra="__thread char room[40000]; char *use(void) { return room; }",
    )


def plugin_with_some_static_tls(world: World) -> None:
    world.plugin(
        world.plugin_file,
        "-ftls-model=initial-exec",
        extra="__thread char room[64]; char *use(void) { return room; }",
    )


def plugin_for_a_newer_glibc(world: World) -> None:
    stub = versioned(world.parts / "libc.so.6", defines=("GLIBC_2.2.5", "GLIBC_2.99"))
    world.plugin(world.plugin_file, stub, extra="int s_GLIBC_2_99(void); int use(void) { return s_GLIBC_2_99(); }")


def plugin_that_is_none(world: World) -> None:
    library(world.new(world.plugin_file), source="int nothing;")


# -- libfabric and libcxi --


def no_libfabric(world: World) -> None:
    world.remove(_libfabric(world))


def libfabric_without_cxi(world: World) -> None:
    path = _libfabric(world)
    fabric_of(world.new(path), None)


def libfabric_too_old(world: World) -> None:
    path = _libfabric(world)
    fabric_of(world.new(path), world.at(f"{world.ground.folder}/libcxi.so.1"), versions=FABRIC_VERSIONS[:2])


def libfabric_cut_off(world: World) -> None:
    path = _libfabric(world)
    content = _bytes(world, path)
    world.put(path, content[: int(len(content) * 0.7)])


def no_libcxi(world: World) -> None:
    _libfabric(world)
    world.remove(f"{world.ground.folder}/libcxi.so.1")


def libcxi_too_old(world: World) -> None:
    _libfabric(world)
    cxi_of(world.new(f"{world.ground.folder}/libcxi.so.1"), ("LIBCXI_1.0", "LIBCXI_1.1"))


def libcxi_newer(world: World) -> None:
    _libfabric(world)
    cxi_of(world.new(f"{world.ground.folder}/libcxi.so.1"), tuple(f"LIBCXI_1.{minor}" for minor in range(9)))


def libfabric_in_a_folder_on_the_path(world: World) -> None:
    _libfabric(world)
    for name in ("libfabric.so.1", "libcxi.so.1"):
        world.move(f"{world.ground.folder}/{name}", f"/opt/libfabric/lib/{name}")
    world.prepend("LD_LIBRARY_PATH", "/opt/libfabric/lib")


def libfabric_in_a_folder_off_the_path(world: World) -> None:
    _libfabric(world)
    for name in ("libfabric.so.1", "libcxi.so.1"):
        world.move(f"{world.ground.folder}/{name}", f"/opt/libfabric/lib/{name}")


def _provider(world: World, folder: str, source: str = sources.PROVIDER, **details: object) -> None:
    path = _libfabric(world)
    fabric_of(world.new(path), None, default=f"{world.ground.folder}/libfabric", **details)  # type: ignore[arg-type]
    library(world.new(f"{folder}/libcxi-fi.so"), world.at(f"{world.ground.folder}/libcxi.so.1"), source=source)


def provider_where_it_is_looked_for(world: World) -> None:
    _libfabric(world)
    _provider(world, f"{world.ground.folder}/libfabric")


def provider_that_exports_nothing(world: World) -> None:
    _libfabric(world)
    _provider(world, f"{world.ground.folder}/libfabric", "int nothing;")


def provider_elsewhere(world: World) -> None:
    _libfabric(world)
    _provider(world, "/opt/providers")


def provider_elsewhere_and_named(world: World) -> None:
    _libfabric(world)
    _provider(world, "/opt/providers")
    world.set(FI_PROVIDER_PATH="/opt/providers")


def provider_where_another_folder_is_named(world: World) -> None:
    _libfabric(world)
    _provider(world, f"{world.ground.folder}/libfabric")
    world.set(FI_PROVIDER_PATH="/opt/providers")


def provider_that_the_loader_finds(world: World) -> None:
    _libfabric(world)
    _provider(world, "/opt/providers", asks_loader=True)
    world.prepend("LD_LIBRARY_PATH", "/opt/providers")


def no_rocr_by_its_development_name(world: World) -> None:
    for folder in (ROCM, PLUGIN):
        world.at(f"{folder}/libhsa-runtime64.so").unlink(missing_ok=True)


# -- variables of the image --


def takes_sockets(world: World) -> None:
    world.set(NCCL_NET="Socket")


def takes_tcp(world: World) -> None:
    world.set(FI_PROVIDER="tcp")


def takes_all_but_cxi(world: World) -> None:
    world.set(FI_PROVIDER="^cxi")


def takes_cxi(world: World) -> None:
    world.set(FI_PROVIDER="cxi", NCCL_NET="AWS Libfabric")


CHANGES: dict[str, Callable[[World], None]] = {
    name.replace("_", "-"): each
    for name, each in list(vars(sys.modules[__name__]).items())
    if callable(each)
    and getattr(each, "__module__", "") == __name__
    and not name.startswith("_")
    and not isinstance(each, type)
}
"""All of them, by name."""


def _interpreter(world: World, kind: str, search: str = "$ORIGIN/../lib") -> None:
    prefix = _prefix(world)
    if world.program is not None or not world.at(f"{prefix}/bin/python{world.ground.version}").exists():
        raise NotHereError
    world.take(f"{prefix}/bin/python{world.ground.version}", world.ground.interpreter(f"{kind}-{len(search)}", search))


def _other_torch(world: World, version: str, *, make: bool = True) -> None:
    _torch(world)
    mine, jobs, files = world.package, world.jobs, world.rccl_files
    if make:
        world.at(world.folder_of("/opt/second")).mkdir(parents=True)
    world.torch("/opt/second", "librccl.so", version)
    world.package, world.rccl_files = mine, files
    world.jobs = jobs
