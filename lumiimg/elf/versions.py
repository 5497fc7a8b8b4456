"""Symbol versions that a file needs (DT_VERNEED) and defines (DT_VERDEF).

Layout: LSB "Symbol Versioning", `elf.h`; walked as `elf/dl-version.c` of glibc walks it, by the links between records
and not by their announced number.

    Verneed: version u16, cnt u16, file u32, aux u32, next u32        Vernaux: hash u32, flags u16, other u16, name u32,
                                                                               next u32
    Verdef:  version u16, flags u16, ndx u16, cnt u16, hash u32,      Verdaux: name u32, next u32
             aux u32, next u32
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lumiimg.elf.reader import ElfError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.elf.segments import Segments, StringTable

_RECORDS = {
    order: (struct.Struct(prefix + "HHIII"), struct.Struct(prefix + "IHHII"), struct.Struct(prefix + "HHHHIII"))
    for order, prefix in ((True, "<"), (False, ">"))
}
_VER_FLG_BASE, _VER_FLG_WEAK = 1, 2
# 15 bits of a version index are all that .gnu.version can name
_MAX_VERSIONS = 32767
_MAX_TABLE_BYTES = 4 << 20
_FIRST_TABLE_BYTES = 4096

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,5}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VersionNeed:
    """One version that must be (or, weak, should be) defined by the library loaded as `file`."""

    file: str
    """DT_NEEDED name of the library that should have it."""
    name: str
    """`GLIBC_2.38`."""
    weak: bool
    """Whether it may be absent."""


def read_version_needs(segments: Segments, strings: StringTable, address: int) -> tuple[tuple[int, VersionNeed], ...]:
    """Return what the chain of Verneed records at an address asks for, each with its index in .gnu.version."""
    need, aux, _ = _RECORDS[segments.layout.little_endian]

    def read(data: bytes) -> tuple[tuple[int, VersionNeed], ...]:
        found: list[tuple[int, VersionNeed]] = []
        offset = 0
        while True:
            version, _, file_at, first_aux, next_need = need.unpack_from(data, offset)
            if version != 1:
                raise ElfError(f"unsupported version {version} of Verneed record")
            file = strings.at(file_at)
            aux_offset = offset + first_aux
            while True:
                _, flags, index, name_at, next_aux = aux.unpack_from(data, aux_offset)
                wanted = VersionNeed(file, strings.at(name_at), bool(flags & _VER_FLG_WEAK))
                found.append((index & _MAX_VERSIONS, wanted))
                if len(found) > _MAX_VERSIONS:
                    raise ElfError("more version needs than a file can have")
                if not next_aux:
                    break
                aux_offset += next_aux
            if not next_need:
                return tuple(found)
            offset += next_need

    return _read_run(segments, address, read)


def read_version_definitions(
    segments: Segments, strings: StringTable, address: int
) -> tuple[tuple[int | None, str], ...]:
    """Return index in .gnu.version and name of the Verdef records at an address.

    The base definition, which is the file's own name and no symbol's version, has no index.
    """
    _, _, definition = _RECORDS[segments.layout.little_endian]
    word = segments.layout.word

    def read(data: bytes) -> tuple[tuple[int | None, str], ...]:
        names: list[tuple[int | None, str]] = []
        offset = 0
        while True:
            version, flags, index, count, _, first_aux, next_definition = definition.unpack_from(data, offset)
            if version != 1:
                raise ElfError(f"unsupported version {version} of Verdef record")
            if count:
                name = strings.at(word.unpack_from(data, offset + first_aux)[0])
                names.append((None if flags & _VER_FLG_BASE else index & _MAX_VERSIONS, name))
            if len(names) > _MAX_VERSIONS:
                raise ElfError("more version definitions than a file can have")
            if not next_definition:
                return tuple(names)
            offset += next_definition

    return _read_run(segments, address, read)


def _read_run(segments: Segments, address: int, read: Callable[[bytes], T]) -> T:
    """Read records whose length only they themselves tell: where they go on behind what was read, more is read."""
    size = _FIRST_TABLE_BYTES
    while True:
        data = segments.at(address, size)
        try:
            return read(data)
        except struct.error:
            if len(data) < size:
                raise ElfError("version records run out of their segment") from None
        if size >= _MAX_TABLE_BYTES:
            raise ElfError("version records reach further than any real file's")
        size *= 4


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the dotted number at the end of a version's name, GLIBC_2.38 or 2.38; nothing where there is none."""
    number = version.rpartition("_")[2]
    return tuple(map(int, number.split("."))) if _NUMBER.fullmatch(number) else ()
