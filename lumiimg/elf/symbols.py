"""Which names a library exports, and which it asks for: its dynamic symbol table, counted without section headers.

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
from typing import TYPE_CHECKING, NamedTuple

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
_VER_NDX_GLOBAL, _VER_NDX_FIRST, _VERSION_INDEX = 1, 2, 0x7FFF
_SHN_UNDEF = 0
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN


class WantedSymbol(NamedTuple):
    """A symbol that a file looks for elsewhere."""

    name: str
    version: str | None
    """The version of it that is asked for; None for any."""

    def __str__(self) -> str:
        return f"{self.name}, version {self.version}" if self.version else self.name


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
    count = _symbol_count(segments, dynamic)
    return _read_tables(segments, dynamic, count) if count else (b"", b"")


def _read_tables(segments: Segments, dynamic: Mapping[int, int], count: int) -> tuple[bytes, bytes]:
    entry = segments.layout.symbol
    if dynamic.get(DT_SYMENT, entry.size) != entry.size:
        raise ElfError(f"symbols of {dynamic[DT_SYMENT]} bytes, {entry.size} expected")
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


def wanted_symbols(
    segments: Segments, dynamic: Mapping[int, int], numbers: Mapping[int, bool], versions: Mapping[int | None, str]
) -> frozenset[WantedSymbol]:
    """Return the symbols that must be defined elsewhere (not weak); `versions` are names by their index.

    `numbers`: of the symbols with these numbers, which are undefined, or copied (True): then the file has a place for
    what another defines. How many symbols there are need not show in the hash table, which has those that the file
    defines.
    """
    if not numbers or not {DT_STRTAB, DT_SYMTAB, DT_STRSZ} <= dynamic.keys():
        return frozenset()
    count = max(numbers) + 1
    table, strings = _read_tables(segments, dynamic, count)
    wide = segments.layout.bits == 64
    given = _Names(strings)
    found: set[WantedSymbol] = set()
    entries = zip(segments.layout.symbol.iter_unpack(table), _versions(segments, dynamic, count), strict=True)
    for number, (fields, (version,)) in enumerate(entries):
        is_copied = numbers.get(number)
        if is_copied is None:
            continue
        name_at, info, _, section = fields[:4] if wide else (fields[0], *fields[3:])
        if name_at and info >> 4 == _STB_GLOBAL and (section == _SHN_UNDEF or is_copied):
            found.add(WantedSymbol(given.at(name_at), versions.get(version & _VERSION_INDEX)))
    return frozenset(found)


def defined_among(
    segments: Segments,
    dynamic: Mapping[int, int],
    wanted: Iterable[WantedSymbol],
    versions: Mapping[int | None, str],
) -> set[WantedSymbol]:
    """Return those of some symbols that a file defines; `versions` are names by their index.

    Which version serves which need: glibc `elf/dl-lookup.c`, check_match.
    """
    by_name: dict[str, list[WantedSymbol]] = {}
    for each in wanted:
        by_name.setdefault(each.name, []).append(each)
    table, strings = _tables(segments, dynamic)
    wide = segments.layout.bits == 64
    given = _Names(strings)
    found: set[WantedSymbol] = set()
    count = len(table) // segments.layout.symbol.size
    entries = zip(segments.layout.symbol.iter_unpack(table), _versions(segments, dynamic, count), strict=True)
    for fields, (version,) in entries:
        name_at, info, other, section = fields[:4] if wide else (fields[0], *fields[3:])
        if section == _SHN_UNDEF or info >> 4 not in _GLOBAL_BINDINGS or other & 3 in _HIDDEN:
            continue
        for each in by_name.get(given.at(name_at), ()):
            if _serves(version, versions.get(version & _VERSION_INDEX), each.version):
                found.add(each)
    return found


def _serves(number: int, own: str | None, wanted: str | None) -> bool:
    """Whether a definition with a number in .gnu.version, which is version `own`, serves a need for one, or for any."""
    is_shown = number <= _VERSION_INDEX
    if wanted is None:
        return is_shown or number & _VERSION_INDEX <= _VER_NDX_FIRST
    return own == wanted or (own is None and is_shown)


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
