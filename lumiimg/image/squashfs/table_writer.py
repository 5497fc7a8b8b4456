"""The tables of a squashfs 4.0 file system, written (kernel `fs/squashfs/squashfs_fs.h`; image/squashfs reads them).

The kernel takes a file system only where its tables follow each other without a gap: inodes, directories, fragments,
export, ids, extended attributes (`fs/squashfs/super.c`, squashfs_fill_super).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

from lumiimg.image.squashfs import metadata, xattrs

_PREFIXES = {prefix: number for number, prefix in xattrs.PREFIXES.items()}
_LEVEL = 4


class MetadataWriter:
    """A run of metadata blocks, which grows at its end."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._open = bytearray()
        self.block = 0
        """Where the block that is written to begins, from the start of the table."""

    @property
    def offset(self) -> int:
        """Where in its block the next byte goes."""
        return len(self._open)

    @property
    def reference(self) -> int:
        """Where the next byte goes, as inodes are referred to."""
        return self.block << 16 | self.offset

    def write(self, data: bytes) -> None:
        """Add bytes, across the borders of blocks if need be."""
        self._open += data
        while len(self._open) >= metadata.BLOCK_BYTES:
            self._close(bytes(self._open[: metadata.BLOCK_BYTES]))
            del self._open[: metadata.BLOCK_BYTES]

    def finish(self) -> bytes:
        if self._open:
            self._close(bytes(self._open))
            self._open.clear()
        return b"".join(self._blocks)

    def _close(self, content: bytes) -> None:
        packed = zlib.compress(content, _LEVEL)
        stored = metadata.HEADER.pack(len(packed)) + packed
        if len(packed) >= len(content):
            stored = metadata.HEADER.pack(len(content) | metadata.STORED) + content
        self._blocks.append(stored)
        self.block += len(stored)


def lookup_table(records: Iterable[bytes], start: int) -> tuple[bytes, int]:
    """Return a table of equal records that is found by number, to be written at `start`, and where its index is."""
    body = MetadataWriter()
    places: list[int] = []
    for record in records:
        if body.offset == 0:
            places.append(start + body.block)
        body.write(record)
    blocks = body.finish()
    return blocks + b"".join(map(xattrs.POINTER.pack, places)), start + len(blocks)


class XattrWriter:
    """Sets of extended attributes: inodes with the same ones share a set."""

    def __init__(self) -> None:
        self._body = MetadataWriter()
        self._sets: list[bytes] = []
        self._known: dict[tuple[tuple[bytes, bytes], ...], int] = {}

    def add(self, attributes: Mapping[bytes, bytes]) -> int:
        """Return the number of the set of these."""
        key = tuple(sorted(attributes.items()))
        if key not in self._known:
            self._known[key] = len(self._sets)
            reference, size = self._body.reference, 0
            for name, value in key:
                prefix = name[: name.index(b".") + 1]
                bare = name[len(prefix) :]
                entry = xattrs.NAME.pack(_PREFIXES[prefix], len(bare)) + bare + xattrs.VALUE.pack(len(value)) + value
                self._body.write(entry)
                size += len(entry)
            self._sets.append(xattrs.SET.pack(reference, len(key), size))
        return self._known[key]

    def finish(self, start: int) -> tuple[bytes, int | None]:
        """Return the table, to be written at `start`, and where its header is; nothing where there is no set."""
        if not self._sets:
            return b"", None
        body = self._body.finish()
        table, index = lookup_table(self._sets, start + len(body))
        blocks = index - start - len(body)
        header = xattrs.TABLE.pack(start, len(self._sets), 0)
        return body + table[:blocks] + header + table[blocks:], index
