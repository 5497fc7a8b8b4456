"""The C library of a root file system: its kind, its version, and the values compiled into its loader.

glibc's ld.so contains its default directories as consecutive strings (`system_dirs` in `elf/dl-load.c`), each with a
slash at both ends; distributions differ (`/lib/x86_64-linux-gnu/` and three more on Debian, `/lib64/` and `/usr/lib64/`
on SUSE and Red Hat), so they are read from the image's loader. `$LIB` is the first of them without its slashes. The
version is in a banner in libc.so.6 and, since 2.33, in ld.so.

External inputs are the environment, the kernel and the CPU as glibc classifies it. glibc 2.33 and newer first tries
`glibc-hwcaps/<level>/` below a directory, best level first (`sysdeps/x86_64/dl-hwcaps_subdirs.c`; levels: x86-64
psABI). Up to 2.36, it also tries the legacy subdirectories (`elf/dl-hwcaps.c:_dl_important_hwcaps`): no current
distribution fills them, so lumiimg checks only whether they exist. Platform `haswell` exists only on Intel CPUs
(`sysdeps/x86/cpu-features.c`, 2.26 to 2.43); on others, the platform is the kernel's AT_PLATFORM.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from lumiimg.core.access import read_or_empty
from lumiimg.core.errors import BadInputError
from lumiimg.elf.facts import ElfAbi, ElfFacts, read_abi, read_elf
from lumiimg.elf.ld_cache import CACHE_PATH, MAX_CACHE_BYTES, LoaderCache, parse_cache
from lumiimg.elf.segments import ElfError
from lumiimg.elf.symbols import WantedSymbol, exported_symbols, undefined_symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lumiimg.core.access import OpenFile

X86_64 = 62
_LEVELS = (
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)
_ISA_BITS = {"x86-64-v2": 2, "x86-64-v3": 4, "x86-64-v4": 8}
_PLATFORM_OF_MACHINE = {X86_64: "x86_64", 183: "aarch64"}
_LEGACY = ("tls/", "haswell/", "avx512_1/", "x86_64/")
"""First components of the legacy subdirectories; glibc searches every combination of them."""

_LOADER_OF_MACHINE = {
    X86_64: "/lib64/ld-linux-x86-64.so.2",
    183: "/lib/ld-linux-aarch64.so.1",
    21: "/lib64/ld64.so.2",
    243: "/lib/ld-linux-riscv64-lp64d.so.1",
}
_USUAL_DIRECTORIES = ("/lib64/", "/usr/lib64/", "/lib/", "/usr/lib/")
_DEBIAN_NAME_OF_MACHINE = {X86_64: "x86_64-linux-gnu", 183: "aarch64-linux-gnu"}
_MUSL_LOADERS = ("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1")
_SHELLS = ("/bin/sh", "/usr/bin/env", "/bin/ls", "/bin/busybox")

_LIB, _DIRECTORY = b"lib", re.compile(rb"/[\x21-\x7e]{1,254}/")
_MAX_STRINGS, _MAX_DIRECTORY_BYTES = 1000, 256
_RELEASE = re.compile(rb"(?:GNU C Library|ld\.so) \(([^)\n]*)\) (?:stable|development) release version 2\.(\d{1,3})")
_IN_RELEASE = b" release version "
_MAX_RELEASE_BYTES = 1024
_MAX_LOADER_BYTES = 8 << 20
_MAX_LIBC_BYTES = 64 << 20
T = TypeVar("T")


def since(minor: int | None, first: int) -> bool:
    """Return whether a rule introduced in glibc 2.`first` applies; an unknown version is assumed to be new."""
    return minor is None or minor >= first


@dataclass(frozen=True, slots=True)
class LoaderConfig:
    """Inputs of the loader from outside the root file system."""

    library_path: str | None = None
    """LD_LIBRARY_PATH of the process."""
    preload: tuple[str, ...] = ()
    """Names in LD_PRELOAD."""
    cwd: str = "/"
    hwcaps: tuple[str, ...] = ()
    """glibc-hwcaps levels of the CPU, best first."""
    intel: bool = False
    """Whether it is an Intel CPU: only then can `$PLATFORM` be `haswell`."""
    bind_now: bool = False
    """Whether LD_BIND_NOW is set, so that calls are bound at load time, too."""

    def absolute(self, path: str) -> str:
        """Return an absolute path: a relative one starts at the current directory."""
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"

    def levels(self, machine: int, glibc_minor: int | None) -> tuple[str, ...]:
        """Return the CPU's levels that this glibc supports; none before 2.33."""
        return self.hwcaps if machine == X86_64 and since(glibc_minor, 33) else ()

    @property
    def isa(self) -> int:
        """GNU_PROPERTY_X86_ISA_1 bits of the CPU."""
        return 1 | sum(_ISA_BITS.get(level, 0) for level in self.hwcaps)

    def platform(self, machine: int) -> str | None:
        """Return `$PLATFORM`; None if it is not known for a machine."""
        if machine == X86_64 and self.intel and "x86-64-v3" in self.hwcaps:
            return "haswell"
        return _PLATFORM_OF_MACHINE.get(machine)


def legacy_subdirectories(machine: int, glibc_minor: int | None) -> tuple[str, ...]:
    """Return the subdirectories that such a glibc may search first, and that lumiimg does not search."""
    return _LEGACY if machine == X86_64 and not since(glibc_minor, 37) else ()


def cpu_levels(flags: Collection[str]) -> tuple[str, ...]:
    """Return the glibc-hwcaps levels, best first, of an x86-64 CPU with these /proc/cpuinfo flags."""
    have = set(flags)
    met = itertools.takewhile(lambda level: level[1] <= have, _LEVELS)
    return tuple(name for name, _ in met)[::-1]


class FileSystem(Protocol):
    """A root file system; paths are absolute, symlinks are followed inside the root.

    A file that cannot be opened raises OSError with the Linux errno: ENOENT, ENOTDIR, EACCES, ELOOP, EISDIR,
    ENAMETOOLONG. Malformed data in the image raises BadInputError.
    """

    def open(self, path: str) -> OpenFile:
        """Open a regular file."""

    def open_exec(self, path: str) -> OpenFile:
        """Open a program, or its loader, as the kernel does: without needing the right to read it."""

    def is_dir(self, path: str) -> bool:
        """Return whether a path leads to a directory; False for a path that cannot be looked up."""

    def resolve(self, path: str) -> str:
        """Return the path without symlinks, as /proc/self/exe would show it."""


class Banner(NamedTuple):
    """The version banner of libc.so.6 or ld.so."""

    build: str
    """Name of the build, such as `Debian GLIBC 2.36-9`."""
    minor: int
    """Minor version: 36 for glibc 2.36."""

    def __str__(self) -> str:
        return f"{self.build}, 2.{self.minor}"


@dataclass(frozen=True, slots=True)
class CLibrary:
    """The C library of a root file system."""

    kind: Literal["glibc", "musl"] | None = None
    """Kind of C library; None if the loader of neither exists."""
    loader: str | None = None
    """Path of glibc's loader, the first of the usual ones that exists."""


@dataclass(frozen=True, slots=True)
class Loader:
    """The properties of one glibc loader."""

    path: str
    """Path of the program's interpreter."""
    directories: tuple[str, ...]
    """Default directories, each with a trailing slash, in search order."""
    banner: Banner | None
    """Version banner; None before 2.33."""
    glibc_minor: int | None
    """Minor version: 35 for glibc 2.35; None if it is not known."""
    cache: LoaderCache | None
    warnings: tuple[str, ...] = ()

    @property
    def lib(self) -> str:
        """Value of `$LIB`."""
        return self.directories[0].strip("/")


def read_loader(fs: FileSystem, machine: int, interpreter: str | None) -> Loader:
    """Return the properties of a root file system's loader; `interpreter` is a program's PT_INTERP."""
    warnings: list[str] = []
    path = interpreter or _LOADER_OF_MACHINE.get(machine, "/lib/ld.so.1")
    data = b""
    with contextlib.suppress(OSError, BadInputError), contextlib.closing(fs.open_exec(path)) as loader:
        data = _read_whole(loader, _MAX_LOADER_BYTES)
    directories = _compiled_directories(data)
    if not directories:
        directories = _USUAL_DIRECTORIES
        warnings.append(f"{path}: default directories not found in it; those of most distributions are assumed")
    cache: LoaderCache | None = None
    try:
        with contextlib.closing(fs.open(CACHE_PATH)) as file:
            cache = parse_cache(_read_whole(file, MAX_CACHE_BYTES))
        if cache is None:
            what = "a cache in the old format only (ldconfig -c old)"
            warnings.append(f"{CACHE_PATH}: {what}: the loader may find libraries in it, but lumiimg does not read it")
    except FileNotFoundError:
        pass
    except (OSError, BadInputError) as error:
        warnings.append(f"{CACHE_PATH}: {error}; the loader continues without it")
    own = _banner(data)
    banner = own or _banner_of_libc(fs, cache)
    minor = banner.minor if banner else None
    if cache is not None and not since(minor, 40) and cache.has_legacy_entries:
        warnings.append(f"{CACHE_PATH}: entries for CPU types (tls, haswell), which lumiimg ignores")
    return Loader(path, directories, own, minor, cache, tuple(warnings))


def _compiled_directories(loader: bytes) -> tuple[str, ...]:
    """Return the longest run of C strings that are library directories with a slash at both ends.

    Newer loaders contain the same run twice; the first is used.
    """
    best: list[str] = []
    run: list[str] = []
    end, at = -1, loader.find(_LIB)
    for _ in range(_MAX_STRINGS):  # a regex over the whole file is slow
        if at < 0:
            break
        start, after = loader.rfind(b"\0", max(0, at - _MAX_DIRECTORY_BYTES), at), loader.find(b"\0", at)
        if start >= 0 and _DIRECTORY.fullmatch(loader, start + 1, after):
            run = [*(run if start == end else ()), loader[start + 1 : after].decode("ascii")]
            best, end = max(best, run, key=len), after
        at = loader.find(_LIB, max(at + 1, after))
    return tuple(best)


def banner_at(fs: FileSystem, path: str) -> Banner | None:
    """Return the banner of libc.so.6 or ld.so; None if the file has none or does not exist."""
    return _banner(read_or_empty(fs, path, _MAX_LIBC_BYTES))


def _banner(data: bytes) -> Banner | None:
    """Return glibc's banner; it is located by its constant part first, because a regex alone is slow."""
    at = data.find(_IN_RELEASE)
    found = _RELEASE.search(data, max(0, at - _MAX_RELEASE_BYTES), at + _MAX_RELEASE_BYTES) if at >= 0 else None
    if found is None:
        return None
    return Banner(found[1].decode("utf-8", "replace"), int(found[2]))


def _banner_of_libc(fs: FileSystem, cache: LoaderCache | None) -> Banner | None:
    """Return the banner of libc.so.6 at its path in the cache, or else in a default directory of any layout."""
    names = [f"{directory}/{name}" for name in _DEBIAN_NAME_OF_MACHINE.values() for directory in ("/lib", "/usr/lib")]
    cached = cache.lookup("libc.so.6") if cache else None
    default_paths = (f"{directory}/libc.so.6" for directory in (*names, "/lib64", "/usr/lib64", "/lib", "/usr/lib"))
    return next(filter(None, (banner_at(fs, path) for path in (cached, *default_paths) if path)), None)


def c_library_of(fs: FileSystem) -> CLibrary:
    """Return the C library of a root file system.

    If both are installed side by side, it is the one that the shell uses.
    """
    glibc = [path for path in _LOADER_OF_MACHINE.values() if _is_there(fs, path)]
    musl = any(_is_there(fs, path) for path in _MUSL_LOADERS)
    if glibc and musl:
        asked = (facts.interpreter for path in _SHELLS if (facts := facts_at(fs, path)) and facts.interpreter)
        if "/ld-musl-" in next(asked, ""):
            glibc = []
    return CLibrary("glibc", glibc[0]) if glibc else CLibrary("musl" if musl else None)


def glibc_version(fs: FileSystem) -> str | None:
    """Return the version of a root's glibc, such as `2.35`; None if there is no glibc, or no banner."""
    loader = c_library_of(fs).loader
    banner = (banner_at(fs, loader) or _banner_of_libc(fs, None)) if loader else None
    return f"2.{banner.minor}" if banner else None


def facts_at(fs: FileSystem, path: str) -> ElfFacts | None:
    """Return the facts of the file at a path; None if it cannot be read or is not an ELF file."""
    return _read_elf_of(fs, path, read_elf, None)


def abi_at(fs: FileSystem, path: str) -> ElfAbi | None:
    """Return the kind of machine that the file at a path is for; None if it cannot be read or is not an ELF file."""
    return _read_elf_of(fs, path, read_abi, None)


def exported_at(fs: FileSystem, path: str, prefix: str = "") -> frozenset[str]:
    """Return the names that the file at a path exports; empty if it cannot be read."""
    return _read_elf_of(fs, path, lambda file: exported_symbols(file, prefix), frozenset())


def wanted_at(fs: FileSystem, path: str) -> frozenset[str]:
    """Return the names that the file at a path must find elsewhere; empty if it cannot be read."""
    wanted = _read_elf_of(fs, path, undefined_symbols, frozenset[WantedSymbol]())
    return frozenset(symbol.name for symbol in wanted)


def _read_elf_of(fs: FileSystem, path: str, read: Callable[[OpenFile], T], default: T) -> T:
    """Return the result of `read` for a file; the default if it cannot be read."""
    with contextlib.suppress(OSError, BadInputError), contextlib.closing(fs.open(path)) as file:
        return read(file)
    return default


def _is_there(fs: FileSystem, path: str) -> bool:
    try:
        fs.open_exec(path).close()
    except PermissionError:
        return True
    except (OSError, BadInputError):
        return False
    return True


def _read_whole(file: OpenFile, limit_bytes: int) -> bytes:
    if file.size > limit_bytes:
        raise ElfError(f"has {file.size} bytes, more than {limit_bytes}")
    return file.read_at(0, file.size)
