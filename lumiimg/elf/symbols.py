"""Names that a library exports or requires: its dynamic symbol table, without section headers.

The dynamic segment does not contain the number of symbols. DT_HASH has it as nchain; with DT_GNU_HASH it is one more
than the end of the last chain (glibc `elf/dl-lookup.c` reads the same words):

    DT_HASH:     nbucket u32, nchain u32, bucket[nbucket] u32, chain[nchain] u32
    DT_GNU_HASH: nbuckets u32, symoffset u32, bloom words u32, bloom shift u32, bloom[] u64,
                 bucket[nbuckets] u32, chain[] u32 with the lowest bit set at the end of a chain

The relocations show which names are looked up. Those that use the value of a symbol (R_X86_64_COPY, GLOB_DAT, 64) are
processed when the file is loaded, before any of its code runs. A call through the linkage table (DT_JMPREL) is bound at
its first use, unless the file, LD_BIND_NOW, or RTLD_NOW of the dlopen requires that everything is bound at once. A
symbol without a relocation is never looked up (gABI chapter 5; glibc `elf/dl-reloc.c`, `elf/do-rel.h`).
"""

from __future__ import annotations

import array
import itertools
import struct
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.elf.facts import DT_STRSZ, DT_STRTAB, Dynamic, SnapshotElf
from lumiimg.elf.segments import ElfError, StringTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.core.access import RandomAccess

DT_HASH, DT_SYMTAB, DT_GNU_HASH, DT_VERSYM, _DT_SYMENT = 4, 6, 0x6FFFFEF5, 0x6FFFFFF0, 11
_DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ = 7, 8, 23, 2
_DT_BIND_NOW, DT_FLAGS, _DT_FLAGS_1 = 24, 30, 0x6FFFFFFB
_DF_BIND_NOW, _DF_1_NOW = 8, 1

SYMBOL = struct.Struct("<IBBHQQ")
VERSION = struct.Struct("<H")
_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE = 1, 2, 10
EXPORTED_BINDINGS = (_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE)
DEFINING_TYPES = (0, 1, 2, 5, 6, 10)
"""STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_COMMON, STT_TLS, STT_GNU_IFUNC: the types that a lookup can match."""
SHN_UNDEF = 0
HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN
# values in .gnu.version (LSB, Symbol Versioning): 0 local, 1 global without a version, higher a version; bit 15 hides
VER_NDX_GLOBAL, VER_NDX_FIRST, VERSION_INDEX = 1, 2, 0x7FFF
_COPIES = {21: 19, 62: 5, 183: 1024, 243: 4}
"""R_*_COPY by machine: library data of which a program at a fixed address contains its own copy."""

MAX_SYMBOLS = 4 << 20
_MAX_TABLE_BYTES = 256 << 20
_MAX_NAMES_BYTES = 64 << 20
_CHAIN_READ_BYTES = 16384
_RELA_WORDS = 3
_RELA_BYTES = 8 * _RELA_WORDS
_READ_RELOCATIONS = 1 << 17
"""Number of relocations read at a time."""


class WantedSymbol(NamedTuple):
    """A symbol that a file needs from another."""

    name: str
    version: str | None
    """Required version; None for any."""

    def __str__(self) -> str:
        return f"{self.name}, version {self.version}" if self.version else self.name


def exported_symbols(file: RandomAccess, prefix: str = "") -> frozenset[str]:
    """Return the names of defined global and weak dynamic symbols; for a recorded file, those that were recorded.

    Hidden versions are left out, as dlsym does not find them (`lookup.py`). Raises ElfError.
    """
    if isinstance(file, SnapshotElf):
        return frozenset(name for name in file.exports if name.startswith(prefix))
    table, start = SymbolTable(Dynamic(file)), prefix.encode("utf-8", "surrogateescape")
    shown = (
        at for at, version in table.exports() if version <= VERSION_INDEX or version & VERSION_INDEX < VER_NDX_FIRST
    )
    return frozenset(table.names.at(at) for at in shown if table.names.starts_with(start, at))


def undefined_symbols(file: RandomAccess, *, lazily: bool = False) -> frozenset[WantedSymbol]:
    """Return the symbols that the loader must find in other files, without weak ones.

    `lazily`: only those looked up at load time if calls are bound at their first use. Raises ElfError.
    """
    dynamic = Dynamic(file)
    numbers = reloc_symbols(dynamic, lazily=lazily)
    if not numbers:
        return frozenset()
    # the hash table need not show the number of symbols: it contains only those that the file defines
    table = SymbolTable(dynamic, max(numbers) + 1)
    versions = {index: need.name for index, need in dynamic.version_needs()}
    found: set[WantedSymbol] = set()
    for number, (name_at, info, _, section, version) in enumerate(table.entries()):
        is_copied = numbers.get(number)
        # a copied symbol has a place in this file although another file defines it
        if is_copied is not None and name_at and info >> 4 == _STB_GLOBAL and (section == SHN_UNDEF or is_copied):
            found.add(WantedSymbol(table.names.at(name_at), versions.get(version & VERSION_INDEX)))
    return frozenset(found)


def defined_symbols(file: RandomAccess, wanted: Iterable[WantedSymbol]) -> set[WantedSymbol]:
    """Return the wanted symbols that a file defines in the required versions. Raises ElfError.

    Which version satisfies which need: glibc `elf/dl-lookup.c`, check_match.
    """
    by_name: dict[str, list[WantedSymbol]] = {}
    for each in wanted:
        by_name.setdefault(each.name, []).append(each)
    dynamic = Dynamic(file)
    table, versions = SymbolTable(dynamic), dict(dynamic.version_definitions())
    found: set[WantedSymbol] = set()
    for name_at, version in table.exports():
        for each in by_name.get(table.names.at(name_at), ()):
            if _version_matches(version, versions.get(version & VERSION_INDEX), each.version):
                found.add(each)
    return found


def _version_matches(number: int, own: str | None, wanted: str | None) -> bool:
    """Return whether a definition of version `own` (`number` in .gnu.version) satisfies a need for `wanted`, or any."""
    is_shown = number <= VERSION_INDEX
    if wanted is None:
        return is_shown or number & VERSION_INDEX <= VER_NDX_FIRST
    return own == wanted or (own is None and is_shown)


class SymbolTable:
    """The dynamic symbols of a file; empty if it has no symbol table or no names."""

    def __init__(self, dynamic: Dynamic, count: int | None = None) -> None:
        """Read the table; `count` is the number of symbols, None to use that of the hash table."""
        self._dynamic, self._table, self._count = dynamic, b"", 0
        segments, values = dynamic.segments, dynamic.values
        if not {DT_STRTAB, DT_STRSZ, DT_SYMTAB} <= values.keys():
            return
        self._count = symbol_count(dynamic) if count is None else count
        if not self._count:
            return
        if values.get(_DT_SYMENT, SYMBOL.size) != SYMBOL.size:
            raise ElfError(f"symbols of {values[_DT_SYMENT]} bytes, {SYMBOL.size} expected")
        if self._count > MAX_SYMBOLS or values[DT_STRSZ] > _MAX_TABLE_BYTES:
            raise ElfError(f"{self._count} symbols with {values[DT_STRSZ]} bytes of names, more than lumiimg reads")
        self._table = segments.at(values[DT_SYMTAB], self._count * SYMBOL.size)
        if len(self._table) != self._count * SYMBOL.size:
            raise ElfError("the symbol table runs past its segment")
        self.names = StringTable(
            segments, values[DT_STRTAB], values[DT_STRSZ], is_whole=True, max_bytes=_MAX_NAMES_BYTES
        )

    def exports(self) -> Iterator[tuple[int, int]]:
        """Yield (offset of the name, version) of each symbol that another object can bind to."""
        for name_at, info, other, section, version in self.entries():
            is_definition = section != SHN_UNDEF and info & 15 in DEFINING_TYPES
            if is_definition and info >> 4 in EXPORTED_BINDINGS and other & 3 not in HIDDEN:
                yield name_at, version

    def entries(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield (offset of the name, info, other, section, version) of each symbol."""
        symbols = SYMBOL.iter_unpack(self._table)
        for (name_at, info, other, section, _, _), (version,) in zip(symbols, self._versions(), strict=True):
            yield name_at, info, other, section, version

    def _versions(self) -> Iterable[tuple[int, ...]]:
        """Return the version of each symbol; if the file has no versions, all are global without one."""
        address = self._dynamic.values.get(DT_VERSYM)
        if address is None or not self._table:
            return itertools.repeat((VER_NDX_GLOBAL,), len(self._table) // SYMBOL.size)
        data = self._dynamic.segments.at(address, self._count * VERSION.size)
        if len(data) != self._count * VERSION.size:
            raise ElfError("the symbol versions run past their segment")
        return VERSION.iter_unpack(data)


def symbol_count(dynamic: Dynamic) -> int:
    """Return the number of symbols of a file."""
    if DT_HASH in dynamic.values:
        return words(dynamic, dynamic.values[DT_HASH], 2)[1]
    if DT_GNU_HASH not in dynamic.values:
        return 0
    address = dynamic.values[DT_GNU_HASH]
    bucket_count, first_symbol, bloom_words, _ = words(dynamic, address, 4)
    if bucket_count > MAX_SYMBOLS or bloom_words > MAX_SYMBOLS:
        raise ElfError("a symbol hash table larger than any real file's")
    buckets_at = address + 16 + 8 * bloom_words
    last = max(words(dynamic, buckets_at, bucket_count), default=0)
    if last < first_symbol or last == 0:
        return first_symbol
    chain_at = buckets_at + 4 * (bucket_count + last - first_symbol)
    return last + sum(1 for _ in chain(dynamic, chain_at))


def chain(dynamic: Dynamic, address: int) -> Iterator[int]:
    """Yield the words of a chain of DT_GNU_HASH."""
    left = MAX_SYMBOLS
    while left > 0:
        count = min(_CHAIN_READ_BYTES, dynamic.segments.rest_bytes(address)) // 4
        for word in words(dynamic, address, count):
            yield word
            if word & 1:
                return
        if not count:
            break
        address, left = address + 4 * count, left - count
    raise ElfError("a symbol hash chain without an end")


def words(dynamic: Dynamic, address: int, count: int) -> array.array[int]:
    """Return words of a hash table."""
    data = dynamic.segments.at(address, 4 * count) if count else b""
    if len(data) != 4 * count:
        raise ElfError("the symbol hash table runs past its segment")
    return array.array("I", data)


def reloc_symbols(dynamic: Dynamic, *, lazily: bool) -> dict[int, bool]:
    """Return, by the number of each symbol in a relocation, whether its data is copied from another object.

    `lazily`: only relocations processed at load time. The supported machines use only RELA.
    """
    values = dynamic.values
    with_calls = (
        not lazily
        or _DT_BIND_NOW in values
        or bool(values.get(DT_FLAGS, 0) & _DF_BIND_NOW)
        or bool(values.get(_DT_FLAGS_1, 0) & _DF_1_NOW)
    )
    address, size_bytes = values.get(_DT_RELA, 0), values.get(_DT_RELASZ, 0)
    calls_at, calls_bytes = values.get(_DT_JMPREL, 0), values.get(_DT_PLTRELSZ, 0)
    if calls_bytes and address + size_bytes == calls_at + calls_bytes and not with_calls:
        size_bytes -= calls_bytes  # DT_RELA may include the relocations of the linkage table at its end
    infos = _infos_in(dynamic, address, size_bytes)
    if with_calls:
        infos |= _infos_in(dynamic, calls_at, calls_bytes)
    copy = _COPIES.get(dynamic.segments.machine)
    found = {info >> 32: False for info in infos if info >> 32}
    return found | {info >> 32: True for info in infos if info & 0xFFFFFFFF == copy and info >> 32}


def _infos_in(dynamic: Dynamic, address: int, size_bytes: int) -> set[int]:
    """Return the middle words of a relocation table: symbol number and relocation type."""
    if size_bytes > _MAX_TABLE_BYTES:
        raise ElfError(f"{size_bytes} bytes of relocations, more than lumiimg reads")
    infos: set[int] = set()
    size_bytes -= size_bytes % _RELA_BYTES
    for at in range(0, size_bytes, _RELA_BYTES * _READ_RELOCATIONS):
        wanted = min(_RELA_BYTES * _READ_RELOCATIONS, size_bytes - at)
        data = dynamic.segments.at(address + at, wanted)
        if len(data) != wanted:
            raise ElfError("the relocations run past their segment")
        infos.update(array.array("Q", data)[1::_RELA_WORDS])
    return infos
