"""Listings of directories, in the directory table: runs of up to 256 names, each run with the inode block they share.

    header  count - 1 u32, inode block u32, inode number u32
    entry   offset u16, inode number difference i16, type u16, name size - 1 u16, name

The size in a directory's inode is three more than its listing has bytes, for `.` and `..` that are not stored.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.image.squashfs.inodes import KIND_OF_TYPE
from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from lumiimg.image.squashfs.inodes import Inode
    from lumiimg.image.squashfs.metadata import Metadata

_HEADER = struct.Struct("<III")
_ENTRY = struct.Struct("<HhHH")
_MAX_NAMES_IN_RUN = 256
_DOTS_BYTES = 3
# a listing of 64 MiB has some two million names
_MAX_LISTING_BYTES = 64 << 20


class Name(NamedTuple):
    """One name: its inode and what kind of inode the listing says that it is."""

    reference: int
    kind: FileKind


def read_listing(metadata: Metadata, table: int, directory: Inode) -> dict[str, Name]:
    """Return the names of a directory. Raises ImageError."""
    left = directory.size_bytes - _DOTS_BYTES
    if left <= 0:
        return {}
    if left > _MAX_LISTING_BYTES:
        raise ImageError(f"a directory listing of {left} bytes")
    block, offset = directory.listing
    listing = metadata.cursor(table + block, offset).read(left)
    try:
        return _names(listing)
    except struct.error as error:
        raise ImageError("a squashfs directory that is cut off") from error


def _names(listing: bytes) -> dict[str, Name]:
    names: dict[str, Name] = {}
    at = 0
    while at < len(listing):
        count, inode_block, _ = _HEADER.unpack_from(listing, at)
        if count >= _MAX_NAMES_IN_RUN:
            raise ImageError(f"a run of {count + 1} names in a squashfs directory")
        at += _HEADER.size
        for _ in range(count + 1):
            inode_offset, _, kind_number, name_size = _ENTRY.unpack_from(listing, at)
            at += _ENTRY.size + name_size + 1
            name = listing[at - name_size - 1 : at]
            kind = KIND_OF_TYPE.get(kind_number)
            if kind is None or at > len(listing) or b"/" in name or b"\0" in name or name in (b".", b".."):
                raise ImageError("a damaged squashfs directory")
            names[name.decode("utf-8", "surrogateescape")] = Name(inode_block << 16 | inode_offset, kind)
    return names
