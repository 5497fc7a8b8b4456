"""Look up one symbol of a file as the loader does: by the hash table.

glibc `elf/dl-lookup.c`: do_lookup_x and check_match decide whether a lookup that reaches a file ends there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumiimg.elf.facts import DT_STRTAB, Dynamic, SnapshotElf
from lumiimg.elf.segments import ElfError
from lumiimg.elf.symbols import (
    DEFINING_TYPES,
    DT_FLAGS,
    DT_GNU_HASH,
    DT_HASH,
    DT_SYMTAB,
    DT_VERSYM,
    EXPORTED_BINDINGS,
    HIDDEN,
    MAX_SYMBOLS,
    SHN_UNDEF,
    SYMBOL,
    VER_NDX_FIRST,
    VER_NDX_GLOBAL,
    VERSION,
    VERSION_INDEX,
    SymbolTable,
    WantedSymbol,
    chain,
    reloc_symbols,
    symbol_count,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.core.access import RandomAccess

_DT_SYMBOLIC, _DF_SYMBOLIC = 16, 2
_PROTECTED = 3  # STV_PROTECTED
_SHN_ABS, _STT_TLS = 0xFFF1, 6


class Reference(NamedTuple):
    """How a file refers to a symbol."""

    wanted: WantedSymbol
    is_defined: bool = False
    """Whether the file has its own definition."""
    is_bound: bool = False
    """Whether it is always bound to that definition: protected, DT_SYMBOLIC, or bound by the linker."""


class _Symbol(NamedTuple):
    """One entry of the symbol table."""

    number: int
    info: int
    other: int
    section: int
    value: int
    version: int
    """Its entry in .gnu.version."""

    @property
    def is_definition(self) -> bool:
        """Whether a lookup may match it (glibc `elf/dl-lookup.c`, check_match)."""
        kind = self.info & 15
        has_value = bool(self.value) or self.section == _SHN_ABS or kind == _STT_TLS
        return self.section != SHN_UNDEF and has_value and kind in DEFINING_TYPES

    @property
    def is_exported(self) -> bool:
        return self.info >> 4 in EXPORTED_BINDINGS and self.other & 3 not in HIDDEN


def defines(file: RandomAccess, wanted: WantedSymbol, *, by_dlsym: bool = False) -> bool:
    """Return whether a lookup that reaches a file ends there; a recorded file lists only some names. Raises ElfError.

    dlsym uses the newest version, never a hidden one (glibc `elf/dl-lookup.c`, do_lookup_x and check_match).
    """
    if isinstance(file, SnapshotElf):
        return wanted.name in file.exports
    return _definition(Dynamic(file), wanted, by_dlsym=by_dlsym) is not None


def reference_to(file: RandomAccess, name: str) -> Reference | None:
    """Return how a file refers to a symbol; None if it does not. Raises ElfError."""
    dynamic = Dynamic(file)
    own = next((each for each in _symbols_named(dynamic, name) if each.is_definition and each.is_exported), None)
    if own is not None:
        versions = dict(dynamic.version_definitions())
        is_symbolic = _DT_SYMBOLIC in dynamic.values or bool(dynamic.values.get(DT_FLAGS, 0) & _DF_SYMBOLIC)
        is_bound = is_symbolic or own.other & 3 == _PROTECTED or own.number not in reloc_symbols(dynamic, lazily=False)
        wanted = WantedSymbol(name, versions.get(own.version & VERSION_INDEX))
        return Reference(wanted, is_defined=True, is_bound=is_bound)
    table, encoded = SymbolTable(dynamic, _undefined_count(dynamic)), _encoded(name)
    for name_at, _, _, section, version in table.entries():
        if section == SHN_UNDEF and table.names.starts_with(encoded, name_at):
            needs = {index: need.name for index, need in dynamic.version_needs()}
            return Reference(WantedSymbol(name, needs.get(version & VERSION_INDEX)))
    return None


def _definition(dynamic: Dynamic, wanted: WantedSymbol, *, by_dlsym: bool) -> _Symbol | None:
    versions = dict(dynamic.version_definitions())
    oldest = VER_NDX_GLOBAL if by_dlsym else VER_NDX_FIRST
    shown: list[_Symbol] = []
    for each in filter(lambda each: each.is_definition, _symbols_named(dynamic, wanted.name)):
        number, is_shown = each.version & VERSION_INDEX, each.version <= VERSION_INDEX
        own = versions.get(number)
        is_exact = number <= oldest if wanted.version is None else own == wanted.version
        if is_exact or DT_VERSYM not in dynamic.values:
            return each if each.is_exported else None
        if is_shown and (wanted.version is None or own is None):
            shown.append(each)
    return shown[0] if len(shown) == 1 and shown[0].is_exported else None


def _symbols_named(dynamic: Dynamic, name: str) -> Iterator[_Symbol]:
    """Yield the symbols with a name that the hash table leads to."""
    values, segments, encoded = dynamic.values, dynamic.segments, _encoded(name)
    if not {DT_STRTAB, DT_SYMTAB} <= values.keys():
        return
    for number in _hash_candidates(dynamic, encoded[:-1]):
        data = segments.at(values[DT_SYMTAB] + SYMBOL.size * number, SYMBOL.size)
        if len(data) != SYMBOL.size:
            raise ElfError("the symbol table runs past its segment")
        name_at, info, other, section, value, _ = SYMBOL.unpack(data)
        if segments.at(values[DT_STRTAB] + name_at, len(encoded)) == encoded:
            version = VER_NDX_GLOBAL
            if DT_VERSYM in values:
                data = segments.at(values[DT_VERSYM] + VERSION.size * number, VERSION.size)
                version = int.from_bytes(data, "little")
            yield _Symbol(number, info, other, section, value, version)


def _hash_candidates(dynamic: Dynamic, name: bytes) -> Iterator[int]:
    """Yield the numbers of the symbols that a lookup compares with a name."""
    if DT_GNU_HASH in dynamic.values:
        address = dynamic.values[DT_GNU_HASH]
        bucket_count, first_symbol, bloom_words, _ = words(dynamic, address, 4)
        value = 5381
        for byte in name:
            value = (value * 33 + byte) & 0xFFFFFFFF
        buckets_at = address + 16 + 8 * bloom_words
        [number] = words(dynamic, buckets_at + 4 * (value % bucket_count), 1) if bucket_count else [0]
        if number >= first_symbol and number:
            chain_at = buckets_at + 4 * (bucket_count + number - first_symbol)
            hashes = enumerate(chain(dynamic, chain_at), number)
            yield from (number for number, word in hashes if (word ^ value) >> 1 == 0)
    elif DT_HASH in dynamic.values:
        address = dynamic.values[DT_HASH]
        bucket_count, count = words(dynamic, address, 2)
        value = 0
        for byte in name:
            value = (value << 4) + byte
            value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
        [number] = words(dynamic, address + 8 + 4 * (value % bucket_count), 1) if bucket_count else [0]
        for _ in range(min(count, MAX_SYMBOLS)):
            if not number:
                return
            yield number
            [number] = words(dynamic, address + 8 + 4 * (bucket_count + number), 1)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape") + b"\0"


def _undefined_count(dynamic: Dynamic) -> int:
    """Return the number of leading symbols that include all undefined ones: these come before the hashed ones."""
    if DT_GNU_HASH not in dynamic.values:
        return symbol_count(dynamic)
    first_symbol = words(dynamic, dynamic.values[DT_GNU_HASH], 4)[1]
    # the hash table of a file without definitions does not show where they end
    return first_symbol if first_symbol > 1 else max(reloc_symbols(dynamic, lazily=False), default=0) + 1
