"""A file of known size that is read in ranges, wherever it lies: on this machine, in an image, in memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol


class RandomAccess(Protocol):
    """Bytes of known size, read in ranges."""

    @property
    def size(self) -> int:
        """In bytes."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end."""


class OpenFile(RandomAccess, Protocol):
    """An open regular file."""

    @property
    def identity(self) -> Hashable:
        """Equal for two names of one file, as (st_dev, st_ino) is."""

    def close(self) -> None:
        """Give back what the open file holds."""


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
        raise EOFError(f"{size} bytes at {offset} lie behind the end of {source.size} bytes")
    data = source.read_at(offset, size)
    if len(data) != size:
        raise EOFError("the file became shorter while it was read")
    return data
