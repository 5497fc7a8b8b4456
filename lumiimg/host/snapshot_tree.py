"""A snapshot as a root file system: it can be mounted over an image in parts, `root.source("/opt/cray")`.

It has the recorded libraries, the links to them and the directories above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import shortened
from lumiimg.elf import SnapshotElf
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, PROVIDER_FILE
from lumiimg.fabric.process import PROVIDER_PATH
from lumiimg.image import DirectoryEntry, FileKind, FileStat, ImageError, RootFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.snapshot import FoundLibrary, HostLibrary, Snapshot

MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine to what `uname -m` says."""
_MAX_WEIGHT = 1 << 28
"""Of all paths with all directories above them, in characters: what a tree of them may take."""


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A place in the recorded file system; the root has an empty path."""

    path: str
    kind: FileKind


class SnapshotTree:
    """The recorded files of one snapshot. Raises ImageError where their paths are not those of one tree."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._libraries = {library.path: library for library in snapshot.libraries}
        self._links = snapshot.links
        self._names: dict[str, dict[str, FileKind]] = {"": {}}
        self._weight = 0
        for library in snapshot.libraries:
            self._place(library.path, FileKind.FILE)
        for path in self._links:
            self._place(path, FileKind.SYMLINK)
        for path in snapshot.directories:
            self._place(path, FileKind.DIRECTORY)
        self.root = SnapshotNode("", FileKind.DIRECTORY)

    def _place(self, path: str, kind: FileKind) -> None:
        while path:
            above, _, name = path.rpartition("/")
            names = self._names.setdefault(above, {})
            if kind is FileKind.DIRECTORY and names.get(name) is kind:
                return
            self._weight += len(path)
            if name in names or self._weight > _MAX_WEIGHT:
                what = "is recorded twice, lies below a file, or is more than any host has"
                raise ImageError(what, where=shortened(path))
            names[name] = kind
            if kind is FileKind.DIRECTORY:
                self._names.setdefault(path, {})
            path, kind = above, FileKind.DIRECTORY

    def child(self, directory: SnapshotNode, name: str) -> SnapshotNode | None:
        """Return what a name in a directory stands for."""
        kind = self._names[directory.path].get(name)
        return None if kind is None else SnapshotNode(f"{directory.path}/{name}", kind)

    def entries(self, directory: SnapshotNode) -> Iterator[DirectoryEntry]:
        """Yield the names in a directory."""
        for name, kind in self._names[directory.path].items():
            yield DirectoryEntry(name, kind)

    def link_target(self, link: SnapshotNode) -> str:
        """Return the text of a symlink."""
        return self._links[link.path]

    def stat(self, node: SnapshotNode) -> FileStat:
        """Return an inode's attributes; owner, time and permissions are those that a system's libraries have."""
        size = self._libraries[node.path].size_bytes if node.kind is FileKind.FILE else 0
        return FileStat(node.kind, 0o755, 0, 0, size, 0, 1, self.directory_identity(node))

    def xattrs(self, node: SnapshotNode) -> None:
        """Return None: a snapshot has none."""

    def directory_identity(self, directory: SnapshotNode) -> tuple[str, str]:
        """Return what distinguishes a directory from all others."""
        return ("recorded", directory.path)

    def open(self, node: SnapshotNode) -> SnapshotElf:
        library = self._libraries.get(node.path)
        if library is None:
            raise ImageError(f"a {node.kind} cannot be opened", where=node.path)
        return SnapshotElf(library.facts, library.size_bytes, ("recorded", library.path), library.net_symbols)

    def close(self) -> None:
        """Nothing is held."""


class HostFiles:
    """The recorded files of a node: as a root file system, and each library by any path that leads to it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.root = RootFileSystem(SnapshotTree(snapshot))
        self._libraries = {library.path: library for library in snapshot.libraries}
        self._entries = snapshot.entries

    def library(self, path: str | None) -> HostLibrary | None:
        """Return the library at a path, perhaps of a link; None where none is recorded."""
        return self._libraries.get(self.root.resolve(path)) if path and self.root.is_file(path) else None

    def fabrics(self) -> Iterator[tuple[FoundLibrary, FoundLibrary | None]]:
        """Yield each libfabric that leads to Slingshot, with its cxi provider where that is a file of its own.

        As a rule the provider is a part of libfabric, which needs libcxi then. A file is in a folder that
        FI_PROVIDER_PATH names, or in the one beside libfabric.
        """
        files = [each for each in self._entries if each.path.endswith(f"/{PROVIDER_FILE}")]
        for entry in (each for each in self._entries if each.role == "libfabric"):
            beside = f"{self.root.resolve(entry.path).rpartition('/')[0]}/libfabric/{PROVIDER_FILE}"
            here = [file for file in files if PROVIDER_PATH in file.how or self.root.resolve(file.path) == beside]
            if LIBCXI in entry.closure:
                yield entry, None
            elif here:
                yield entry, here[0]

    @property
    def fabric(self) -> FoundLibrary | None:
        """The libfabric that the host itself would use with Slingshot: one that loads here, and libcxi with it."""
        for libfabric, provider in self.fabrics():
            user = provider or libfabric
            # libfabric opens its providers: alone, one need not find the libfabric that it belongs to
            errors = [error for error in user.errors if provider is None or not error.startswith(f"{LIBFABRIC}: ")]
            if user.closure.get(LIBCXI) and not errors and not libfabric.errors:
                return libfabric
        return None
