"""Which names a library exports: its dynamic symbol table, counted without section headers.

The number of symbols is nowhere in the dynamic segment. DT_HASH has it as nchain; with DT_GNU_HASH it is one more than
the end of the longest chain (glibc `elf/dl-lookup.c` walks the same words):

    DT_HASH:     nbucket u32, nchain u32, bucket[nbucket] u32, chain[nchain] u32
    DT_GNU_HASH: nbuckets u32, symoffset u32, bloom words u32, bloom shift u32, bloom[] (address size),
                 bucket[nbuckets] u32, chain[] u32 with the lowest bit set at the end of a chain
"""

from __future__ import annotations

import array
import itertools
import sys
from typing import TYPE_CHECKING

from lumiimg.elf.reader import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumiimg.elf.segments import Segments

DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_GNU_HASH = 4, 5, 6, 10, 11, 0x6FFFFEF5
DT_VERSYM = 0x6FFFFFF0

_MAX_SYMBOLS = 4 << 20
_MAX_TABLE_BYTES = 256 << 20
_MAX_NAMES_BYTES = 64 << 20
_CHAIN_READ_BYTES = 16384
_GLOBAL_BINDINGS = (1, 2, 10)  # STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE
_STB_GLOBAL = 1
# of .gnu.version (LSB, Symbol Versioning): 0 local, 1 global without a version, above that a version; bit 15 hides
_VER_NDX_GLOBAL, _VERSION_INDEX = 1, 0x7FFF
_SHN_UNDEF = 0
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN


def defined_names(segments: Segments, dynamic: Mapping[int, int], prefix: bytes) -> frozenset[str]:
    """Return the names that start with `prefix` and that another object can bind to."""
    table, strings = _tables(segments, dynamic)
    wide = segments.layout.bits == 64
    given = _Names(strings)
    names: set[str] = set()
    for fields in segments.layout.symbol.iter_unpack(table):
        name_at, info, other, section = fields[:4] if wide else (fields[0], *fields[3:])
        if section == _SHN_UNDEF or info >> 4 not in _GLOBAL_BINDINGS or other & 3 in _HIDDEN:
            continue
        if strings.startswith(prefix, name_at):
            names.add(given.at(name_at))
    return frozenset(names)


def _tables(segments: Segments, dynamic: Mapping[int, int]) -> tuple[bytes, bytes]:
    """Return (the symbol table, the strings that it names); both empty where there are no symbols."""
    if not {DT_STRTAB, DT_SYMTAB, DT_STRSZ} <= dynamic.keys():
        return b"", b""
    entry = segments.layout.symbol
    if dynamic.get(DT_SYMENT, entry.size) != entry.size:
        raise ElfError(f"symbols of {dynamic[DT_SYMENT]} bytes, {entry.size} expected")
    count = _symbol_count(segments, dynamic)
    if count == 0:
        return b"", b""
    if count > _MAX_SYMBOLS or dynamic[DT_STRSZ] > _MAX_TABLE_BYTES:
        raise ElfError(f"{count} symbols with {dynamic[DT_STRSZ]} bytes of names, more than are read")
    table = segments.at(dynamic[DT_SYMTAB], count * entry.size)
    if len(table) != count * entry.size:
        raise ElfError("the symbol table runs out of its segment")
    return table, segments.at(dynamic[DT_STRTAB], dynamic[DT_STRSZ])


class _Names:
    """The names of one table, up to a bound: thousands may be the ends of one long string, in a small file."""

    def __init__(self, strings: bytes) -> None:
        self._strings = strings
        self._left_bytes = _MAX_NAMES_BYTES

    def at(self, offset: int) -> str:
        end = self._strings.find(b"\0", offset)
        if end < 0:
            raise ElfError("symbol name without an end")
        self._left_bytes -= end - offset
        if self._left_bytes < 0:
            raise ElfError(f"more than {_MAX_NAMES_BYTES} bytes of symbol names")
        return self._strings[offset:end].decode("utf-8", "surrogateescape")


def undefined_names(segments: Segments, dynamic: Mapping[int, int]) -> dict[str, bool]:
    """Return the names that must be defined elsewhere (undefined, not weak): whether a version of them is asked for."""
    table, strings = _tables(segments, dynamic)
    wide = segments.layout.bits == 64
    given = _Names(strings)
    names: dict[str, bool] = {}
    count = len(table) // segments.layout.symbol.size
    versions = _versions(segments, dynamic, count)
    for fields, (version,) in zip(segments.layout.symbol.iter_unpack(table), versions, strict=True):
        name_at, info, _, section = fields[:4] if wide else (fields[0], *fields[3:])
        if section == _SHN_UNDEF and info >> 4 == _STB_GLOBAL and name_at:
            names[given.at(name_at)] = version & _VERSION_INDEX > _VER_NDX_GLOBAL
    return names


def _versions(segments: Segments, dynamic: Mapping[int, int], count: int) -> Iterable[tuple[int, ...]]:
    """Return the version index of each symbol: of none where the file has no versions."""
    if DT_VERSYM not in dynamic or count == 0:
        return itertools.repeat((_VER_NDX_GLOBAL,), count)
    half = segments.layout.half
    data = segments.at(dynamic[DT_VERSYM], count * half.size)
    if len(data) != count * half.size:
        raise ElfError("the versions of the symbols run out of their segment")
    return half.iter_unpack(data)


def _symbol_count(segments: Segments, dynamic: Mapping[int, int]) -> int:
    if DT_HASH in dynamic:
        return _words(segments, dynamic[DT_HASH], 2)[1]
    if DT_GNU_HASH not in dynamic:
        return 0
    address = dynamic[DT_GNU_HASH]
    bucket_count, first_symbol, bloom_words, _ = _words(segments, address, 4)
    if bucket_count > _MAX_SYMBOLS or bloom_words > _MAX_SYMBOLS:
        raise ElfError("a symbol hash table larger than any real file's")
    buckets_at = address + 16 + bloom_words * segments.layout.address.size
    last = max(_words(segments, buckets_at, bucket_count), default=0)
    if last < first_symbol or last == 0:
        return first_symbol
    chain_at = buckets_at + 4 * bucket_count
    while True:
        if last > _MAX_SYMBOLS:
            raise ElfError("a symbol hash chain without an end")
        position = chain_at + 4 * (last - first_symbol)
        words = _words(segments, position, min(_CHAIN_READ_BYTES, segments.rest_bytes(position)) // 4)
        if not words:
            raise ElfError("a symbol hash chain without an end")
        for word in words:
            last += 1
            if word & 1:
                return last


def _words(segments: Segments, address: int, count: int) -> array.array[int]:
    data = segments.at(address, 4 * count) if count else b""
    if len(data) != 4 * count:
        raise ElfError("the symbol hash table runs out of its segment")
    words = array.array("I", data)
    if segments.layout.little_endian != (sys.byteorder == "little"):
        words.byteswap()
    return words
