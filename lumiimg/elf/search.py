"""Where the loader searches for a name, and in which order: the core of `_dl_map_new_object` in glibc `elf/dl-load.c`.

A name with a slash is opened as it is. Any other name is searched: in DT_RPATH of the object that needs it and of the
objects that led to it (only if it has no DT_RUNPATH itself), in LD_LIBRARY_PATH, in its own DT_RUNPATH, in the loader's
cache, in the default directories. `fillin_rpath`, `_dl_dst_substitute` and `open_path` there show how a list is split,
expanded and tried.

Many modelled processes over one root share an `ElfCache`: a file is opened, checked and read once. The checks and their
messages are those of `open_verify` in glibc `elf/dl-load.c`.
"""

from __future__ import annotations

import contextlib
import errno
import re
import struct
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf.facts import DF_1_NODEFLIB, ElfFacts, SnapshotElf, read_elf
from lumiimg.elf.glibc import FileSystem, Loader, LoaderConfig, banner_at, legacy_subdirectories, read_loader, since
from lumiimg.elf.objects import FoundBy, LoadedObject
from lumiimg.elf.segments import ET_DYN, ET_EXEC, FIRST_READ_BYTES, HEADER_BYTES, ElfError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from lumiimg.core.access import OpenFile

_ELFCLASS64 = 2
_ELFOSABI_SYSV, _ELFOSABI_GNU = 0, 3
_LIBC_ABI_MAX = 4
_SEGMENT_BYTES = 56
_HEADER = struct.Struct("<HHI")
_FIRST_MINOR_PAST_ENOTDIR = 39
# without braces, a token ends where a name ends: $LIBS is not $LIB
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path that the loader tries, with the result.

    A usable file has facts, a file at which the loader gives up has a problem; after any other, the search continues.
    """

    path: str
    facts: ElfFacts | None = None
    problem: str = ""
    """Loader's message, without the path."""
    errno: int = 0
    """Error of the system call that failed; 0 if the content is the problem."""
    machine: int | None = None
    """e_machine; None if an earlier part of the header is wrong."""
    identity: Hashable = None
    is_recorded: bool = False
    """Whether only its facts are available."""
    is_other_class: bool = False
    """Whether it is a 32-bit file: skipped as if absent, but remembered for the message."""
    is_other_machine: bool = False
    """Whether it is a file for another machine: skipped as if absent."""

    @property
    def ends_search(self) -> bool:
        """Whether the loader stops searching: it uses the file or gives up."""
        return self.facts is not None or bool(self.problem)


class ElfCache:
    """The files of one root file system as loaders see them; each lookup, open or read is done only once."""

    def __init__(self, fs: FileSystem) -> None:
        self.fs = fs
        self.is_dir = cache(fs.is_dir)
        """Function that returns whether a path is a directory."""
        self.resolve = cache(fs.resolve)
        """Function that returns a path without symlinks."""
        self.loader = cache(partial(read_loader, fs))
        """Function that returns the properties of this root's loader for a machine, or of a program's PT_INTERP."""
        self.banner = cache(partial(banner_at, fs))
        """Function that returns the banner of libc.so.6, for which it searches the whole file."""

        self.denied: dict[str, None] = {}
        """Paths that could not be opened because of missing rights."""
        self._checked = cache(self._check_at)
        self._files: dict[Hashable, Candidate] = {}

    def open(self, path: str, machine: int | None = None, *, to_run: bool = False) -> Candidate:
        """Open and check an absolute path for a machine; None stands for the machine that the file is for.

        `to_run`: the kernel opens it, which requires the right to run it, not to read it.
        """
        found = self._checked(path, self.fs.open_exec if to_run else self.fs.open)
        if machine is None or found.machine in (None, machine):
            return found
        return Candidate(path, errno=errno.ENOENT, is_other_machine=True)

    def _check_at(self, path: str, open_file: Callable[[str], OpenFile]) -> Candidate:
        try:
            file = open_file(path)
        except OSError as error:
            if error.errno == errno.EACCES:
                self.denied[path] = None
            return _cannot_open(path, error.errno or errno.EIO)
        except BadInputError:
            return _cannot_open(path, errno.EIO)
        with contextlib.closing(file):
            known = self._files.get(file.identity)
            if known is not None:  # the same file by another name
                return replace(known, path=path)
            try:
                found = self._files[file.identity] = _check_file(path, file)
            except (OSError, BadInputError):
                return Candidate(path, problem="cannot read file data", errno=errno.EIO)
            return found


def _cannot_open(path: str, number: int) -> Candidate:
    problem = ""
    if number == errno.EISDIR:
        # open(2) of a directory succeeds, but read(2) fails
        problem = "cannot read file data"
    elif number == errno.ENXIO:
        problem, number = "not a regular file: ld.so waits forever at a FIFO, and reads from a device", 0
    return Candidate(path, problem=problem, errno=number)


def _check_file(path: str, file: OpenFile) -> Candidate:
    """Check an open file as `open_verify` does, in the same order and with the same messages."""
    if isinstance(file, SnapshotElf):
        return Candidate(path, file.facts, machine=file.facts.machine, identity=file.identity, is_recorded=True)
    head = file.read_at(0, FIRST_READ_BYTES)
    if len(head) >= HEADER_BYTES and head[:4] == b"\x7fELF" and head[4] != _ELFCLASS64:
        return Candidate(path, errno=errno.ENOENT, is_other_class=True)
    if problem := _ident_problem(head):
        return Candidate(path, problem=problem)
    kind, machine, version = _HEADER.unpack_from(head, 16)
    if version != 1:
        return Candidate(path, problem="ELF file version does not match current one")
    facts = None
    if kind not in (ET_DYN, ET_EXEC):
        problem = "only ET_DYN and ET_EXEC can be loaded"
    elif int.from_bytes(head[54:56], "little") != _SEGMENT_BYTES:
        problem = "ELF file's phentsize not the expected size"
    else:
        try:
            facts = read_elf(file, head)
        except ElfError as error:
            problem = str(error)
    return Candidate(path, facts, problem, machine=machine, identity=file.identity)


def _ident_problem(head: bytes) -> str:
    if len(head) < HEADER_BYTES:
        return "file too short"
    if head[:4] != b"\x7fELF":
        return "invalid ELF header"
    data, version, abi, abi_version = head[5:9]
    if data != 1:
        return "ELF file data encoding not little-endian"
    if version != 1:
        return "ELF file version ident does not match current one"
    if abi not in (_ELFOSABI_SYSV, _ELFOSABI_GNU):
        return "ELF file OS ABI invalid"
    if abi_version != 0 and (abi != _ELFOSABI_GNU or abi_version >= _LIBC_ABI_MAX):
        return "ELF file ABI version invalid"
    return "nonzero padding in e_ident" if any(head[9:16]) else ""


def origin_of(path: str, cwd: str = "/") -> str:
    """Return $ORIGIN of an object: the directory of the path by which it was opened, symlinks included."""
    absolute = path if path.startswith("/") else f"{cwd.rstrip('/')}/{path}"
    return absolute.rpartition("/")[0] or "/"


class SearchRules:
    """The search rules of one process."""

    def __init__(self, files: ElfCache, machine: int, config: LoaderConfig, loader: Loader, main: LoadedObject) -> None:
        self.doubts: dict[str, None] = {}
        """Warnings about places where the real loader may find another file."""
        self._files = files
        self._machine = machine
        self._config = config
        self._loader = loader
        self._main = main
        self._minor = loader.glibc_minor
        self._levels, self._isa = config.levels(machine, self._minor), config.isa
        self._subdirectories = (*(f"glibc-hwcaps/{level}/" for level in self._levels), "")
        """Subdirectories tried between a directory and a name, in order."""
        self._legacy = legacy_subdirectories(machine, self._minor)
        past_file = (errno.ENOTDIR,) if since(self._minor, _FIRST_MINOR_PAST_ENOTDIR) else ()
        self._skippable_errnos = (0, errno.ENOENT, errno.EACCES, *past_file)
        """Values of errno after which the next directory of a list is tried."""
        self._values = {"LIB": loader.lib, "PLATFORM": config.platform(machine)}
        self._absent: set[str] = set()
        """Directories that were tried and do not exist."""
        self._directories_of = cache(self._split)
        self._rpath_of = cache(self._rpath)
        self._lists_of = cache(self._lists)

    def expand(self, text: str, origin: str) -> str:
        """Return a text with $ORIGIN, $LIB and $PLATFORM replaced.

        If a token has no value, the result is empty, which is not a path.
        """
        if "$" not in text:
            return text
        values = {**self._values, "ORIGIN": origin}
        if any(values[match[1] or match[2]] is None for match in _TOKEN.finditer(text)):
            return ""
        return _TOKEN.sub(lambda match: values[match[1] or match[2]] or "", text)

    def _split(self, text: str, separators: str, origin: str) -> tuple[str, ...]:
        """Return the directories of a search path, each with a trailing slash, without repetitions.

        An empty element is the current directory and stays empty, so that only the name is tried as a path. An empty
        search path means no search.
        """
        if not text:
            return ()
        expanded = ((element, self.expand(element, origin)) for element in re.split(f"[{separators}]", text))
        return tuple(dict.fromkeys(way and way.rstrip("/") + "/" for element, way in expanded if way or not element))

    def search(self, name: str, requester: LoadedObject) -> tuple[FoundBy, Candidate | None, bool]:
        """Return (the rule that ended the search, its candidate, whether a file of the other class was skipped).

        If nothing was found, the candidate is the last that could not be opened: the loader reports its errno.
        """
        if "/" in name:
            found = self._open(name)
            return FoundBy.PATH, found, found.is_other_class
        other_class = False
        last: Candidate | None = None
        for rule, directories in self._lists_of(requester):
            # the loader tries only one entry of the cache
            tried = (
                self._in_cache(name, requester) if rule is FoundBy.CACHE else self._in_directories(name, directories)
            )
            for found in tried:
                if found.ends_search:
                    return rule, found, other_class
                other_class |= found.is_other_class
                last = found
        return FoundBy.DEFAULT, last, other_class

    def _in_directories(self, name: str, directories: tuple[str, ...]) -> Iterator[Candidate]:
        """Yield the candidate at each path that is tried.

        An error stops the list only if it is the last one in a directory: errors in its subdirectories are overwritten
        when the directory itself is tried (`open_path` checks errno once per directory). A directory that does not
        exist is tried once per process.
        """
        for directory in directories:
            if not self._is_dir(directory):
                if directory not in self._absent:
                    self._absent.add(directory)
                    yield self._open(directory + name)
                continue
            for legacy in self._legacy:
                if self._is_dir(directory + legacy):
                    self.doubts[f"{directory}{legacy}: glibc up to 2.36 may look there first; lumiimg does not"] = None
            number = 0
            for subdirectory in self._subdirectories:
                if not subdirectory or self._is_dir(directory + subdirectory):
                    found = self._open(directory + subdirectory + name)
                    number = found.errno
                    yield found
            if number not in self._skippable_errnos:
                return

    def _in_cache(self, name: str, requester: LoadedObject) -> Iterator[Candidate]:
        path = self.cached(name)
        shuts_out_defaults = requester.facts.flags_1 & DF_1_NODEFLIB
        if path is not None and not (shuts_out_defaults and path.startswith(self._loader.directories)):
            yield self._open(path)

    def cached(self, name: str) -> str | None:
        """Return the path that the loader's cache contains for a name on this machine."""
        cache = self._loader.cache
        return cache.lookup(name, self._machine, self._levels, self._isa) if cache is not None else None

    def _lists(self, requester: LoadedObject) -> tuple[tuple[FoundBy, tuple[str, ...]], ...]:
        """Return the lists of directories that are searched for an object's needs, in order, without empty lists."""
        return tuple(each for each in self._rules(requester) if each[1] or each[0] is FoundBy.CACHE)

    def _rules(self, requester: LoadedObject) -> Iterator[tuple[FoundBy, tuple[str, ...]]]:
        """Yield the lists of directories that are searched for an object's needs, in order, even if empty."""
        main = self._main
        if requester.facts.runpath is None:
            above: LoadedObject | None = requester
            did_main = False
            while above is not None:
                did_main |= above is main
                yield FoundBy.RPATH, self._rpath_of(above)
                # dlopen uses the caller only for this search and does not record it as the object's loader (l_loader)
                above = None if above.by_dlopen else above.requested_by
            if not did_main:
                yield FoundBy.RPATH, self._rpath_of(main)
        yield FoundBy.LD_LIBRARY_PATH, self._directories_of(self._config.library_path or "", ":;", main.origin)
        yield FoundBy.RUNPATH, self._directories_of(requester.facts.runpath or "", ":", requester.origin)
        yield FoundBy.CACHE, ()
        if not requester.facts.flags_1 & DF_1_NODEFLIB:
            yield FoundBy.DEFAULT, self._loader.directories

    def _rpath(self, loaded: LoadedObject) -> tuple[str, ...]:
        # it is ignored if the object also has a RUNPATH
        rpath = loaded.facts.rpath if loaded.facts.runpath is None else None
        return self._directories_of(rpath or "", ":", loaded.origin)

    def _open(self, path: str) -> Candidate:
        absolute = self._config.absolute(path)
        found = self._files.open(absolute, self._machine)
        return found if absolute is path else replace(found, path=path)

    def _is_dir(self, path: str) -> bool:
        return self._files.is_dir(self._config.absolute(path))
