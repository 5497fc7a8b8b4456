"""The GPU code that a program or library of the host carries.

Clang puts it into section `.hip_fatbin`, in pages that the loader maps. Where a file has no section headers, bundles
are looked for at the pages of its segments. TheRock can move the code out of the file into archives beside it, which
are not read: it leaves section `.rocm_kpack_ref` (ROCm/TheRock docs/rfcs/RFC0008-Multi-Arch-Packaging.md).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.gpu.bundle import COMPRESSED, PAGE_BYTES, PLAIN, Bundle, find_bundle, read_bundles
from lumiimg.gpu.code_object import HEADER_BYTES, is_code_object, read_code_object
from lumiimg.gpu.source import GpuCodeError

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

_FATBIN, _KPACK = b".hip_fatbin", b".rocm_kpack_ref"
_SHT_NOBITS = 8
_PT_LOAD, _PF_X = 1, 1
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_HOST = b"\x7fELF\2\1"
"""64-bit and little-endian: ROCm has no other host."""
_MAX_NAMES_BYTES = 1 << 20
_MAX_FATBINS = 4
_MAX_SEARCHED_BYTES = 64 << 20


class _Section(NamedTuple):
    name: bytes
    type: int
    offset: int
    size: int


def read_file(source: RandomAccess) -> tuple[Bundle, ...]:
    """Return the bundles of a program, a library, a bundle or a code object; none where a file has no GPU code.

    Code that one bundle needs may be in any other.

    Raises GpuCodeError where it has some that cannot be read. Files that are not ELF files of the host, and ELF files
    that are damaged elsewhere, have none.
    """
    head = source.read_at(0, HEADER_BYTES)
    if head.startswith((PLAIN, COMPRESSED)):
        return tuple(read_bundles(source, 0, source.size))
    if len(head) < HEADER_BYTES or not head.startswith(_HOST):
        return ()
    if is_code_object(head):
        return ((read_code_object(source),),)
    sections = _sections(source, head)
    return _by_segment(source, head) if sections is None else _by_section(source, sections)


def _by_section(source: RandomAccess, sections: list[_Section]) -> tuple[Bundle, ...]:
    if sum(section.name == _FATBIN for section in sections) > _MAX_FATBINS:
        raise GpuCodeError(f"more than the {_MAX_FATBINS} sections .hip_fatbin that are read")
    bundles: list[Bundle] = []
    taken_out = False
    for section in sections:
        if section.name == _KPACK:
            raise GpuCodeError("its GPU code is in archives beside it (.kpack), which are not read")
        if section.name == _FATBIN and section.type == _SHT_NOBITS:
            taken_out = True
        elif section.name == _FATBIN and section.size:
            bundles += _bundles_of(source, section)
    if taken_out and not bundles:
        raise GpuCodeError("its GPU code was taken out, and nothing says where it is")
    return tuple(bundles)


def _bundles_of(source: RandomAccess, section: _Section) -> list[Bundle]:
    at = find_bundle(source, section.offset, min(section.size, max(source.size - section.offset, 0)))
    if at is None:
        raise GpuCodeError(f"no bundle in the {section.size} bytes of its section .hip_fatbin")
    return read_bundles(source, at, section.offset + section.size - at)


def _by_segment(source: RandomAccess, head: bytes) -> tuple[Bundle, ...]:
    """Look where the loader would map: a file without section headers."""
    offset = int.from_bytes(head[32:40], "little")
    count = int.from_bytes(head[56:58], "little")
    if offset + count * _SEGMENT.size > source.size:
        return ()
    rows = _SEGMENT.iter_unpack(source.read_at(offset, count * _SEGMENT.size))
    # the code of the host last: it is long, and the bundles lie with the constants where the linker keeps them apart
    loads = sorted((flags & _PF_X, start, size) for kind, flags, start, _, _, size, _, _ in rows if kind == _PT_LOAD)
    searched = 0
    for _, start, size in loads:
        at = find_bundle(source, start, min(size, source.size - start), PAGE_BYTES)
        if at is not None:
            return tuple(read_bundles(source, at, start + size - at))
        searched += size
        if searched > _MAX_SEARCHED_BYTES:
            raise GpuCodeError("has no section headers, and is too large to be searched for GPU code")
    return ()


def _sections(source: RandomAccess, head: bytes) -> list[_Section] | None:
    """Return the sections; None for a file that has no table of them, or one that lies."""
    offset = int.from_bytes(head[40:48], "little")
    entry_bytes, count, names_at = struct.unpack_from("<HHH", head, 58)
    if not count or entry_bytes != _SECTION.size or names_at >= count or offset + count * entry_bytes > source.size:
        return None
    table = list(_SECTION.iter_unpack(source.read_at(offset, count * entry_bytes)))
    names_offset, names_bytes = table[names_at][4:6]
    if names_offset + names_bytes > source.size or names_bytes > _MAX_NAMES_BYTES:
        return None
    names = source.read_at(names_offset, names_bytes)
    return [_Section(names[row[0] : names.find(b"\0", row[0])], row[1], row[4], row[5]) for row in table]
