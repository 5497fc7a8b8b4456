"""The files that the loader opens, and what it makes of each.

`Files` is shared by many modelled processes over one root: a library is opened, judged and read once. The verdicts and
their words are those of `open_verify` in glibc `elf/dl-load.c`.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from lumiimg.core.errors import BadInputError
from lumiimg.elf.facts import ET_DYN, ET_EXEC, ElfFacts, read_elf
from lumiimg.elf.reader import ElfError, FileSystem, Native
from lumiimg.elf.segments import FIRST_READ_BYTES
from lumiimg.elf.system import System, read_system

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile

_ELFOSABI_SYSV, _ELFOSABI_GNU = 0, 3
_LIBC_ABI_MAX = 4
_SEGMENT_BYTES = {1: 32, 2: 56}
_HEADER_BYTES = {1: 52, 2: 64}
_NOT_THERE = (errno.ENOENT, errno.EACCES, errno.ENOTDIR)


class FileVerdict(StrEnum):
    """What becomes of a search when it meets a path."""

    GOOD = "good"
    ABSENT = "absent"
    """Nothing there: the next directory is tried."""
    OTHER_MACHINE = "other machine"
    """An ELF file for another machine: passed over as if absent."""
    OTHER_CLASS = "other class"
    """As other machine, but remembered for the message when nothing else is found."""
    STOPS_LIST = "stops list"
    """An error that ends this list of directories; the search goes on with the next rule."""
    FATAL = "fatal"
    """The loader gives up."""


@dataclass(frozen=True, slots=True)
class Opened:
    """One path, judged."""

    verdict: FileVerdict
    problem: str = ""
    """For FATAL: the loader's words after the path."""
    errno: int = 0
    """Of the system call that failed; 0 where it was the content."""
    identity: Hashable = None
    facts: ElfFacts | None = None


@dataclass(frozen=True, slots=True)
class RecordedElf:
    """A library of which only the facts are at hand, out of a snapshot; whoever wants its bytes gets an ElfError."""

    facts: ElfFacts
    size: int
    """In bytes."""
    identity: Hashable
    net_symbols: tuple[str, ...] = ()
    """Of its exported symbols, those by which RCCL knows a net plugin: nothing else is recorded of them."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Raise ElfError."""
        raise ElfError(f"only the facts of this file are recorded, not the {size} bytes at {offset}")

    def close(self) -> None:
        """Nothing is held."""


class Files:
    """The files of one root file system as a loader of one kind sees them; each is looked up, opened or read once."""

    def __init__(self, fs: FileSystem) -> None:
        self.fs = fs
        self._is_dir = cache(fs.is_dir)
        self._open_once = cache(self._open)
        self._read_system = cache(partial(read_system, fs))

    def is_dir(self, path: str) -> bool:
        """Return whether a directory is there."""
        return self._is_dir(path)

    def open(self, path: str, native: Native) -> Opened:
        """Open and judge an absolute path."""
        return self._open_once(path, native)

    def system(self, native: Native, interpreter: str | None) -> System:
        """Return what the loader of this root has compiled in; `interpreter` is a program's PT_INTERP."""
        return self._read_system(native, interpreter)

    def native_of(self, path: str) -> Native | None:
        """Return what kind of loader a file is for; None where it is not an ELF file that can be read."""
        try:
            with contextlib.closing(self.fs.open(path)) as file:
                if isinstance(file, RecordedElf):
                    return Native(file.facts.machine, file.facts.elf_class, file.facts.little_endian)
                head = file.read_at(0, 20)
        except (OSError, BadInputError):
            return None
        if len(head) < 20 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
            return None
        little = head[5] == 1
        return Native(int.from_bytes(head[18:20], "little" if little else "big"), 32 * head[4], little)

    def _open(self, path: str, native: Native) -> Opened:
        try:
            file = self.fs.open(path)
        except OSError as error:
            return _cannot_open(error.errno or errno.EIO)
        except BadInputError:
            return _cannot_open(errno.EIO)
        with contextlib.closing(file):
            try:
                return _judge(file, native)
            except ElfError as error:
                return Opened(FileVerdict.FATAL, str(error))
            except (OSError, BadInputError):
                return Opened(FileVerdict.FATAL, "cannot read file data", errno.EIO)


def _cannot_open(number: int) -> Opened:
    if number in _NOT_THERE:
        return Opened(FileVerdict.ABSENT, errno=number)
    if number == errno.EISDIR:
        # open(2) of a directory succeeds; it is the read that fails
        return Opened(FileVerdict.FATAL, "cannot read file data", number)
    if number == errno.ENXIO:
        return Opened(
            FileVerdict.FATAL, "no regular file: ld.so waits for ever at a FIFO, and reads what a device gives"
        )
    return Opened(FileVerdict.STOPS_LIST, errno=number)


def _judge(file: OpenFile, native: Native) -> Opened:
    if isinstance(file, RecordedElf):
        return _judge_recorded(file, native)
    head = file.read_at(0, FIRST_READ_BYTES)
    problem = header_problem(head, native)
    if isinstance(problem, FileVerdict):
        return Opened(problem, errno=errno.ENOENT)
    if problem is not None:
        return Opened(FileVerdict.FATAL, problem)
    return Opened(FileVerdict.GOOD, identity=file.identity, facts=read_elf(file, head))


def _judge_recorded(file: RecordedElf, native: Native) -> Opened:
    facts = file.facts
    if facts.elf_class != native.elf_class:
        return Opened(FileVerdict.OTHER_CLASS, errno=errno.ENOENT)
    if facts.machine != native.machine or facts.little_endian != native.little_endian:
        return Opened(FileVerdict.OTHER_MACHINE, errno=errno.ENOENT)
    return Opened(FileVerdict.GOOD, identity=file.identity, facts=facts)


def header_problem(head: bytes, native: Native) -> str | FileVerdict | None:  # noqa: PLR0911 - glibc's checks in its order
    """Return None for a file that can be loaded, a Verdict for one that is passed over, else the loader's words."""
    own_class = 2 if native.elf_class == 64 else 1
    if len(head) < _HEADER_BYTES[own_class]:
        return "file too short"
    if head[:4] != b"\x7fELF":
        return "invalid ELF header"
    file_class, data, version, abi, abi_version = head[4:9]
    if file_class != own_class:
        return FileVerdict.OTHER_CLASS
    order: Literal["little", "big"] = "little" if native.little_endian else "big"
    if data != (1 if native.little_endian else 2):
        return f"ELF file data encoding not {order}-endian"
    if version != 1:
        return "ELF file version ident does not match current one"
    if abi not in (_ELFOSABI_SYSV, _ELFOSABI_GNU):
        return "ELF file OS ABI invalid"
    if abi_version != 0 and (abi != _ELFOSABI_GNU or abi_version >= _LIBC_ABI_MAX):
        return "ELF file ABI version invalid"
    if any(head[9:16]):
        return "nonzero padding in e_ident"
    kind, machine = (int.from_bytes(head[at : at + 2], order) for at in (16, 18))
    if int.from_bytes(head[20:24], order) != 1:
        return "ELF file version does not match current one"
    if machine != native.machine:
        return FileVerdict.OTHER_MACHINE
    if kind not in (ET_DYN, ET_EXEC):
        return "only ET_DYN and ET_EXEC can be loaded"
    at = 54 if native.elf_class == 64 else 42
    if int.from_bytes(head[at : at + 2], order) != _SEGMENT_BYTES[own_class]:
        return "ELF file's phentsize not the expected size"
    return None
