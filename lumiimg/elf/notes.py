"""What PT_NOTE and PT_GNU_PROPERTY say: the build id, the x86-64 level that the code needs, what it may dlopen.

A note is namesz u32, descsz u32, type u32, name, desc, each padded to the segment's alignment (4, or 8 for GNU
properties); a property is type u32, datasz u32, data, padded to 8 (4 in 32-bit files). Source: gABI chapter 5, Linux
gABI extensions, x86-64 psABI "Program Property"; of the dlopen notes, the UAPI group's "ELF dlopen metadata"
(systemd.io/ELF_DLOPEN_METADATA): a JSON array of objects, in a section that linkers put into a PT_NOTE like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lumiimg.elf.segments import PT_GNU_PROPERTY, PT_NOTE, Segments

_NT_GNU_BUILD_ID, _NT_GNU_PROPERTY_TYPE_0 = 3, 5
_NT_GNU_ABI_TAG = 1
_NT_FDO_DLOPEN_METADATA = 0x407C0C0A
_X86_ISA_1_NEEDED = 0xC0008002
_MAX_NOTES_BYTES = 65536
_MAX_DLOPEN_NOTES = 1024
_MAX_DLOPEN_BYTES = 16384


@dataclass(frozen=True, slots=True)
class DlopenNote:
    """One library, or a choice of them, that the code may dlopen: no DT_NEEDED shows it."""

    sonames: tuple[str, ...]
    """Names for dlopen, tried in this order."""
    feature: str | None = None
    """What it is for."""
    description: str | None = None
    """For a person."""
    priority: str = "recommended"
    """`required`, `recommended` or `suggested`; a note without one means recommended."""


class Notes(NamedTuple):
    """What the notes of one file say; None or empty for what it does not have."""

    build_id: str | None
    """Hex digits."""
    isa_needed: int | None
    """GNU_PROPERTY_X86_ISA_1_NEEDED."""
    dlopen: tuple[DlopenNote, ...]
    linux: tuple[int, int, int] | None
    """NT_GNU_ABI_TAG: the oldest kernel that the file runs on."""


def read_notes(segments: Segments) -> Notes:
    """Return what the notes say.

    A note that runs out of its segment ends the segment: the loader reads on without it too. A dlopen note whose text
    makes no sense is none.
    """
    build_id: str | None = None
    isa: int | None = None
    linux: tuple[int, int, int] | None = None
    dlopen: list[DlopenNote] = []
    for segment in segments.all:
        if segment.type not in (PT_NOTE, PT_GNU_PROPERTY):
            continue
        data = segments.file_range(segment.offset, min(segment.file_bytes, _MAX_NOTES_BYTES))
        for owner, kind, description in _notes(segments, data, 8 if segment.align == 8 else 4):
            if owner == b"GNU\0":
                if kind == _NT_GNU_BUILD_ID and build_id is None:
                    build_id = description.hex()
                elif kind == _NT_GNU_PROPERTY_TYPE_0 and isa is None:
                    isa = _isa_needed(segments, description)
                elif kind == _NT_GNU_ABI_TAG and linux is None:
                    linux = _linux(segments, description)
            elif owner == b"FDO\0" and kind == _NT_FDO_DLOPEN_METADATA and len(dlopen) < _MAX_DLOPEN_NOTES:
                dlopen.extend(_dlopen_notes(description)[: _MAX_DLOPEN_NOTES - len(dlopen)])
    return Notes(build_id, isa, tuple(dlopen), linux)


def _notes(segments: Segments, data: bytes, align: int) -> Iterator[tuple[bytes, int, bytes]]:
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
        if name_bytes == 4 and len(description) == description_bytes:
            yield data[name_at : name_at + 4], kind, description


def _dlopen_notes(description: bytes) -> list[DlopenNote]:
    if len(description) > _MAX_DLOPEN_BYTES:
        return []
    try:
        content = json.loads(description.rstrip(b"\0"))
    except (ValueError, RecursionError):
        return []
    return [note for entry in content if (note := _dlopen_note(entry))] if isinstance(content, list) else []


def _dlopen_note(entry: Any) -> DlopenNote | None:  # noqa: ANN401 - it is what JSON held
    sonames = entry.get("soname") if isinstance(entry, dict) else None
    if not isinstance(sonames, list) or not sonames or not all(isinstance(name, str) for name in sonames):
        return None

    def text(key: str) -> str | None:
        value = entry.get(key)
        return value if isinstance(value, str) else None

    return DlopenNote(tuple(sonames), text("feature"), text("description"), text("priority") or "recommended")


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
