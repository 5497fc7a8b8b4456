"""A root file system in memory, with only the methods that the loader model uses."""

from __future__ import annotations

import errno
import os

from lumiimg.core.access import BytesInMemory


class _File(BytesInMemory):
    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(data)
        self.identity = path

    def close(self) -> None:
        pass


class MemoryRoot:
    """A root file system in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def open(self, path: str) -> _File:
        path = os.path.normpath(path)
        if path not in self.files:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _File(path, self.files[path])

    open_exec = open  # noqa: A003 - of this class

    def is_dir(self, path: str) -> bool:
        start = os.path.normpath(path).rstrip("/") + "/"
        return any(name.startswith(start) for name in self.files)

    def resolve(self, path: str) -> str:
        return os.path.normpath(path)
