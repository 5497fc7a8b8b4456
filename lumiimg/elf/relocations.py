"""Which symbols of a file the loader looks up, and when.

A relocation that takes the value of a symbol (R_X86_64_COPY, GLOB_DAT, 64) is done when the file is loaded, before any
code of it runs. A call by way of the linkage table (DT_JMPREL) is bound at its first use, unless all is to be bound at
once: because the file says so, LD_BIND_NOW does, or whoever opens it, with RTLD_NOW. A symbol that no relocation names
is never looked up (gABI chapter 5; glibc `elf/dl-reloc.c`, `elf/do-rel.h`).
"""

from __future__ import annotations

import array
import sys
from typing import TYPE_CHECKING

from lumiimg.elf.reader import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.elf.segments import Segments

_DT_RELA, _DT_RELASZ, _DT_REL, _DT_RELSZ, _DT_JMPREL, _DT_PLTRELSZ, _DT_PLTREL = 7, 8, 17, 18, 23, 2, 20
_DT_BIND_NOW, _DT_FLAGS, _DT_FLAGS_1 = 24, 30, 0x6FFFFFFB
_DF_BIND_NOW, _DF_1_NOW = 8, 1
_COPIES = {3: 5, 21: 19, 22: 9, 62: 5, 183: 1024, 243: 4}
"""R_*_COPY by machine: data of a library that a program at a fixed address has in itself."""
_MAX_TABLE_BYTES = 256 << 20
_READ_BYTES = 3 << 20
"""At a time: a whole number of entries of each kind."""


def symbols_looked_up(segments: Segments, dynamic: Mapping[int, int], *, lazily: bool) -> dict[int, bool]:
    """Return the numbers of the symbols that relocations name: whether what another object has there is copied.

    `lazily`: of the relocations that are done at the load alone.
    """
    bound_at_once = (
        not lazily
        or _DT_BIND_NOW in dynamic
        or bool(dynamic.get(_DT_FLAGS, 0) & _DF_BIND_NOW)
        or bool(dynamic.get(_DT_FLAGS_1, 0) & _DF_1_NOW)
    )
    infos: set[int] = set()
    for address, size, words in _tables(dynamic, with_calls=bound_at_once):
        infos |= _infos_in(segments, address, size, words)
    shift = 32 if segments.layout.bits == 64 else 8
    copies = _COPIES.get(segments.machine)
    found = dict.fromkeys((info >> shift for info in infos if info >> shift), False)
    found |= {info >> shift: True for info in infos if info & (1 << shift) - 1 == copies and info >> shift}
    return found


def _tables(dynamic: Mapping[int, int], *, with_calls: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (address, size in bytes, words of an entry) of each table of relocations."""
    calls_at, calls_bytes = dynamic.get(_DT_JMPREL, 0), dynamic.get(_DT_PLTRELSZ, 0)
    for tag, size_tag, words in ((_DT_RELA, _DT_RELASZ, 3), (_DT_REL, _DT_RELSZ, 2)):
        address, size = dynamic.get(tag, 0), dynamic.get(size_tag, 0)
        if calls_bytes and address + size == calls_at + calls_bytes and not with_calls:
            size -= calls_bytes  # the linkage table may be counted as the end of it
        yield address, size, words
    if with_calls:
        yield calls_at, calls_bytes, 3 if dynamic.get(_DT_PLTREL) == _DT_RELA else 2


def _infos_in(segments: Segments, address: int, size_bytes: int, words: int) -> set[int]:
    if size_bytes > _MAX_TABLE_BYTES:
        raise ElfError(f"{size_bytes} bytes of relocations, more than are read")
    wide = segments.layout.bits == 64
    swaps = segments.layout.little_endian != (sys.byteorder == "little")
    entry_bytes = words * segments.layout.address.size
    infos: set[int] = set()
    for at in range(0, size_bytes // entry_bytes * entry_bytes, _READ_BYTES):
        wanted = min(_READ_BYTES, size_bytes // entry_bytes * entry_bytes - at)
        data = segments.at(address + at, wanted)
        if len(data) != wanted:
            raise ElfError("the relocations run out of their segment")
        values = array.array("Q" if wide else "I", data)
        if swaps:
            values.byteswap()
        infos.update(values[1::words])
    return infos
