"""The header and program headers of an ELF file, and the address space that they define.

gABI chapters 4 and 5, `elf.h`. Only what the loader itself uses: section headers may be stripped or wrong. 64-bit files
with the byte order of x86-64 are supported; any other is recognised by its header.

    0   e_ident[16]: 7f 'E' 'L' 'F', class, data, version, osabi, abiversion, pad
    16  e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, ...
        program header table at e_phoff: e_phnum times (type, flags, offset, vaddr, paddr, filesz, memsz, align)

Addresses in the dynamic segment are virtual; `Segments.at` maps them to file offsets through the PT_LOAD entries, as
the loader's mmap does.
"""

from __future__ import annotations

import struct
from itertools import starmap
from typing import TYPE_CHECKING

from msgspec import Struct

from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_TLS = 1, 2, 3, 4, 7
PT_GNU_STACK, PT_GNU_PROPERTY = 0x6474E551, 0x6474E553
ET_EXEC, ET_DYN = 2, 3
HEADER_BYTES = 64
FIRST_READ_BYTES = 4096

_IDENT = b"\x7fELF\2\1"
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQ8xQQQ")
_MAX_SEGMENTS = 1024
_MAX_STRING_BYTES = 65536
_STRING_READ_BYTES = 4096
_WHOLE_STRINGS_BYTES = 16384
MAX_NAMES_BYTES = 16 << 20


class ElfError(BadInputError):
    """Data that is not an ELF file (or loader cache), or that contains wrong sizes."""


class Segment(Struct, frozen=True):
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

    def __init__(self, file: RandomAccess, first: bytes | None = None) -> None:
        """Read the headers; `first`, if already read: the first FIRST_READ_BYTES of the file (or all of it)."""
        self._file = file
        self._size_bytes = file.size
        self._first = file.read_at(0, FIRST_READ_BYTES) if first is None else first
        if self._first[:4] != _IDENT[:4]:
            raise ElfError("not an ELF file")
        if len(self._first) < HEADER_BYTES:
            raise ElfError("ELF header is cut off")
        if self._first[:6] != _IDENT:
            kind = f"class {self._first[4]}, byte order {self._first[5]}"
            raise ElfError(f"not a 64-bit little-endian ELF file: {kind}")
        self.type, self.machine, _, _, table_at, _, _, _, entry_bytes, count, *_ = _HEADER.unpack_from(self._first)
        self.all = self._read_table(table_at, entry_bytes, count)
        self._of_type: dict[int, list[Segment]] = {}
        for segment in self.all:
            self._of_type.setdefault(segment.type, []).append(segment)
        self.loads = self.of_type(PT_LOAD)

    def _read_table(self, offset: int, entry_bytes: int, count: int) -> tuple[Segment, ...]:
        if count == 0:
            return ()
        if entry_bytes != _SEGMENT.size:
            raise ElfError(f"program headers of {entry_bytes} bytes, {_SEGMENT.size} expected")
        size = count * entry_bytes
        if offset + size > self._size_bytes:
            raise ElfError("cannot read file data")  # the loader's message for program headers past the end of the file
        if count > _MAX_SEGMENTS:
            raise ElfError(f"{count} program headers, more than the {_MAX_SEGMENTS} that lumiimg reads")
        table = self.file_range(offset, size)
        if len(table) != size:
            raise ElfError("cannot read file data")
        return tuple(starmap(Segment, _SEGMENT.iter_unpack(table)))

    def of_type(self, kind: int) -> list[Segment]:
        """Return the segments of a type; the kernel uses the first of them, the loader the last."""
        return self._of_type.get(kind, [])

    def file_range(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of the file, from the part already read if it contains them."""
        if offset + size <= len(self._first):
            return self._first[offset : offset + size]
        if offset >= self._size_bytes:
            return b""
        return self._file.read_at(offset, size)

    def at(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes that the file maps to a virtual address; fewer at the end of their segment.

        Raises ElfError if no PT_LOAD contains the address.
        """
        offset, rest_bytes = self._place(address)
        return self.file_range(offset, min(size, rest_bytes))

    def rest_bytes(self, address: int) -> int:
        """Return how many bytes of the file follow an address in its segment."""
        return self._place(address)[1]

    def _place(self, address: int) -> tuple[int, int]:
        for load in self.loads:
            inside = address - load.address
            if 0 <= inside < load.file_bytes:
                return load.offset + inside, load.file_bytes - inside
        raise ElfError(f"address {address:#x} lies in no loaded segment")


class StringTable:
    """DT_STRTAB, DT_STRSZ: NUL-terminated names.

    A small table is read completely. A big library has megabytes of names, but those of its dynamic segment are close
    together, so for a big table, a block is read starting at each name that the previous block does not contain.
    """

    def __init__(
        self,
        segments: Segments,
        address: int,
        size_bytes: int,
        *,
        is_whole: bool = False,
        max_bytes: int = MAX_NAMES_BYTES,
    ) -> None:
        """Open a table; `is_whole`: read all of it. `max_bytes`: limit on the total length of the returned names."""
        self._segments = segments
        self._address = address
        self._size_bytes = size_bytes
        self._most_bytes = self._left_bytes = max_bytes
        self._block_at = 0
        self._block = segments.at(address, size_bytes) if is_whole or size_bytes <= _WHOLE_STRINGS_BYTES else b""

    def at(self, offset: int) -> str:
        """Return one string; bytes that are not UTF-8 become surrogates, as in Python's file names."""
        block, start = self._block, offset - self._block_at
        end = block.find(b"\0", start) if start >= 0 else -1
        if end < 0:
            block, start, end = self._read_block(offset)
        self._left_bytes -= end - start
        if self._left_bytes < 0:
            # thousands of names may be suffixes of one long string: a small file could fill the memory
            raise ElfError(f"more than {self._most_bytes} bytes of names")
        return block[start:end].decode("utf-8", "surrogateescape")

    def starts_with(self, prefix: bytes, offset: int) -> bool:
        """Return whether a string starts with some bytes; the table must have been read completely."""
        return self._block.startswith(prefix, offset)

    def _read_block(self, offset: int) -> tuple[bytes, int, int]:
        """Read a block that begins with a string; return (block, start of the string, its end)."""
        if offset >= self._size_bytes:
            raise ElfError(f"string at {offset}, outside the table of {self._size_bytes} bytes")
        size = _STRING_READ_BYTES
        while True:
            limit = min(size, self._size_bytes - offset)
            block = self._segments.at(self._address + offset, limit)
            end = block.find(b"\0")
            if end >= 0:
                self._block_at, self._block = offset, block
                return block, 0, end
            if limit < size or size >= _MAX_STRING_BYTES:
                raise ElfError("unterminated string")
            size *= 16
