"""A SIF file written around a file system that lies in it already (apptainer/sif, `pkg/sif/sif.go`; image/sif.py).

`sif new` and `sif add` of the engines would copy the file system once more, leave out the line that makes an image
executable, and put the day into the file. mksquashfs can write at an offset; what stands in front is written here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lumiimg.core.errors import FailedError
from lumiimg.core.files import EPOCH
from lumiimg.image.sif import DESCRIPTOR, HEADER, MAGIC, PARTITION, PRIMARY_SYSTEM, DataType, PartitionFormat

LAUNCH = b"#!/usr/bin/env run-singularity\n"
BLOCK_BYTES = 4096
"""A partition begins at a multiple of it: engines map it."""
_DESCRIPTORS = 48
_FOR_SIGNATURES = 4
"""Descriptors that are left free: each signature takes one, and an engine has no way to make the table larger."""
_TABLE_AT = 4096
_FRONT = _TABLE_AT + _DESCRIPTORS * DESCRIPTOR.size
_VERSION, _AMD64 = b"01\0", b"02\0"
_GROUP = 0xF0000001
"""The mask of groups, with the number 1. Source: DescrGroupMask."""


@dataclass(frozen=True, slots=True)
class Front:
    """What stands in front of the file system."""

    definition: str
    documents: Mapping[str, bytes]
    """JSON by name."""

    @property
    def size_bytes(self) -> int:
        """Where the file system can begin."""
        return aligned(_FRONT + len(self.definition.encode()) + sum(map(len, self.documents.values())))


def number_of(identity: str) -> bytes:
    """Return the number of an image by what it is made of."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"lumiimg:{identity}").bytes


def aligned(offset: int) -> int:
    """Return the next multiple of a block."""
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES


def write_front(path: Path, front: Front, *, identity: str) -> None:
    """Write header, descriptors and small objects into a file that has its file system behind the room for them.

    `identity` is what the image's number is made of: the same for the same image.

    Raises FailedError if there are more objects than leave room for signatures.
    """
    small = [(DataType.DEFINITION, "", front.definition.encode())]
    small += [(DataType.JSON, name, data) for name, data in front.documents.items()]
    room = _DESCRIPTORS - _FOR_SIGNATURES
    if len(small) >= room:
        raise FailedError(f"{len(small) + 1} objects do not fit into a SIF of {room}", where=str(path))
    at = _FRONT
    records = []
    for data_type, name, data in small:
        records.append((data_type, at, len(data), name, b""))
        at += len(data)
    size = path.stat().st_size
    root = PARTITION.pack(PartitionFormat.SQUASHFS, PRIMARY_SYSTEM, _AMD64)
    records.append((DataType.PARTITION, front.size_bytes, size - front.size_bytes, "root", root))
    with path.open("r+b") as file:
        file.write(_header(len(records), size, identity))
        file.seek(_TABLE_AT)
        file.write(_table(records))
        file.write(b"".join(data for *_, data in small))


def _header(used: int, size: int, identity: str) -> bytes:
    table_bytes = _DESCRIPTORS * DESCRIPTOR.size
    counts = (_DESCRIPTORS - used, _DESCRIPTORS, _TABLE_AT, table_bytes, _FRONT, size - _FRONT)
    return HEADER.pack(LAUNCH, MAGIC, _VERSION, _AMD64, number_of(identity), EPOCH, EPOCH, *counts)


def _table(records: Iterable[tuple[int, int, int, str, bytes]]) -> bytes:
    table = b""
    end = _FRONT
    for number, (data_type, offset, size, name, extra) in enumerate(records, start=1):
        padded = offset + size - end
        end = offset + size
        table += DESCRIPTOR.pack(
            data_type, 1, number, _GROUP, 0, offset, size, padded, EPOCH, EPOCH, 0, 0, name.encode()[:127], extra
        )
    return table.ljust(_DESCRIPTORS * DESCRIPTOR.size, b"\0")
