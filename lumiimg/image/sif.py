r"""SIF, the file format of Singularity and Apptainer images (apptainer/sif, `pkg/sif/sif.go`).

    0      global header, 128 B   launch[32], "SIF_MAGIC\0", version[3], arch[3], uuid[16], then i64 each: created,
                                  modified, descriptors free, descriptors total, descriptors offset, descriptors
                                  size, data offset, data size
    4096   descriptors, 585 B     datatype i32, used u8, id u32, group u32, link u32, i64 each: offset, size, padded
           each                   size, created, modified, uid, gid; name[128], extra[384]
    ~32 K  data objects           definition file, JSON, partitions, signatures

Little endian, packed. The extra bytes of a partition start with file system i32, partition type i32, arch[3]. The root
file system is the one partition of type 2 (PrimSys). All sizes are checked here against the file: the format's own
library trusts them.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from lumiimg.image.byte_source import ByteSource
from lumiimg.image.tree import ImageError

MAGIC = b"SIF_MAGIC\0"
MAGIC_OFFSET = 32
HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<iBIII7q128s384s")
PARTITION = struct.Struct("<ii3s")
_MAX_DESCRIPTORS = 4096
_DOWNLOAD_AGAIN = "download or copy it again"

_ARCHITECTURES = {
    b"01": "386",
    b"02": "amd64",
    b"03": "arm",
    b"04": "arm64",
    b"05": "ppc64",
    b"06": "ppc64le",
    b"07": "mips",
    b"08": "mipsle",
    b"09": "mips64",
    b"10": "mips64le",
    b"11": "s390x",
    b"12": "riscv64",
}


class DataType(IntEnum):
    """Of a data object; only those that are looked at."""

    DEFINITION = 0x4001
    PARTITION = 0x4004
    JSON = 0x4006
    OCI_ROOT_INDEX = 0x400A


class PartitionFormat(IntEnum):
    """File system of a partition; only those that are spoken of."""

    SQUASHFS = 1
    EXT3 = 2
    ENCRYPTED_SQUASHFS = 5
    GOCRYPTFS_SQUASHFS = 6


PRIMARY_SYSTEM, OVERLAY = 2, 4
_ENCRYPTED = ("the root file system is encrypted", "unpack it with its key (`build --sandbox`) and give the folder")
_NOT_READ: dict[int, tuple[str, str | None]] = {
    PartitionFormat.ENCRYPTED_SQUASHFS: _ENCRYPTED,
    PartitionFormat.GOCRYPTFS_SQUASHFS: _ENCRYPTED,
    PartitionFormat.EXT3: (
        "the root file system is ext3, of Singularity 2",
        "convert it (`build new.sif old.sif`)",
    ),
}
"""What a root file system is, and what to do about it."""


@dataclass(frozen=True, slots=True)
class DataObject:
    """One used descriptor whose range lies inside the file."""

    data_type: int
    identifier: int
    offset: int
    size_bytes: int
    name: str
    file_system: int = 0
    partition_type: int = 0


@dataclass(frozen=True, slots=True)
class Sif:
    """The table of contents of one file."""

    architecture: str | None
    objects: tuple[DataObject, ...]
    identifier: bytes = b""
    """The sixteen bytes of its number."""

    def root_partition(self, where: str) -> DataObject:
        """Return the squashfs partition with the root file system. Raises ImageError saying what is there instead."""
        roots = [item for item in self.objects if item.partition_type == PRIMARY_SYSTEM]
        if len(roots) > 1:
            raise ImageError(f"{len(roots)} root file systems in one SIF", where=where)
        if not roots:
            if any(item.data_type == DataType.OCI_ROOT_INDEX for item in self.objects):
                raise ImageError(
                    "an OCI-SIF, whose layers are not read",
                    where=where,
                    hint="build it without --oci, or unpack it into a sandbox folder and give that",
                )
            raise ImageError("a SIF without a root file system", where=where, hint="build the image again")
        root = roots[0]
        if root.file_system != PartitionFormat.SQUASHFS:
            what, hint = _NOT_READ.get(
                root.file_system, (f"the root file system has the unknown format {root.file_system}", None)
            )
            raise ImageError(what, where=where, hint=hint)
        return root

    def overlays(self) -> tuple[DataObject, ...]:
        """Return the partitions that an engine lays over the root file system, the lowest first."""
        return tuple(item for item in self.objects if item.partition_type == OVERLAY)

    def first(self, data_type: DataType, name: str | None = None) -> DataObject | None:
        """Return the first data object of a type (and name)."""
        found = (item for item in self.objects if item.data_type == data_type and name in (None, item.name))
        return next(found, None)


def read_sif_file(path: Path) -> Sif:
    """Return the table of contents of a file. Raises ImageError as `read_sif`."""
    with contextlib.closing(ByteSource.open(path)) as source:
        return read_sif(source)


def squashfs_ranges(path: Path) -> list[tuple[int, int]]:
    """Return offset and size of each squashfs of a file, the lowest first: of a SIF, or the file as a whole.

    Raises ImageError.
    """
    with contextlib.closing(ByteSource.open(path)) as source:
        if source.size < MAGIC_OFFSET + len(MAGIC) or source.read_at(MAGIC_OFFSET, len(MAGIC)) != MAGIC:
            return [(0, source.size)]
        sif = read_sif(source)
    return [(part.offset, part.size_bytes) for part in (sif.root_partition(str(path)), *sif.overlays())]


def read_sif(source: ByteSource) -> Sif:
    """Return the table of contents. Raises ImageError for whatever does not fit the file."""
    where = source.name
    if source.size < HEADER.size:
        raise ImageError(f"a SIF of {source.size} bytes is cut off", where=where, hint=_DOWNLOAD_AGAIN)
    fields = HEADER.unpack(source.read_at(0, HEADER.size))
    magic, version, architecture = fields[1:4]
    total, table_at = fields[8:10]
    if magic != MAGIC:
        raise ImageError("not a SIF", where=where)
    if version != b"01\0":
        raise ImageError(f"SIF version {version!r}; only 01 is read", where=where)
    if not 0 <= total <= _MAX_DESCRIPTORS:
        raise ImageError(f"a SIF that claims {total} descriptors", where=where)
    if table_at < HEADER.size:
        raise ImageError(f"a SIF with its descriptors at {table_at}, inside its header", where=where)
    if table_at + total * DESCRIPTOR.size > source.size:
        raise ImageError("the SIF is cut off in its descriptors", where=where, hint=_DOWNLOAD_AGAIN)
    table = source.read_at(table_at, total * DESCRIPTOR.size)
    objects = [_data_object(record, source) for record in DESCRIPTOR.iter_unpack(table) if _is_used(record[1], source)]
    _check_overlap(objects, table_at, table_at + len(table), where)
    return Sif(_ARCHITECTURES.get(architecture.rstrip(b"\0")), tuple(objects), fields[4])


def _is_used(used: int, source: ByteSource) -> bool:
    if used > 1:
        raise ImageError(f"a SIF descriptor with the used flag {used}", where=source.name)
    return used == 1


def _data_object(record: tuple[Any, ...], source: ByteSource) -> DataObject:
    data_type, _, identifier, _, _, offset, size = record[:7]
    name, extra = record[12:14]
    if offset < 0 or size < 0:
        raise ImageError(f"SIF object {identifier} has offset {offset} and size {size}", where=source.name)
    if offset + size > source.size:
        raise ImageError(
            f"cut off: SIF object {identifier} ends at byte {offset + size}, the file at {source.size}",
            where=source.name,
            hint=_DOWNLOAD_AGAIN,
        )
    text = name.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    item = DataObject(data_type, identifier, offset, size, text)
    if data_type == DataType.PARTITION:
        file_system, partition_type, _ = PARTITION.unpack_from(extra)
        return replace(item, file_system=file_system, partition_type=partition_type)
    return item


def _check_overlap(objects: list[DataObject], table_start: int, table_end: int, where: str) -> None:
    ranges = [(0, HEADER.size, "its header"), (table_start, table_end, "its descriptors")]
    ranges += [(item.offset, item.offset + item.size_bytes, f"object {item.identifier}") for item in objects]
    ordered = sorted(item for item in ranges if item[0] < item[1])
    for (_, end, name), (start, _, other) in itertools.pairwise(ordered):
        if start < end:
            raise ImageError(f"in the SIF {name} and {other} overlap", where=where)
