"""A squashfs file system as a tree: nothing is read before it is asked for."""

from __future__ import annotations

import itertools
import struct
from functools import cached_property
from typing import TYPE_CHECKING

from lumiimg.image.lru import LruCache
from lumiimg.image.overlay import is_opaque
from lumiimg.image.squashfs.compression import decompressor, head_reader
from lumiimg.image.squashfs.inodes import NO_XATTRS, FileLayout, Inode, Name, read_inode, read_listing
from lumiimg.image.squashfs.metadata import BLOCK_BYTES, Metadata
from lumiimg.image.squashfs.superblock import NO_TABLE, Compressor, read_superblock
from lumiimg.image.squashfs.xattrs import Xattrs
from lumiimg.image.tree import DirectoryEntry, FileKind, FileStat, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.image.byte_source import ByteSource

FRAGMENT = struct.Struct("<QII")
_POINTER = struct.Struct("<Q")
_ID = struct.Struct("<I")
STORED = 1 << 24
_CACHED_BYTES = 16 << 20
_CACHED_NAMES = 200_000
_CACHED_INODES = 20_000
_HEAD_BYTES = 4096
"""Of a file: so much shows what it is, and of most files nothing more is asked."""
_PACKED = 1024
"""More than what is packed can be longer than it was."""
_LOOKED_AT = 10_000


class SquashfsTree:
    """One file system; the source is not closed with it."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.superblock = read_superblock(source)
        compression = Compressor(self.superblock.compression)
        self._decompress, self._beginning = decompressor(compression), head_reader(compression)
        self._metadata = Metadata(source, self.superblock.size_bytes, self._decompress)
        self._blocks: LruCache[int, bytes] = LruCache(_CACHED_BYTES)
        self._listings: LruCache[int, dict[str, Name]] = LruCache(_CACHED_NAMES)
        self._inodes: LruCache[int, Inode] = LruCache(_CACHED_INODES)
        self.root = self._inode(self.superblock.root_inode)
        if self.root.kind is not FileKind.DIRECTORY:
            raise ImageError("the root of the squashfs file system is not a directory", where=source.name)

    @property
    def packing(self) -> tuple[int, int]:
        """How its blocks are compressed, and the bytes of each."""
        return self.superblock.compression, self.superblock.block_bytes

    def child(self, directory: Inode, name: str) -> Inode | None:
        found = self._listing(directory).get(name)
        if found is None:
            return None
        inode = self._inode(found.reference)
        if inode.kind is not found.kind:
            raise ImageError("a squashfs directory and an inode disagree on what it is", where=self._source.name)
        return inode

    def entries(self, directory: Inode) -> Iterator[DirectoryEntry]:
        for name, found in self._listing(directory).items():
            yield DirectoryEntry(name, found.kind)

    def link_target(self, link: Inode) -> str:
        return link.target

    def stat(self, node: Inode) -> FileStat:
        return FileStat(
            kind=node.kind,
            permissions=node.permissions,
            uid=self._id(node.uid_index),
            gid=self._id(node.gid_index),
            size_bytes=node.size_bytes,
            mtime_s=node.mtime_s,
            links=node.links,
            identity=node.reference,
            device=node.device,
        )

    def directory_identity(self, directory: Inode) -> int:
        return directory.reference

    def open(self, node: Inode) -> SquashfsFile:
        if node.file is None:
            raise ImageError(f"a {node.kind} cannot be opened", where=self._source.name)
        return SquashfsFile(self, node.reference, node.file)

    def has_opaque(self) -> bool:
        """Tell whether any directory may be opaque; with very many sets of attributes it is not looked at them all."""
        if self.superblock.xattr_table == NO_TABLE:
            return False
        xattrs = self._xattrs()
        count = xattrs.count()
        return count > _LOOKED_AT or any(is_opaque(xattrs.read(index)) for index in range(count))

    def xattrs(self, node: Inode) -> dict[bytes, bytes]:
        has = node.xattrs != NO_XATTRS and self.superblock.xattr_table != NO_TABLE
        return self._xattrs().read(node.xattrs) if has else {}

    def _xattrs(self) -> Xattrs:
        return Xattrs(self._source, self._metadata, self.superblock.xattr_table)

    def _inode(self, reference: int) -> Inode:
        known = self._inodes.get(reference)
        if known is None:
            known = read_inode(self._metadata, self.superblock.inode_table, reference)
            self._inodes.put(reference, known)
        return known

    def _listing(self, directory: Inode) -> dict[str, Name]:
        known = self._listings.get(directory.reference)
        if known is None:
            known = read_listing(self._metadata, self.superblock.directory_table, directory)
            self._listings.put(directory.reference, known, weight=len(known) + 1)
        return known

    def _id(self, index: int) -> int:
        if index >= self.superblock.id_count:
            raise ImageError(f"owner number {index} of {self.superblock.id_count} in the squashfs file system")
        return self._table_entry(self.superblock.id_table, index, _ID)[0]

    def _table_entry(self, table: int, index: int, record: struct.Struct) -> tuple[int, ...]:
        """Return an entry of a table that is a list of pointers to metadata blocks full of equal records."""
        block, slot = divmod(index, BLOCK_BYTES // record.size)
        (position,) = _POINTER.unpack(self._source.read_at(table + block * _POINTER.size, _POINTER.size))
        return self._metadata.cursor(position, slot * record.size).unpack(record)

    def fragment(self, index: int) -> bytes:
        """Return the block that holds the tails of several files."""
        return self.block(*self.fragment_place(index))

    def fragment_place(self, index: int) -> tuple[int, int]:
        """Return where such a block is, and its size word."""
        if index >= self.superblock.fragment_count:
            raise ImageError(f"fragment {index} of {self.superblock.fragment_count} in the squashfs file system")
        start, size, _ = self._table_entry(self.superblock.fragment_table, index, FRAGMENT)
        return start, size

    def block(self, position: int, size_word: int) -> bytes:
        """Return the content of a data block; a size word of 0 is a hole, which has no block."""
        known = self._blocks.get(position)
        if known is not None:
            return known
        limit = self.superblock.block_bytes
        size = size_word & ~STORED
        if not 0 < size <= limit:
            raise ImageError(f"a squashfs data block of {size} bytes", where=self._source.name)
        data = self._source.read_at(position, size)
        content = data if size_word & STORED else self._decompress(data, limit)
        self._blocks.put(position, content, weight=len(content) + 64)
        return content

    def head(self, position: int, size_word: int, size: int) -> bytes:
        """Return the first bytes of a data block, without the rest of it where its compression allows for that."""
        stored = size_word & ~STORED
        is_whole = size_word & STORED or self._beginning is None or self._blocks.get(position) is not None
        if is_whole or not 0 < stored <= self.superblock.block_bytes:
            return self.block(position, size_word)[:size]
        # of what is packed so little, no more is needed for it
        data = self._source.read_at(position, min(stored, _PACKED + size))
        found = self._beginning(data, size) if self._beginning else b""
        return found if len(found) == size else self.block(position, size_word)[:size]

    def stored(self, position: int, size: int) -> bytes:
        """Return bytes as they are stored; `size` is the caller's to bound."""
        return self._source.read_at(position, size)

    def block_sizes(self, layout: FileLayout) -> tuple[int, ...]:
        count = layout.block_count(self.superblock.block_bytes)
        cursor = self._metadata.cursor(*layout.sizes_at)
        return struct.unpack(f"<{count}I", cursor.read(4 * count))


class SquashfsFile:
    """A regular file of a squashfs file system."""

    def __init__(self, tree: SquashfsTree, reference: int, layout: FileLayout) -> None:
        self.size = layout.size_bytes
        self.identity = reference
        self._tree = tree
        self._layout = layout

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return self._tree.block_sizes(self._layout)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        sizes = (word & ~STORED for word in self._sizes)
        return tuple(itertools.accumulate(sizes, initial=self._layout.start))

    def read_at(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        block_bytes = self._tree.superblock.block_bytes
        if end <= _HEAD_BYTES and self._sizes and self._sizes[0]:
            return self._tree.head(self._starts[0], self._sizes[0], end)[offset:]
        first, skip = divmod(offset, block_bytes)
        parts = [self._block(index) for index in range(first, (end - 1) // block_bytes + 1)]
        if len(parts) == 1:
            return parts[0][skip : skip + end - offset]
        return b"".join(parts)[skip : skip + end - offset]

    def close(self) -> None:
        """Nothing is held."""

    def _block(self, index: int) -> bytes:
        """Return one block of the content, whole but for the last."""
        block_bytes = self._tree.superblock.block_bytes
        expected = min(block_bytes, self.size - index * block_bytes)
        if index < len(self._sizes):
            if not self._sizes[index]:
                return bytes(expected)
            content = self._tree.block(self._starts[index], self._sizes[index])
        else:
            start = self._layout.fragment_offset
            content = self._tree.fragment(self._layout.fragment)[start : start + expected]
        if len(content) != expected:
            raise ImageError(f"a squashfs block of {len(content)} bytes where the file has {expected}")
        return content
