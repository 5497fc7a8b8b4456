r"""/etc/ld.so.cache: which file the loader takes for a name, as ldconfig wrote it down.

Format: glibc `sysdeps/generic/dl-cache.h`; meaning: `elf/dl-cache.c`.

    old part (optional)   "ld.so-1.7.0\0", nlibs u32, entries of 12 bytes: flags i32, key u32, value u32; then strings
    new part, aligned 8   "glibc-ld.so.cache1.1", nlibs u32, len_strings u32, flags u8, pad, extension_offset u32, 3 u32
                          entries of 24 bytes: flags i32, key u32, value u32, osversion u32, hwcap u64; then strings
    extensions            magic u32, count u32, (tag u32, flags u32, offset u32, size u32) each

key and value are offsets of strings, in the old part from the end of its entries, in the new part from its header.
Entries are sorted in descending order, digits by their value (`lib.so.10` before `lib.so.9`). Bit 62 of hwcap says that
its low half is an index into the names of extension 1: the entry is for CPUs of that glibc-hwcaps level only.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from lumiimg.elf.reader import ElfError

CACHE_PATH = "/etc/ld.so.cache"
MAX_CACHE_BYTES = 64 << 20

_OLD_MAGIC = b"ld.so-1.7.0\0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER = struct.Struct("<12sI")
_OLD_ENTRY = struct.Struct("<iII")
_NEW_HEADER = struct.Struct("<20sIIB3xI12x")
_NEW_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION_HEADER = struct.Struct("<II")
_EXTENSION = struct.Struct("<IIII")
_EXTENSION_MAGIC = 0xEAA42174
_MAX_EXTENSIONS = 256
_TAG_GENERATOR, _TAG_HWCAPS = 0, 1
_ENDIAN_MASK, _ENDIAN_INVALID, _ENDIAN_BIG = 3, 1, 3
_HWCAP_EXTENSION = 1 << 62
_NUMBER_OR_OTHER = re.compile(rb"([0-9]+)|([^0-9])")

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

    entries: tuple[_Entry, ...]
    strings: bytes
    """What key and value are offsets into."""
    generator: str | None
    """What wrote the cache: `ldconfig (GNU libc) stable release version 2.31`."""
    hwcaps: tuple[str, ...]
    """Names of the glibc-hwcaps subdirectories that entries refer to."""

    @property
    def glibc_version(self) -> str | None:
        """Return the version of the ldconfig that wrote the cache, which comes with the C library."""
        found = re.search(r"release version (\d+\.\d+)", self.generator or "")
        return found[1] if found else None

    def lookup(self, name: str, *, machine: int = 62, elf_class: int = 64, hwcaps: tuple[str, ...] = ()) -> str | None:
        """Return the one path that the loader tries for a name.

        `hwcaps` are the glibc-hwcaps names that the CPU has, best first. Only one path comes back: where that file is
        gone, the loader does not try another entry.
        """
        wanted = name.encode("utf-8", "surrogateescape")
        flags = _FLAGS_OF_MACHINE.get((machine, elf_class))
        best: str | None = None
        best_rank = len(hwcaps)
        for entry in self._equal_entries(wanted):
            if entry.flags != flags:
                continue
            path = self._string(entry.value)
            if path is None:
                continue
            if entry.hwcap & _HWCAP_EXTENSION:
                index = entry.hwcap & 0xFFFFFFFF
                level = self.hwcaps[index] if index < len(self.hwcaps) else None
                rank = hwcaps.index(level) if level in hwcaps else len(hwcaps)
                if rank < best_rank:
                    best, best_rank = path.decode("utf-8", "surrogateescape"), rank
            elif entry.hwcap == 0:
                # plain entries come after those for a CPU level, and the first one ends the search
                return best if best is not None else path.decode("utf-8", "surrogateescape")
        return best

    def _equal_entries(self, wanted: bytes) -> tuple[_Entry, ...]:
        """Binary search as `search_cache` does it: in a file that is not sorted it misses what the loader misses."""
        key = _sort_key(wanted)
        low, high = 0, len(self.entries) - 1
        while low <= high:
            middle = (low + high) // 2
            other = self._key(middle)
            if other is None:
                return ()
            if other == key:
                first = last = middle
                while first > 0 and self._key(first - 1) == key:
                    first -= 1
                while last < len(self.entries) - 1 and self._key(last + 1) == key:
                    last += 1
                return self.entries[first : last + 1]
            if key < other:
                low = middle + 1
            else:
                high = middle - 1
        return ()

    def _key(self, index: int) -> tuple[tuple[int, int], ...] | None:
        name = self._string(self.entries[index].key)
        return None if name is None else _sort_key(name)

    def _string(self, offset: int) -> bytes | None:
        end = self.strings.find(b"\0", offset)
        return self.strings[offset:end] if 0 <= offset <= end else None


def _sort_key(name: bytes) -> tuple[tuple[int, int], ...]:
    """Order names as `_dl_cache_libcmp`: runs of digits by value and after any other character."""
    return tuple(
        (1, _number(number)) if number else (0, other[0] - 256 if other[0] > 127 else other[0])
        for number, other in _NUMBER_OR_OTHER.findall(name)
    )


def _number(digits: bytes) -> int:
    # the loader counts in an int; a run too long for one is nothing ldconfig writes, and int() of it could be slow
    return int(digits[-18:])


def parse_cache(data: bytes) -> LoaderCache:
    """Return the cache that the loader would use out of a file's bytes. Raises ElfError where it would use none."""
    start = 0
    if data.startswith(_OLD_MAGIC):
        count = _unpack(_OLD_HEADER, data, 0)[1]
        end = _OLD_HEADER.size + count * _OLD_ENTRY.size
        if end > len(data):
            raise ElfError(f"a loader cache of {len(data)} bytes that claims {count} old entries")
        start = (end + 7) & -8
        if not data.startswith(_NEW_MAGIC, start):
            entries = tuple(
                _Entry(flags, key, value, 0)
                for flags, key, value in _OLD_ENTRY.iter_unpack(data[_OLD_HEADER.size : end])
            )
            return LoaderCache(entries, data[end:], None, ())
    elif not data.startswith(_NEW_MAGIC):
        raise ElfError("not a cache of the dynamic loader")
    return _parse_new(data[start:])


def _parse_new(data: bytes) -> LoaderCache:
    _, count, strings_bytes, flags, extensions_at = _unpack(_NEW_HEADER, data, 0)
    if flags & _ENDIAN_MASK in (_ENDIAN_INVALID, _ENDIAN_BIG):
        raise ElfError("a loader cache for the other byte order")
    end = _NEW_HEADER.size + count * _NEW_ENTRY.size
    if end + strings_bytes > len(data):
        raise ElfError(f"a loader cache of {len(data)} bytes that claims {count} entries")
    entries = tuple(
        _Entry(entry_flags, key, value, hwcap)
        for entry_flags, key, value, _, hwcap in _NEW_ENTRY.iter_unpack(data[_NEW_HEADER.size : end])
    )
    generator: str | None = None
    hwcaps: tuple[str, ...] = ()
    for tag, payload in _extensions(data, extensions_at):
        if tag == _TAG_GENERATOR:
            generator = payload.decode("utf-8", "surrogateescape")
        elif tag == _TAG_HWCAPS:
            names = (
                data[at : data.find(b"\0", at)] for (at,) in struct.iter_unpack("<I", payload[: len(payload) & -4])
            )
            hwcaps = tuple(name.decode("utf-8", "surrogateescape") for name in names)
    return LoaderCache(entries, data, generator, hwcaps)


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
