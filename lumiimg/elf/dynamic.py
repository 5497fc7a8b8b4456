"""The dynamic segment of an ELF file: its values, its names, and the symbol versions that it needs and defines.

Tag and value pairs up to DT_NULL; values are numbers, addresses, or offsets into DT_STRTAB (gABI chapter 5, `elf.h`).
Versions (LSB, "Symbol Versioning") are walked as `elf/dl-version.c` of glibc walks them, by the links between records
and not by their announced number:

    Verneed: version u16, cnt u16, file u32, aux u32, next u32        Vernaux: hash u32, flags u16, other u16, name u32,
                                                                               next u32
    Verdef:  version u16, flags u16, ndx u16, cnt u16, hash u32,      Verdaux: name u32, next u32
             aux u32, next u32
"""

from __future__ import annotations

import itertools
import struct
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from lumiimg.elf.segments import PT_DYNAMIC, ElfError, Segments, StringTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.core.access import RandomAccess

DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_VERDEF, DT_VERNEED = 1, 5, 10, 0x6FFFFFFC, 0x6FFFFFFE

_ENTRY = struct.Struct("<qQ")
_VERNEED, _VERNAUX, _VERDEF, _NAME = (struct.Struct(f"<{fields}") for fields in ("HHIII", "IHHII", "HHHHIII", "I"))
_VER_FLG_BASE, _VER_FLG_WEAK = 1, 2
_MAX_DYNAMIC_BYTES = 1 << 20
_READ_BYTES = 4096
_MAX_NEEDED = 4096
# 15 bits of a version index are all that .gnu.version can name
_MAX_VERSIONS = 32767
_MAX_VERSIONS_BYTES = 4 << 20
T = TypeVar("T")


class VersionNeed(Struct, frozen=True):
    """One version that must be (or, weak, should be) defined by the library loaded as `file`."""

    file: str
    """DT_NEEDED name of the library that should have it."""
    name: str
    """`GLIBC_2.38`."""
    weak: bool
    """Whether it may be absent."""


class Dynamic:
    """The dynamic segment of a file; without values for a file that has none. Raises ElfError, whatever the bytes."""

    def __init__(self, file: RandomAccess, first: bytes | None = None) -> None:
        """`first` are the first bytes of the file where they are at hand (see Segments)."""
        self.segments = Segments(file, first)
        self._entries = _entries_of(self.segments)
        self.values = dict(self._entries)
        """The last value of each tag, as the loader keeps it."""
        self.strings: StringTable | None = None
        if DT_STRTAB in self.values:
            # DT_STRSZ is mandatory in the gABI, but the loader never reads it; the segment is the bound then
            address = self.values[DT_STRTAB]
            size_bytes = self.values.get(DT_STRSZ) or self.segments.rest_bytes(address)
            self.strings = StringTable(self.segments, address, size_bytes)

    def name(self, tag: int) -> str | None:
        """Return the name that a tag has; None where the tag is not there."""
        return self._string(self.values[tag]) if tag in self.values else None

    def names(self, tag: int) -> tuple[str, ...]:
        """Return the names of a tag that may be there several times, in their order."""
        offsets = [value for number, value in self._entries if number == tag]
        if len(offsets) > _MAX_NEEDED:
            raise ElfError(f"{len(offsets)} needed libraries")
        return tuple(map(self._string, offsets))

    def _string(self, offset: int) -> str:
        if self.strings is None:
            raise ElfError("a dynamic segment with names but no string table")
        return self.strings.at(offset)

    def version_needs(self) -> tuple[tuple[int, VersionNeed], ...]:
        """Return the versions that it asks for, each with its index in .gnu.version."""

        def read(data: bytes) -> tuple[tuple[int, VersionNeed], ...]:
            found: list[tuple[int, VersionNeed]] = []
            offset = 0
            while True:
                version, _, file_at, first, following = _VERNEED.unpack_from(data, offset)
                if version != 1:
                    raise ElfError(f"unsupported version {version} of Verneed record")
                file, at = self._string(file_at), offset + first
                while True:
                    _, flags, index, name_at, next_name = _VERNAUX.unpack_from(data, at)
                    wanted = VersionNeed(file, self._string(name_at), bool(flags & _VER_FLG_WEAK))
                    found.append((index & _MAX_VERSIONS, wanted))
                    if len(found) > _MAX_VERSIONS:
                        raise ElfError("more version needs than a file can have")
                    if not next_name:
                        break
                    at += next_name
                if not following:
                    return tuple(found)
                offset += following

        return self._read_records(DT_VERNEED, read)

    def version_definitions(self) -> tuple[tuple[int | None, str], ...]:
        """Return the versions that it defines, each with its index in .gnu.version.

        The base definition, which is the file's own name and no symbol's version, has no index.
        """

        def read(data: bytes) -> tuple[tuple[int | None, str], ...]:
            found: list[tuple[int | None, str]] = []
            offset = 0
            while True:
                version, flags, index, count, _, first, following = _VERDEF.unpack_from(data, offset)
                if version != 1:
                    raise ElfError(f"unsupported version {version} of Verdef record")
                if count:
                    (name_at,) = _NAME.unpack_from(data, offset + first)
                    found.append((None if flags & _VER_FLG_BASE else index & _MAX_VERSIONS, self._string(name_at)))
                if len(found) > _MAX_VERSIONS:
                    raise ElfError("more version definitions than a file can have")
                if not following:
                    return tuple(found)
                offset += following

        return self._read_records(DT_VERDEF, read)

    def _read_records(self, tag: int, read: Callable[[bytes], tuple[T, ...]]) -> tuple[T, ...]:
        """Read records whose length only they themselves tell: where they go on behind what was read, more is read."""
        if self.strings is None or tag not in self.values:
            return ()
        size = _READ_BYTES
        while True:
            data = self.segments.at(self.values[tag], size)
            try:
                return read(data)
            except struct.error:
                if len(data) < size:
                    raise ElfError("version records run out of their segment") from None
            if size >= _MAX_VERSIONS_BYTES:
                raise ElfError("version records reach further than any real file's")
            size *= 4


def _entries_of(segments: Segments) -> list[tuple[int, int]]:
    """Return the entries up to DT_NULL.

    The loader never looks at the size of PT_DYNAMIC: it reads to DT_NULL. Where none is left in the file, zeros follow
    in memory. A PT_DYNAMIC without bytes is what a file of separate debug information has, and is none.
    """
    found = segments.of_type(PT_DYNAMIC)
    if not found or found[-1].file_bytes == 0:
        return []
    size = min(max(found[-1].file_bytes, _ENTRY.size), _MAX_DYNAMIC_BYTES)
    while True:
        data = segments.at(found[-1].address, size)
        count = len(data) // _ENTRY.size
        # every tag but DT_NULL is a true value
        entries = list(itertools.takewhile(itemgetter(0), _ENTRY.iter_unpack(data[: count * _ENTRY.size])))
        if len(entries) < count or len(data) < size:
            return entries
        if size >= _MAX_DYNAMIC_BYTES:
            raise ElfError(f"a dynamic segment of more than {_MAX_DYNAMIC_BYTES} bytes")
        size = min(max(2 * size, _READ_BYTES), _MAX_DYNAMIC_BYTES)
