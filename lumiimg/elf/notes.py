"""What PT_NOTE and PT_GNU_PROPERTY say: the build id, the x86-64 level and the kernel that the code needs.

A note is namesz u32, descsz u32, type u32, name, desc, each padded to the segment's alignment (4, or 8 for GNU
properties); a property is type u32, datasz u32, data, padded to 8 (4 in 32-bit files). Source: gABI chapter 5, Linux
gABI extensions, x86-64 psABI "Program Property".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lumiimg.elf.segments import PT_GNU_PROPERTY, PT_NOTE, Segments

_NT_GNU_BUILD_ID, _NT_GNU_PROPERTY_TYPE_0 = 3, 5
_NT_GNU_ABI_TAG = 1
_X86_ISA_1_NEEDED = 0xC0008002
_MAX_NOTES_BYTES = 65536


class Notes(NamedTuple):
    """What the notes of one file say; None for what it does not have."""

    build_id: str | None
    """Hex digits."""
    isa_needed: int | None
    """GNU_PROPERTY_X86_ISA_1_NEEDED."""
    linux: tuple[int, int, int] | None
    """NT_GNU_ABI_TAG: the oldest kernel that the file runs on."""


def read_notes(segments: Segments) -> Notes:
    """Return what the notes say.

    A note that runs out of its segment ends the segment: the loader reads on without it too.
    """
    build_id: str | None = None
    isa: int | None = None
    linux: tuple[int, int, int] | None = None
    for segment in segments.all:
        if segment.type not in (PT_NOTE, PT_GNU_PROPERTY):
            continue
        data = segments.file_range(segment.offset, min(segment.file_bytes, _MAX_NOTES_BYTES))
        for kind, description in _notes_of_gnu(segments, data, 8 if segment.align == 8 else 4):
            if kind == _NT_GNU_BUILD_ID and build_id is None:
                build_id = description.hex()
            elif kind == _NT_GNU_PROPERTY_TYPE_0 and isa is None:
                isa = _isa_needed(segments, description)
            elif kind == _NT_GNU_ABI_TAG and linux is None:
                linux = _linux(segments, description)
    return Notes(build_id, isa, linux)


def _notes_of_gnu(segments: Segments, data: bytes, align: int) -> Iterator[tuple[int, bytes]]:
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


def _linux(segments: Segments, description: bytes) -> tuple[int, int, int] | None:
    if len(description) < 16:
        return None
    system, major, minor, patch = (segments.layout.word.unpack_from(description, at)[0] for at in (0, 4, 8, 12))
    return (major, minor, patch) if system == 0 else None


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
