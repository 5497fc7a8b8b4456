"""The C library of a root file system: its kind, its version, and what its loader has compiled in.

glibc's ld.so carries its default directories as one run of strings (`system_dirs` in `elf/dl-load.c`), each with a
slash at both ends; distributions differ (`/lib/x86_64-linux-gnu/` and three more on Debian, `/lib64/` and `/usr/lib64/`
on SUSE and Red Hat), so they are read from the loader of the image. `$LIB` is the first of them without its slashes.
Of which version they are, libc.so.6 says in a banner, and ld.so from 2.33 on.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from lumiimg.core.errors import BadInputError
from lumiimg.elf.config import X86_64, since
from lumiimg.elf.facts import ElfAbi, ElfFacts, read_abi, read_elf
from lumiimg.elf.ld_cache import CACHE_PATH, MAX_CACHE_BYTES, LoaderCache, parse_cache
from lumiimg.elf.segments import ElfError
from lumiimg.elf.symbols import exported_symbols, undefined_symbols

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile

_LOADER_OF_MACHINE = {
    X86_64: "/lib64/ld-linux-x86-64.so.2",
    183: "/lib/ld-linux-aarch64.so.1",
    21: "/lib64/ld64.so.2",
    243: "/lib/ld-linux-riscv64-lp64d.so.1",
}
_DEBIAN_NAME_OF_MACHINE = {X86_64: "x86_64-linux-gnu", 183: "aarch64-linux-gnu"}
_MUSL_LOADERS = ("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1")
_SHELLS = ("/bin/sh", "/usr/bin/env", "/bin/ls", "/bin/busybox")

_DIRECTORY = re.compile(rb"/(?:[\x21-\x7e]*/)?[\x21-\x7e]*lib[\x21-\x7e]*/")
_MAX_DIRECTORY_BYTES = 256
_MAX_SLASHES = 10_000
_RELEASE = re.compile(rb"(?:GNU C Library|ld\.so) \(([^)\n]*)\) (?:stable|development) release version (\d+\.(\d+))")
_IN_RELEASE = b" release version "
_MAX_RELEASE_BYTES = 1024
_MAX_RELEASES = 1000
_MAX_LOADER_BYTES = 8 << 20
_MAX_LIBC_BYTES = 64 << 20


class FileSystem(Protocol):
    """A root file system; paths are absolute, symlinks are followed inside the root.

    What cannot be opened is an OSError with the errno of Linux: ENOENT, ENOTDIR, EACCES, ELOOP, EISDIR, ENAMETOOLONG.
    Bytes of the image that make no sense are a BadInputError.
    """

    def open(self, path: str) -> OpenFile:
        """Open a regular file."""

    def is_dir(self, path: str) -> bool:
        """Return whether a path leads to a directory; False for a path that cannot be looked up."""

    def resolve(self, path: str) -> str:
        """Return the path without symlinks, as /proc/self/exe would show it."""


class Banner(NamedTuple):
    """What libc.so.6 or ld.so says of itself."""

    build: str
    """`Debian GLIBC 2.36-9`."""
    version: str
    """`2.36`."""
    minor: int

    def __str__(self) -> str:
        return f"{self.build}, {self.version}"


@dataclass(frozen=True, slots=True)
class CLibrary:
    """The C library of a root file system."""

    kind: Literal["glibc", "musl"] | None = None
    """None where no loader of either is there."""
    loader: str | None = None
    """Path of glibc's, the first of those that programs could name."""
    version: str | None = None
    """Of glibc, like `2.35`; None where it does not say."""


@dataclass(frozen=True, slots=True)
class Loader:
    """What one glibc loader brings with it."""

    path: str
    """The program's interpreter."""
    directories: tuple[str, ...]
    """Default directories, each with a slash at the end, in the order of the search."""
    glibc_minor: int | None
    """35 for glibc 2.35; None where it is not known."""
    cache: LoaderCache | None
    warnings: tuple[str, ...] = ()

    @property
    def lib(self) -> str:
        """`$LIB`."""
        return self.directories[0].strip("/")


def read_loader(fs: FileSystem, machine: int, interpreter: str | None) -> Loader:
    """Return what the loader of a root file system has compiled in; `interpreter` is a program's PT_INTERP."""
    warnings: list[str] = []
    path = interpreter or _LOADER_OF_MACHINE.get(machine, "/lib/ld.so.1")
    data = read_or_empty(fs, path, _MAX_LOADER_BYTES)
    directories = _compiled_directories(data)
    if not directories:
        directories = _usual_directories(fs, machine)
        warnings.append(f"{path}: default directories not found in it, taken from the layout of the distribution")
    cache: LoaderCache | None = None
    try:
        cache = parse_cache(_read_whole(fs, CACHE_PATH, MAX_CACHE_BYTES))
        if cache is None:
            what = "a cache of the old format alone (ldconfig -c old)"
            warnings.append(f"{CACHE_PATH}: {what}: the loader may find libraries there, and lumiimg does not look")
    except FileNotFoundError:
        pass
    except (OSError, BadInputError) as error:
        warnings.append(f"{CACHE_PATH}: {error}; the loader goes on without it")
    banner = _banner(data) or _banner_of_libc(fs, cache)
    minor = banner.minor if banner else None
    if cache is not None and not since(minor, 40) and cache.has_legacy_entries:
        warnings.append(f"{CACHE_PATH}: entries for kinds of CPU (tls, haswell), which lumiimg passes over")
    return Loader(path, directories, minor, cache, tuple(warnings))


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


def _usual_directories(fs: FileSystem, machine: int) -> tuple[str, ...]:
    name = _DEBIAN_NAME_OF_MACHINE.get(machine)
    if name and fs.is_dir(f"/usr/lib/{name}"):
        return (f"/lib/{name}/", f"/usr/lib/{name}/", "/lib/", "/usr/lib/")
    return ("/lib64/", "/usr/lib64/") if fs.is_dir("/usr/lib64") else ("/lib/", "/usr/lib/")


def banner_at(fs: FileSystem, path: str) -> Banner | None:
    """Return what libc.so.6 or ld.so says of itself; None where it is silent, or not there."""
    return _banner(read_or_empty(fs, path, _MAX_LIBC_BYTES))


def _banner(data: bytes) -> Banner | None:
    """Return glibc's banner, which is looked for by a part that does not vary: a regex alone is slow."""
    at = -1
    for _ in range(_MAX_RELEASES):
        at = data.find(_IN_RELEASE, at + 1)
        if at < 0:
            return None
        found = _RELEASE.search(data, max(0, at - _MAX_RELEASE_BYTES), at + _MAX_RELEASE_BYTES)
        if found:
            build, version, minor = (part.decode("utf-8", "replace") for part in found.groups())
            return Banner(build, version, int(minor))
    return None


def _banner_of_libc(fs: FileSystem, cache: LoaderCache | None) -> Banner | None:
    """Return the banner of libc.so.6: where the cache says, or in a default directory of any layout."""
    names = [f"{directory}/{name}" for name in _DEBIAN_NAME_OF_MACHINE.values() for directory in ("/lib", "/usr/lib")]
    cached = cache.lookup("libc.so.6") if cache else None
    beside = (f"{directory}/libc.so.6" for directory in (*names, "/lib64", "/usr/lib64", "/lib", "/usr/lib"))
    return next(filter(None, (banner_at(fs, path) for path in (cached, *beside) if path)), None)


def c_library_of(fs: FileSystem) -> CLibrary:
    """Return the C library of a root file system.

    Both can be installed side by side; then it is the one that the shell asks for.
    """
    glibc = [path for path in _LOADER_OF_MACHINE.values() if _is_file(fs, path)]
    musl = any(_is_file(fs, path) for path in _MUSL_LOADERS)
    if glibc and musl:
        asked = (facts.interpreter for path in _SHELLS if (facts := facts_at(fs, path)) and facts.interpreter)
        if "/ld-musl-" in next(asked, ""):
            glibc = []
    if not glibc:
        return CLibrary("musl" if musl else None)
    banners = (_banner(read_or_empty(fs, path, _MAX_LOADER_BYTES)) for path in glibc)
    banner = next(filter(None, banners), None) or _banner_of_libc(fs, None)
    return CLibrary("glibc", glibc[0], banner.version if banner else None)


def facts_at(fs: FileSystem, path: str) -> ElfFacts | None:
    """Return the facts of the file at a path; None for what cannot be read, or is not an ELF file."""
    with contextlib.suppress(OSError, BadInputError), contextlib.closing(fs.open(path)) as file:
        return read_elf(file)
    return None


def abi_at(fs: FileSystem, path: str) -> ElfAbi | None:
    """Return for what kind of machine the file at a path is; None for what cannot be read, or is not an ELF file."""
    with contextlib.suppress(OSError, BadInputError), contextlib.closing(fs.open(path)) as file:
        return read_abi(file)
    return None


def exported_at(fs: FileSystem, path: str, prefix: str = "") -> frozenset[str]:
    """Return the names that the file at a path defines for others; none where that cannot be read."""
    with contextlib.suppress(OSError, BadInputError), contextlib.closing(fs.open(path)) as file:
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


def read_or_empty(fs: FileSystem, path: str, limit_bytes: int) -> bytes:
    """Return a file's bytes; none of what cannot be read, or is larger."""
    with contextlib.suppress(OSError, BadInputError):
        return _read_whole(fs, path, limit_bytes)
    return b""


def _read_whole(fs: FileSystem, path: str, limit_bytes: int) -> bytes:
    with contextlib.closing(fs.open(path)) as file:
        if file.size > limit_bytes:
            raise ElfError(f"{path} has {file.size} bytes, more than {limit_bytes}")
        return file.read_at(0, file.size)
