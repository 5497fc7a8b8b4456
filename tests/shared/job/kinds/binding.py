"""Who answers: shims before RCCL, an RCCL by another name or inside another library, symbols of the plugin, plugins for CUDA."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from elftools.elf.elffile import ELFFile

from tests.shared.elf_builder import library, rpath, runpath
from tests.shared.fabric_builder import versioned
from tests.shared.job import sources
from tests.shared.job.kinds.place import TOO_NEW, Planted, own, rccl_of, rccl_source, torch_of
from tests.shared.job.kinds.startup_code import NEWER
from tests.shared.job.world import ROCM, c_library_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.shared.job.world import World

SHIM = "/opt/shim/libshim.so"
_ANSWERS = 'const char *ncclCommInitRank(void) { return "shim"; }'
_OTHERS = "int ncclAllReduce(void) { return 0; }"
_FORWARDS = (
    sources.LIBC
    + """
const char *ncclCommInitRank(void)
{
    const char *(*next)(void) = (const char *(*)(void))dlsym((void *)-1L, "ncclCommInitRank");
    return next ? next() : "shim: nothing behind";
}
"""
)
_OPENS = (
    sources.LIBC
    + f"""
const char *ncclCommInitRank(void)
{{
    void *library = dlopen("{ROCM}/librccl.so.1", NOW);
    const char *(*next)(void) = library ? (const char *(*)(void))dlsym(library, "ncclCommInitRank") : 0;
    return next ? next() : "shim: nothing behind";
}}
"""
)
_HIDDEN = '__attribute__((visibility("hidden"))) const char *ncclCommInitRank(void) { return "shim"; } int seen;'
_DATA = "int ncclCommInitRank;"
_SHIMS = {"answers": _ANSWERS, "answers another call": _OTHERS, "hides its answer": _HIDDEN, "goes on to the next": _FORWARDS, "opens RCCL itself": _OPENS}  # fmt: skip


def _shim(world: World, what: str, path: str = SHIM, *arguments: Any) -> Path:
    libc = c_library_of(world.parts) if what in {"goes on to the next", "opens RCCL itself"} else ()
    return library(world.new(path), *libc, *arguments, source=_SHIMS[what])


def interposed(world: World, draw: random.Random) -> Planted:
    """A library that answers for RCCL stands before it, or behind."""
    what = draw.choice(["answers", "answers", "answers", *_SHIMS])
    way = draw.choice([*_WAYS])
    _WAYS[way](world, what, draw)
    asks = what in {"answers", "goes on to the next", "opens RCCL itself"}
    named = "libtorch_hip.so" if way == "in libtorch_hip" else SHIM
    return Planted(f"{way}: a shim that {what}", named if asks else None)


def _by_variable(world: World, what: str, draw: random.Random) -> None:
    _shim(world, what)
    form = draw.choice(["path", "path", "name", "list", "blank"])
    if form == "name":
        world.prepend("LD_LIBRARY_PATH", "/opt/shim")
    value = {"path": SHIM, "name": "libshim.so", "list": f"/opt/gone.so:{SHIM}", "blank": f"/opt/gone.so {SHIM}"}[form]
    world.set(LD_PRELOAD=value)


def _by_file(world: World, what: str, draw: random.Random) -> None:
    _shim(world, what)
    text = draw.choice([f"{SHIM}\n", SHIM, f"# a comment\n{SHIM}\n", f"/opt/gone.so {SHIM}\n", f"# {SHIM}\n"])
    world.put("/etc/ld.so.preload", text, 0o644)


def _by_global_deps(world: World, what: str, draw: random.Random) -> None:
    torch = torch_of(world)
    shim = _shim(world, what, f"{torch}/lib/libshim.so")
    target = world.new(f"{torch}/lib/libtorch_global_deps.so")
    if draw.random() < 0.5:
        library(target, *rpath("$ORIGIN"), shim)
    else:
        deep = library(world.new(f"{torch}/lib/libmscclpp.so.0"), *rpath("$ORIGIN"), shim)
        library(target, *rpath("$ORIGIN"), deep)


def _before_rccl_in_torch(world: World, what: str, draw: random.Random) -> None:
    torch = torch_of(world)
    shim = _shim(world, what, f"{torch}/lib/libshim.so")
    _torch_hip(world, torch, shim, _rccl(world))


def _behind_rccl_in_torch(world: World, what: str, draw: random.Random) -> None:
    torch = torch_of(world)
    shim = _shim(world, what, f"{torch}/lib/libshim.so")
    _torch_hip(world, torch, _rccl(world), shim)


def _below_a_library_before_rccl(world: World, what: str, draw: random.Random) -> None:
    """Two steps down it comes behind what is one step down."""
    torch = torch_of(world)
    shim = _shim(world, what, f"{torch}/lib/libshim.so")
    middle = library(world.new(f"{torch}/lib/libmiddle.so"), *rpath("$ORIGIN"), shim)
    _torch_hip(world, torch, middle, _rccl(world))


def _in_torch_itself(world: World, what: str, draw: random.Random) -> None:
    torch = torch_of(world)
    libc = c_library_of(world.parts)
    search = rpath("$ORIGIN")
    text = _SHIMS[what]
    call = sources.TORCH_HIP.replace(
        "extern const char *ncclCommInitRank(void);",
        "" if "ncclCommInitRank(void)" in text else "extern const char *ncclCommInitRank(void);",
    )
    library(world.new(f"{torch}/lib/libtorch_hip.so"), *search, _rccl(world), *libc, source=text + call)


def _symbolic(world: World, what: str, draw: random.Random) -> None:
    """Torch's library binds to itself what it has itself: RCCL's function it does not have."""
    torch = torch_of(world)
    _shim(world, what)
    world.set(LD_PRELOAD=SHIM)
    _torch_hip(world, torch, "-Wl,-Bsymbolic", _rccl(world))


def _needed_by_python(world: World, what: str, draw: random.Random) -> None:
    from tests.shared.job.kinds.place import home_of

    path = f"{home_of(world)}/bin/python{world.system.version}"
    _shim(world, what, f"{world.system.folder}/libshim.so")
    if world.at(path).is_symlink() or not world.at(path).is_file():
        from tests.shared.job.changes import NotHereError

        raise NotHereError
    world.system.needing(own(world, path), "libshim.so")


def _needed_by_extension(world: World, what: str, draw: random.Random) -> None:
    """`torch._C` needs it before libtorch_hip: the scope of what was opened is that of _C, whose library comes first."""
    from tests.shared.job.kinds.place import tag_of

    torch = torch_of(world)
    shim = _shim(world, what, f"{torch}/lib/libshim.so")
    hip = world.at(f"{torch}/lib/libtorch_hip.so")
    library(
        world.new(f"{torch}/_C.{tag_of(world)}-x86_64-linux-gnu.so"),
        *rpath("$ORIGIN/lib"),
        shim,
        hip,
        source=sources.EXTENSION,
    )


_WAYS: dict[str, Callable[[World, str, random.Random], None]] = {
    "LD_PRELOAD": _by_variable,
    "ld.so.preload": _by_file,
    "opened for all": _by_global_deps,
    "needed before RCCL": _before_rccl_in_torch,
    "needed behind RCCL": _behind_rccl_in_torch,
    "needed two steps down": _below_a_library_before_rccl,
    "in libtorch_hip": _in_torch_itself,
    "LD_PRELOAD, symbolic": _symbolic,
    "needed by Python": _needed_by_python,
    "needed by _C": _needed_by_extension,
}


def _rccl(world: World) -> Path:
    used = world.at(world.rccl_files[0])
    return used if used.exists() and used.is_relative_to(world.at(torch_of(world))) else world.rccl_of_rocm("2.20.5")


def _torch_hip(world: World, torch: str, *needed: Any) -> None:
    library(world.new(f"{torch}/lib/libtorch_hip.so"), *rpath("$ORIGIN"), *needed, source=sources.TORCH_HIP)


_FUNCTIONS = {
    "getenv": 'char *getenv(const char *name) { return name[0] == 78 ? "Socket" : 0; }',
    "dlopen": "void *dlopen(const char *name, int mode) { return 0; }",
    "dlsym": "void *dlsym(void *handle, const char *name) { return 0; }",
    "strcasecmp": "int strcasecmp(const char *a, const char *b) { return 1; }",
    "malloc_usable_size": "unsigned long malloc_usable_size(void *p) { return 0; }",
    "strverscmp": "int strverscmp(const char *a, const char *b) { return 0; }",
    "nothing": "int nothing;",
}
"""As tracers, allocators and wrappers have them."""


def other_functions(world: World, draw: random.Random) -> Planted:
    """A library that comes first has functions of the C library."""
    name = draw.choice([*_FUNCTIONS])
    way = draw.choice(["LD_PRELOAD", "LD_PRELOAD", "opened for all"])
    path = "/opt/shim/libfunctions.so"
    if way == "opened for all":
        path = f"{torch_of(world)}/lib/libtorch_global_deps.so"
        library(world.new(path), *rpath("$ORIGIN"), source=_FUNCTIONS[name])
    else:
        library(world.new(path), source=_FUNCTIONS[name])
        world.set(LD_PRELOAD=path)
    return Planted(f"{way}: {name}", path if name in {"getenv", "dlopen", "dlsym", "strcasecmp"} else None)


def other_rccl(world: World, draw: random.Random) -> Planted:
    """RCCL by a mangled name, inside torch, or brought by another library too."""
    torch = torch_of(world)
    form = draw.choice([*_RCCLS])
    version = draw.choice(["2.20.5", "2.21.5", "2.27.7", "2.18.3", TOO_NEW, TOO_NEW, TOO_NEW])
    _RCCLS[form](world, torch, version)
    # the RCCL that vLLM opens may get functions of the other one
    is_mixed = "opened for all" in form and "VLLM_NCCL_SO_PATH" in world.variables
    return Planted(f"{form}, {version}", NEWER if is_mixed else None)


def _ucc(world: World, torch: str, version: str) -> Path:
    """UCC for ROCm, which needs an RCCL of the plain name."""
    rccl_of(world, NEWER, version, *runpath(ROCM))
    return library(world.new(f"{torch}/lib/libucc.so.1"), *runpath("/opt/newer/lib"), world.at(NEWER))


def _with_ucc_behind(world: World, torch: str, version: str) -> None:
    _torch_hip(world, torch, _rccl(world), _ucc(world, torch, version))


def _with_ucc_before(world: World, torch: str, version: str) -> None:
    _torch_hip(world, torch, _ucc(world, torch, version), _rccl(world))


def _with_ucc_opened_for_all(world: World, torch: str, version: str) -> None:
    ucc = _ucc(world, torch, version)
    library(world.new(f"{torch}/lib/libtorch_global_deps.so"), *rpath("$ORIGIN"), ucc)


def _mangled(world: World, torch: str, version: str) -> None:
    world.hip(f"{torch}/lib/libamdhip64.so.6")
    used = rccl_of(world, f"{torch}/lib/librccl-9f8e7d6c.so.1", version, *rpath("$ORIGIN"))
    world.rccl_files = (f"{torch}/lib/librccl-9f8e7d6c.so.1",)
    _torch_hip(world, torch, used)


def _mangled_with_ucc(world: World, torch: str, version: str) -> None:
    _mangled(world, torch, "2.21.5")
    _torch_hip(world, torch, _ucc(world, torch, version), world.at(world.rccl_files[0]))


def _mangled_with_ucc_for_all(world: World, torch: str, version: str) -> None:
    _mangled(world, torch, "2.21.5")
    _with_ucc_opened_for_all(world, torch, version)


def _inside_torch(world: World, torch: str, version: str) -> None:
    """Linked into libtorch_hip."""
    hip = world.hip(f"{torch}/lib/libamdhip64.so.6")
    source = rccl_source(version)
    text = source + sources.TORCH_HIP.replace("extern const char *ncclCommInitRank(void);", "")
    library(world.new(f"{torch}/lib/libtorch_hip.so"), *rpath("$ORIGIN"), hip, *c_library_of(world.parts), source=text)


def _inside_torch_hidden(world: World, torch: str, version: str) -> None:
    hip = world.hip(f"{torch}/lib/libamdhip64.so.6")
    source = rccl_source(version)
    source = source.replace(
        "const char *ncclCommInitRank(void)\n",
        '__attribute__((visibility("hidden"))) const char *ncclCommInitRank(void)\n',
    )
    text = source + sources.TORCH_HIP.replace("extern const char *ncclCommInitRank(void);", "")
    library(world.new(f"{torch}/lib/libtorch_hip.so"), *rpath("$ORIGIN"), hip, *c_library_of(world.parts), source=text)


def _inside_another(world: World, torch: str, version: str) -> None:
    """libtorch_hip needs a library of another name, in which RCCL is."""
    world.hip(f"{torch}/lib/libamdhip64.so.6")
    used = rccl_of(world, f"{torch}/lib/libcollectives.so", version, *rpath("$ORIGIN"))
    _torch_hip(world, torch, used)


def _for_all_by_name(world: World, torch: str, version: str) -> None:
    """libtorch_global_deps needs the same name, which is then there already."""
    rccl_of(world, NEWER, version, *runpath(ROCM))
    library(world.new(f"{torch}/lib/libtorch_global_deps.so"), *rpath("/opt/newer/lib"), world.at(NEWER))


_RCCLS: dict[str, Callable[[World, str, str], None]] = {
    "UCC behind": _with_ucc_behind,
    "UCC before": _with_ucc_before,
    "UCC opened for all": _with_ucc_opened_for_all,
    "mangled": _mangled,
    "mangled with UCC before": _mangled_with_ucc,
    "mangled with UCC opened for all": _mangled_with_ucc_for_all,
    "inside torch": _inside_torch,
    "inside torch, hidden": _inside_torch_hidden,
    "inside another": _inside_another,
    "another opened for all": _for_all_by_name,
}


# -- I: symbols of the plugin --


def plugin_symbols(world: World, draw: random.Random) -> Planted:
    form = draw.choice([*_SYMBOLS])
    return Planted(form + _SYMBOLS[form](world, draw))


_APIS = (8, 7, 6, 5)


def _with_versions(world: World, hidden: set[str], draw: random.Random, *, first: bool = False) -> None:
    """Give the plugin's symbols versions; those of `hidden` are not the default ones (`@`)."""
    script = world.parts / "plugin.map"
    world.parts.mkdir(parents=True, exist_ok=True)
    names = [f"ncclNetPlugin_v{each}" for each in _APIS]
    more = "" if first else "PLUGIN_0 { global: nothing_here; };\n"
    script.write_text(f"{more}PLUGIN_1 {{ global: {'; '.join(names)}; local: *; }};\n")
    world.plugin(world.plugin_file, f"-Wl,--version-script,{script}", extra="" if first else "int nothing_here;")
    place = world.at(world.plugin_file)
    data = bytearray(place.read_bytes())
    elf: Any = ELFFile(io.BytesIO(bytes(data)))
    at = elf.get_section_by_name(".gnu.version")["sh_offset"]
    for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        if symbol.name in hidden:
            data[at + 2 * number + 1] |= 0x80
    world.put(world.plugin_file, bytes(data))


def _all_hidden(world: World, draw: random.Random) -> str:
    first = draw.random() < 0.5
    _with_versions(world, {f"ncclNetPlugin_v{each}" for each in _APIS}, draw, first=first)
    return " (version 2)" if first else ""


def _some_hidden(world: World, draw: random.Random) -> str:
    count = draw.choice([1, 2, 3])
    _with_versions(world, {f"ncclNetPlugin_v{each}" for each in _APIS[:count]}, draw)
    return ""


def _default_versions(world: World, draw: random.Random) -> str:
    _with_versions(world, set(), draw)
    return ""


def _in_a_needed_library(world: World, draw: random.Random) -> str:
    """The plugin is a shell; what it needs has the tables."""
    path = world.plugin_file
    folder = path.rpartition("/")[0]
    steps = draw.choice([1, 1, 2])
    made = world.plugin(f"{folder}/libofi_impl.so")
    if steps == 2:
        made = library(world.new(f"{folder}/libofi_middle.so"), *runpath("$ORIGIN"), made)
    library(world.new(path), *runpath("$ORIGIN"), made, source="int shell;")
    return f" ({steps} steps)"


def _better_in_a_needed_library(world: World, draw: random.Random) -> str:
    """The shell has an old table only, and what it needs a newer one."""
    path = world.plugin_file
    folder = path.rpartition("/")[0]
    made = world.plugin(f"{folder}/libofi_impl.so", apis=draw.choice([(8, 7, 6, 5), (4,)]))
    world.plugin(path, *runpath("$ORIGIN"), made, apis=(4,))
    return ""


def _hidden_visibility(world: World, draw: random.Random) -> str:
    world.plugin(
        world.plugin_file,
        apis=(),
        extra="".join(
            f'__attribute__((visibility("hidden"))) struct net ncclNetPlugin_v{each} = {{plugin_name + 1, init}};\n'
            for each in _APIS
        ),
    )
    return ""


def _local(world: World, draw: random.Random) -> str:
    world.plugin(
        world.plugin_file,
        apis=(),
        extra="".join(
            f"static struct net ncclNetPlugin_v{each} = {{plugin_name + 1, init}}; struct net *seen_{each} = &ncclNetPlugin_v{each};\n"
            for each in _APIS
        ),
    )
    return ""


def _undefined(world: World, draw: random.Random) -> str:
    """It only asks for the tables, and another library has them."""
    weak = draw.random() < 0.5
    mark = "__attribute__((weak))" if weak else ""
    needed: list[Path] = []
    if not weak or draw.random() < 0.5:
        needed = [world.plugin(f"{world.plugin_file.rpartition('/')[0]}/libofi_impl.so")]
    world.plugin(
        world.plugin_file,
        *runpath("$ORIGIN"),
        *needed,
        apis=(),
        extra="".join(
            f"extern struct net ncclNetPlugin_v{each} {mark}; struct net *seen_{each}(void) {{ return &ncclNetPlugin_v{each}; }}\n"
            for each in _APIS
        ),
    )
    return (" weak" if weak else "") + (" with" if needed else "")


def _weak(world: World, draw: random.Random) -> str:
    world.plugin(
        world.plugin_file,
        apis=(),
        extra="".join(
            f"__attribute__((weak)) struct net ncclNetPlugin_v{each} = {{plugin_name + 1, init}};\n" for each in _APIS
        ),
    )
    return ""


def _in_a_sibling_for_all(world: World, draw: random.Random) -> str:
    """What the process has already does not count: dlsym asks the handle."""
    other = world.plugin("/opt/other/librccl-net-other.so")
    del other
    library(world.new(world.plugin_file), source="int shell;")
    world.set(LD_PRELOAD="/opt/other/librccl-net-other.so")
    return ""


def _fabric_of_another_version(world: World, draw: random.Random) -> str:
    """Undefined versions in what the plugin needs."""
    impl = versioned(world.new("/opt/impl/libimpl.so"), defines=("IMPL_1",))
    world.plugin(
        world.plugin_file,
        impl,
        *runpath("/opt/impl"),
        extra="int s_IMPL_1(void); int use_impl(void) { return s_IMPL_1(); }",
    )
    if draw.random() < 0.5:
        versioned(world.new("/opt/impl/libimpl.so"), defines=("IMPL_2",))
        return " gone"
    return ""


_SYMBOLS: dict[str, Callable[[World, random.Random], str]] = {
    "all hidden versions": _all_hidden,
    "some hidden versions": _some_hidden,
    "default versions": _default_versions,
    "in a needed library": _in_a_needed_library,
    "better in a needed library": _better_in_a_needed_library,
    "hidden visibility": _hidden_visibility,
    "local": _local,
    "undefined": _undefined,
    "weak": _weak,
    "in a sibling": _in_a_sibling_for_all,
    "version of a needed library": _fabric_of_another_version,
}
