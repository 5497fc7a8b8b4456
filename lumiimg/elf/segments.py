"""The header and program headers of an ELF file, and the address space that they lay out.

gABI chapters 4 and 5, `elf.h`. Only what the loader itself looks at: section headers may be stripped or lie.

    0   e_ident[16]: 7f 'E' 'L' 'F', class, data, version, osabi, abiversion, pad
    16  e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, ...
        program header table at e_phoff: e_phnum times (type, flags, offset, vaddr, paddr, filesz, memsz, align)

Addresses in the dynamic segment are virtual; `Segments.at` maps them to file offsets through the PT_LOAD entries, as
the loader's mmap does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.elf.reader import ElfError

if TYPE_CHECKING:
    from lumiimg.elf.reader import Reader

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_TLS = 1, 2, 3, 4, 7
PT_GNU_STACK, PT_GNU_PROPERTY = 0x6474E551, 0x6474E553
PF_X = 1

_IDENT_BYTES = 16
_FIRST_READ_BYTES = 4096
_MAX_SEGMENTS = 1024
_MAX_STRING_BYTES = 65536
_STRING_READ_BYTES = 256
_WHOLE_STRINGS_BYTES = 16384


class Layout(NamedTuple):
    """How one (class, byte order) pair packs its records."""

    bits: int
    little_endian: bool
    header: struct.Struct
    segment: struct.Struct
    dynamic: struct.Struct
    symbol: struct.Struct
    word: struct.Struct
    half: struct.Struct
    address: struct.Struct


def _layout(bits: int, order: str) -> Layout:
    header, segment, dynamic, symbol, address = (
        ("HHIQQQIHHHHHH", "IIQQQQQQ", "qQ", "IBBHQQ", "Q")
        if bits == 64
        else ("HHIIIIIHHHHHH", "IIIIIIII", "iI", "IIIBBH", "I")
    )
    return Layout(
        bits,
        order == "<",
        struct.Struct(order + header),
        struct.Struct(order + segment),
        struct.Struct(order + dynamic),
        struct.Struct(order + symbol),
        struct.Struct(order + "I"),
        struct.Struct(order + "H"),
        struct.Struct(order + address),
    )


_LAYOUTS = {
    (1, 1): _layout(32, "<"),
    (1, 2): _layout(32, ">"),
    (2, 1): _layout(64, "<"),
    (2, 2): _layout(64, ">"),
}


class Segment(NamedTuple):
    """One program header."""

    type: int
    flags: int
    offset: int
    address: int
    file_bytes: int
    memory_bytes: int
    align: int


class Segments:
    """An ELF file seen through its program headers."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._first = reader.read_at(0, _FIRST_READ_BYTES)
        ident = self._first[:_IDENT_BYTES]
        if ident[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if len(ident) < _IDENT_BYTES:
            raise ElfError("ELF header is cut off")
        layout = _LAYOUTS.get((ident[4], ident[5]))
        if layout is None:
            raise ElfError(f"unknown ELF class {ident[4]} or byte order {ident[5]}")
        self.layout = layout
        if len(self._first) < _IDENT_BYTES + layout.header.size:
            raise ElfError("ELF header is cut off")
        fields = layout.header.unpack_from(self._first, _IDENT_BYTES)
        self.type: int = fields[0]
        self.machine: int = fields[1]
        self.all = self._read_table(offset=fields[4], entry_bytes=fields[8], count=fields[9])
        self.loads = tuple(segment for segment in self.all if segment.type == PT_LOAD)

    def _read_table(self, *, offset: int, entry_bytes: int, count: int) -> tuple[Segment, ...]:
        if count == 0:
            return ()
        entry = self.layout.segment
        if entry_bytes != entry.size:
            raise ElfError(f"program headers of {entry_bytes} bytes, {entry.size} expected")
        if offset + count * entry.size > self._reader.size:
            raise ElfError("cannot read file data")  # the loader's words for program headers outside of the file
        if count > _MAX_SEGMENTS:
            raise ElfError(f"{count} program headers, more than the {_MAX_SEGMENTS} that are read")
        table = self.file_range(offset, count * entry.size)
        if len(table) != count * entry.size:
            raise ElfError("cannot read file data")
        if self.layout.bits == 64:
            return tuple(Segment(t, f, o, a, fs, ms, al) for t, f, o, a, _, fs, ms, al in entry.iter_unpack(table))
        return tuple(Segment(t, f, o, a, fs, ms, al) for t, o, a, _, fs, ms, f, al in entry.iter_unpack(table))

    def first(self, kind: int) -> Segment | None:
        """Return the first segment of this type, which is the one that the kernel takes."""
        for segment in self.all:
            if segment.type == kind:
                return segment
        return None

    def last(self, kind: int) -> Segment | None:
        """Return the last segment of this type, which is the one that the loader ends up with."""
        for segment in reversed(self.all):
            if segment.type == kind:
                return segment
        return None

    def file_range(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of the file, from the part already read where that holds them."""
        if offset + size <= len(self._first):
            return self._first[offset : offset + size]
        if offset >= self._reader.size:
            return b""
        return self._reader.read_at(offset, size)

    def at(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes that the file puts at a virtual address; fewer at the end of their segment.

        Raises ElfError where no PT_LOAD holds the address.
        """
        for _, _, offset, start, file_bytes, _, _ in self.loads:
            if start <= address < start + file_bytes:
                skip = address - start
                return self.file_range(offset + skip, min(size, file_bytes - skip))
        raise ElfError(f"address {address:#x} lies in no loaded segment")

    def rest_bytes(self, address: int) -> int:
        """Return how many bytes of the file follow an address in its segment."""
        for segment in self.loads:
            if segment.address <= address < segment.address + segment.file_bytes:
                return segment.address + segment.file_bytes - address
        raise ElfError(f"address {address:#x} lies in no loaded segment")


class Window:
    """A run of records at a virtual address, whose length only the records tell; read as far as they reach."""

    def __init__(self, segments: Segments, address: int, *, limit_bytes: int) -> None:
        self._segments = segments
        self._address = address
        self._limit_bytes = limit_bytes
        self._data = segments.at(address, min(2048, limit_bytes))

    def take(self, record: struct.Struct, offset: int) -> tuple[int, ...]:
        """Return the record at `offset` from the start of the run."""
        end = offset + record.size
        if end > len(self._data):
            if end > self._limit_bytes:
                raise ElfError("version records reach further than any real file's")
            self._data = self._segments.at(self._address, min(max(end, 4 * len(self._data)), self._limit_bytes))
            if end > len(self._data):
                raise ElfError("version records run out of their segment")
        return record.unpack_from(self._data, offset)


class StringTable:
    """DT_STRTAB, DT_STRSZ: NUL-terminated names, read one by one because a big library has megabytes of them."""

    def __init__(self, segments: Segments, address: int, size_bytes: int) -> None:
        self._segments = segments
        self._address = address
        self._size_bytes = size_bytes
        self._whole = segments.at(address, size_bytes) if size_bytes <= _WHOLE_STRINGS_BYTES else None

    def at(self, offset: int) -> str:
        """Return one string; bytes that are not UTF-8 become surrogates, as in file names of Python."""
        if offset >= self._size_bytes:
            raise ElfError(f"string at {offset}, outside the table of {self._size_bytes} bytes")
        if self._whole is not None:
            end = self._whole.find(b"\0", offset)
            if end < 0:
                raise ElfError("string without an end")
            return self._whole[offset:end].decode("utf-8", "surrogateescape")
        size = _STRING_READ_BYTES
        while True:
            limit = min(size, self._size_bytes - offset)
            text, found, _ = self._segments.at(self._address + offset, limit).partition(b"\0")
            if found:
                return text.decode("utf-8", "surrogateescape")
            if limit < size or size >= _MAX_STRING_BYTES:
                raise ElfError("string without an end")
            size *= 16
