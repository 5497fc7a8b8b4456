"""What this room asks of a file, wherever it is, and of a root file system; and the kind of loader that reads it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from lumiimg.errors import BadInputError


class ElfError(BadInputError):
    """Bytes that are not an ELF file (or not a loader cache), or that lie about their own sizes."""


class RangeReader(Protocol):
    """A file of known size that is read in ranges."""

    @property
    def size(self) -> int:
        """In bytes."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""


class BytesReader:
    """A file that is in memory already."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return self._data[offset : offset + size]


class RegularFile(RangeReader, Protocol):
    """A regular file of the root file system, open."""

    @property
    def identity(self) -> Hashable:
        """Equal for two names of one file, as (st_dev, st_ino) is."""

    def close(self) -> None:
        """Give back what the open file holds."""


class FileSystem(Protocol):
    """A root file system; paths are absolute, symlinks are followed inside the root.

    What cannot be opened is an OSError with the errno of Linux: ENOENT, ENOTDIR, EACCES, ELOOP, EISDIR, ENAMETOOLONG.
    Bytes of the image that make no sense are a BadInputError.
    """

    def open(self, path: str) -> RegularFile:
        """Open a regular file."""

    def is_dir(self, path: str) -> bool:
        """Return whether a path leads to a directory; False for a path that cannot be looked up."""

    def resolve(self, path: str) -> str:
        """Return the path without symlinks, as /proc/self/exe would show it."""


@dataclass(frozen=True, slots=True)
class Native:
    """The kind of ELF file that a loader takes: its own."""

    machine: int
    elf_class: int
    little_endian: bool = True
