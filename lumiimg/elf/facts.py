"""The facts about one ELF file, read the way the dynamic loader reads them.

Everything comes from the program headers, the dynamic segment and the notes. Section headers are never used, so
stripped and sstripped files give the same facts. Only a few ranges are read, never the whole file.

The dynamic segment is tag and value pairs up to DT_NULL; values are numbers, addresses, or offsets into DT_STRTAB (gABI
chapter 5, `elf.h`). Versions (LSB, "Symbol Versioning") are traversed as in glibc's `elf/dl-version.c`, by following
the links between records rather than by the stated count:

    Verneed: version u16, cnt u16, file u32, aux u32, next u32        Vernaux: hash u32, flags u16, other u16, name u32,
                                                                               next u32
    Verdef:  version u16, flags u16, ndx u16, cnt u16, hash u32,      Verdaux: name u32, next u32
             aux u32, next u32

A note is namesz u32, descsz u32, type u32, name, desc, each padded to the segment's alignment (4, or 8 for GNU
properties); a property is type u32, datasz u32, data, padded to 8. Source: gABI chapter 5, Linux gABI extensions,
x86-64 psABI "Program Property".
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from lumiimg.elf.segments import (
    ET_DYN,
    ET_EXEC,
    PT_DYNAMIC,
    PT_GNU_PROPERTY,
    PT_GNU_STACK,
    PT_INTERP,
    PT_NOTE,
    PT_TLS,
    ElfError,
    Segments,
    StringTable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from lumiimg.core.access import RandomAccess

DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_VERDEF, DT_VERNEED = 1, 5, 10, 0x6FFFFFFC, 0x6FFFFFFE

_ENTRY = struct.Struct("<qQ")
_VERNEED, _VERNAUX, _VERDEF, _NAME = (struct.Struct(f"<{fields}") for fields in ("HHIII", "IHHII", "HHHHIII", "I"))
_VER_FLG_BASE, _VER_FLG_WEAK = 1, 2
_MAX_DYNAMIC_BYTES = 1 << 20
_READ_BYTES = 4096
_MAX_NEEDED = 4096
# .gnu.version has only 15 bits for a version index
_MAX_VERSIONS = 32767
_MAX_VERSIONS_BYTES = 4 << 20
T = TypeVar("T")

_DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_FLAGS, _DT_RELR, _DT_FLAGS_1 = 14, 15, 29, 30, 36, 0x6FFFFFFB
_DT_AUXILIARY, _DT_FILTER = 0x7FFFFFFD, 0x7FFFFFFF
DF_STATIC_TLS = 0x10
DF_1_NODEFLIB, DF_1_NOOPEN, DF_1_PIE = 0x800, 0x40, 0x08000000

_PF_X = 1
_PAGE_BYTES = 4096
_MAX_PATH_BYTES = 4096
# DEFAULT_STACK_PERMS in sysdeps/*/stackinfo.h: without PT_GNU_STACK the stack is executable on these machines
_EXECUTABLE_BY_DEFAULT = frozenset({21, 62})

_NT_GNU_BUILD_ID, _NT_GNU_PROPERTY_TYPE_0 = 3, 5
_X86_ISA_1_NEEDED = 0xC0008002
_NOTE = _PROPERTY = struct.Struct("<III")
_MAX_NOTES_BYTES = 65536


class VersionNeed(Struct, frozen=True):
    """One version that the library loaded as `file` must (or, if weak, should) define."""

    file: str
    """DT_NEEDED name of the library that should define it."""
    name: str
    """Name of the version, such as `GLIBC_2.38`."""
    weak: bool
    """Whether it may be absent."""


class ElfFacts(Struct, frozen=True):
    """One ELF file. Names contain surrogates for bytes that are not UTF-8; an absent fact is None."""

    machine: int
    """e_machine: 62 is x86-64, 183 aarch64."""
    type: int
    """e_type: 2 is ET_EXEC, 3 ET_DYN."""
    is_dynamic: bool
    """Whether it has a dynamic segment: False for a static program."""
    interpreter: str | None = None
    """PT_INTERP: path of the loader that the file requests."""
    soname: str | None = None
    """DT_SONAME."""
    needed: tuple[str, ...] = ()
    """DT_NEEDED, in order."""
    rpath: str | None = None
    """DT_RPATH, as written; the loader ignores it if there is a runpath."""
    runpath: str | None = None
    """DT_RUNPATH, as written."""
    filters: tuple[str, ...] = ()
    """DT_FILTER and DT_AUXILIARY: libraries whose symbols take precedence over its own."""
    flags: int = 0
    """DT_FLAGS."""
    flags_1: int = 0
    """DT_FLAGS_1."""
    version_needs: tuple[VersionNeed, ...] = ()
    """Versions that it requires."""
    version_definitions: tuple[str, ...] = ()
    """Versions that it defines, including the base definition, which is the file's own name."""
    tls_size_bytes: int = 0
    """Size of its thread-local storage."""
    executable_stack: bool = True
    """Whether it needs an executable stack; the default without PT_GNU_STACK is True on x86-64, False on aarch64."""
    isa_needed: int | None = None
    """GNU_PROPERTY_X86_ISA_1_NEEDED: bit 0 baseline, 1 v2, 2 v3, 3 v4."""
    build_id: str | None = None
    """Build ID from the GNU note, in hexadecimal."""
    has_relr: bool = False
    """Whether it has DT_RELR relocations."""
    tls_align: int = 0
    """Alignment of its thread-local storage, in bytes."""
    tls_skew_bytes: int = 0
    """Offset of the TLS block from an address with that alignment."""
    has_loads: bool = True
    """Whether it has any PT_LOAD."""
    loads_misplaced: bool = False
    """Whether a PT_LOAD has an address and a file offset with different positions in a page: no loader maps that."""
    loads_underaligned: bool = False
    """Whether a PT_LOAD is aligned to less than a page: glibc before 2.35 rejects that."""
    missing_bytes: int = 0
    """Number of bytes by which the segments exceed the file: it is truncated, for example by an unfinished copy."""


@dataclass(frozen=True, slots=True)
class SnapshotElf:
    """A library from a snapshot, which contains only its facts; reading its bytes raises ElfError."""

    facts: ElfFacts
    size: int
    """Size in bytes."""
    identity: Hashable
    exports: tuple[str, ...] = ()
    """Exported names that were recorded."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Raise ElfError."""
        raise ElfError(f"only the facts of this file are recorded, not the {size} bytes at {offset}")

    def close(self) -> None:
        """Do nothing: there is no open file."""


@dataclass(frozen=True, slots=True)
class ElfAbi:
    """The kind of machine that an ELF file is for, by its header."""

    machine: int
    """e_machine: 62 is x86-64, 183 aarch64."""
    bits: int
    little_endian: bool
    is_code: bool
    """Whether it is a program or a shared library, rather than an object file or a core dump."""

    @property
    def is_modelled(self) -> bool:
        """Whether it is of the kind supported here: 64-bit, with the byte order of x86-64."""
        return self.bits == 64 and self.little_endian


def read_abi(file: RandomAccess) -> ElfAbi | None:
    """Return the ABI in the header; None for a file that is not ELF. Raises only what reading the file raises."""
    if isinstance(file, SnapshotElf):
        return ElfAbi(file.facts.machine, 64, little_endian=True, is_code=True)
    head = file.read_at(0, 20)
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    kind, machine = struct.unpack_from("<HH" if head[5] == 1 else ">HH", head, 16)
    return ElfAbi(machine, 32 * head[4], head[5] == 1, kind in (ET_EXEC, ET_DYN))


class Dynamic:
    """The dynamic segment of a file; empty if it has none. Invalid bytes of any kind raise ElfError."""

    def __init__(self, file: RandomAccess, first: bytes | None = None) -> None:
        """Read the segment; `first` is the start of the file, if already read (see Segments)."""
        self.segments = Segments(file, first)
        self._entries = _entries_of(self.segments)
        self.values = dict(self._entries)
        """Last value of each tag, which is what the loader uses."""
        self._string: Callable[[int], str] = _no_string
        if DT_STRTAB in self.values:
            # the gABI requires DT_STRSZ, but the loader never reads it; without it, the segment is the limit
            address = self.values[DT_STRTAB]
            size_bytes = self.values.get(DT_STRSZ) or self.segments.rest_bytes(address)
            self._string = StringTable(self.segments, address, size_bytes).at

    def name(self, tag: int) -> str | None:
        """Return the string of a tag; None if the tag is absent."""
        return self._string(self.values[tag]) if tag in self.values else None

    def names(self, tag: int) -> tuple[str, ...]:
        """Return the names of a tag that may occur several times, in order."""
        offsets = [value for number, value in self._entries if number == tag] if tag in self.values else []
        if len(offsets) > _MAX_NEEDED:
            raise ElfError(f"{len(offsets)} needed libraries")
        return tuple(map(self._string, offsets))

    def version_needs(self) -> list[tuple[int, VersionNeed]]:
        """Return the versions that it requires, each with its index in .gnu.version."""
        return self._records(DT_VERNEED, self._needs_in)

    def _needs_in(self, data: bytes) -> list[tuple[int, VersionNeed]]:
        found: list[tuple[int, VersionNeed]] = []
        offset, following = 0, 1
        while following:
            version, _, file_at, first, following = _VERNEED.unpack_from(data, offset)
            if version != 1:
                raise ElfError(f"unsupported version {version} of Verneed record")
            file, at, next_name = self._string(file_at), offset + first, 1
            while next_name:
                _, flags, index, name_at, next_name = _VERNAUX.unpack_from(data, at)
                wanted = VersionNeed(file, self._string(name_at), bool(flags & _VER_FLG_WEAK))
                found.append((index & _MAX_VERSIONS, wanted))
                if len(found) > _MAX_VERSIONS:
                    raise ElfError("more version needs than a file can have")
                at += next_name
            offset += following
        return found

    def version_definitions(self) -> list[tuple[int | None, str]]:
        """Return the versions that it defines, each with its index in .gnu.version.

        The base definition, which is the file's own name and not the version of a symbol, has the index None.
        """
        return self._records(DT_VERDEF, self._definitions_in)

    def _definitions_in(self, data: bytes) -> list[tuple[int | None, str]]:
        found: list[tuple[int | None, str]] = []
        offset, following = 0, 1
        while following:
            version, flags, index, count, _, first, following = _VERDEF.unpack_from(data, offset)
            if version != 1:
                raise ElfError(f"unsupported version {version} of Verdef record")
            if count:
                (name_at,) = _NAME.unpack_from(data, offset + first)
                found.append((None if flags & _VER_FLG_BASE else index & _MAX_VERSIONS, self._string(name_at)))
            offset += following
            if len(found) > _MAX_VERSIONS:
                raise ElfError("more version definitions than a file can have")
        return found

    def _records(self, tag: int, read: Callable[[bytes], list[T]]) -> list[T]:
        """Return records of unknown total length: if they continue past the data read, read more."""
        if DT_STRTAB not in self.values or tag not in self.values:
            return []
        size = _READ_BYTES
        while True:
            data = self.segments.at(self.values[tag], size)
            try:
                return read(data)
            except struct.error:
                if len(data) < size:
                    raise ElfError("version records run past their segment") from None
            if size >= _MAX_VERSIONS_BYTES:
                raise ElfError("version records reach further than any real file's")
            size *= 4


def _no_string(_: int) -> str:
    raise ElfError("a dynamic segment with names but no string table")


def _entries_of(segments: Segments) -> list[tuple[int, int]]:
    """Return the entries up to DT_NULL.

    The loader ignores the size of PT_DYNAMIC and reads up to DT_NULL. If the file ends before that, zeros follow in
    memory. An empty PT_DYNAMIC, as in a separate debug information file, does not count.
    """
    found = segments.of_type(PT_DYNAMIC)
    if not found or found[-1].file_bytes == 0:
        return []
    size = min(max(found[-1].file_bytes, _ENTRY.size), _MAX_DYNAMIC_BYTES)
    while True:
        data = segments.at(found[-1].address, size)
        count = len(data) // _ENTRY.size
        # every tag except DT_NULL is truthy
        entries = list(itertools.takewhile(itemgetter(0), _ENTRY.iter_unpack(data[: count * _ENTRY.size])))
        if len(entries) < count or len(data) < size:
            return entries
        if size >= _MAX_DYNAMIC_BYTES:
            raise ElfError(f"a dynamic segment of more than {_MAX_DYNAMIC_BYTES} bytes")
        size = min(max(2 * size, _READ_BYTES), _MAX_DYNAMIC_BYTES)


def read_elf(file: RandomAccess, first: bytes | None = None) -> ElfFacts:
    """Return the facts of one file; `first` is its start, if already read (see Segments).

    Invalid bytes of any kind raise ElfError.
    """
    dynamic = Dynamic(file, first)
    segments, values = dynamic.segments, dynamic.values
    stacks = segments.of_type(PT_GNU_STACK)
    tls = next((each for each in reversed(segments.of_type(PT_TLS)) if each.memory_bytes), None)
    loads = segments.loads
    build_id, isa_needed = _notes_of(segments)
    return ElfFacts(
        machine=segments.machine,
        type=segments.type,
        is_dynamic=bool(values),
        interpreter=_interpreter(segments),
        soname=dynamic.name(_DT_SONAME),
        needed=dynamic.names(DT_NEEDED),
        rpath=dynamic.name(_DT_RPATH),
        runpath=dynamic.name(_DT_RUNPATH),
        filters=(*dynamic.names(_DT_FILTER), *dynamic.names(_DT_AUXILIARY)),
        flags=values.get(_DT_FLAGS, 0),
        flags_1=values.get(_DT_FLAGS_1, 0),
        version_needs=tuple([need for _, need in dynamic.version_needs()]),
        version_definitions=tuple([name for _, name in dynamic.version_definitions()]),
        tls_size_bytes=tls.memory_bytes if tls else 0,
        executable_stack=bool(stacks[-1].flags & _PF_X) if stacks else segments.machine in _EXECUTABLE_BY_DEFAULT,
        isa_needed=isa_needed,
        build_id=build_id,
        has_relr=_DT_RELR in values,
        tls_align=tls.align if tls else 0,
        tls_skew_bytes=tls.address & (tls.align - 1) if tls and tls.align else 0,
        has_loads=bool(loads),
        loads_misplaced=any((load.address - load.offset) % _PAGE_BYTES for load in loads),
        loads_underaligned=any(load.align % _PAGE_BYTES for load in loads),
        missing_bytes=max([0, *(load.offset + load.file_bytes - file.size for load in loads)]),
    )


def _interpreter(segments: Segments) -> str | None:
    found = segments.of_type(PT_INTERP)
    if not found or found[0].file_bytes == 0:
        return None  # an empty segment: a separate debug information file
    segment = found[0]
    if not 1 < segment.file_bytes <= _MAX_PATH_BYTES:
        raise ElfError(f"an interpreter path of {segment.file_bytes} bytes")
    path, end, _ = segments.file_range(segment.offset, segment.file_bytes).partition(b"\0")
    if not end:
        raise ElfError("the interpreter path is not terminated")
    return path.decode("utf-8", "surrogateescape")


def _notes_of(segments: Segments) -> tuple[str | None, int | None]:
    """Return (the build ID in hexadecimal, the x86-64 level bits) from the notes.

    A note that exceeds its segment is ignored: the loader also continues without it.
    """
    build_id: str | None = None
    isa_needed: int | None = None
    for segment in segments.all:
        if segment.type not in (PT_NOTE, PT_GNU_PROPERTY):
            continue
        data = segments.file_range(segment.offset, min(segment.file_bytes, _MAX_NOTES_BYTES))
        for kind, description in _notes_of_gnu(data, 8 if segment.align == 8 else 4):
            if kind == _NT_GNU_BUILD_ID and build_id is None:
                build_id = description.hex()
            if kind == _NT_GNU_PROPERTY_TYPE_0 and isa_needed is None:
                isa_needed = _isa_needed(description)
    return build_id, isa_needed


def _notes_of_gnu(data: bytes, align: int) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _NOTE.size <= len(data):
        name_bytes, size_bytes, kind = _NOTE.unpack_from(data, offset)
        name_at = offset + _NOTE.size
        at = _up(name_at + name_bytes, align)
        offset = _up(at + size_bytes, align)
        description = data[at : at + size_bytes]
        if data[name_at : name_at + name_bytes] == b"GNU\0" and len(description) == size_bytes:
            yield kind, description


def _isa_needed(properties: bytes) -> int | None:
    offset = 0
    while offset + _PROPERTY.size <= len(properties):
        kind, size_bytes, value = _PROPERTY.unpack_from(properties, offset)
        if kind == _X86_ISA_1_NEEDED and size_bytes == 4:
            return int(value)
        offset = _up(offset + 8 + size_bytes, 8)
    return None


def _up(value: int, align: int) -> int:
    return (value + align - 1) & -align
