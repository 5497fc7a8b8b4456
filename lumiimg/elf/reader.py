"""What this room asks of a file, wherever it is, and of a root file system; and the kind of loader that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile


class ElfError(BadInputError):
    """Bytes that are not an ELF file (or not a loader cache), or that lie about their own sizes."""


class FileSystem(Protocol):
    """A root file system; paths are absolute, symlinks are followed inside the root.

    What cannot be opened is an OSError with the errno of Linux: ENOENT, ENOTDIR, EACCES, ELOOP, EISDIR, ENAMETOOLONG.
    Bytes of the image that make no sense are a BadInputError.
    """

    def open(self, path: str) -> OpenFile:
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
