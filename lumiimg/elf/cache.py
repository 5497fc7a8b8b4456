r"""/etc/ld.so.cache: which file the loader takes for a name, as ldconfig wrote it down.

Format: glibc `sysdeps/generic/dl-cache.h`; meaning: `elf/dl-cache.c`.

    old part (optional)   "ld.so-1.7.0\0", nlibs u32, entries of 12 bytes; then strings
    new part, aligned 8   "glibc-ld.so.cache1.1", nlibs u32, len_strings u32, flags u8, pad, extension_offset u32, 3 u32
                          entries of 24 bytes: flags i32, key u32, value u32, osversion u32, hwcap u64; then strings
    extensions            magic u32, count u32, (tag u32, flags u32, offset u32, size u32) each

key and value are offsets of strings, from the header of the new part. The old part is passed over; only `ldconfig -c
old` writes a cache that has nothing else. Entries are sorted in descending order, digits by their value (`lib.so.10`
before `lib.so.9`). Bit 62 of hwcap says that its low half is an index into the names of extension 1: the entry is for
CPUs of that glibc-hwcaps level only; bits 32 to 41 are the number of the ISA level that the file is marked with.
Without bit 62, hwcap is a mask of legacy names: such entries are passed over, too.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from lumiimg.elf.reader import ElfError

CACHE_PATH = "/etc/ld.so.cache"
MAX_CACHE_BYTES = 64 << 20

_OLD_MAGIC = b"ld.so-1.7.0\0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER = struct.Struct("<12sI")
_OLD_ENTRY_BYTES = 12
_NEW_HEADER = struct.Struct("<20sIIB3xI12x")
_NEW_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION_HEADER = struct.Struct("<II")
_EXTENSION = struct.Struct("<IIII")
_EXTENSION_MAGIC = 0xEAA42174
_MAX_EXTENSIONS = 256
_TAG_GENERATOR, _TAG_HWCAPS = 0, 1
_ENDIAN_MASK, _ENDIAN_LITTLE = 3, 2
_HWCAP_EXTENSION = 1 << 62
_ISA_LEVEL_SHIFT, _ISA_LEVEL_MASK = 32, 0x3FF
_FLAG_ELF = 1  # FLAG_ELF alone, which every loader takes
_MAX_NAME_BYTES = 1024
_MAX_HWCAP_NAMES = 1024
_MAX_EQUAL_ENTRIES = 4096
_NUMBER = re.compile(rb"([0-9]+)")
# bytes but NUL and digits, in the order of a signed char; the last value is left for "a digit follows"
_OTHERS = bytes(byte for byte in (*range(128, 256), *range(1, 128)) if byte not in b"0123456789")
_RANKS = bytes(rank for rank in range(255) if rank not in b"0123456789")
_RANK_OF_BYTE = bytes.maketrans(_OTHERS, _RANKS)
_BEFORE_NUMBER = b"\xff"

_SortKey = tuple[bytes | int, ...]
"""Text and number by turns, a text first and last."""

_FLAGS_OF_MACHINE = {
    (62, 64): 0x0303,
    (62, 32): 0x0803,
    (3, 32): 0x0003,
    (183, 64): 0x0A03,
    (21, 64): 0x0503,
    (22, 64): 0x0403,
    (243, 64): 0x1003,
}


class _Entry(NamedTuple):
    flags: int
    key: int
    value: int
    hwcap: int


@dataclass(frozen=True, slots=True)
class LoaderCache:
    """One parsed cache; `lookup` is what `_dl_load_cache_lookup` does with it."""

    table: bytes
    """The entries, as they are in the file."""
    strings: bytes
    """What key and value are offsets into."""
    generator: str | None
    """What wrote the cache: `ldconfig (GNU libc) stable release version 2.31`."""
    hwcaps: tuple[str, ...]
    """Names of the glibc-hwcaps subdirectories that entries refer to."""
    _keys: dict[int, _SortKey | None] = field(default_factory=dict, repr=False, compare=False)
    _found: dict[tuple[object, ...], str | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return len(self.table) // _NEW_ENTRY.size

    @property
    def has_legacy_entries(self) -> bool:
        """Whether an entry is for CPUs that a legacy name is for."""
        return any(hwcap and not hwcap & _HWCAP_EXTENSION for *_, hwcap in _NEW_ENTRY.iter_unpack(self.table))

    @property
    def glibc_version(self) -> str | None:
        """Return the version of the ldconfig that wrote the cache, which comes with the C library."""
        found = re.search(r"release version (\d+\.\d+)", self.generator or "")
        return found[1] if found else None

    def lookup(
        self,
        name: str,
        *,
        machine: int = 62,
        elf_class: int = 64,
        hwcaps: tuple[str, ...] = (),
        isa: int = 0x3FF,
    ) -> str | None:
        """Return the one path that the loader tries for a name.

        `hwcaps` are the glibc-hwcaps names that the CPU has, best first; `isa` its ISA_1 bits. Only one path comes
        back: where that file is gone, the loader does not try another entry.
        """
        key = (name, machine, elf_class, hwcaps, isa)
        if key not in self._found:  # of many processes each asks for the same
            self._found[key] = self._look_up(name, machine, elf_class, hwcaps, isa)
        return self._found[key]

    def _look_up(self, name: str, machine: int, elf_class: int, hwcaps: tuple[str, ...], isa: int) -> str | None:
        wanted = name.encode("utf-8", "surrogateescape")
        flags = _FLAGS_OF_MACHINE.get((machine, elf_class))
        best: str | None = None
        best_rank = len(hwcaps)
        for entry in map(self._entry, self._equal_entries(wanted)):
            if entry.flags not in (flags, _FLAG_ELF):
                continue
            path = self._string(entry.value)
            if path is None:
                continue
            if entry.hwcap & _HWCAP_EXTENSION:
                if not isa >> (entry.hwcap >> _ISA_LEVEL_SHIFT & _ISA_LEVEL_MASK) & 1:
                    continue
                index = entry.hwcap & 0xFFFFFFFF
                level = self.hwcaps[index] if index < len(self.hwcaps) else None
                rank = hwcaps.index(level) if level in hwcaps else len(hwcaps)
                if rank < best_rank:
                    best, best_rank = path.decode("utf-8", "surrogateescape"), rank
            elif best is not None or not entry.hwcap:
                # plain entries come after those for a CPU level, and the first one ends the search
                return best if best is not None else path.decode("utf-8", "surrogateescape")
        return best

    def _entry(self, index: int) -> _Entry:
        flags, key, value, _, hwcap = _NEW_ENTRY.unpack_from(self.table, index * _NEW_ENTRY.size)
        return _Entry(flags, key, value, hwcap)

    def _equal_entries(self, wanted: bytes) -> range:
        """Binary search as `search_cache` does it: in a file that is not sorted it misses what the loader misses."""
        key = _sort_key(wanted)
        low, high = 0, self.count - 1
        while low <= high:
            middle = (low + high) // 2
            other = self._key(middle)
            if other is None:
                return range(0)
            if other == key:
                first = last = middle
                while first > 0 and middle - first < _MAX_EQUAL_ENTRIES and self._key(first - 1) == key:
                    first -= 1
                while last < self.count - 1 and last - middle < _MAX_EQUAL_ENTRIES and self._key(last + 1) == key:
                    last += 1
                return range(first, last + 1)
            if key < other:
                low = middle + 1
            else:
                high = middle - 1
        return range(0)

    def _key(self, index: int) -> _SortKey | None:
        if index not in self._keys:
            name = self._string(self._entry(index).key)
            self._keys[index] = None if name is None else _sort_key(name)
        return self._keys[index]

    def _string(self, offset: int) -> bytes | None:
        end = self.strings.find(b"\0", offset, offset + _MAX_NAME_BYTES)
        return self.strings[offset:end] if 0 <= offset <= end else None


def _sort_key(name: bytes) -> _SortKey:
    """Order names as `_dl_cache_libcmp`: runs of digits by value and after any other character."""
    parts = _NUMBER.split(name.translate(_RANK_OF_BYTE))
    key: list[bytes | int] = []
    for text, digits in zip(parts[::2], parts[1::2], strict=False):
        # the loader counts in an int; a run too long for one is nothing ldconfig writes, and int() of it could be slow
        key += text + _BEFORE_NUMBER, int(digits[-18:])
    key.append(parts[-1])
    return tuple(key)


class OldCacheError(ElfError):
    """The loader finds libraries in this cache, and lumiimg does not."""


def parse_cache(data: bytes) -> LoaderCache:
    """Return the cache that the loader would use out of a file's bytes.

    Raises ElfError where it would use none, OldCacheError where it would use one of the old format.
    """
    start = 0
    if data.startswith(_OLD_MAGIC):
        count = _unpack(_OLD_HEADER, data, 0)[1]
        end = _OLD_HEADER.size + count * _OLD_ENTRY_BYTES
        if end > len(data):
            raise ElfError(f"a loader cache of {len(data)} bytes that claims {count} old entries")
        start = (end + 7) & -8
        if not data.startswith(_NEW_MAGIC, start):
            raise OldCacheError("a cache of the old format alone (ldconfig -c old)")
    elif not data.startswith(_NEW_MAGIC):
        raise ElfError("not a cache of the dynamic loader")
    return _parse_new(data[start:])


def _parse_new(data: bytes) -> LoaderCache:
    # len_strings is not looked at by the loader either
    _, count, _, flags, extensions_at = _unpack(_NEW_HEADER, data, 0)
    if flags and flags & _ENDIAN_MASK != _ENDIAN_LITTLE:
        raise ElfError("a loader cache for the other byte order")
    end = _NEW_HEADER.size + count * _NEW_ENTRY.size
    if end > len(data):
        raise ElfError(f"a loader cache of {len(data)} bytes that claims {count} entries")
    generator: str | None = None
    hwcaps: tuple[str, ...] = ()
    for tag, payload in _extensions(data, extensions_at):
        if tag == _TAG_GENERATOR:
            generator = payload.decode("utf-8", "surrogateescape")
        elif tag == _TAG_HWCAPS:
            offsets = struct.iter_unpack("<I", payload[: min(len(payload) & -4, 4 * _MAX_HWCAP_NAMES)])
            names = (data[at : at + _MAX_NAME_BYTES].partition(b"\0")[0] for (at,) in offsets)
            hwcaps = tuple(name.decode("utf-8", "surrogateescape") for name in names)
    return LoaderCache(data[_NEW_HEADER.size : end], data, generator, hwcaps)


def _extensions(data: bytes, at: int) -> list[tuple[int, bytes]]:
    """Return (tag, payload) of each extension; none where the block is absent or wrong, as the loader sees it."""
    if at == 0 or at % 4 or at + _EXTENSION_HEADER.size > len(data):
        return []
    magic, count = _EXTENSION_HEADER.unpack_from(data, at)
    first = at + _EXTENSION_HEADER.size
    if magic != _EXTENSION_MAGIC or count > _MAX_EXTENSIONS or first + count * _EXTENSION.size > len(data):
        return []
    found: list[tuple[int, bytes]] = []
    for index in range(count):
        tag, _, offset, size = _EXTENSION.unpack_from(data, first + index * _EXTENSION.size)
        if offset + size > len(data):
            return []
        found.append((tag, data[offset : offset + size]))
    return found


def _unpack(record: struct.Struct, data: bytes, offset: int) -> tuple[int, ...]:
    if offset + record.size > len(data):
        raise ElfError("the loader cache is cut off")
    return record.unpack_from(data, offset)
