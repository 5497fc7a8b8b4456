"""What one ELF file says about itself, read the way the dynamic loader reads it.

Everything comes from the program headers and the dynamic segment: tag and value pairs up to DT_NULL whose values are
numbers, addresses, or offsets into DT_STRTAB (gABI chapter 5, `elf.h`). Section headers are never used: stripped and
sstripped files say the same as whole ones. A few ranges are read, never the whole file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from lumiimg.elf.notes import read_notes
from lumiimg.elf.reader import ElfError
from lumiimg.elf.relocations import symbols_looked_up
from lumiimg.elf.segments import PF_X, PT_DYNAMIC, PT_GNU_STACK, PT_INTERP, PT_TLS, Segments, StringTable
from lumiimg.elf.symbols import DT_STRSZ, DT_STRTAB, WantedSymbol, defined_among, defined_names, wanted_symbols
from lumiimg.elf.versions import VersionNeed, read_version_definitions, read_version_needs

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_FLAGS = 1, 14, 15, 29, 30
_DT_RELR = 36
_DT_FLAGS_1, _DT_VERDEF, _DT_VERNEED = 0x6FFFFFFB, 0x6FFFFFFC, 0x6FFFFFFE
_DT_AUXILIARY, _DT_FILTER = 0x7FFFFFFD, 0x7FFFFFFF
_REPEATED = frozenset({_DT_NEEDED, _DT_AUXILIARY, _DT_FILTER})

DF_STATIC_TLS = 0x10
DF_1_NODEFLIB, DF_1_NOOPEN, DF_1_PIE = 0x800, 0x40, 0x08000000
ET_EXEC, ET_DYN = 2, 3

_MAX_PATH_BYTES = 4096
_MAX_DYNAMIC_BYTES = 1 << 20
_MAX_NEEDED = 4096
_DYNAMIC_READ_BYTES = 4096
_PAGE_BYTES = 4096
# DEFAULT_STACK_PERMS in sysdeps/*/stackinfo.h: without PT_GNU_STACK the stack is executable on these machines
_EXECUTABLE_BY_DEFAULT = frozenset({2, 3, 4, 8, 15, 20, 22, 40, 42, 43, 62, 92, 0x9026})


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """One ELF file. Names are text with surrogates for bytes that are not UTF-8; an absent fact is None."""

    elf_class: int
    """32 or 64."""
    little_endian: bool
    """Whether its byte order is that of x86-64."""
    machine: int
    """e_machine: 62 is x86-64, 183 aarch64."""
    type: int
    """e_type: 2 is ET_EXEC, 3 ET_DYN."""
    is_dynamic: bool
    """Whether there is a dynamic segment: False for a static program."""
    interpreter: str | None = None
    """PT_INTERP: path of the loader that the file asks for."""
    soname: str | None = None
    """DT_SONAME."""
    needed: tuple[str, ...] = ()
    """DT_NEEDED, in order."""
    rpath: str | None = None
    """As written; the loader ignores it where there is a runpath."""
    runpath: str | None = None
    """DT_RUNPATH, as written."""
    filters: tuple[str, ...] = ()
    """DT_FILTER and DT_AUXILIARY: libraries whose symbols come before its own."""
    flags: int = 0
    """DT_FLAGS."""
    flags_1: int = 0
    """DT_FLAGS_1."""
    version_needs: tuple[VersionNeed, ...] = ()
    """Versions that it asks for."""
    version_definitions: tuple[str, ...] = ()
    """With the base definition, which is the file's own name."""
    tls_size_bytes: int = 0
    """Of its thread-local storage."""
    executable_stack: bool = True
    """Without a PT_GNU_STACK, what the loader takes for this machine: True on x86-64, False on aarch64."""
    isa_needed: int | None = None
    """GNU_PROPERTY_X86_ISA_1_NEEDED: bit 0 baseline, 1 v2, 2 v3, 3 v4."""
    build_id: str | None = None
    """The note of GNU's ld, in hexadecimal."""
    has_relr: bool = False
    """Whether it has DT_RELR relocations."""
    tls_align: int = 0
    """Alignment of its thread-local storage, in bytes."""
    tls_skew_bytes: int = 0
    """How far the TLS block starts behind an address of that alignment."""
    has_loads: bool = True
    """Whether there is any PT_LOAD."""
    loads_misplaced: bool = False
    """Whether the address and the file offset of a PT_LOAD differ within a page: no loader maps that."""
    loads_underaligned: bool = False
    """Whether the alignment of a PT_LOAD is less than a page: glibc before 2.35 refuses that."""
    missing_bytes: int = 0
    """How far the segments reach behind the end of the file: it was cut off, as by a copy that did not end."""
    linux_needed: tuple[int, int, int] | None = None
    """NT_GNU_ABI_TAG: glibc before 2.36 passes the file over on an older kernel."""


def read_elf(reader: RandomAccess, first: bytes | None = None) -> ElfFacts:
    """Return the facts of one file, whose first bytes may be at hand (see Segments).

    Raises ElfError, whatever the bytes.
    """
    segments = Segments(reader, first)
    dynamic, repeated = _read_dynamic(segments)
    strings = _strings(segments, dynamic)

    def text(tag: int) -> str | None:
        return _string(strings, dynamic[tag]) if tag in dynamic else None

    def texts(tag: int) -> tuple[str, ...]:
        return tuple([_string(strings, offset) for number, offset in repeated if number == tag])

    stacks = segments.of_type(PT_GNU_STACK)
    tls = next((each for each in reversed(segments.of_type(PT_TLS)) if each.memory_bytes), None)
    loads = segments.loads
    notes = read_notes(segments)
    needs: tuple[VersionNeed, ...] = ()
    definitions: tuple[str, ...] = ()
    if strings is not None and _DT_VERNEED in dynamic:
        needs = tuple([need for _, need in read_version_needs(segments, strings, dynamic[_DT_VERNEED])])
    if strings is not None and _DT_VERDEF in dynamic:
        definitions = tuple([name for _, name in read_version_definitions(segments, strings, dynamic[_DT_VERDEF])])
    return ElfFacts(
        elf_class=segments.layout.bits,
        little_endian=segments.layout.little_endian,
        machine=segments.machine,
        type=segments.type,
        is_dynamic=bool(dynamic),
        interpreter=_interpreter(segments),
        soname=text(_DT_SONAME),
        needed=texts(_DT_NEEDED),
        rpath=text(_DT_RPATH),
        runpath=text(_DT_RUNPATH),
        filters=(*texts(_DT_FILTER), *texts(_DT_AUXILIARY)),
        flags=dynamic.get(_DT_FLAGS, 0),
        flags_1=dynamic.get(_DT_FLAGS_1, 0),
        version_needs=needs,
        version_definitions=definitions,
        tls_size_bytes=tls.memory_bytes if tls else 0,
        executable_stack=bool(stacks[-1].flags & PF_X) if stacks else segments.machine in _EXECUTABLE_BY_DEFAULT,
        isa_needed=notes.isa_needed,
        build_id=notes.build_id,
        has_relr=_DT_RELR in dynamic,
        tls_align=tls.align if tls else 0,
        tls_skew_bytes=tls.address & (tls.align - 1) if tls and tls.align else 0,
        has_loads=bool(loads),
        loads_misplaced=any((load.address - load.offset) % _PAGE_BYTES for load in loads),
        loads_underaligned=any(load.align % _PAGE_BYTES for load in loads),
        missing_bytes=max([0, *(load.offset + load.file_bytes - reader.size for load in loads)]),
        linux_needed=notes.linux,
    )


def exported_symbols(reader: RandomAccess, prefix: str = "") -> frozenset[str]:
    """Return the names of defined global and weak dynamic symbols. Raises ElfError."""
    segments = Segments(reader)
    dynamic, _ = _read_dynamic(segments)
    return defined_names(segments, dynamic, prefix.encode("utf-8", "surrogateescape"))


def undefined_symbols(reader: RandomAccess, *, lazily: bool = False) -> frozenset[WantedSymbol]:
    """Return the symbols that the loader looks up elsewhere, and must find.

    `lazily`: those that it looks up at the load, where calls are bound at their first use. Raises ElfError.
    """
    segments = Segments(reader)
    dynamic, _ = _read_dynamic(segments)
    strings = _strings(segments, dynamic)
    asked: dict[int | None, str] = {}
    if strings is not None and _DT_VERNEED in dynamic:
        needs = read_version_needs(segments, strings, dynamic[_DT_VERNEED])
        asked = {index: need.name for index, need in needs}
    return wanted_symbols(segments, dynamic, symbols_looked_up(segments, dynamic, lazily=lazily), asked)


def defined_symbols(reader: RandomAccess, wanted: Iterable[WantedSymbol]) -> set[WantedSymbol]:
    """Return those of some symbols that a file defines, in the versions that are asked for. Raises ElfError."""
    segments = Segments(reader)
    dynamic, _ = _read_dynamic(segments)
    strings = _strings(segments, dynamic)
    given: dict[int | None, str] = {}
    if strings is not None and _DT_VERDEF in dynamic:
        given = dict(read_version_definitions(segments, strings, dynamic[_DT_VERDEF]))
    return defined_among(segments, dynamic, wanted, given)


def _read_dynamic(segments: Segments) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return (the last value of each tag, as the loader keeps it; the entries of tags that may repeat).

    The loader never looks at the size of PT_DYNAMIC: it reads to DT_NULL. Where none is left in the file, zeros follow
    in memory. A PT_DYNAMIC without bytes is what a file of separate debug information has, and is none.
    """
    found = segments.of_type(PT_DYNAMIC)
    if not found or found[-1].file_bytes == 0:
        return {}, []
    entries = _dynamic_entries(segments, found[-1].address, found[-1].file_bytes)
    repeated = [entry for entry in entries if entry[0] in _REPEATED]
    if len(repeated) > _MAX_NEEDED:
        raise ElfError(f"{len(repeated)} needed libraries")
    return dict(entries), repeated


def _dynamic_entries(segments: Segments, address: int, file_bytes: int) -> list[tuple[int, int]]:
    entry = segments.layout.dynamic
    size = min(max(file_bytes, entry.size), _MAX_DYNAMIC_BYTES)
    while True:
        data = segments.at(address, size)
        count = len(data) // entry.size
        # every tag but DT_NULL is a true value
        entries = list(itertools.takewhile(itemgetter(0), entry.iter_unpack(data[: count * entry.size])))
        if len(entries) < count or len(data) < size:
            return entries
        if size >= _MAX_DYNAMIC_BYTES:
            raise ElfError(f"a dynamic segment of more than {_MAX_DYNAMIC_BYTES} bytes")
        size = min(max(2 * size, _DYNAMIC_READ_BYTES), _MAX_DYNAMIC_BYTES)


def _strings(segments: Segments, dynamic: dict[int, int]) -> StringTable | None:
    if DT_STRTAB not in dynamic:
        return None
    # DT_STRSZ is mandatory in the gABI, but the loader never reads it; the segment is the bound then
    address = dynamic[DT_STRTAB]
    return StringTable(segments, address, dynamic.get(DT_STRSZ) or segments.rest_bytes(address))


def _string(strings: StringTable | None, offset: int) -> str:
    if strings is None:
        raise ElfError("a dynamic segment with names but no string table")
    return strings.at(offset)


def _interpreter(segments: Segments) -> str | None:
    found = segments.of_type(PT_INTERP)
    if not found or found[0].file_bytes == 0:
        return None  # without bytes: a file of separate debug information
    segment = found[0]
    if not 1 < segment.file_bytes <= _MAX_PATH_BYTES:
        raise ElfError(f"an interpreter path of {segment.file_bytes} bytes")
    path, end, _ = segments.file_range(segment.offset, segment.file_bytes).partition(b"\0")
    if not end:
        raise ElfError("the interpreter path has no end")
    return path.decode("utf-8", "surrogateescape")
