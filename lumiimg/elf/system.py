"""The C library of a root file system: its kind, its version, and what its loader has compiled in.

glibc's ld.so carries its default directories as one run of strings (`system_dirs` in `elf/dl-load.c`), each with a
slash at both ends; distributions differ (`/lib/x86_64-linux-gnu/` and three more on Debian, `/lib64/` and `/usr/lib64/`
on SUSE and Red Hat), so they are read from the loader of the image. `$LIB` is the first of them without its slashes.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from lumiimg.core.errors import BadInputError
from lumiimg.elf.cache import CACHE_PATH, MAX_CACHE_BYTES, LoaderCache, OldCacheError, parse_cache
from lumiimg.elf.facts import ElfFacts, exported_symbols, read_elf, undefined_symbols
from lumiimg.elf.hwcaps import LAST_MINOR_WITH_LEGACY_ENTRIES, platform
from lumiimg.elf.reader import ElfError, FileSystem, Native

_LOADER_OF_MACHINE = {
    (62, 64): "/lib64/ld-linux-x86-64.so.2",
    (62, 32): "/libx32/ld-linux-x32.so.2",
    (3, 32): "/lib/ld-linux.so.2",
    (183, 64): "/lib/ld-linux-aarch64.so.1",
    (21, 64): "/lib64/ld64.so.2",
    (22, 64): "/lib/ld64.so.1",
    (243, 64): "/lib/ld-linux-riscv64-lp64d.so.1",
}
_DEBIAN_NAME_OF_MACHINE = {62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu", 3: "i386-linux-gnu"}
_MUSL_LOADERS = ("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1")
_SHELLS = ("/bin/sh", "/usr/bin/env", "/bin/ls", "/bin/busybox")

_DIRECTORY = re.compile(rb"/(?:[\x21-\x7e]*/)?[\x21-\x7e]*lib[\x21-\x7e]*/")
_MAX_DIRECTORY_BYTES = 256
_MAX_SLASHES = 10_000
_RELEASE = re.compile(rb"(?:GNU C Library|ld\.so) \(([^)\n]*)\) (?:stable|development) release version (\d+\.\d+)")
_IN_RELEASE = b" release version "
_MAX_RELEASE_BYTES = 1024
_MAX_RELEASES = 1000
_GLIBC_DEFINITION = re.compile(r"GLIBC_2\.(\d+)$")
_MAX_LOADER_BYTES = 8 << 20
_MAX_LIBC_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class System:
    """What one glibc loader brings with it."""

    loader: str
    """Its path: the program's interpreter."""
    directories: tuple[str, ...]
    """Default directories, each with a slash at the end, in the order of the search."""
    lib: str
    """`$LIB`."""
    platform: str | None
    """`$PLATFORM`, of a CPU that is not one of Intel; None where it is not known."""
    glibc_minor: int | None
    """35 for glibc 2.35; None where it is not known."""
    cache: LoaderCache | None
    warnings: tuple[str, ...] = ()


def read_system(fs: FileSystem, native: Native, interpreter: str | None) -> System:
    """Return what the loader of a root file system has compiled in; `interpreter` is a program's PT_INTERP."""
    warnings: list[str] = []
    loader = interpreter or _LOADER_OF_MACHINE.get((native.machine, native.elf_class), "/lib/ld.so.1")
    data = read_what_is_there(fs, loader, _MAX_LOADER_BYTES)
    directories = _compiled_directories(data)
    if not directories:
        directories = _usual_directories(fs, native)
        warnings.append(f"{loader}: default directories not found in it, taken from the layout of the distribution")
    cache, problem = _read_cache(fs)
    if problem:
        warnings.append(problem)
    version = _release(data) or glibc_version(fs)
    minor = int(version.split(".")[1]) if version else None
    takes_legacy = minor is not None and minor <= LAST_MINOR_WITH_LEGACY_ENTRIES
    if cache is not None and takes_legacy and cache.has_legacy_entries:
        warnings.append(f"{CACHE_PATH}: entries for kinds of CPU (tls, haswell), which lumiimg passes over")
    return System(
        loader=loader,
        directories=directories,
        lib=directories[0].strip("/"),
        platform=platform(native.machine, (), intel=False),
        glibc_minor=minor,
        cache=cache,
        warnings=tuple(warnings),
    )


def _compiled_directories(loader: bytes) -> tuple[str, ...]:
    """Return the longest run of C strings that are library directories with a slash at both ends; in linear time.

    The same run is there twice in newer loaders; the first will do.
    """
    best: list[bytes] = []
    run: list[bytes] = []
    run_end = end = -1
    for _ in range(_MAX_SLASHES):
        # one byte at a time is what memchr does: several times as fast as a search for both
        end = loader.find(b"/", end + 1)
        if end < 0:
            break
        if not loader.startswith(b"\0", end + 1):
            continue
        start = loader.rfind(b"\0", max(0, end - _MAX_DIRECTORY_BYTES), end) + 1
        if start == 0:
            continue  # longer than any directory
        part = loader[start : end + 1]
        if _DIRECTORY.fullmatch(part):
            run = [*run, part] if start == run_end else [part]
            run_end = end + 2
            best = run if len(run) > len(best) else best
    return tuple(part.decode("ascii") for part in best)


def glibc_build(fs: FileSystem, path: str) -> str | None:
    """Return the build that libc.so.6 or ld.so says it is of (`Debian GLIBC 2.36-9, 2.36`); None where it is silent."""
    found = _banner(read_what_is_there(fs, path, _MAX_LIBC_BYTES))
    return f"{found[1].decode('utf-8', 'replace')}, {found[2].decode('ascii')}" if found else None


def _release(data: bytes) -> str | None:
    found = _banner(data)
    return found[2].decode("ascii") if found else None


def _banner(data: bytes) -> re.Match[bytes] | None:
    """Return glibc's banner, which is looked for by a part that does not vary: a regex alone is slow."""
    at = -1
    for _ in range(_MAX_RELEASES):
        at = data.find(_IN_RELEASE, at + 1)
        if at < 0:
            return None
        found = _RELEASE.search(data, max(0, at - _MAX_RELEASE_BYTES), at + _MAX_RELEASE_BYTES)
        if found:
            return found
    return None


def _usual_directories(fs: FileSystem, native: Native) -> tuple[str, ...]:
    name = _DEBIAN_NAME_OF_MACHINE.get(native.machine)
    if name and fs.is_dir(f"/usr/lib/{name}"):
        return (f"/lib/{name}/", f"/usr/lib/{name}/", "/lib/", "/usr/lib/")
    wide = native.elf_class == 64 and fs.is_dir("/usr/lib64")
    return ("/lib64/", "/usr/lib64/") if wide else ("/lib/", "/usr/lib/")


def _read_cache(fs: FileSystem) -> tuple[LoaderCache | None, str | None]:
    """Return (the cache, a warning): the loader goes on without a cache that it cannot use, and says nothing."""
    try:
        return parse_cache(_read_whole(fs, CACHE_PATH, MAX_CACHE_BYTES)), None
    except FileNotFoundError:
        return None, None
    except OldCacheError as error:
        return None, f"{CACHE_PATH}: {error}: the loader may find libraries there, and lumiimg does not look"
    except (OSError, BadInputError) as error:
        return None, f"{CACHE_PATH}: {error}; the loader goes on without it"


def glibc_version(fs: FileSystem) -> str | None:
    """Return the version of the root's glibc, like `2.35`, from its own banner; None where there is no glibc.

    The banner stands in libc.so.6, and in ld.so since 2.33. Where neither can be read, the cache shows which ldconfig
    wrote it; last, the newest version that libc.so.6 defines is a lower bound that is nearly always the version.
    """
    loaders = [path for path in _LOADER_OF_MACHINE.values() if _is_file(fs, path)]
    if not loaders:
        return None
    for path in loaders:
        version = _release(read_what_is_there(fs, path, _MAX_LOADER_BYTES))
        if version:
            return version
    cache, _ = _read_cache(fs)
    libc = _libc_path(fs, cache)
    if libc:
        version = _release(read_what_is_there(fs, libc, _MAX_LIBC_BYTES))
        if version:
            return version
    if cache and cache.glibc_version:
        return cache.glibc_version
    return _newest_definition(fs, libc) if libc else None


def _libc_path(fs: FileSystem, cache: LoaderCache | None) -> str | None:
    """Return where libc.so.6 is: beside a default directory of any layout, or where the cache says."""
    names = [f"{directory}/{name}" for name in _DEBIAN_NAME_OF_MACHINE.values() for directory in ("/lib", "/usr/lib")]
    beside = (f"{directory}/libc.so.6" for directory in (*names, "/lib64", "/usr/lib64", "/lib", "/usr/lib"))
    cached = cache.lookup("libc.so.6") if cache else None
    return next((path for path in (cached, *beside) if path and _is_file(fs, path)), None)


def _newest_definition(fs: FileSystem, libc: str) -> str | None:
    facts = facts_at(fs, libc)
    definitions = facts.version_definitions if facts else ()
    minors = [int(found[1]) for name in definitions if (found := _GLIBC_DEFINITION.match(name))]
    return f"2.{max(minors)}" if minors else None


def loader_of(fs: FileSystem) -> str | None:
    """Return the path of a root's glibc loader, the first of those that its programs could name; None without one."""
    return next((path for path in _LOADER_OF_MACHINE.values() if _is_file(fs, path)), None)


def libc_kind(fs: FileSystem) -> str | None:
    """Return `glibc` or `musl`, None for a root file system with no loader of either.

    Both can be installed side by side; then it is the one that the shell asks for.
    """
    has_glibc = loader_of(fs) is not None
    has_musl = any(_is_file(fs, path) for path in _MUSL_LOADERS)
    if has_glibc and has_musl:
        for path in _SHELLS:
            facts = facts_at(fs, path)
            if facts and facts.interpreter:
                return "musl" if "/ld-musl-" in facts.interpreter else "glibc"
    if has_musl and not has_glibc:
        return "musl"
    return "glibc" if has_glibc else None


def facts_at(fs: FileSystem, path: str) -> ElfFacts | None:
    """Return the facts of the file at a path; None for what cannot be read, or is not an ELF file."""
    try:
        with contextlib.closing(fs.open(path)) as file:
            return read_elf(file)
    except (OSError, BadInputError):
        return None


def exported_at(fs: FileSystem, path: str, prefix: str = "") -> frozenset[str]:
    """Return the names that the file at a path defines for others; none where that cannot be read."""
    with contextlib.suppress(OSError, ValueError, BadInputError), contextlib.closing(fs.open(path)) as file:
        return exported_symbols(file, prefix)
    return frozenset()


def wanted_at(fs: FileSystem, path: str) -> frozenset[str]:
    """Return the names that the file at a path must find elsewhere; none where that cannot be read."""
    with contextlib.suppress(OSError, BadInputError), contextlib.closing(fs.open(path)) as file:
        return frozenset(symbol.name for symbol in undefined_symbols(file))
    return frozenset()


def _is_file(fs: FileSystem, path: str) -> bool:
    try:
        fs.open(path).close()
    except (OSError, BadInputError):
        return False
    return True


def read_what_is_there(fs: FileSystem, path: str, limit_bytes: int) -> bytes:
    """Return a file's bytes; none of what cannot be read, or is larger."""
    try:
        return _read_whole(fs, path, limit_bytes)
    except (OSError, BadInputError):
        return b""


def _read_whole(fs: FileSystem, path: str, limit_bytes: int) -> bytes:
    with contextlib.closing(fs.open(path)) as file:
        if file.size > limit_bytes:
            raise ElfError(f"{path} has {file.size} bytes, more than {limit_bytes}")
        return file.read_at(0, file.size)
