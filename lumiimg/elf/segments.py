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
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.elf.reader import ElfError

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_TLS = 1, 2, 3, 4, 7
PT_GNU_STACK, PT_GNU_PROPERTY = 0x6474E551, 0x6474E553
PF_X = 1
FIRST_READ_BYTES = 4096

_IDENT_BYTES = 16
_MAX_SEGMENTS = 1024
_MAX_STRING_BYTES = 65536
_STRING_READ_BYTES = 4096
_WHOLE_STRINGS_BYTES = 16384
_MAX_NAMES_BYTES = 16 << 20


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
        ("HHIQQQIHHHHHH", "IIQQ8xQQQ", "qQ", "IBBHQQ", "Q")
        if bits == 64
        else ("HHIIIIIHHHHHH", "III4xIIII", "iI", "IIIBBH", "I")
    )
    records = (header, segment, dynamic, symbol, "I", "H", address)
    return Layout(bits, order == "<", *(struct.Struct(order + record) for record in records))


_LAYOUTS = {(number, place): _layout(32 * number, order) for number in (1, 2) for place, order in ((1, "<"), (2, ">"))}
"""By class and byte order, as in the header."""


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

    def __init__(self, reader: RandomAccess, first: bytes | None = None) -> None:
        """`first` are the first FIRST_READ_BYTES of the file (all of a shorter one) where they are at hand."""
        self._reader = reader
        self._size_bytes = reader.size
        self._first = reader.read_at(0, FIRST_READ_BYTES) if first is None else first
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
        self._of_type: dict[int, list[Segment]] = {}
        for segment in self.all:
            self._of_type.setdefault(segment.type, []).append(segment)
        self.loads = self.of_type(PT_LOAD)

    def _read_table(self, *, offset: int, entry_bytes: int, count: int) -> tuple[Segment, ...]:
        if count == 0:
            return ()
        entry = self.layout.segment
        if entry_bytes != entry.size:
            raise ElfError(f"program headers of {entry_bytes} bytes, {entry.size} expected")
        if offset + count * entry.size > self._size_bytes:
            raise ElfError("cannot read file data")  # the loader's words for program headers outside of the file
        if count > _MAX_SEGMENTS:
            raise ElfError(f"{count} program headers, more than the {_MAX_SEGMENTS} that are read")
        table = self.file_range(offset, count * entry.size)
        if len(table) != count * entry.size:
            raise ElfError("cannot read file data")
        if self.layout.bits == 64:
            return tuple(map(Segment._make, entry.iter_unpack(table)))
        return tuple(Segment(t, f, o, a, fs, ms, al) for t, o, a, fs, ms, f, al in entry.iter_unpack(table))

    def of_type(self, kind: int) -> Sequence[Segment]:
        """Return the segments of a type; the kernel takes the first of them, the loader ends up with the last."""
        return self._of_type.get(kind, ())

    def file_range(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of the file, from the part already read where that holds them."""
        if offset + size <= len(self._first):
            return self._first[offset : offset + size]
        if offset >= self._size_bytes:
            return b""
        return self._reader.read_at(offset, size)

    def at(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes that the file puts at a virtual address; fewer at the end of their segment.

        Raises ElfError where no PT_LOAD holds the address.
        """
        offset, rest_bytes = self._place(address)
        return self.file_range(offset, min(size, rest_bytes))

    def rest_bytes(self, address: int) -> int:
        """Return how many bytes of the file follow an address in its segment."""
        return self._place(address)[1]

    def _place(self, address: int) -> tuple[int, int]:
        for _, _, offset, start, file_bytes, _, _ in self.loads:
            if start <= address < start + file_bytes:
                return offset + address - start, start + file_bytes - address
        raise ElfError(f"address {address:#x} lies in no loaded segment")


class StringTable:
    """DT_STRTAB, DT_STRSZ: NUL-terminated names.

    A small table is read whole. A big library has megabytes of names, and those asked for stand together, so of a big
    one a block is read from the name on that was not in the block before.
    """

    def __init__(self, segments: Segments, address: int, size_bytes: int) -> None:
        self._segments = segments
        self._address = address
        self._size_bytes = size_bytes
        self._left_bytes = _MAX_NAMES_BYTES
        self._block_at = 0
        self._block = segments.at(address, size_bytes) if size_bytes <= _WHOLE_STRINGS_BYTES else b""

    def at(self, offset: int) -> str:
        """Return one string; bytes that are not UTF-8 become surrogates, as in file names of Python."""
        start = offset - self._block_at
        end = self._block.find(b"\0", start) if start >= 0 else -1
        if end < 0:
            start, end = 0, self._read_block(offset)
        self._left_bytes -= end - start
        if self._left_bytes < 0:
            # thousands of names may be the ends of one long string: a small file would fill the memory
            raise ElfError(f"more than {_MAX_NAMES_BYTES} bytes of names")
        return self._block[start:end].decode("utf-8", "surrogateescape")

    def _read_block(self, offset: int) -> int:
        """Read a block from a string on; return the length of the string."""
        if offset >= self._size_bytes:
            raise ElfError(f"string at {offset}, outside the table of {self._size_bytes} bytes")
        size = _STRING_READ_BYTES
        while True:
            limit = min(size, self._size_bytes - offset)
            block = self._segments.at(self._address + offset, limit)
            end = block.find(b"\0")
            if end >= 0:
                self._block_at, self._block = offset, block
                return end
            if limit < size or size >= _MAX_STRING_BYTES:
                raise ElfError("string without an end")
            size *= 16
