"""What is planted into a known-good image: faults, and beside each a decoy that looks like it and does no harm.

Whether it does harm depends on the image. Nothing here says so: what happens is asked of the loader (`oracle.py`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tests.shared.elf_builder import library, rpath, runpath
from tests.shared.fabric_builder import versioned
from tests.shared.job import sources
from tests.shared.job.bases import ldconfig
from tests.shared.job.world import BY_TORCH, FABRIC_VERSIONS, PLUGIN, ROCM, World, cxi_of, fabric_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[World], object]


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
    path = f"{world.system.folder}/libfabric.so.1"
    if not world.at(path).exists():
        raise NotHereError
    return path


def _bytes(world: World, path: str) -> bytes:
    return world.at(path).read_bytes()


# -- kinds of changes; what they make has the name that it is given below --


def _do(change: Change) -> Change:
    return change


def _setting(**variables: str) -> Change:
    return lambda world: world.set(**variables)


def _conf(text: str) -> Change:
    return lambda world: world.put("/etc/rccl.conf", f"{text}\n", 0o644)


def _plugin(*arguments: str, **details: object) -> Change:
    return lambda world: world.plugin(world.plugin_file, *arguments, **details)


def _plugin_of(content: str) -> Change:
    return lambda world: world.put(world.plugin_file, content)


def _provider(
    folder: str = "", source: str = sources.PROVIDER, *, asks_loader: bool = False, **variables: str
) -> Change:
    """Put cxi into a file of its own, in libfabric's own folder or in another one."""

    def plant(world: World) -> None:
        path, default = _libfabric(world), f"{world.system.folder}/libfabric"
        fabric_of(world.new(path), None, default=default, asks_loader=asks_loader)
        cxi = world.at(f"{world.system.folder}/libcxi.so.1")
        library(world.new(f"{folder or default}/libcxi-fi.so"), cxi, source=source)
        if variables:
            world.set(**variables)

    return plant


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
    world.move(f"{_prefix(world)}/bin/python{world.system.version}", f"{_prefix(world)}/bin/real")
    world.link(f"{_prefix(world)}/bin/python{world.system.version}", "real")


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


another_torch_that_nothing_names = _do(lambda world: _other_torch(world, "2.30.4"))


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
    name = f"_C.cpython-{world.system.version.replace('.', '')}-x86_64-linux-gnu.so"
    library(world.new(f"{package}/{name}"), *rpath("$ORIGIN/lib"), cuda, source=sources.EXTENSION)
    text = world.at(f"{package}/__init__.py").read_text().replace("libtorch_hip", "libtorch_cuda")
    world.put(f"{package}/__init__.py", text, 0o644)


def second_rccl_on_the_path(world: World) -> None:
    """It is too new for the plugin."""
    world.rccl("/opt/newer/lib/librccl.so.1", "2.30.4", world.at(f"{ROCM}/libamdhip64.so.6"), *runpath(ROCM))
    world.prepend("LD_LIBRARY_PATH", "/opt/newer/lib")


second_rccl_off_the_path = _do(lambda world: world.rccl("/opt/newer/lib/librccl.so.1", "2.30.4"))


def rccl_preloaded(world: World) -> None:
    world.rccl("/opt/newer/lib/librccl.so.1", "2.30.4", world.at(f"{ROCM}/libamdhip64.so.6"), *runpath(ROCM))
    world.set(LD_PRELOAD="/opt/newer/lib/librccl.so.1")


# the loader says so, and goes on
nothing_preloaded = _setting(LD_PRELOAD="/opt/gone/libnothing.so")


def hip_is_gone(world: World) -> None:
    folder = world.rccl_files[0].rpartition("/")[0]
    world.remove(f"{folder}/libamdhip64.so.6")


def rccl_for_another_hip(world: World) -> None:
    """It asks for a function that the HIP beside it does not have."""
    for path in world.rccl_files:
        runtime = f"{path.rpartition('/')[0]}/libamdhip64.so.6"
        library(world.new(runtime), "-Wl,-Bsymbolic", source="int hip_of_another_release;")


conf_names_another_plugin = _conf("NCCL_NET_PLUGIN=gone")
conf_takes_sockets = _conf("NCCL_DEBUG=INFO\nNCCL_NET=Socket")
conf_of_other_things = _conf("#NCCL_NET=Socket\nNCCL_DEBUG=INFO")


def conf_behind_a_variable(world: World) -> None:
    """What is set already stays."""
    world.put("/etc/rccl.conf", "NCCL_NET=Socket\n", 0o644)
    world.set(NCCL_NET="AWS Libfabric")


# -- the plugin --


def _name(world: World) -> str:
    return world.plugin_file.rpartition("/")[2]


no_plugin = _do(lambda world: world.remove(world.plugin_file))
plugin_off_the_path = _do(lambda world: world.move(world.plugin_file, f"/opt/elsewhere/{_name(world)}"))
plugin_in_a_default_folder = _do(lambda world: world.move(world.plugin_file, f"{world.system.folder}/{_name(world)}"))


def plugin_in_the_cache(world: World) -> None:
    world.move(world.plugin_file, f"/opt/elsewhere/{_name(world)}")
    world.put("/etc/ld.so.conf", "/opt/elsewhere\n", 0o644)
    ldconfig(world.root)


def plugin_the_cache_knew(world: World) -> None:
    """The cache says where a file was."""
    plugin_in_the_cache(world)
    world.move(f"/opt/elsewhere/{_name(world)}", f"/opt/moved/{_name(world)}")


plugin_of_another_name = _do(lambda world: world.move(world.plugin_file, f"{PLUGIN}/librccl-net-ofi.so"))


def plugin_behind_a_link(world: World) -> None:
    world.move(world.plugin_file, f"/opt/elsewhere/{_name(world)}.1.18.0")
    world.link(world.plugin_file, f"/opt/elsewhere/{_name(world)}.1.18.0")


def plugin_behind_a_link_to_nothing(world: World) -> None:
    world.remove(world.plugin_file)
    world.link(world.plugin_file, "/opt/cray/librccl-net.so")


plugin_of_old_api = _plugin(apis=(4,))
plugin_of_new_api_alone = _plugin(apis=(11, 10))
plugin_of_every_api = _plugin(apis=(12, 11, 10, 9, 8, 7, 6, 5, 4))


def plugin_cut_off(world: World) -> None:
    content = _bytes(world, world.plugin_file)
    world.put(world.plugin_file, content[: int(len(content) * 0.7)])


plugin_that_is_empty = _plugin_of("")
plugin_that_is_a_pointer = _plugin_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")


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


plugin_with_a_symbol_of_nobody = _plugin(extra="int nowhere(void); int use(void) { return nowhere(); }")
plugin_with_a_weak_symbol_of_nobody = _plugin(
    extra="__attribute__((weak)) int nowhere(void); int use(void) { return nowhere ? nowhere() : 0; }"
)
plugin_with_data_of_nobody = _plugin(extra="extern int nowhere; int *use = &nowhere;")
plugin_for_a_newer_libfabric = _plugin(fabric="FABRIC_1.9")


def plugin_with_a_search_path(world: World) -> None:
    """To a libfabric without cxi, before the loader's own folders."""
    fabric_of(world.new("/opt/plain/lib/libfabric.so.1"), None)
    world.plugin(world.plugin_file, *runpath("/opt/plain/lib"))


def plugin_with_a_search_path_behind(world: World) -> None:
    """LD_LIBRARY_PATH comes before a RUNPATH."""
    fabric_of(world.new("/opt/plain/lib/libfabric.so.1"), None)
    world.plugin(world.plugin_file, *runpath("/opt/plain/lib"))
    world.prepend("LD_LIBRARY_PATH", world.system.folder)


def plugin_with_a_search_path_of_old_kind(world: World) -> None:
    """And after a DT_RPATH."""
    fabric_of(world.new("/opt/plain/lib/libfabric.so.1"), None)
    world.plugin(world.plugin_file, *rpath("/opt/plain/lib"))
    world.prepend("LD_LIBRARY_PATH", world.system.folder)


def plugin_with_another_hip(world: World) -> None:
    world.hip(f"{ROCM}/libamdhip64.so.7")
    world.plugin(world.plugin_file, hip="libamdhip64.so.7")
    world.prepend("LD_LIBRARY_PATH", ROCM)


plugin_with_the_same_hip = _plugin(hip="libamdhip64.so.6")
# glibc 2.41 refuses it where the stack is not executable
plugin_with_an_executable_stack = _plugin("-Wl,-z,execstack")
plugin_with_much_static_tls = _plugin(
    "-ftls-model=initial-exec", extra="__thread char room[40000]; char *use(void) { return room; }"
)
plugin_with_some_static_tls = _plugin(
    "-ftls-model=initial-exec", extra="__thread char room[64]; char *use(void) { return room; }"
)


def plugin_for_a_newer_glibc(world: World) -> None:
    stub = versioned(world.parts / "libc.so.6", defines=("GLIBC_2.2.5", "GLIBC_2.99"))
    world.plugin(world.plugin_file, stub, extra="int s_GLIBC_2_99(void); int use(void) { return s_GLIBC_2_99(); }")


plugin_that_is_none = _do(lambda world: library(world.new(world.plugin_file), source="int nothing;"))


# -- libfabric and libcxi --


no_libfabric = _do(lambda world: world.remove(_libfabric(world)))


def libfabric_without_cxi(world: World) -> None:
    path = _libfabric(world)
    fabric_of(world.new(path), None)


def libfabric_too_old(world: World) -> None:
    path = _libfabric(world)
    fabric_of(world.new(path), world.at(f"{world.system.folder}/libcxi.so.1"), versions=FABRIC_VERSIONS[:2])


def libfabric_cut_off(world: World) -> None:
    path = _libfabric(world)
    content = _bytes(world, path)
    world.put(path, content[: int(len(content) * 0.7)])


def no_libcxi(world: World) -> None:
    _libfabric(world)
    world.remove(f"{world.system.folder}/libcxi.so.1")


def libcxi_too_old(world: World) -> None:
    _libfabric(world)
    cxi_of(world.new(f"{world.system.folder}/libcxi.so.1"), ("LIBCXI_1.0", "LIBCXI_1.1"))


def libcxi_newer(world: World) -> None:
    _libfabric(world)
    cxi_of(world.new(f"{world.system.folder}/libcxi.so.1"), tuple(f"LIBCXI_1.{minor}" for minor in range(9)))


def libfabric_in_a_folder_on_the_path(world: World) -> None:
    _libfabric(world)
    for name in ("libfabric.so.1", "libcxi.so.1"):
        world.move(f"{world.system.folder}/{name}", f"/opt/libfabric/lib/{name}")
    world.prepend("LD_LIBRARY_PATH", "/opt/libfabric/lib")


def libfabric_in_a_folder_off_the_path(world: World) -> None:
    _libfabric(world)
    for name in ("libfabric.so.1", "libcxi.so.1"):
        world.move(f"{world.system.folder}/{name}", f"/opt/libfabric/lib/{name}")


provider_where_it_is_looked_for = _provider()
provider_that_exports_nothing = _provider(source="int nothing;")
provider_elsewhere = _provider("/opt/providers")
provider_elsewhere_and_named = _provider("/opt/providers", FI_PROVIDER_PATH="/opt/providers")
provider_where_another_folder_is_named = _provider(FI_PROVIDER_PATH="/opt/providers")


def provider_that_the_loader_finds(world: World) -> None:
    _provider("/opt/providers", asks_loader=True)(world)
    world.prepend("LD_LIBRARY_PATH", "/opt/providers")


def no_rocr_by_its_development_name(world: World) -> None:
    for folder in (ROCM, PLUGIN):
        world.at(f"{folder}/libhsa-runtime64.so").unlink(missing_ok=True)


# -- variables of the image --


takes_sockets = _setting(NCCL_NET="Socket")
takes_tcp = _setting(FI_PROVIDER="tcp")
takes_all_but_cxi = _setting(FI_PROVIDER="^cxi")
takes_cxi = _setting(FI_PROVIDER="cxi", NCCL_NET="AWS Libfabric")


def named(module: dict[str, Any]) -> dict[str, Change]:
    """Return the changes of a module, in its order: its functions, and what the kinds of changes here made."""
    return {
        name.replace("_", "-"): each
        for name, each in module.items()
        if callable(each)
        and getattr(each, "__module__", "") in {__name__, module["__name__"]}
        and not (name.startswith("_") or name == "named" or isinstance(each, type))
    }


CHANGES = named(globals())
"""All of them, by name."""


def _interpreter(world: World, kind: str, search: str = "$ORIGIN/../lib") -> None:
    prefix = _prefix(world)
    if world.program is not None or not world.at(f"{prefix}/bin/python{world.system.version}").exists():
        raise NotHereError
    world.take(f"{prefix}/bin/python{world.system.version}", world.system.interpreter(f"{kind}-{len(search)}", search))


def _other_torch(world: World, version: str, *, make: bool = True) -> None:
    _torch(world)
    mine, jobs, files = world.package, world.jobs, world.rccl_files
    if make:
        world.at(world.folder_of("/opt/second")).mkdir(parents=True)
    world.torch("/opt/second", "librccl.so", version)
    world.package, world.rccl_files = mine, files
    world.jobs = jobs
