r"""/etc/ld.so.cache: the file that the loader uses for a name, as recorded by ldconfig.

Format: glibc `sysdeps/generic/dl-cache.h`; meaning: `elf/dl-cache.c`.

    old part (optional)   "ld.so-1.7.0\0", nlibs u32, entries of 12 bytes; then strings
    new part, aligned 8   "glibc-ld.so.cache1.1", nlibs u32, len_strings u32, flags u8, pad, extension_offset u32, 3 u32
                          entries of 24 bytes: flags i32, key u32, value u32, osversion u32, hwcap u64; then strings
    extensions            magic u32, count u32, (tag u32, flags u32, offset u32, size u32) each

key and value are string offsets, from the header of the new part. The old part is skipped; only `ldconfig -c old`
writes a cache without a new part. ldconfig sorts the entries and the loader uses binary search; this module finds all
entries of a name. Bit 62 of hwcap means that its low half is an index into the names of extension 1: the entry is only
for CPUs of that glibc-hwcaps level; bits 32 to 41 are the number of the ISA level that the file is marked with. Without
bit 62, hwcap is a mask of legacy names, which the loader supports up to 2.39: such entries are skipped, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from lumiimg.elf.segments import ElfError

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
_TAG_HWCAPS = 1
_ENDIAN_MASK, _ENDIAN_LITTLE = 3, 2
_HWCAP_EXTENSION = 1 << 62
_ISA_LEVEL_SHIFT, _ISA_LEVEL_MASK = 32, 0x3FF
_FLAG_ELF = 1  # FLAG_ELF alone, which every loader accepts
_FLAGS_OF_MACHINE = {62: 0x0303, 183: 0x0A03, 21: 0x0503, 243: 0x1003}
_MAX_NAME_BYTES = 1024
_MAX_HWCAP_NAMES = 1024
_MAX_ENTRIES = 1 << 16


class LoaderCache:
    """One parsed cache; `lookup` corresponds to `_dl_load_cache_lookup`."""

    def __init__(self, table: bytes, strings: bytes, hwcaps: tuple[str, ...] = ()) -> None:
        """Take the raw entries (`table`) and the data that their key and value are offsets into (`strings`).

        `hwcaps` are the names of the glibc-hwcaps subdirectories that entries refer to.
        """
        self.hwcaps = hwcaps
        self._strings = strings
        self._entries: dict[str | None, list[tuple[int, int, int]]] = {}
        """Flags, value and hwcap of the entries of each name, in order."""
        for flags, key, value, _, hwcap in _NEW_ENTRY.iter_unpack(table):
            self._entries.setdefault(self._string(key), []).append((flags, value, hwcap))

    @property
    def has_legacy_entries(self) -> bool:
        """Whether an entry is for CPUs with a legacy hwcap name."""
        entries = (entry for same in self._entries.values() for entry in same)
        return any(hwcap and not hwcap & _HWCAP_EXTENSION for _, _, hwcap in entries)

    def lookup(self, name: str, machine: int = 62, levels: tuple[str, ...] = (), isa: int = 0x3FF) -> str | None:
        """Return the path that the loader tries for a name.

        `levels` are the CPU's glibc-hwcaps levels, best first; `isa` its ISA_1 bits. There is only one path: if that
        file does not exist, the loader does not try another entry.
        """
        best: str | None = None
        best_rank = len(levels)
        for flags, value, hwcap in self._entries.get(name, ()):
            path = self._string(value)
            if flags not in (_FLAGS_OF_MACHINE.get(machine), _FLAG_ELF) or path is None:
                continue
            if hwcap & _HWCAP_EXTENSION:
                if not isa >> (hwcap >> _ISA_LEVEL_SHIFT & _ISA_LEVEL_MASK) & 1:
                    continue
                index = hwcap & 0xFFFFFFFF
                level = self.hwcaps[index] if index < len(self.hwcaps) else None
                rank = levels.index(level) if level in levels else len(levels)
                if rank < best_rank:
                    best, best_rank = path, rank
            elif best is not None or not hwcap:
                # plain entries follow those for a CPU level, and the first one ends the search
                return best if best is not None else path
        return best

    def _string(self, offset: int) -> str | None:
        end = self._strings.find(b"\0", offset, offset + _MAX_NAME_BYTES)
        return self._strings[offset:end].decode("utf-8", "surrogateescape") if 0 <= offset <= end else None


def parse_cache(data: bytes) -> LoaderCache | None:
    """Return the cache that the loader would use from a file's content; None if it has only the old format.

    Raises ElfError if the loader would not use it.
    """
    start = 0
    if data.startswith(_OLD_MAGIC):
        count = _unpack(_OLD_HEADER, data, 0)[1]
        end = _OLD_HEADER.size + count * _OLD_ENTRY_BYTES
        if end > len(data):
            raise ElfError(f"a loader cache of {len(data)} bytes that claims {count} old entries")
        start = (end + 7) & -8
        if not data.startswith(_NEW_MAGIC, start):
            return None
    elif not data.startswith(_NEW_MAGIC):
        raise ElfError("not a cache of the dynamic loader")
    data = data[start:]
    # the loader ignores len_strings, too
    _, count, _, flags, extensions_at = _unpack(_NEW_HEADER, data, 0)
    if flags and flags & _ENDIAN_MASK != _ENDIAN_LITTLE:
        raise ElfError("a loader cache for the other byte order")
    end = _NEW_HEADER.size + count * _NEW_ENTRY.size
    if end > len(data) or count > _MAX_ENTRIES:
        raise ElfError(f"a loader cache of {len(data)} bytes that claims {count} entries")
    return LoaderCache(data[_NEW_HEADER.size : end], data, tuple(_hwcaps_in(data, extensions_at)))


def _hwcaps_in(data: bytes, at: int) -> Iterator[str]:
    """Yield the names of extension 1; none if the loader would find the block absent or invalid."""
    if at == 0 or at % 4 or at + _EXTENSION_HEADER.size > len(data):
        return
    magic, count = _EXTENSION_HEADER.unpack_from(data, at)
    first = at + _EXTENSION_HEADER.size
    end = first + count * _EXTENSION.size
    if magic != _EXTENSION_MAGIC or count > _MAX_EXTENSIONS or end > len(data):
        return
    extensions = [*_EXTENSION.iter_unpack(data[first:end])]
    if any(offset + size > len(data) for _, _, offset, size in extensions):
        return
    for tag, _, offset, size in extensions:
        if tag == _TAG_HWCAPS:
            for (name_at,) in struct.iter_unpack("<I", data[offset : offset + min(size & -4, 4 * _MAX_HWCAP_NAMES)]):
                yield data[name_at : name_at + _MAX_NAME_BYTES].partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _unpack(record: struct.Struct, data: bytes, offset: int) -> tuple[int, ...]:
    if offset + record.size > len(data):
        raise ElfError("the loader cache is cut off")
    return record.unpack_from(data, offset)
