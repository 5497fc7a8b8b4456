"""SIF, the file format of Singularity and Apptainer images (apptainer/sif, `pkg/sif/sif.go`), read and written.

A header of 128 bytes, descriptors of 585 bytes at 4096, then data objects: definition file, JSON, partitions,
signatures. Little endian, packed. The root file system is the only partition of type 2 (PrimSys). All sizes are checked
here: the format's own library trusts them.

The engines' `sif new` and `sif add` would copy the file system once more, omit the line that makes an image executable,
and store the date in the file. mksquashfs can write at an offset; this module writes what precedes the file system.
"""

from __future__ import annotations

import itertools
import struct
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from lumiimg.core.errors import FailedError
from lumiimg.core.files import EPOCH
from lumiimg.image.host_files import HostFile
from lumiimg.image.tree import ImageError

MAGIC = b"SIF_MAGIC\0"
MAGIC_OFFSET = 32
HEADER = struct.Struct("<32s10s3s3s16s8q")
"""Launch line, magic, version, architecture, uuid; created, modified, free and total descriptors, their offset and
size, offset and size of the data.
"""
DESCRIPTOR = struct.Struct("<iBIII7q128s384s")
"""Type, used flag, number, group, link; offset, size, size with padding, created, modified, uid, gid; name, extra."""
_PARTITION = struct.Struct("<ii3s")
"""Start of the extra bytes of a partition: file system, type, architecture."""
_VERSION = b"01\0"
_PRIMARY_SYSTEM, _OVERLAY = 2, 4
_GO_NAMES = "386 amd64 arm arm64 ppc64 ppc64le mips mipsle mips64 mips64le s390x riscv64"
_ARCHITECTURES = {b"%02d" % number: name for number, name in enumerate(_GO_NAMES.split(), start=1)}
_MAX_DESCRIPTORS = 4096
_DOWNLOAD_AGAIN = "download or copy it again"


class DataType(IntEnum):
    """Type of a data object; only those that are used here."""

    DEFINITION = 0x4001
    PARTITION = 0x4004
    JSON = 0x4006
    OCI_ROOT_INDEX = 0x400A


_SQUASHFS = 1
_NOT_READ = {2: "ext3 (Singularity 2)", 5: "encrypted", 6: "encrypted"}
"""Other root file system formats that engines support: ext3, squashfs inside dm-crypt, and inside gocryptfs."""


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

    @property
    def is_squashfs(self) -> bool:
        """Whether it is a partition in a format that can be read here."""
        return self.file_system == _SQUASHFS


@dataclass(frozen=True, slots=True)
class Sif:
    """The table of contents of one file."""

    where: str
    architecture: str | None
    objects: tuple[DataObject, ...]
    uuid: bytes

    def root_partition(self) -> DataObject:
        """Return the squashfs partition with the root file system. Raises ImageError if there is no such partition."""
        roots = [item for item in self.objects if item.partition_type == _PRIMARY_SYSTEM]
        if len(roots) > 1:
            raise ImageError(f"{len(roots)} root file systems in one SIF", where=self.where)
        if not roots and any(item.data_type == DataType.OCI_ROOT_INDEX for item in self.objects):
            hint = "build it without --oci, or unpack it into a sandbox folder and give that"
            raise ImageError("an OCI-SIF, whose layers are not supported", where=self.where, hint=hint)
        if not roots:
            raise ImageError("a SIF without a root file system", where=self.where, hint="build the image again")
        [root] = roots
        if not root.is_squashfs:
            what = _NOT_READ.get(root.file_system, f"of the unknown format {root.file_system}")
            hint = "unpack it with an engine (`build --sandbox`, with its key if it is encrypted) and give the folder"
            raise ImageError(f"the root file system is {what}", where=self.where, hint=hint)
        return root

    def overlays(self) -> tuple[DataObject, ...]:
        """Return the partitions that an engine mounts over the root file system, the lowest first."""
        return tuple(item for item in self.objects if item.partition_type == _OVERLAY)

    def json(self, source: HostFile, name: str, limit_bytes: int) -> bytes:
        """Return the first JSON object with a name; empty if there is none, or if it exceeds the limit."""
        for item in self.objects:
            if (item.data_type, item.name) == (DataType.JSON, name):
                return source.read_exactly(item.offset, item.size_bytes) if item.size_bytes <= limit_bytes else b""
        return b""


def is_sif(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a SIF."""
    return head[MAGIC_OFFSET:].startswith(MAGIC)


def read_sif(path: Path) -> Sif:
    """Return the table of contents of a file. Raises ImageError for a table that contradicts the file."""
    with closing(HostFile.from_image(path)) as source:
        return parse_sif(source)


def read_json_object(path: Path, name: str, limit_bytes: int) -> bytes:
    """Return a JSON object of a SIF by name; empty if there is none, or if it exceeds the limit. Raises ImageError."""
    with closing(HostFile.from_image(path)) as source:
        return parse_sif(source).json(source, name, limit_bytes)


def squashfs_ranges(path: Path) -> list[tuple[int, int]]:
    """Return offset and size of each squashfs in a file, the lowest first: those in a SIF, or the whole file.

    Raises ImageError.
    """
    with closing(HostFile.from_image(path)) as source:
        if not is_sif(source.read_exactly(0, min(source.size, HEADER.size))):
            return [(0, source.size)]
        sif = parse_sif(source)
    return [(part.offset, part.size_bytes) for part in (sif.root_partition(), *sif.overlays())]


def parse_sif(source: HostFile) -> Sif:
    """Return the table of contents. Raises ImageError for a table that contradicts the file."""
    where = source.name
    if source.size < HEADER.size:
        raise ImageError(f"a SIF of {source.size} bytes is cut off", where=where, hint=_DOWNLOAD_AGAIN)
    _, magic, version, architecture, number, _, _, _, total, table_at, *_ = HEADER.unpack(
        source.read_exactly(0, HEADER.size)
    )
    if magic != MAGIC:
        raise ImageError("not a SIF", where=where)
    if version != _VERSION:
        raise ImageError(f"SIF version {version!r}; only 01 is supported", where=where)
    if not 0 <= total <= _MAX_DESCRIPTORS:
        raise ImageError(f"a SIF that claims {total} descriptors", where=where)
    if table_at < HEADER.size:
        raise ImageError(f"a SIF with its descriptors at {table_at}, inside its header", where=where)
    table_end = table_at + total * DESCRIPTOR.size
    if table_end > source.size:
        raise ImageError("the SIF is cut off in its descriptors", where=where, hint=_DOWNLOAD_AGAIN)
    records = list(DESCRIPTOR.iter_unpack(source.read_exactly(table_at, table_end - table_at)))
    if unknown := [used for _, used, *_ in records if used > 1]:
        raise ImageError(f"a SIF descriptor with the used flag {unknown[0]}", where=where)
    objects = tuple(_data_object(record, source) for record in records if record[1])
    ranges = [(0, HEADER.size, "its header"), (table_at, table_end, "its descriptors")]
    ranges += [(item.offset, item.offset + item.size_bytes, f"object {item.identifier}") for item in objects]
    ordered = sorted(item for item in ranges if item[0] < item[1])
    for (_, end, name), (start, _, other) in itertools.pairwise(ordered):
        if start < end:
            raise ImageError(f"in the SIF {name} and {other} overlap", where=where)
    return Sif(where, _ARCHITECTURES.get(architecture.rstrip(b"\0")), objects, number)


def _data_object(record: tuple[Any, ...], source: HostFile) -> DataObject:
    data_type, _, identifier, _, _, offset, size, *_, name, extra = record
    if offset < 0 or size < 0:
        raise ImageError(f"SIF object {identifier} has offset {offset} and size {size}", where=source.name)
    if offset + size > source.size:
        what = f"cut off: SIF object {identifier} ends at byte {offset + size}, the file at {source.size}"
        raise ImageError(what, where=source.name, hint=_DOWNLOAD_AGAIN)
    text = name.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    item = DataObject(data_type, identifier, offset, size, text)
    if data_type == DataType.PARTITION:
        file_system, partition_type, _ = _PARTITION.unpack_from(extra)
        return replace(item, file_system=file_system, partition_type=partition_type)
    return item


# -- writing --

_LAUNCH = b"#!/usr/bin/env run-singularity\n"
_BLOCK_BYTES = 4096
"""Alignment of a partition: engines map it."""
_DESCRIPTORS = 48
_FOR_SIGNATURES = 4
"""Descriptors left free: each signature takes one, and engines cannot enlarge the table."""
_TABLE_AT = 4096
_OBJECTS_AT = _TABLE_AT + _DESCRIPTORS * DESCRIPTOR.size
_AMD64 = b"02\0"
_GROUP = 0xF0000001
"""The group mask with group number 1. Source: DescrGroupMask."""


@dataclass(frozen=True, slots=True)
class SifHeader:
    """Data in front of the file system."""

    definition: str
    documents: Mapping[str, bytes]
    """JSON documents by name."""

    @property
    def size_bytes(self) -> int:
        """First offset at which the file system can begin."""
        size = _OBJECTS_AT + len(self.definition.encode()) + sum(map(len, self.documents.values()))
        return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def sif_uuid(identity: str) -> bytes:
    """Return the uuid of an image for what identifies its content."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"lumiimg:{identity}").bytes


def write_sif(path: Path, header: SifHeader, *, identity: str) -> None:
    """Write header, descriptors and small objects into a file that already contains the file system after them.

    The image's uuid is derived from `identity`: the same for the same image.

    Raises FailedError if too many objects leave no room for signatures.
    """
    objects = [(DataType.DEFINITION, "", header.definition.encode())]
    objects += [(DataType.JSON, name, data) for name, data in header.documents.items()]
    room = _DESCRIPTORS - _FOR_SIGNATURES
    if len(objects) >= room:
        raise FailedError(f"{len(objects) + 1} objects do not fit into a SIF with space for {room}", where=str(path))
    end = _OBJECTS_AT
    table = b""
    for number, (data_type, name, data) in enumerate(objects, start=1):
        table += _descriptor(data_type, number, end, len(data), end, name, b"")
        end += len(data)
    size = path.stat().st_size
    root = _PARTITION.pack(_SQUASHFS, _PRIMARY_SYSTEM, _AMD64)
    start, number = header.size_bytes, len(objects) + 1
    table += _descriptor(DataType.PARTITION, number, start, size - start, end, "root", root)
    counts = (_DESCRIPTORS - number, _DESCRIPTORS, _TABLE_AT, _OBJECTS_AT - _TABLE_AT, _OBJECTS_AT, size - _OBJECTS_AT)
    with path.open("r+b") as file:
        file.write(HEADER.pack(_LAUNCH, MAGIC, _VERSION, _AMD64, sif_uuid(identity), EPOCH, EPOCH, *counts))
        file.seek(_TABLE_AT)
        file.write(table.ljust(_OBJECTS_AT - _TABLE_AT, b"\0"))
        file.write(b"".join(data for _, _, data in objects))


def _descriptor(data_type: DataType, number: int, offset: int, size: int, end: int, name: str, extra: bytes) -> bytes:
    """Return one descriptor; `end` is the end of the previous object."""
    places = (offset, size, offset + size - end, EPOCH, EPOCH, 0, 0)
    return DESCRIPTOR.pack(data_type, 1, number, _GROUP, 0, *places, name.encode()[:127], extra)
