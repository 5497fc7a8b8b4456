"""The files that the loader opens, and what it makes of each.

`ElfCache` is shared by many modelled processes over one root: a library is opened, judged and read once. The judgements
and their words are those of `open_verify` in glibc `elf/dl-load.c`.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf.facts import ElfFacts, SnapshotElf, read_elf
from lumiimg.elf.glibc import FileSystem, read_loader
from lumiimg.elf.segments import ET_DYN, ET_EXEC, FIRST_READ_BYTES, HEADER_BYTES, ElfError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lumiimg.core.access import OpenFile

_ELFCLASS64 = 2
_ELFOSABI_SYSV, _ELFOSABI_GNU = 0, 3
_LIBC_ABI_MAX = 4
_SEGMENT_BYTES = 56
_OTHER_MACHINE = "other machine"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path that the loader tries, judged.

    A good one has facts, one at which the loader gives up a problem; at any other the search goes on.
    """

    path: str
    facts: ElfFacts | None = None
    problem: str = ""
    """The loader's words after the path."""
    errno: int = 0
    """Of the system call that failed; 0 where it was the content."""
    identity: Hashable = None
    is_other_class: bool = False
    """Whether it is a file of 32 bits: passed over as if absent, but remembered for the message."""
    is_other_machine: bool = False
    """Whether it is a file for another machine: passed over as if absent."""

    @property
    def ends_search(self) -> bool:
        """Whether the loader looks no further: it takes the file, or gives up."""
        return self.facts is not None or bool(self.problem)


class ElfCache:
    """The files of one root file system as loaders see them; each is looked up, opened or read once."""

    def __init__(self, fs: FileSystem) -> None:
        self.fs = fs
        self.is_dir = cache(fs.is_dir)
        """Whether a directory is there."""
        self.open = cache(self._open)
        """Open and judge an absolute path for a machine: for None, the one that the file itself is for."""
        self.loader = cache(partial(read_loader, fs))
        """What the loader of this root for a machine, or a program's PT_INTERP, has compiled in."""

    def _open(self, path: str, machine: int | None) -> Candidate:
        try:
            file = self.fs.open(path)
        except OSError as error:
            return _cannot_open(path, error.errno or errno.EIO)
        except BadInputError:
            return _cannot_open(path, errno.EIO)
        with contextlib.closing(file):
            try:
                return _judge(path, file, machine)
            except ElfError as error:
                return Candidate(path, problem=str(error))
            except (OSError, BadInputError):
                return Candidate(path, problem="cannot read file data", errno=errno.EIO)


def _cannot_open(path: str, number: int) -> Candidate:
    problem = ""
    if number == errno.EISDIR:
        # open(2) of a directory succeeds; it is the read that fails
        problem = "cannot read file data"
    elif number == errno.ENXIO:
        problem, number = "no regular file: ld.so waits for ever at a FIFO, and reads what a device gives", 0
    return Candidate(path, problem=problem, errno=number)


def _judge(path: str, file: OpenFile, machine: int | None) -> Candidate:
    if isinstance(file, SnapshotElf):
        if machine not in (None, file.facts.machine):
            return Candidate(path, errno=errno.ENOENT, is_other_machine=True)
        return Candidate(path, file.facts, identity=file.identity)
    head = file.read_at(0, FIRST_READ_BYTES)
    if len(head) >= HEADER_BYTES and head[:4] == b"\x7fELF" and head[4] != _ELFCLASS64:
        return Candidate(path, errno=errno.ENOENT, is_other_class=True)
    problem = _header_problem(head, machine)
    if problem == _OTHER_MACHINE:
        return Candidate(path, errno=errno.ENOENT, is_other_machine=True)
    if problem is not None:
        return Candidate(path, problem=problem)
    return Candidate(path, read_elf(file, head), identity=file.identity)


def _header_problem(head: bytes, wanted: int | None) -> str | None:  # noqa: PLR0911 - glibc's checks in its order
    """Return the loader's words for a header that it does not take, or that it is of another machine; else None."""
    if len(head) < HEADER_BYTES:
        return "file too short"
    if head[:4] != b"\x7fELF":
        return "invalid ELF header"
    data, version, abi, abi_version = head[5:9]
    if data != 1:
        return "ELF file data encoding not little-endian"
    if version != 1:
        return "ELF file version ident does not match current one"
    if abi not in (_ELFOSABI_SYSV, _ELFOSABI_GNU):
        return "ELF file OS ABI invalid"
    if abi_version != 0 and (abi != _ELFOSABI_GNU or abi_version >= _LIBC_ABI_MAX):
        return "ELF file ABI version invalid"
    if any(head[9:16]):
        return "nonzero padding in e_ident"
    kind, machine = (int.from_bytes(head[at : at + 2], "little") for at in (16, 18))
    if int.from_bytes(head[20:24], "little") != 1:
        return "ELF file version does not match current one"
    if machine != (wanted or machine):
        return _OTHER_MACHINE
    if kind not in (ET_DYN, ET_EXEC):
        return "only ET_DYN and ET_EXEC can be loaded"
    if int.from_bytes(head[54:56], "little") != _SEGMENT_BYTES:
        return "ELF file's phentsize not the expected size"
    return None
