"""Bytes of known size that are read in ranges, wherever they are: on this machine, in an image, in memory."""

from __future__ import annotations

import io
import sys
from collections.abc import Hashable
from contextlib import closing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from types import ModuleType

_AHEAD_BYTES = 64 << 10
"""Bytes that a stream reads at once: the headers of small files are next to each other."""


class RandomAccess(Protocol):
    """Bytes of known size, read in ranges."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end."""


class OpenFile(RandomAccess, Protocol):
    """An open regular file."""

    @property
    def identity(self) -> Hashable:
        """Key that is equal for two names of one file, like (st_dev, st_ino)."""

    def close(self) -> None:
        """Release the resources of the open file."""


class FileSource(Protocol):
    """Something that opens files by their paths, such as a root file system."""

    def open(self, path: str) -> OpenFile:
        """Open a regular file. Raises OSError, or BadInputError where bytes of an image are invalid."""


class BytesInMemory:
    """Bytes that have been read already."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return self._data[offset : offset + size]


def read_exactly(source: RandomAccess, offset: int, size: int) -> bytes:
    """Return `size` bytes from `offset`. Raises EOFError, with a reason, where the file has fewer."""
    if offset < 0 or size < 0 or offset + size > source.size:
        raise EOFError(f"{size} bytes at {offset} lie past the end of {source.size} bytes")
    data = source.read_at(offset, size)
    if len(data) != size:
        raise EOFError("the file became shorter while it was read")
    return data


def read_or_empty(files: FileSource, path: str, limit_bytes: int) -> bytes:
    """Return a file's bytes; empty if it cannot be read, or is larger than the limit."""
    with suppress(OSError, BadInputError), closing(files.open(path)) as file:
        return file.read_at(0, file.size) if file.size <= limit_bytes else b""
    return b""


def zstd() -> ModuleType:
    """Return the module for Zstandard, imported on demand: that takes milliseconds, and few files need it."""
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def stream_of(source: RandomAccess) -> io.BufferedReader:
    """Return a stream of the bytes for parsers and decoders, which read sequentially; it need not be closed.

    Reading raises EOFError where the source has become shorter.
    """
    return io.BufferedReader(_Stream(source), _AHEAD_BYTES)


class _Stream(io.RawIOBase):
    def __init__(self, source: RandomAccess) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._source.size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a buffer has no better type before Python 3.12
        size = min(len(buffer), self._source.size - self._position)
        if size <= 0:
            return 0
        buffer[:size] = read_exactly(self._source, self._position, size)
        self._position += size
        return size
