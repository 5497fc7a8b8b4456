"""Bytes at an offset: what this room asks of a file, wherever the file is."""

from __future__ import annotations

from typing import Protocol

from lumiimg.errors import BadInputError


class ElfError(BadInputError):
    """Bytes that are no ELF file (or no loader cache), or that lie about their own sizes."""


class RangeReader(Protocol):
    """A file of known size that is read in ranges."""

    @property
    def size(self) -> int:
        """In bytes."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...


class BytesReader:
    """A file that is in memory already."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return self._data[offset : offset + size]
