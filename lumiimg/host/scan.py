"""Scan a node: `scan_host` reads files, and runs only the engine, for its version.

Each library found is recorded once, with the links on the way to it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.core.errors import BadInputError, MissingHereError, one_line
from lumiimg.elf import ElfCache, LoaderConfig, Process, abi_at, c_library_of, exported_symbols, read_elf
from lumiimg.fabric.path import LIBCXI, NET_SYMBOL, net_api, net_symbol
from lumiimg.fabric.process import provider_folders
from lumiimg.host import node_facts
from lumiimg.host.node_facts import Role, scan_facts
from lumiimg.host.root_queries import by_version, matches, names_in, read_word
from lumiimg.host.snapshot import MACHINES, SCHEMA, FoundLibrary, HostFiles, HostLibrary, Snapshot
from lumiimg.image import FileKind, FolderTree, RootFileSystem

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile

MAX_LIBRARY_BYTES = 2 << 30
MAX_SECONDS = 300.0
_MAX_LIBRARIES = 4096
_CHUNK_BYTES = 4 << 20
_SYSTEM_FOLDERS = ("/opt/", "/usr/", "/lib/", "/lib64/", "/etc/")


def scan_host(
    environment: Mapping[str, str], *, root: RootFileSystem | None = None, include: Iterable[Path] = ()
) -> Snapshot:
    """Return what this machine offers; with a `root`, what the files of another root file system offer.

    The engine is run for its version on this machine only. `include` are libraries or folders that the user names.

    Raises BadInputError for one of these that offers nothing, MissingHereError on a machine without glibc.
    """
    is_here = root is None
    root = root or RootFileSystem(FolderTree(Path("/")))
    cache = ElfCache(root)
    model, intel, levels = node_facts.cpu(root)
    is_private = private_paths(environment)
    named = [*filter(None, dict.fromkeys(re.split("[:;]", environment.get("LD_LIBRARY_PATH", ""))))]
    library_path = [path for path in named if path.startswith("/") and not is_private(path)]
    settings = LoaderConfig(library_path=":".join(library_path) or None, hwcaps=levels, intel=intel)
    process = _loader(root, settings, cache)
    search = LibrarySearch(
        root=root,
        process=process,
        library_path=tuple(library_path),
        variables=environment,
        is_private=is_private,
        include=tuple(dict.fromkeys(os.path.abspath(path) for path in include)),  # noqa: PTH100 - links stay
    )
    recorder = Recorder(root)
    entries = _entries(search.run(), root, settings, cache, recorder)
    recorded = (*recorder.libraries, *recorder.links)
    implied = {str(above) for path in recorded for above in PurePosixPath(path).parents}
    snapshot = Snapshot(
        schema=SCHEMA,
        taken=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tool=__version__,
        host=(read_word(root, "/proc/sys/kernel/hostname") or "unknown").partition(".")[0],
        architecture=MACHINES[process.machine],
        kernel=read_word(root, "/proc/sys/kernel/osrelease") or "unknown",
        os=node_facts.operating_system(root),
        cpu=model,
        intel=intel,
        hwcaps=levels,
        glibc=None if (minor := process.loader.glibc_minor) is None else f"2.{minor}",
        library_path=settings.library_path,
        entries=entries,
        libraries=tuple(recorder.libraries[path] for path in sorted(recorder.libraries)),
        links=recorder.links,
        directories=tuple(sorted(recorder.directories - implied)),
        devices=node_facts.devices(root),
        nics=node_facts.nics(root),
        gpu_driver=read_word(root, "/sys/module/amdgpu/version"),
        gpus=node_facts.gpus(root),
        engine=node_facts.container_engine(root, environment, is_private) if is_here else None,
    )
    gaps = [*_gaps(snapshot), *process.loader.warnings]
    if left_out := len(named) - len(library_path):
        gaps.append(
            f"left out of LD_LIBRARY_PATH: {left_out} of {len(named)} folders (in a home, with the user's name in the "
            "path, or relative); --include PATH records a library that is there"
        )
    if is_here and snapshot.engine is None:
        gaps.append("no container engine works here: its version and bind settings are not known")
    elif (engine := snapshot.engine) is not None and engine.settings is None:
        gaps.append(f"the configuration of {engine.name} {engine.version} cannot be read: its settings are not known")
    if private := sorted({path for path in (*(entry.path for entry in entries), *recorded) if is_private(path)}):
        others = f" and {len(private) - 1} more" if len(private) > 1 else ""
        gaps.append(f"the snapshot contains this path in a personal folder: {private[0]}{others}")
    return replace(snapshot, gaps=(*gaps, *recorder.gaps))


def private_paths(environment: Mapping[str, str]) -> Callable[[str], bool]:
    """Return a test for paths that identify a person: below a home, or with the user's name in them."""
    home = environment.get("HOME", "")
    homes = [*scan_facts().own_folders, *([home, os.path.realpath(home)] if len(home) > 1 else [])]
    names = {environment.get("USER", ""), environment.get("LOGNAME", "")} - {""}

    def is_private(path: str) -> bool:
        if path.startswith(_SYSTEM_FOLDERS):
            return False
        below_home = any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in homes)
        return below_home or not names.isdisjoint(path.split("/"))

    return is_private


def _loader(root: RootFileSystem, settings: LoaderConfig, cache: ElfCache) -> Process:
    """Return a process that contains only the loader of a machine. Raises MissingHereError."""
    library, process = c_library_of(root), Process(root, settings, cache=cache)
    if library.loader and process.start(library.loader).root is not None and process.machine in MACHINES:
        return process
    kind = "musl" if library.kind == "musl" else "no C library that is known"
    raise MissingHereError(
        f"this machine has {kind}; a scan needs glibc's loader on {' or '.join(MACHINES.values())}",
        hint="scan on a compute node, outside of any container",
    )


def _entries(
    candidates: Iterable[Candidate], root: RootFileSystem, settings: LoaderConfig, cache: ElfCache, recorder: Recorder
) -> tuple[FoundLibrary, ...]:
    entries = []
    # all entries are recorded first: one may be in the closure of another
    recorded = [candidate for candidate in candidates if recorder.add(candidate.path, is_entry=True)]
    for candidate in recorded:
        outcome = Process(root, settings, cache=cache).start(candidate.path)
        for path in (*candidate.aliases, *(loaded.path for loaded in outcome.objects[1:])):
            recorder.add(path)
        entries.append(
            FoundLibrary(
                role=candidate.role,
                path=candidate.path,
                how=", ".join(candidate.ways),
                closure=outcome.closure,
                errors=tuple(outcome.errors),
            )
        )
    return tuple(entries)


def _gaps(snapshot: Snapshot) -> Iterator[str]:
    if not any(entry.role == "libfabric" for entry in snapshot.entries):
        yield "no libfabric was found: load the site's libfabric module, or name the library with --include PATH"
    elif HostFiles(snapshot).fabric is None:
        if any(LIBCXI in entry.closure for entry in snapshot.entries):
            yield f"libfabric needs {LIBCXI} and cannot be loaded here: scan on a compute node"
        else:
            yield (
                "no libfabric here needs libcxi, so none is known to have the cxi provider: load the module of the "
                "site's libfabric, or name it with --include PATH"
            )
    if not snapshot.nics:
        yield "no Slingshot NIC here (/sys/class/cxi): scan on a compute node"
    if snapshot.gpu_driver is None:
        yield "no version of amdgpu (/sys/module/amdgpu/version): which ROCm its driver supports is not known"
    if not snapshot.hwcaps and snapshot.architecture == "x86_64":
        yield "/proc/cpuinfo names no level of x86-64 beyond the first: the loader is modelled without them"


# -- libraries --


class Recorder:
    """Libraries, links and directories of one scan over one root."""

    def __init__(self, root: RootFileSystem) -> None:
        self.libraries: dict[str, HostLibrary] = {}
        self.links: dict[str, str] = {}
        self.directories: set[str] = set()
        self.gaps: list[str] = []
        self._root = root
        self._deadline = time.monotonic() + MAX_SECONDS
        self._refused: set[str] = set()

    def add(self, path: str, *, is_entry: bool = False) -> bool:
        """Record the library at a path and the links to it; return whether that was possible.

        An entry is also searched for symbols of a net plugin, so it must be added before the libraries that need it.
        """
        at = path
        try:
            at, way = self._root.resolve(path), self._root.lookup_steps(path)
            if at in self._refused:
                return False
            if at not in self.libraries:
                with contextlib.closing(self._root.open(at)) as file:
                    self._check_limits(file)
                    self.libraries[at] = _read(file, at, is_entry=is_entry)
        except (OSError, BadInputError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self._refused.add(at)
            self.gaps.append(one_line(f"{at} is not recorded: {why}"))
            return False
        for here, found in way:
            if found.kind is FileKind.SYMLINK:
                self.links[here] = self._root.readlink(here)
            elif found.kind is FileKind.DIRECTORY:
                self.directories.add(here)
        return True

    def _check_limits(self, file: OpenFile) -> None:
        if file.size > MAX_LIBRARY_BYTES:
            raise BadInputError(f"it has {file.size} bytes, more than {MAX_LIBRARY_BYTES}")
        if len(self.libraries) >= _MAX_LIBRARIES:
            raise BadInputError(f"the limit of {_MAX_LIBRARIES} libraries is reached")
        if time.monotonic() > self._deadline:
            raise BadInputError(f"the scan had exceeded its limit of {MAX_SECONDS:.0f} s")


def _read(file: OpenFile, path: str, *, is_entry: bool) -> HostLibrary:
    facts = read_elf(file)
    symbols = exported_symbols(file, NET_SYMBOL) if is_entry else frozenset[str]()
    digest = hashlib.sha256()
    for offset in range(0, file.size, _CHUNK_BYTES):
        digest.update(file.read_at(offset, _CHUNK_BYTES))
    return HostLibrary(
        path=path,
        size_bytes=file.size,
        sha256=digest.hexdigest(),
        facts=facts,
        net_symbols=tuple(sorted(map(net_symbol, net_api(symbols)))),
    )


# -- where the fabric's libraries are: every way to find one, in order of precedence --

ASKED = "asked for"
OTHER_ROLE = "other"
"""Role of a library that the user names and that fits no known role."""
_BELOW_ASKED = ("", "/lib64", "/lib", "/lib64/libfabric", "/lib/libfabric")


@dataclass(slots=True)
class Candidate:
    """A library that was found, and all ways that led to it."""

    role: str
    path: str
    ways: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    """Other paths of the same file and name."""


@dataclass(frozen=True, slots=True)
class LibrarySearch:
    """The folders and variables with which the node's libraries are searched."""

    root: RootFileSystem
    process: Process
    """A process that contains only the loader of this machine."""
    library_path: tuple[str, ...]
    variables: Mapping[str, str]
    """Environment with the variables that roles name."""
    is_private: Callable[[str], bool]
    include: tuple[str, ...] = ()

    def run(self) -> list[Candidate]:
        """Return the libraries found, by role. Raises BadInputError for a path of the user's that offers nothing."""
        found: dict[tuple[str, str], Candidate] = {}
        asked: set[str] = set()
        for role in scan_facts().role:
            wanted_by = [candidate for candidate in found.values() if candidate.role == role.wanted_by]
            for path, how in self._role_files(role, wanted_by):
                key = self.root.resolve(path), path.rpartition("/")[2]
                candidate = found.setdefault(key, Candidate(role.name, path))
                if how not in candidate.ways:
                    candidate.ways.append(how)
                if path != candidate.path:
                    candidate.aliases.append(path)
                asked |= {path, *map(str, PurePosixPath(path).parents)} if how == ASKED else set()
        others = [path for path in self.include if path not in asked]
        for path in others:
            if not self._is_library(path):
                what = "is not a library that this machine's loader can load, nor a folder with one of the fabric"
                raise BadInputError(what, where=path, hint="name the library itself, or a folder with lib or lib64")
        return [*found.values(), *(Candidate(OTHER_ROLE, path, [ASKED]) for path in others)]

    def _role_files(self, role: Role, wanted_by: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
        """Yield (path, how it was found) for every file of a role."""
        for path in self.include:
            name = path.rpartition("/")[2]
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in role.files) and self._is_library(path):
                yield path, ASKED
        for how, folder, files in self._folders(role, wanted_by):
            if how == ASKED or not (self.is_private(folder) or (role.wanted_by and not wanted_by)):
                yield from ((path, how) for path in self._in_folder(folder, files))

    def _in_folder(self, folder: str, patterns: tuple[str, ...]) -> Iterator[str]:
        listed = names_in(self.root, folder) if any("*" in pattern for pattern in patterns) else []
        for pattern in patterns:
            for name in fnmatch.filter(listed, pattern) if "*" in pattern else (pattern,):
                path = f"{folder.rstrip('/')}/{name}"
                if self._is_library(path):
                    yield path

    def _is_library(self, path: str) -> bool:
        """Whether the loader of this machine accepts a file."""
        abi = abi_at(self.root, path)
        return abi is not None and abi.is_modelled and abi.machine == self.process.machine

    def _folders(self, role: Role, wanted_by: Sequence[Candidate]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield (how a folder was found, the folder, the file names to search for in it)."""
        for asked in self.include:
            for below in _BELOW_ASKED:
                yield ASKED, asked.rstrip("/") + below, role.files
        if role.variable:
            named = provider_folders(self.variables.get(role.variable))
            yield from ((role.variable, folder, role.files) for folder in named if folder.startswith("/"))
        for candidate in wanted_by if role.beside else ():
            for path in dict.fromkeys((candidate.path, self.root.resolve(candidate.path))):
                yield f"beside {candidate.path}", f"{path.rpartition('/')[0]}/{role.beside}", role.files
        for folder in self.library_path:
            yield "LD_LIBRARY_PATH", folder, role.files
        for name in role.files:
            cached = None if "*" in name else self.process.cached(name)
            if cached is not None:
                folder, _, name_there = cached.rpartition("/")
                yield "ldconfig", folder or "/", (name_there,)
        for folder in self.process.loader.directories:
            yield "default directory", folder, role.files
        for prefix in role.prefixes:
            folders = sorted(matches(self.root, prefix), key=by_version, reverse=True)
            # the link `default` leads to the version that the site has chosen
            chosen = {self.root.resolve(folder) for folder in folders if "/default/" in folder}
            folders.sort(key=lambda folder: (self.root.resolve(folder) not in chosen, "/default/" in folder))
            yield from ((f"known prefix {prefix}", folder, role.files) for folder in folders)
