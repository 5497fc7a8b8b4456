"""Where the loader looks for a name, in which order: the heart of `_dl_map_new_object` in glibc `elf/dl-load.c`.

A name with a slash is opened as it is. Any other is searched: in DT_RPATH of the object that needs it and of those
that led to it (only where it has no DT_RUNPATH itself), in LD_LIBRARY_PATH, in its own DT_RUNPATH, in the loader's
cache, in the default directories. How a list is split and expanded, and how it is tried: `fillin_rpath`,
`_dl_dst_substitute`, `open_path` there.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lumiimg.elf.facts import DF_1_NODEFLIB
from lumiimg.elf.files import Files, FileVerdict, Opened
from lumiimg.elf.hwcaps import ZEN3, isa_mask, known_levels, legacy_subdirectories, subdirectories
from lumiimg.elf.objects import FoundBy, LoadedObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.elf.reader import Native
    from lumiimg.elf.system import System

_LAST_MINOR_CHECKING_KERNEL = 35
_FIRST_MINOR_PAST_ENOTDIR = 39
# without braces a token ends where a name ends: $LIBS is no $LIB
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")
_FOR_A_NEWER_KERNEL = Opened(FileVerdict.OTHER_MACHINE, errno=errno.ENOENT)


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """What reaches the loader from outside the root file system."""

    library_path: str | None = None
    """LD_LIBRARY_PATH as the process gets it."""
    preload: tuple[str, ...] = ()
    """Names in LD_PRELOAD."""
    cwd: str = "/"
    hwcaps: tuple[str, ...] = ZEN3
    """glibc-hwcaps levels of the CPU, best first."""
    intel: bool = False
    """Whether the CPU is one of Intel: only then is `$PLATFORM` `haswell`."""
    linux: tuple[int, int, int] | None = None
    """The running kernel; None for one that is newer than any file asks for."""
    bind_now: bool = False
    """Whether LD_BIND_NOW is set: then calls are bound at the load, too."""

    def absolute(self, path: str) -> str:
        """Return a path as the kernel takes it, from the current directory."""
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search through one list: a path and what is there."""

    path: str
    opened: Opened


def expand(text: str, *, origin: str, system: System) -> str:
    """Replace $ORIGIN, $LIB and $PLATFORM; text with a token that has no value becomes empty, which is not a path."""
    if "$" not in text:
        return text
    values = {"ORIGIN": origin, "LIB": system.lib, "PLATFORM": system.platform}
    if any(values[match[1] or match[2]] is None for match in _TOKEN.finditer(text)):
        return ""
    return _TOKEN.sub(lambda match: values[match[1] or match[2]] or "", text)


def split_path(text: str, *, separators: str, origin: str, system: System) -> tuple[str, ...]:
    """Return the directories of a search path, each with a slash at the end, without repetitions.

    An empty element is the current directory, and stays empty: the path that is tried is the name alone. An empty
    search path means no search at all.
    """
    if not text:
        return ()
    written = re.split(f"[{separators}]", text)
    expanded = ((element, expand(element, origin=origin, system=system)) for element in written)
    return tuple(dict.fromkeys(way and way.rstrip("/") + "/" for element, way in expanded if way or not element))


def origin_of(path: str, cwd: str) -> str:
    """Return $ORIGIN of an object: the directory of its path as it was opened, symlinks and all."""
    absolute = path if path.startswith("/") else f"{cwd.rstrip('/')}/{path}"
    return absolute.rpartition("/")[0] or "/"


def cache_lookup(system: System, native: Native, settings: LoaderSettings) -> Callable[[str], str | None]:
    """Return what finds the path that the loader's cache has for a name on such a machine."""
    cache, levels, minor = system.cache, settings.hwcaps, system.glibc_minor
    if cache is None:
        return lambda _: None
    return partial(
        cache.lookup,
        machine=native.machine,
        elf_class=native.elf_class,
        hwcaps=known_levels(levels, minor),
        isa=isa_mask(levels),
    )


class SearchRules:
    """The rules for one process."""

    def __init__(
        self, files: Files, native: Native, settings: LoaderSettings, system: System, main: LoadedObject
    ) -> None:
        self._files = files
        self._native = native
        self._settings = settings
        self._system = system
        self._main = main
        self.doubts: dict[str, None] = {}
        """What may lead elsewhere than is said here."""
        minor = system.glibc_minor
        self._subdirectories = subdirectories(settings.hwcaps, native.machine, minor)
        self._legacy = legacy_subdirectories(native.machine, minor)
        self._cached = cache_lookup(system, native, settings)
        minor_checks = minor is not None and minor <= _LAST_MINOR_CHECKING_KERNEL
        self._linux = settings.linux if minor_checks else None
        goes_past_file = minor is None or minor >= _FIRST_MINOR_PAST_ENOTDIR
        # errnos that do not stop a list of directories
        self._goes_past = (errno.ENOENT, errno.EACCES, *([errno.ENOTDIR] if goes_past_file else []))
        self._directories: dict[tuple[LoadedObject, FoundBy], tuple[str, ...]] = {}
        self._lists: dict[LoadedObject, tuple[tuple[FoundBy, tuple[str, ...]], ...]] = {}

    def search(self, name: str, requester: LoadedObject) -> tuple[FoundBy, SearchResult | None, bool]:
        """Return (the rule that ended the search, what it met, whether a file of the other class was passed over)."""
        if "/" in name:
            opened = self._open(name)
            return FoundBy.PATH, SearchResult(name, opened), opened.verdict is FileVerdict.OTHER_CLASS
        other_class = False
        last: SearchResult | None = None
        for rule, directories in self._lists_of(requester):
            if rule is FoundBy.CACHE:
                found = self._search_cache(name, requester)
                # the loader tries no other entry of the cache
                passed = found is not None and found.opened.verdict is FileVerdict.OTHER_CLASS
            else:
                found, passed = self._search_directories(name, directories)
            other_class |= passed
            if found is not None and found.opened.verdict in (FileVerdict.GOOD, FileVerdict.FATAL):
                return rule, found, other_class
            last = found or last
        return FoundBy.DEFAULT, last, other_class

    def _search_directories(self, name: str, directories: tuple[str, ...]) -> tuple[SearchResult | None, bool]:
        """Return (what ends the search in this list, whether a file of the other ELF class was passed over).

        Where nothing was found it is the last that could not be opened: its errno is what the loader complains of.

        An error that stops the list counts only where it is the last one that a directory gave: what a subdirectory
        said is forgotten when the directory itself is tried (`open_path` looks at errno once per directory).
        """
        other_class = False
        last: SearchResult | None = None
        for directory in filter(self._is_dir, directories):
            for legacy in self._legacy:
                if self._is_dir(directory + legacy):
                    self.doubts[f"{directory}{legacy}: glibc up to 2.36 may look there first; lumiimg does not"] = None
            opened: Opened | None = None
            for subdirectory in self._subdirectories:
                if subdirectory and not self._is_dir(directory + subdirectory):
                    continue
                path = directory + subdirectory + name
                opened = self._open(path)
                last = SearchResult(path, opened)
                if opened.verdict in (FileVerdict.GOOD, FileVerdict.FATAL):
                    return last, other_class
                other_class |= opened.verdict is FileVerdict.OTHER_CLASS
            if opened is not None and opened.errno not in self._goes_past:
                break
        return last, other_class

    def _lists_of(self, requester: LoadedObject) -> tuple[tuple[FoundBy, tuple[str, ...]], ...]:
        """Return what is searched for an object's needs, in order, without lists that are empty."""
        if requester not in self._lists:
            lists = self._rules(requester)
            self._lists[requester] = tuple(each for each in lists if each[1] or each[0] is FoundBy.CACHE)
        return self._lists[requester]

    def _rules(self, requester: LoadedObject) -> Iterator[tuple[FoundBy, tuple[str, ...]]]:
        """Yield the lists of directories that are searched for an object's needs, in order."""
        main = self._main
        if requester.facts.runpath is None:
            above: LoadedObject | None = requester
            did_main = False
            while above is not None:
                did_main |= above is main
                yield FoundBy.RPATH, self._path_of(above, FoundBy.RPATH)
                # dlopen takes the caller for this one search, and does not note it as the object's loader (l_loader)
                above = None if above.by_dlopen else above.requested_by
            if not did_main:
                yield FoundBy.RPATH, self._path_of(main, FoundBy.RPATH)
        yield FoundBy.LD_LIBRARY_PATH, self._path_of(main, FoundBy.LD_LIBRARY_PATH)
        yield FoundBy.RUNPATH, self._path_of(requester, FoundBy.RUNPATH)
        yield FoundBy.CACHE, ()
        if not requester.facts.flags_1 & DF_1_NODEFLIB:
            yield FoundBy.DEFAULT, self._system.directories

    def _path_of(self, loaded: LoadedObject, rule: FoundBy) -> tuple[str, ...]:
        """Return the directories that an object (for LD_LIBRARY_PATH: the main program) gives to a rule."""
        key = (loaded, rule)
        known = self._directories.get(key)
        if known is None:
            if rule is FoundBy.LD_LIBRARY_PATH:
                text, separators = self._settings.library_path, ":;"
            elif rule is FoundBy.RUNPATH:
                text, separators = loaded.facts.runpath, ":"
            else:
                # an object's own RPATH counts for nothing beside a RUNPATH
                text, separators = (loaded.facts.rpath if loaded.facts.runpath is None else None), ":"
            known = split_path(text or "", separators=separators, origin=loaded.origin, system=self._system)
            self._directories[key] = known
        return known

    def _search_cache(self, name: str, requester: LoadedObject) -> SearchResult | None:
        path = self._cached(name)
        if path is None:
            return None
        if requester.facts.flags_1 & DF_1_NODEFLIB and path.startswith(self._system.directories):
            return None
        return SearchResult(path, self._open(path))

    def _open(self, path: str) -> Opened:
        opened = self._files.open(self._settings.absolute(path), self._native)
        if self._linux and opened.facts and (opened.facts.linux_needed or (0, 0, 0)) > self._linux:
            return _FOR_A_NEWER_KERNEL
        return opened

    def _is_dir(self, path: str) -> bool:
        return self._files.is_dir(self._settings.absolute(path))
