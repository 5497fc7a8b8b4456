"""What is planted into the process of a job itself: symbols that nothing defines, parts of another C library, a second HIP.

As in `changes.py`, faults stand beside decoys, and which is which the job shows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.shared.elf_builder import library, rpath, runpath, settings_here
from tests.shared.fabric_builder import versioned
from tests.shared.job import sources
from tests.shared.job.changes import NotHereError, _libfabric, _name, _other_torch, _prefix, _provider, _torch
from tests.shared.job.world import PLUGIN, ROCM, World, cxi_of, fabric_of

if TYPE_CHECKING:
    from collections.abc import Callable

_DATA = "extern int nowhere; int *use_data = &nowhere;"
_READ = "extern int nowhere; int use_read(void) { return nowhere; }"
_ADDRESS = "extern int nowhere(void); int (*use_address)(void) = nowhere;"
_CALL = "extern int nowhere(void); int use_call(void) { return nowhere(); }"
_WEAK_DATA = "extern int nowhere __attribute__((weak)); int *use_weak = &nowhere;"
_WEAK_CALL = "extern int nowhere(void) __attribute__((weak)); int use_weak(void) { return nowhere ? nowhere() : 0; }"
_THREAD = "extern __thread int nowhere; int use_thread(void) { return nowhere; }"


# -- what comes with the start --


def _preloaded(world: World, source: str, *arguments: str) -> None:
    library(world.new("/opt/extra/libextra.so"), *arguments, source=source)
    world.set(LD_PRELOAD="/opt/extra/libextra.so")


def preloaded_with_data_of_nobody(world: World) -> None:
    _preloaded(world, _DATA)


def preloaded_that_reads_data_of_nobody(world: World) -> None:
    _preloaded(world, _READ)


def preloaded_with_a_function_of_nobody_by_address(world: World) -> None:
    _preloaded(world, _ADDRESS)


def preloaded_with_a_call_of_nobody(world: World) -> None:
    """It is never called."""
    _preloaded(world, _CALL, "-Wl,-z,lazy")


def preloaded_with_a_call_of_nobody_bound_at_once(world: World) -> None:
    _preloaded(world, _CALL, "-Wl,-z,now")


def preloaded_with_a_call_of_nobody_and_all_bound_at_once(world: World) -> None:
    _preloaded(world, _CALL, "-Wl,-z,lazy")
    world.set(LD_BIND_NOW="1")


def preloaded_with_weak_data_of_nobody(world: World) -> None:
    _preloaded(world, _WEAK_DATA)


def preloaded_with_thread_local_data_of_nobody(world: World) -> None:
    _preloaded(world, _THREAD)


def all_bound_at_once(world: World) -> None:
    world.set(LD_BIND_NOW="1")


def _of_python(world: World, source: str, *arguments: str) -> None:
    """Let the interpreter need one library more."""
    path = f"{_prefix(world)}/bin/python{world.ground.version}"
    if world.program is not None or not world.at(path).is_file():
        raise NotHereError
    library(world.new(f"{world.ground.folder}/libextra.so"), *arguments, source=source)
    own = world.put(path, world.at(path).read_bytes())
    subprocess.run(["patchelf", "--add-needed", "libextra.so", own], check=True)


def python_needs_a_library_with_data_of_nobody(world: World) -> None:
    _of_python(world, _DATA)


def python_needs_a_library_with_a_call_of_nobody(world: World) -> None:
    _of_python(world, _CALL, "-Wl,-z,lazy")


def python_needs_a_library_with_data_of_python(world: World) -> None:
    _of_python(world, "extern int Py_NoSiteFlag; int *use_data = &Py_NoSiteFlag;")


# -- torch --


def _torch_with(world: World, source: str, *arguments: str | Path) -> None:
    package = _torch(world)
    used = world.at(world.rccl_files[0])
    used = used if used.is_relative_to(world.at(package)) else world.rccl_of_rocm("2.20.5")
    target = world.new(f"{package}/lib/libtorch_hip.so")
    library(target, *rpath("$ORIGIN"), used, *arguments, source=sources.TORCH_HIP + source)


def torch_with_data_of_nobody(world: World) -> None:
    _torch_with(world, _DATA)


def torch_with_a_call_of_nobody(world: World) -> None:
    """Python opens with RTLD_NOW."""
    _torch_with(world, _CALL, "-Wl,-z,lazy")


def torch_with_a_weak_call_of_nobody(world: World) -> None:
    _torch_with(world, _WEAK_CALL)


def torch_with_a_function_of_python(world: World) -> None:
    _torch_with(world, "extern int Py_IsInitialized(void); int use(void) { return Py_IsInitialized(); }")


def torch_with_what_a_library_beside_it_has(world: World) -> None:
    """Nothing opens that one."""
    library(world.new(f"{_torch(world)}/lib/libbeside.so"), source="int beside(void) { return 1; }")
    _torch_with(world, "extern int beside(void); int use(void) { return beside(); }")


def torch_with_what_a_library_that_it_needs_has(world: World) -> None:
    beside = library(world.new(f"{_torch(world)}/lib/libbeside.so"), source="int beside(void) { return 1; }")
    _torch_with(world, "extern int beside(void); int use(void) { return beside(); }", beside)


def torch_with_what_is_opened_for_all(world: World) -> None:
    """By way of libtorch_global_deps.so, with RTLD_GLOBAL."""
    package = _torch(world)
    beside = library(world.new(f"{package}/lib/libbeside.so"), source="int beside(void) { return 1; }")
    library(world.new(f"{package}/lib/libtorch_global_deps.so"), *rpath("$ORIGIN"), beside)
    _torch_with(world, "extern int beside(void); int use(void) { return beside(); }")


def torch_with_what_only_the_plugin_brings(world: World) -> None:
    _torch_with(world, "extern const char *fi_network(void); const char *use(void) { return fi_network(); }")


def global_deps_with_data_of_nobody(world: World) -> None:
    library(world.new(f"{_torch(world)}/lib/libtorch_global_deps.so"), *rpath("$ORIGIN"), source=_DATA)


# -- the plugin, and what it needs --


def plugin_with_what_rccl_has(world: World) -> None:
    """RCCL is not needed by it: it sees that only where RCCL was opened for all, or came with the start."""
    extra = "extern int ncclGetUniqueId(void *); int use_rccl(void) { return ncclGetUniqueId(0); }"
    world.plugin(world.plugin_file, extra=extra)


def plugin_with_what_hip_has(world: World) -> None:
    world.plugin(world.plugin_file, extra="extern void *hip_instance(void); void *use(void) { return hip_instance(); }")


def plugin_with_a_function_address_of_nobody(world: World) -> None:
    world.plugin(world.plugin_file, extra=_ADDRESS)


def plugin_with_thread_local_data_of_nobody(world: World) -> None:
    world.plugin(world.plugin_file, extra=_THREAD)


def _needs_extra(world: World, source: str, *more: str | Path, extra: str = "") -> None:
    made = library(world.new("/opt/extra/libextra.so"), *more, source=source)
    world.plugin(world.plugin_file, made, *runpath("/opt/extra"), extra=extra)


def plugin_needs_a_library_with_data_of_nobody(world: World) -> None:
    _needs_extra(world, _DATA)


def plugin_needs_a_library_with_a_call_of_nobody(world: World) -> None:
    _needs_extra(world, _CALL, "-Wl,-z,lazy")


def plugin_needs_a_library_with_a_weak_call_of_nobody(world: World) -> None:
    _needs_extra(world, _WEAK_CALL)


def plugin_with_what_lies_two_libraries_down(world: World) -> None:
    deep = library(world.new("/opt/extra/libdeep.so"), source="int deep(void) { return 1; }")
    extra = "extern int deep(void); int use_deep(void) { return deep(); }"
    _needs_extra(world, "int nothing;", deep, *runpath("/opt/extra"), extra=extra)


def plugin_with_what_a_library_hides(world: World) -> None:
    hidden = '__attribute__((visibility("hidden"))) int concealed(void) { return 1; }'
    _needs_extra(world, hidden, extra="extern int concealed(void); int use_it(void) { return concealed(); }")


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


def plugin_with_packed_relocations(world: World) -> None:
    world.plugin(world.plugin_file, "-Wl,-z,pack-relative-relocs", extra="static int it; int *points = &it;")


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
    extra = library(world.new(f"{world.ground.folder}/libextra.so"), source=_DATA)
    fabric_of(world.new(path), world.at(f"{world.ground.folder}/libcxi.so.1"), extra)


def libfabric_needs_a_library_with_a_call_of_nobody(world: World) -> None:
    path = _libfabric(world)
    extra = library(world.new(f"{world.ground.folder}/libextra.so"), "-Wl,-z,lazy", source=_CALL)
    fabric_of(world.new(path), world.at(f"{world.ground.folder}/libcxi.so.1"), extra)


def libcxi_without_its_function(world: World) -> None:
    """In the versions that are asked for."""
    _libfabric(world)
    path = world.new(f"{world.ground.folder}/libcxi.so.1")
    cxi_of(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\0cxil_open_device\0", b"\0cxil_shut_device\0"))


def provider_with_a_call_of_nobody(world: World) -> None:
    _libfabric(world)
    _provider(world, f"{world.ground.folder}/libfabric", sources.PROVIDER + _CALL)


def provider_with_a_weak_call_of_nobody(world: World) -> None:
    _libfabric(world)
    _provider(world, f"{world.ground.folder}/libfabric", sources.PROVIDER + _WEAK_CALL)


def provider_with_what_libfabric_has(world: World) -> None:
    """It does not need libfabric, which was opened for itself alone."""
    _libfabric(world)
    source = "extern const char *fi_network(void); const char *use(void) { return fi_network(); }"
    _provider(world, f"{world.ground.folder}/libfabric", sources.PROVIDER + source)


# -- HIP --


def plugin_with_a_mangled_hip(world: World) -> None:
    world.hip(f"{ROCM}/libamdhip64-1a2b3c4d.so.6")
    world.plugin(world.plugin_file, hip="libamdhip64-1a2b3c4d.so.6")
    world.prepend("LD_LIBRARY_PATH", ROCM)


def another_hip_that_nothing_loads(world: World) -> None:
    world.hip(f"{ROCM}/libamdhip64.so.7")


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


def _copied(world: World, name: str) -> None:
    target = world.new(f"/opt/copied/{name}")
    shutil.copy(world.at(f"{world.ground.folder}/{name}"), target)
    world.prepend("LD_LIBRARY_PATH", "/opt/copied")


def math_library_copied(world: World) -> None:
    _copied(world, "libm.so.6")


def c_library_copied(world: World) -> None:
    _copied(world, "libc.so.6")


def math_library_is_gone(world: World) -> None:
    world.remove(f"{world.ground.folder}/libm.so.6")


# -- what changes the loader --


def tunables_of_the_loader(world: World) -> None:
    world.set(GLIBC_TUNABLES="glibc.rtld.optional_static_tls=0")


def tunables_of_memory(world: World) -> None:
    world.set(GLIBC_TUNABLES="glibc.malloc.arena_max=2")


def an_auditor_that_is_gone(world: World) -> None:
    world.set(LD_AUDIT="/opt/gone/audit.so")


def python_of_another_user_s_rights(world: World) -> None:
    path = f"{_prefix(world)}/bin/python{world.ground.version}"
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
    world.put(f"{_prefix(world)}/lib/python{world.ground.version}/sitecustomize.py", text, 0o644)


def a_sitecustomize_that_changes_nothing(world: World) -> None:
    path = f"{_prefix(world)}/lib/python{world.ground.version}/sitecustomize.py"
    if world.at(path).exists():
        raise NotHereError
    world.put(path, "import os\n", 0o644)


def preloaded_by_a_file(world: World) -> None:
    library(world.new("/opt/extra/libextra.so"), source=_DATA)
    world.put("/etc/ld.so.preload", "/opt/extra/libextra.so\n", 0o644)


def preloaded_with_the_function_of_libcxi(world: World) -> None:
    """It stands before libcxi wherever a symbol is looked up."""
    _preloaded(world, 'const char *cxil_open_device(void) { return "another"; }')


def preloaded_with_the_function_of_libfabric(world: World) -> None:
    _preloaded(world, 'const char *fi_network(void) { return "another"; }')


def preloaded_with_functions_of_the_c_library(world: World) -> None:
    """As other allocators are."""
    _preloaded(world, "int strverscmp(const char *a, const char *b) { return a != b; }")


def opened_for_all_with_the_function_of_libfabric(world: World) -> None:
    source = 'const char *fi_network(void) { return "another"; }'
    library(world.new(f"{_torch(world)}/lib/libtorch_global_deps.so"), *rpath("$ORIGIN"), source=source)


def torch_with_the_function_of_libfabric(world: World) -> None:
    """Opened for itself alone."""
    _torch_with(world, 'const char *fi_network(void) { return "another"; }')


def plugin_for_a_better_processor(world: World) -> None:
    """In a folder for it, before the one for all."""
    if "x86-64-v3" not in settings_here({}).hwcaps:
        raise NotHereError
    folder = world.plugin_file.rpartition("/")[0]
    world.plugin(f"{folder}/glibc-hwcaps/x86-64-v3/{_name(world)}", apis=(4,))


def plugin_that_may_not_be_opened(world: World) -> None:
    world.plugin(world.plugin_file, "-Wl,-z,nodlopen")


def plugin_without_default_folders(world: World) -> None:
    world.plugin(world.plugin_file, "-Wl,-z,nodefaultlib")


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


PROCESS_CHANGES: dict[str, Callable[[World], None]] = {
    name.replace("_", "-"): each
    for name, each in list(vars(sys.modules[__name__]).items())
    if callable(each) and getattr(each, "__module__", "") == __name__ and not name.startswith("_")
}
"""All of them, by name."""
