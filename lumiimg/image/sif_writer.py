"""A SIF file written around a file system that lies in it already (apptainer/sif, `pkg/sif/sif.go`; image/sif.py).

`sif new` and `sif add` of the engines would copy the file system once more, leave out the line that makes an image
executable, and put the day into the file. mksquashfs can write at an offset; what stands in front is written here.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lumiimg.errors import FailedError
from lumiimg.files import EPOCH
from lumiimg.image.sif import DESCRIPTOR, HEADER, MAGIC, OVERLAY, PARTITION, PRIMARY_SYSTEM, DataType, PartitionFormat

LAUNCH = b"#!/usr/bin/env run-singularity\n"
BLOCK_BYTES = 4096
"""Partitions begin at a multiple of it: engines map them."""
_DESCRIPTORS = 48
_FOR_SIGNATURES = 4
"""Descriptors that are left free: each signature takes one, and an engine has no way to make the table larger."""
_TABLE_AT = 4096
_FRONT = _TABLE_AT + _DESCRIPTORS * DESCRIPTOR.size
_VERSION, _AMD64 = b"01\0", b"02\0"
_CHUNK_BYTES = 8 << 20
_GROUP = 0xF0000001
"""The mask of groups, with the number 1. Source: DescrGroupMask."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A squashfs that lies in the file."""

    offset: int
    size_bytes: int
    is_overlay: bool = False


@dataclass(frozen=True, slots=True)
class Front:
    """What stands in front of the partitions."""

    definition: str
    documents: Mapping[str, bytes]
    """JSON by name."""

    @property
    def size_bytes(self) -> int:
        """Where the first partition can begin."""
        return aligned(_FRONT + len(self.definition.encode()) + sum(map(len, self.documents.values())))


def number_of(identity: str) -> bytes:
    """Return the number of an image by what it is made of."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"lumiimg:{identity}").bytes


def aligned(offset: int) -> int:
    """Return the next multiple of a block."""
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES


def write_front(path: Path, front: Front, partitions: Sequence[Partition], *, identity: str) -> None:
    """Write header, descriptors and small objects into a file whose partitions are in place.

    `identity` is what the image's number is made of: the same for the same image.

    Raises FailedError if there are more objects than leave room for signatures, or they reach into the first partition.
    """
    small = [(DataType.DEFINITION, "", front.definition.encode())]
    small += [(DataType.JSON, name, data) for name, data in front.documents.items()]
    room = _DESCRIPTORS - _FOR_SIGNATURES
    if len(small) + len(partitions) > room or partitions[0].offset < front.size_bytes:
        raise FailedError(f"{len(small) + len(partitions)} objects do not fit into a SIF of {room}", where=str(path))
    at = _FRONT
    records = []
    for data_type, name, data in small:
        records.append((data_type, at, len(data), name, b""))
        at += len(data)
    for partition in partitions:
        kind = OVERLAY if partition.is_overlay else PRIMARY_SYSTEM
        extra = PARTITION.pack(PartitionFormat.SQUASHFS, kind, _AMD64)
        name = "overlay" if partition.is_overlay else "root"
        records.append((DataType.PARTITION, partition.offset, partition.size_bytes, name, extra))
    with path.open("r+b") as file:
        file.write(_header(len(records), path.stat().st_size, identity))
        file.seek(_TABLE_AT)
        file.write(_table(records))
        file.write(b"".join(data for *_, data in small))


def behind(path: Path, front: Front) -> Partition:
    """Return the file system that was written into `path` behind the room for its front."""
    return Partition(front.size_bytes, path.stat().st_size - front.size_bytes)


def append(path: Path, source: Path) -> Partition:
    """Put a squashfs file behind another file, as an overlay; the file system may share the blocks.

    Raises FailedError if it cannot be written.
    """
    whole = Partition(0, source.stat().st_size, is_overlay=True)
    return place(path, source, whole, aligned(path.stat().st_size))


def place(path: Path, source: Path, partition: Partition, start: int) -> Partition:
    """Copy a partition of another file to `start` of a file. Raises FailedError if it cannot be written."""
    size = partition.size_bytes
    try:
        with source.open("rb") as taken, path.open("r+b" if path.exists() else "w+b") as file:
            left = size - _copied(taken.fileno(), partition.offset, file.fileno(), start, size)
            if left:
                raise FailedError(f"became shorter by {left} bytes while it was copied", where=str(source))
            file.truncate(aligned(start + size))
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror}", where=str(path)) from error
    return replace(partition, offset=start)


def _copied(source: int, there: int, target: int, here: int, size: int) -> int:
    """Copy bytes of one open file into another; return how many there were. Raises OSError.

    The kernel clones blocks where it can (XFS, Btrfs). It refuses others: of two file systems (EXDEV), where a file
    system, an old kernel or a filter of system calls has no such thing, and some say 0 or EIO for it. Whatever it says,
    what is left is read and written, which fails where something is really wrong. Source: copy_file_range(2).
    """
    done = 0
    with suppress(OSError):
        while done < size and (more := os.copy_file_range(source, target, size - done, there + done, here + done)):
            done += more
    while done < size and (data := os.pread(source, min(size - done, _CHUNK_BYTES), there + done)):
        done += os.pwrite(target, data, here + done)
    return done


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
