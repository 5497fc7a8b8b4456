"""The files of an image as a process sees them whose user is not root (`RootFileSystem.for_users`)."""

from __future__ import annotations

import contextlib
from posixpath import dirname, normpath
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.host.root_queries import names_in
from lumiimg.image import FileKind

if TYPE_CHECKING:
    from lumiimg.image import FileStat, RootFileSystem

_MAX_BYTES = 1 << 20
_MAX_LINKS = 40


class StrangersFiles:
    """One process's view; each path is looked up once."""

    def __init__(self, root: RootFileSystem) -> None:
        self.root = root.for_users()
        self.opened: list[str] = []
        """What was read, or was there and could not be read, in this order."""
        self._stats: dict[str, FileStat | None] = {}
        self._names: dict[str, frozenset[str]] = {}

    def stat(self, path: str) -> FileStat | None:
        """Return the inode that a path leads to; None where nothing is found."""
        if path not in self._stats:
            found = None
            with contextlib.suppress(OSError, BadInputError):
                found = self.root.stat(path)
            self._stats[path] = found
        return self._stats[path]

    def exists(self, path: str) -> bool:
        """Tell whether a path leads to anything."""
        return self.stat(path) is not None

    def is_file(self, path: str) -> bool:
        """Tell whether a path leads to a regular file."""
        found = self.stat(path)
        return found is not None and found.kind is FileKind.FILE

    def is_dir(self, path: str) -> bool:
        """Tell whether a path leads to a directory."""
        found = self.stat(path)
        return found is not None and found.kind is FileKind.DIRECTORY

    def can_read(self, path: str) -> bool:
        """Tell whether open(2) for reading works."""
        with contextlib.suppress(OSError, BadInputError):
            if self.is_dir(path):
                self.root.list_dir(path)
            else:
                self.root.open(path).close()
            return True
        return False

    def names(self, folder: str) -> frozenset[str]:
        """Return the names in a folder; none where it cannot be listed."""
        if folder not in self._names:
            self._names[folder] = frozenset(names_in(self.root, folder))
        return self._names[folder]

    def read(self, path: str) -> bytes:
        """Return a file, nothing of a directory (fopen(3) opens it). Raises OSErrors as open(2), and BadInputError."""
        found = self.root.stat(path)
        self.opened.append(path)
        if not self.can_read(path):
            raise PermissionError(path)
        return b"" if found.kind is FileKind.DIRECTORY else self.root.read_bytes(path, _MAX_BYTES)

    def link_target(self, path: str, *, normalised: bool) -> str:
        """Follow the links of the last part of a path, and only those; `normalised`: without dots."""
        for _ in range(_MAX_LINKS):
            try:
                target = self.root.readlink(path)
            except (OSError, BadInputError):
                return path
            joined = f"{dirname(path)}/{target}"
            path = target if target.startswith("/") else normpath(joined) if normalised else joined
        return path
