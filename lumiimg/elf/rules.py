"""Where the loader looks for a name, in which order: the heart of `_dl_map_new_object` in glibc `elf/dl-load.c`.

A name with a slash is opened as it is. Any other is searched: in DT_RPATH of the object that needs it and of those
that led to it (only where it has no DT_RUNPATH itself), in LD_LIBRARY_PATH, in its own DT_RUNPATH, in the loader's
cache, in the default directories.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.elf.facts import DF_1_NODEFLIB
from lumiimg.elf.files import Files, FileVerdict, Opened
from lumiimg.elf.hwcaps import ZEN3, isa_mask, legacy_mask, levels_in_cache, subdirectories
from lumiimg.elf.objects import FoundBy, LoadedObject
from lumiimg.elf.search import SearchResult, split_path, try_directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.elf.filesystem import Native
    from lumiimg.elf.system import System

_LAST_MINOR_CHECKING_KERNEL = 35
_FIRST_MINOR_PAST_ENOTDIR = 39
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
    """Whether the CPU is one of Intel: only then is `$PLATFORM` `haswell`, and are there directories of that name."""
    linux: tuple[int, int, int] | None = None
    """The running kernel; None for one that is newer than any file asks for."""

    def absolute(self, path: str) -> str:
        """Return a path as the kernel takes it, from the current directory."""
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"


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
        levels, machine, minor, intel = settings.hwcaps, native.machine, system.glibc_minor, settings.intel
        self._subdirectories = subdirectories(levels, machine, minor, intel=intel)
        self._cache_levels = levels_in_cache(levels, minor)
        self._legacy_hwcaps = legacy_mask(levels, machine, minor, intel=intel)
        minor_checks = minor is not None and minor <= _LAST_MINOR_CHECKING_KERNEL
        self._linux = settings.linux if minor_checks else None
        goes_past_file = minor is None or minor >= _FIRST_MINOR_PAST_ENOTDIR
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
                found, passed = try_directories(
                    name,
                    directories,
                    self._subdirectories,
                    open_path=self._open,
                    is_dir=self._is_dir,
                    goes_past=self._goes_past,
                )
            other_class |= passed
            if found is not None and found.opened.verdict in (FileVerdict.GOOD, FileVerdict.FATAL):
                return rule, found, other_class
            last = found or last
        return FoundBy.DEFAULT, last, other_class

    def _lists_of(self, requester: LoadedObject) -> tuple[tuple[FoundBy, tuple[str, ...]], ...]:
        """Return what is searched for an object's needs, in order, without lists that are empty."""
        known = self._lists.get(requester)
        if known is None:
            lists = self._rules(requester)
            known = tuple(each for each in lists if each[1] or each[0] is FoundBy.CACHE)
            self._lists[requester] = known
        return known

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
        cache = self._system.cache
        if cache is None:
            return None
        path = cache.lookup(
            name,
            machine=self._native.machine,
            elf_class=self._native.elf_class,
            hwcaps=self._cache_levels,
            isa=isa_mask(self._settings.hwcaps),
            legacy_hwcaps=self._legacy_hwcaps,
        )
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
