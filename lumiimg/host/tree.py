"""A snapshot as a root file system, and as what the loader model asks of one.

`RootFileSystem(SnapshotTree(snapshot))` has the recorded libraries, the links to them and the directories above. It can
be mounted over an image in parts: `root.source("/opt/cray")`. For the host's own loader, `host_files(snapshot)` knows
what the loader's file and cache would say, which are not recorded themselves.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.elf.cache import parse_cache
from lumiimg.elf.files import Files, Native
from lumiimg.elf.hwcaps import platform
from lumiimg.elf.recorded import RecordedElf
from lumiimg.elf.rules import Settings
from lumiimg.elf.system import System
from lumiimg.image.root import RootFileSystem
from lumiimg.image.tree import Entry, FileKind, FileStat, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.host.snapshot import Snapshot

_CACHE_HEADER = struct.Struct("<20sII20x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_FLAG_ELF = 1
_MAX_NAME_BYTES = 1024
_NUMBER_OR_OTHER = re.compile(rb"([0-9]+)|([^0-9])")

MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine to what `uname -m` says."""


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A place in the recorded file system; the root has an empty path."""

    path: str
    kind: FileKind


class SnapshotTree:
    """The recorded files of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._libraries = {library.path: library for library in snapshot.libraries}
        self._links = snapshot.links
        self._names: dict[str, dict[str, FileKind]] = {"": {}}
        for path in self._libraries:
            self._place(path, FileKind.FILE)
        for path in self._links:
            self._place(path, FileKind.SYMLINK)
        for path in snapshot.directories:
            self._place(path, FileKind.DIRECTORY)
        self.root = SnapshotNode("", FileKind.DIRECTORY)

    def _place(self, path: str, kind: FileKind) -> None:
        while path:
            above, _, name = path.rpartition("/")
            if kind is FileKind.DIRECTORY:
                self._names.setdefault(path, {})
            self._names.setdefault(above, {})[name] = kind
            path, kind = above, FileKind.DIRECTORY

    def child(self, directory: SnapshotNode, name: str) -> SnapshotNode | None:
        """Return what a name in a directory stands for."""
        kind = self._names[directory.path].get(name)
        return None if kind is None else SnapshotNode(f"{directory.path}/{name}", kind)

    def entries(self, directory: SnapshotNode) -> Iterator[Entry]:
        """Yield the names in a directory."""
        for name, kind in self._names[directory.path].items():
            yield Entry(name, kind)

    def link_target(self, link: SnapshotNode) -> str:
        """Return the text of a symlink."""
        return self._links[link.path]

    def stat(self, node: SnapshotNode) -> FileStat:
        """Return an inode's attributes; owner, time and permissions are those that a system's libraries have."""
        size = self._libraries[node.path].size_bytes if node.kind is FileKind.FILE else 0
        return FileStat(node.kind, 0o755, 0, 0, size, 0, 1, self.directory_identity(node))

    def directory_identity(self, directory: SnapshotNode) -> tuple[str, str]:
        """Return what tells a directory from all others."""
        return ("recorded", directory.path)

    def open(self, node: SnapshotNode) -> RecordedElf:
        """Open a recorded library."""
        library = self._libraries.get(node.path)
        if library is None:
            raise ImageError(f"a {node.kind} cannot be opened", where=node.path)
        return RecordedElf(library.facts, library.size_bytes, ("recorded", library.path), library.net_symbols)

    def close(self) -> None:
        """Nothing is held."""


class _HostFiles(Files):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(RootFileSystem(SnapshotTree(snapshot)))
        self._own = host_native(snapshot)
        self._system = System(
            loader=snapshot.loader,
            directories=snapshot.system_directories,
            lib=snapshot.lib_token,
            platform=platform(self._own.machine, (), intel=False),
            glibc_minor=int(snapshot.glibc.partition(".")[2]) if snapshot.glibc else None,
            cache=parse_cache(cache_file(snapshot.cache)),
        )

    def system(self, native: Native, interpreter: str | None) -> System:
        if native != self._own:
            return super().system(native, interpreter)
        return replace(self._system, loader=interpreter or self._system.loader)


def host_files(snapshot: Snapshot) -> Files:
    """Return the files for `Process(files.fs, host_settings(snapshot), files=files)`: a process of the host."""
    return _HostFiles(snapshot)


def host_settings(snapshot: Snapshot) -> Settings:
    """Return what reached the host's loader when the snapshot was taken."""
    return Settings(library_path=snapshot.library_path, hwcaps=snapshot.hwcaps, intel=snapshot.intel)


def host_native(snapshot: Snapshot) -> Native:
    """Return what kind of files the host's loader takes: 64 bits, little-endian."""
    machines = {name: number for number, name in MACHINES.items()}
    return Native(machines.get(snapshot.architecture, 62), 64)


def cache_file(paths: Mapping[str, str]) -> bytes:
    """Return a loader's cache with these names and paths, in the new format (glibc `sysdeps/generic/dl-cache.h`).

    Its entries are for every machine and every CPU: what the host's own loader takes was settled by the scan.
    """
    encoded = {os.fsencode(name): os.fsencode(path) for name, path in paths.items()}
    # a name that no loader could find in a cache would end the search for others
    names = [name for name, path in encoded.items() if max(len(name), len(path)) < _MAX_NAME_BYTES]
    names.sort(key=_cache_order, reverse=True)
    at = _CACHE_HEADER.size + _CACHE_ENTRY.size * len(names)
    entries: list[bytes] = []
    strings: list[bytes] = []
    for name in names:
        entries.append(_CACHE_ENTRY.pack(_FLAG_ELF, at, at + len(name) + 1, 0, 0))
        strings.append(name + b"\0" + encoded[name] + b"\0")
        at += len(strings[-1])
    text = b"".join(strings)
    return _CACHE_HEADER.pack(b"glibc-ld.so.cache1.1", len(names), len(text)) + b"".join(entries) + text


def _cache_order(name: bytes) -> tuple[tuple[int, int], ...]:
    """Order names as `_dl_cache_libcmp`: numbers by their value and after any other character, those as signed."""
    return tuple(
        (1, int(number[-18:])) if number else (0, other[0] - 256 if other[0] > 127 else other[0])
        for number, other in _NUMBER_OR_OTHER.findall(name)
    )
