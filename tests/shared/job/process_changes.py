"""What is planted into the process of a job itself: symbols that nothing defines, parts of another C library, a second HIP.

As in `changes.py`, faults stand beside decoys, and which is which the job shows.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.shared.elf_builder import library, rpath, runpath, settings_here
from tests.shared.fabric_builder import versioned
from tests.shared.job import sources
from tests.shared.job.changes import (
    NotHereError,
    _do,
    _libfabric,
    _name,
    _other_torch,
    _plugin,
    _prefix,
    _provider,
    _setting,
    _torch,
    named,
)
from tests.shared.job.world import PLUGIN, ROCM, World, cxi_of, fabric_of

if TYPE_CHECKING:
    from tests.shared.job.changes import Change

_DATA = "extern int nowhere; int *use_data = &nowhere;"
_READ = "extern int nowhere; int use_read(void) { return nowhere; }"
_ADDRESS = "extern int nowhere(void); int (*use_address)(void) = nowhere;"
_CALL = "extern int nowhere(void); int use_call(void) { return nowhere(); }"
_WEAK_DATA = "extern int nowhere __attribute__((weak)); int *use_weak = &nowhere;"
_WEAK_CALL = "extern int nowhere(void) __attribute__((weak)); int use_weak(void) { return nowhere ? nowhere() : 0; }"
_USES_FABRIC = "extern const char *fi_network(void); const char *use(void) { return fi_network(); }"
_HAS_FABRIC = 'const char *fi_network(void) { return "another"; }'
_THREAD = "extern __thread int nowhere; int use_thread(void) { return nowhere; }"


# -- what comes with the start --


def _preloaded(source: str, *arguments: str, **variables: str) -> Change:
    def plant(world: World) -> None:
        library(world.new("/opt/extra/libextra.so"), *arguments, source=source)
        world.set(LD_PRELOAD="/opt/extra/libextra.so", **variables)

    return plant


preloaded_with_data_of_nobody = _preloaded(_DATA)
preloaded_that_reads_data_of_nobody = _preloaded(_READ)
preloaded_with_a_function_of_nobody_by_address = _preloaded(_ADDRESS)
# it is never called
preloaded_with_a_call_of_nobody = _preloaded(_CALL, "-Wl,-z,lazy")
preloaded_with_a_call_of_nobody_bound_at_once = _preloaded(_CALL, "-Wl,-z,now")
preloaded_with_a_call_of_nobody_and_all_bound_at_once = _preloaded(_CALL, "-Wl,-z,lazy", LD_BIND_NOW="1")
preloaded_with_weak_data_of_nobody = _preloaded(_WEAK_DATA)
preloaded_with_thread_local_data_of_nobody = _preloaded(_THREAD)
all_bound_at_once = _setting(LD_BIND_NOW="1")


def _of_python(source: str, *arguments: str) -> Change:
    """Let the interpreter need one library more."""

    def plant(world: World) -> None:
        path = f"{_prefix(world)}/bin/python{world.system.version}"
        if world.program is not None or not world.at(path).is_file():
            raise NotHereError
        library(world.new(f"{world.system.folder}/libextra.so"), *arguments, source=source)
        own = world.put(path, world.at(path).read_bytes())
        world.system.needing(own, "libextra.so")

    return plant


python_needs_a_library_with_data_of_nobody = _of_python(_DATA)
python_needs_a_library_with_a_call_of_nobody = _of_python(_CALL, "-Wl,-z,lazy")
python_needs_a_library_with_data_of_python = _of_python("extern int Py_NoSiteFlag; int *use_data = &Py_NoSiteFlag;")


# -- torch --


def _opened_for_all(source: str) -> Change:
    """By way of libtorch_global_deps.so, with RTLD_GLOBAL."""
    return lambda world: library(
        world.new(f"{_torch(world)}/lib/libtorch_global_deps.so"), *rpath("$ORIGIN"), source=source
    )


def _torch_with(source: str, *arguments: str | Path) -> Change:
    def plant(world: World) -> None:
        package = _torch(world)
        used = world.at(world.rccl_files[0])
        used = used if used.is_relative_to(world.at(package)) else world.rccl_of_rocm("2.20.5")
        target = world.new(f"{package}/lib/libtorch_hip.so")
        library(target, *rpath("$ORIGIN"), used, *arguments, source=sources.TORCH_HIP + source)

    return plant


_BESIDE = "extern int beside(void); int use(void) { return beside(); }"


def _beside(world: World) -> Path:
    return library(world.new(f"{_torch(world)}/lib/libbeside.so"), source="int beside(void) { return 1; }")


torch_with_data_of_nobody = _torch_with(_DATA)
# Python opens with RTLD_NOW
torch_with_a_call_of_nobody = _torch_with(_CALL, "-Wl,-z,lazy")
torch_with_a_weak_call_of_nobody = _torch_with(_WEAK_CALL)
torch_with_a_function_of_python = _torch_with(
    "extern int Py_IsInitialized(void); int use(void) { return Py_IsInitialized(); }"
)


def torch_with_what_a_library_beside_it_has(world: World) -> None:
    """Nothing opens that one."""
    _beside(world)
    _torch_with(_BESIDE)(world)


torch_with_what_a_library_that_it_needs_has = _do(lambda world: _torch_with(_BESIDE, _beside(world))(world))


def torch_with_what_is_opened_for_all(world: World) -> None:
    """By way of libtorch_global_deps.so, with RTLD_GLOBAL."""
    beside = _beside(world)
    library(world.new(f"{_torch(world)}/lib/libtorch_global_deps.so"), *rpath("$ORIGIN"), beside)
    _torch_with(_BESIDE)(world)


torch_with_what_only_the_plugin_brings = _torch_with(_USES_FABRIC)
global_deps_with_data_of_nobody = _opened_for_all(_DATA)


# -- the plugin, and what it needs --


# RCCL is not needed by it: it sees that only where RCCL was opened for all, or came with the start
plugin_with_what_rccl_has = _plugin(
    extra="extern int ncclGetUniqueId(void *); int use_rccl(void) { return ncclGetUniqueId(0); }"
)
plugin_with_what_hip_has = _plugin(extra="extern void *hip_instance(void); void *use(void) { return hip_instance(); }")
plugin_with_a_function_address_of_nobody = _plugin(extra=_ADDRESS)
plugin_with_thread_local_data_of_nobody = _plugin(extra=_THREAD)


def _needs_extra(source: str, *more: str | Path, extra: str = "") -> Change:
    def plant(world: World) -> None:
        made = library(world.new("/opt/extra/libextra.so"), *more, source=source)
        world.plugin(world.plugin_file, made, *runpath("/opt/extra"), extra=extra)

    return plant


plugin_needs_a_library_with_data_of_nobody = _needs_extra(_DATA)
plugin_needs_a_library_with_a_call_of_nobody = _needs_extra(_CALL, "-Wl,-z,lazy")
plugin_needs_a_library_with_a_weak_call_of_nobody = _needs_extra(_WEAK_CALL)


def plugin_with_what_lies_two_libraries_down(world: World) -> None:
    deep = library(world.new("/opt/extra/libdeep.so"), source="int deep(void) { return 1; }")
    extra = "extern int deep(void); int use_deep(void) { return deep(); }"
    _needs_extra("int nothing;", deep, *runpath("/opt/extra"), extra=extra)(world)


plugin_with_what_a_library_hides = _needs_extra(
    '__attribute__((visibility("hidden"))) int concealed(void) { return 1; }',
    extra="extern int concealed(void); int use_it(void) { return concealed(); }",
)


def plugin_with_a_function_that_has_moved_to_another_version(world: World) -> None:
    """Both versions are there, and the function is behind the other one."""
    made = versioned(world.parts / "libmoved.so", defines=("MOVED_1", "MOVED_2"))
    world.plugin(
        world.plugin_file,
        made,
        *runpath("/opt/extra"),
        extra="int s_MOVED_2(void); int use_moved(void) { return s_MOVED_2(); }",
    )
    path = world.new("/opt/extra/libmoved.so")
    script = world.parts / "moved.map"
    script.write_text("MOVED_1 { global: s_MOVED_1; s_MOVED_2; local: *; };\nMOVED_2 { global: other; } MOVED_1;\n")
    source = "int s_MOVED_1(void) { return 1; } int s_MOVED_2(void) { return 1; } int other(void) { return 1; }"
    library(path, f"-Wl,--version-script,{script}", source=source)


def plugin_that_needs_the_object_of_the_kernel(world: World) -> None:
    world.plugin(world.plugin_file, library(world.parts / "linux-vdso.so.1", source="int nothing;"))


plugin_with_packed_relocations = _plugin("-Wl,-z,pack-relative-relocs", extra="static int it; int *points = &it;")


def plugin_beside_another_libfabric_behind_a_link(world: World) -> None:
    """$ORIGIN is the folder by which a library was found, not that of its file."""
    _libfabric(world)
    fabric_of(world.new("/opt/real/libfabric.so.1"), None)
    world.plugin(f"/opt/real/{_name(world)}", *rpath("$ORIGIN"))
    world.link(world.plugin_file, f"/opt/real/{_name(world)}")


def plugin_behind_a_link_beside_another_libfabric(world: World) -> None:
    _libfabric(world)
    fabric_of(world.new(f"{world.plugin_file.rpartition('/')[0]}/libfabric.so.1"), None)
    world.plugin(f"/opt/real/{_name(world)}", *rpath("$ORIGIN"))
    world.link(world.plugin_file, f"/opt/real/{_name(world)}")


def plugin_in_a_folder_for_its_owner(world: World) -> None:
    world.move(world.plugin_file, f"/opt/closed/{_name(world)}")
    world.at("/opt/closed").chmod(0o700)
    world.prepend("LD_LIBRARY_PATH", "/opt/closed")


def old_plugin_in_a_folder_for_its_owner(world: World) -> None:
    world.plugin(f"/opt/closed/{_name(world)}", apis=(4,))
    world.at("/opt/closed").chmod(0o700)
    world.prepend("LD_LIBRARY_PATH", "/opt/closed")


# -- libfabric, libcxi, the provider --


def libfabric_needs_a_library_with_data_of_nobody(world: World) -> None:
    path = _libfabric(world)
    extra = library(world.new(f"{world.system.folder}/libextra.so"), source=_DATA)
    fabric_of(world.new(path), world.at(f"{world.system.folder}/libcxi.so.1"), extra)


def libfabric_needs_a_library_with_a_call_of_nobody(world: World) -> None:
    path = _libfabric(world)
    extra = library(world.new(f"{world.system.folder}/libextra.so"), "-Wl,-z,lazy", source=_CALL)
    fabric_of(world.new(path), world.at(f"{world.system.folder}/libcxi.so.1"), extra)


def libcxi_without_its_function(world: World) -> None:
    """In the versions that are asked for."""
    _libfabric(world)
    path = world.new(f"{world.system.folder}/libcxi.so.1")
    cxi_of(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\0cxil_open_device\0", b"\0cxil_shut_device\0"))


provider_with_a_call_of_nobody = _provider(source=sources.PROVIDER + _CALL)
provider_with_a_weak_call_of_nobody = _provider(source=sources.PROVIDER + _WEAK_CALL)
# it does not need libfabric, which was opened for itself alone
provider_with_what_libfabric_has = _provider(source=sources.PROVIDER + _USES_FABRIC)


# -- HIP --


def plugin_with_a_mangled_hip(world: World) -> None:
    world.hip(f"{ROCM}/libamdhip64-1a2b3c4d.so.6")
    world.plugin(world.plugin_file, hip="libamdhip64-1a2b3c4d.so.6")
    world.prepend("LD_LIBRARY_PATH", ROCM)


another_hip_that_nothing_loads = _do(lambda world: world.hip(f"{ROCM}/libamdhip64.so.7"))


def another_hip_preloaded(world: World) -> None:
    """What needs the one beside RCCL sees this one first."""
    world.hip(f"{ROCM}/libamdhip64.so.7")
    world.set(LD_PRELOAD=f"{ROCM}/libamdhip64.so.7")
    world.plugin(world.plugin_file, hip="libamdhip64.so.7")


def plugin_with_another_hip_that_is_a_link(world: World) -> None:
    """Of the same file: a library is known by its inode, too."""
    folder = world.rccl_files[0].rpartition("/")[0]
    world.link(f"{PLUGIN}/libamdhip64.so.7", f"{folder}/libamdhip64.so.6")
    world.plugin(world.plugin_file, hip="libamdhip64.so.7")
    world.prepend("LD_LIBRARY_PATH", PLUGIN)


# -- the C library --


def _copied(name: str) -> Change:
    def plant(world: World) -> None:
        shutil.copy(world.at(f"{world.system.folder}/{name}"), world.new(f"/opt/copied/{name}"))
        world.prepend("LD_LIBRARY_PATH", "/opt/copied")

    return plant


math_library_copied = _copied("libm.so.6")
c_library_copied = _copied("libc.so.6")


math_library_is_gone = _do(lambda world: world.remove(f"{world.system.folder}/libm.so.6"))


# -- what changes the loader --


tunables_of_the_loader = _setting(GLIBC_TUNABLES="glibc.rtld.optional_static_tls=0")
tunables_of_memory = _setting(GLIBC_TUNABLES="glibc.malloc.arena_max=2")
an_auditor_that_is_gone = _setting(LD_AUDIT="/opt/gone/audit.so")
help_of_the_loader = _setting(LD_DEBUG="libs,help")


def python_of_another_user_s_rights(world: World) -> None:
    path = f"{_prefix(world)}/bin/python{world.system.version}"
    if world.program is not None or not world.at(path).is_file():
        raise NotHereError
    world.put(path, world.at(path).read_bytes(), 0o4755)


# -- who else has a hand in it --


def line_of_a_pth_that_runs(world: World) -> None:
    """It puts another torch in front."""
    _other_torch(world, "2.30.4")
    other = world.folder_of("/opt/second")
    folder = world.folder_of(_prefix(world))
    world.put(f"{folder}/first.pth", f"import sys; sys.path.insert(0, '{other}')\n", 0o644)


def line_of_a_pth_that_runs_and_changes_nothing(world: World) -> None:
    folder = world.folder_of(_prefix(world))
    world.put(f"{folder}/first.pth", "import os; os.environ.get('NOTHING')\n", 0o644)


def a_sitecustomize_that_puts_a_folder_in_front(world: World) -> None:
    _other_torch(world, "2.30.4")
    text = f"import sys\nsys.path.insert(0, '{world.folder_of('/opt/second')}')\n"
    world.put(f"{_prefix(world)}/lib/python{world.system.version}/sitecustomize.py", text, 0o644)


def a_sitecustomize_that_changes_nothing(world: World) -> None:
    path = f"{_prefix(world)}/lib/python{world.system.version}/sitecustomize.py"
    if world.at(path).exists():
        raise NotHereError
    world.put(path, "import os\n", 0o644)


def preloaded_by_a_file(world: World) -> None:
    library(world.new("/opt/extra/libextra.so"), source=_DATA)
    world.put("/etc/ld.so.preload", "/opt/extra/libextra.so\n", 0o644)


# it stands before libcxi wherever a symbol is looked up
preloaded_with_the_function_of_libcxi = _preloaded('const char *cxil_open_device(void) { return "another"; }')
preloaded_with_the_function_of_libfabric = _preloaded(_HAS_FABRIC)
# as other allocators are
preloaded_with_functions_of_the_c_library = _preloaded(
    "int strverscmp(const char *a, const char *b) { return a != b; }"
)
opened_for_all_with_the_function_of_libfabric = _opened_for_all(_HAS_FABRIC)
# opened for itself alone
torch_with_the_function_of_libfabric = _torch_with(_HAS_FABRIC)


def plugin_for_a_better_processor(world: World) -> None:
    """In a folder for it, before the one for all."""
    if "x86-64-v3" not in settings_here({}).hwcaps:
        raise NotHereError
    folder = world.plugin_file.rpartition("/")[0]
    world.plugin(f"{folder}/glibc-hwcaps/x86-64-v3/{_name(world)}", apis=(4,))


plugin_that_may_not_be_opened = _plugin("-Wl,-z,nodlopen")
plugin_without_default_folders = _plugin("-Wl,-z,nodefaultlib")


def _of_framework(world: World) -> None:
    if world.package is None and not world.at(f"{world.folder_of('/usr')}/jax_plugins").exists():
        raise NotHereError


def no_python(world: World) -> None:
    """Nothing but the libraries of a framework is left."""
    _of_framework(world)
    for file in world.at(f"{_prefix(world)}/bin").glob("python*"):
        file.unlink()


def python_by_its_number_alone(world: World) -> None:
    """No link has the name by which jobs start it."""
    _of_framework(world)
    world.remove(f"{_prefix(world)}/bin/python", f"{_prefix(world)}/bin/python3")


def torch_behind_a_link(world: World) -> None:
    package = _torch(world)
    if world.at(package).is_symlink():
        raise NotHereError
    world.move(package, "/opt/elsewhere/torch")
    world.link(package, "/opt/elsewhere/torch")


PROCESS_CHANGES = named(globals())
"""All of them, by name."""
