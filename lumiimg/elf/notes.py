"""What PT_NOTE and PT_GNU_PROPERTY say: the build id, and the x86-64 level that the code needs.

A note is namesz u32, descsz u32, type u32, name, desc, each padded to the segment's alignment (4, or 8 for GNU
properties); a property is type u32, datasz u32, data, padded to 8 (4 in 32-bit files). Source: gABI chapter 5, Linux
gABI extensions, x86-64 psABI "Program Property".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf.segments import PT_GNU_PROPERTY, PT_NOTE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.elf.segments import Segments

_NT_GNU_BUILD_ID, _NT_GNU_PROPERTY_TYPE_0 = 3, 5
_X86_ISA_1_NEEDED = 0xC0008002
_MAX_NOTES_BYTES = 65536


def read_notes(segments: Segments) -> tuple[str | None, int | None]:
    """Return (build id as hex digits, ISA_1_NEEDED bit mask), None for what the file does not have.

    A note that runs out of its segment ends the segment: the loader reads on without it too.
    """
    build_id: str | None = None
    isa: int | None = None
    for segment in segments.all:
        if segment.type not in (PT_NOTE, PT_GNU_PROPERTY):
            continue
        data = segments.file_range(segment.offset, min(segment.file_bytes, _MAX_NOTES_BYTES))
        for kind, description in _gnu_notes(segments, data, 8 if segment.align == 8 else 4):
            if kind == _NT_GNU_BUILD_ID and build_id is None:
                build_id = description.hex()
            elif kind == _NT_GNU_PROPERTY_TYPE_0 and isa is None:
                isa = _isa_needed(segments, description)
    return build_id, isa


def _gnu_notes(segments: Segments, data: bytes, align: int) -> Iterator[tuple[int, bytes]]:
    word = segments.layout.word
    offset = 0
    while offset + 12 <= len(data):
        (name_bytes,) = word.unpack_from(data, offset)
        (description_bytes,) = word.unpack_from(data, offset + 4)
        (kind,) = word.unpack_from(data, offset + 8)
        name_at = offset + 12
        description_at = _up(name_at + name_bytes, align)
        offset = _up(description_at + description_bytes, align)
        description = data[description_at : description_at + description_bytes]
        if data[name_at : name_at + name_bytes] == b"GNU\0" and len(description) == description_bytes:
            yield kind, description


def _isa_needed(segments: Segments, properties: bytes) -> int | None:
    word = segments.layout.word
    align = 8 if segments.layout.bits == 64 else 4
    offset = 0
    while offset + 12 <= len(properties):
        (kind,) = word.unpack_from(properties, offset)
        (size,) = word.unpack_from(properties, offset + 4)
        if kind == _X86_ISA_1_NEEDED and size == 4:
            return int(word.unpack_from(properties, offset + 8)[0])
        offset = _up(offset + 8 + size, align)
    return None


def _up(value: int, align: int) -> int:
    return (value + align - 1) & -align
