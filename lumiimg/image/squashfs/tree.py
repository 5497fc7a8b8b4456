"""A squashfs file system as a tree, read on demand; every size and count that it contains is limited."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import lumiimg.image.squashfs.format as disk
from lumiimg.image.overlay import is_opaque
from lumiimg.image.squashfs.blocks import Blocks, Cache, Cursor
from lumiimg.image.squashfs.format import Content, Superblock
from lumiimg.image.tree import Device, DirectoryEntry, FileKind, FileStat, ImageError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from lumiimg.image.host_files import HostFile

_MIN_BLOCK_LOG, _MAX_BLOCK_LOG = 12, 20
_CACHED_NODES = 200_000
"""Maximum number of inodes, and of directory entries, in memory."""
_USUAL_BYTES = 256
"""Typical size of an inode in memory; a symlink target may need much more."""
_HEAD_BYTES = 4096
"""Length of the start of a file, which shows what it is; most files are read no further."""
# a listing of 64 MiB has some two million names; a file of 2 TiB in blocks of 128 KiB has a list of sizes of 64 MiB
_MAX_LISTING_BYTES = 64 << 20
_MAX_BLOCKS = 16 << 20
_MAX_TARGET_BYTES = 65535
# the kernel's XATTR_SIZE_MAX for a value, and XATTR_LIST_MAX for all names of an inode, each of at least two bytes
_MAX_XATTR_BYTES = 65536
_MAX_XATTRS = 65536 // 2
_MAX_SETS = 10_000
"""Maximum number of extended attribute sets that are searched for an opaque directory."""
_MAX_USUAL_XATTRS, _MAX_READ_XATTRS = 100, 1 << 20
"""Number of attributes that no real inode has, and the total read from such sets: a few seconds."""


class _Name(NamedTuple):
    """A directory entry: the reference of its inode, and the file type in the listing."""

    reference: int
    kind: FileKind


@dataclass(slots=True, eq=False)
class Inode:
    """One inode of any type."""

    reference: int
    kind: FileKind
    permissions: int
    uid_index: int
    gid_index: int
    mtime_s: int
    links: int = 1
    size_bytes: int = 0
    listing: tuple[int, int] = (0, 0)
    """For a directory, the metadata position of its listing in the directory table, and the offset."""
    file: Content | None = None
    """For a regular file, the location of its content, without the size words of its blocks."""
    words_at: tuple[int, int] = (0, 0)
    """For a regular file, metadata position and offset of the size words."""
    target: str = ""
    device: Device | None = None
    xattrs: int = disk.NO_XATTRS
    """Number of its set of extended attributes."""


class SquashfsTree:
    """One file system; closing its source is up to the caller."""

    def __init__(self, source: HostFile) -> None:
        """Read the superblock and the root. Raises ImageError if they are damaged or in an unsupported format."""
        self._source = source
        self.superblock = _read_superblock(source)
        self._blocks = Blocks(source, self.superblock)
        self._inodes: Cache[int, Inode] = Cache(_CACHED_NODES)
        self._listings: Cache[int, dict[str, _Name]] = Cache(_CACHED_NODES)
        self._owners: dict[int, int] = {}
        """User and group ids already looked up, by their index."""
        self._read_xattrs = 0
        self.root = self._inode(self.superblock.root_inode)
        if self.root.kind is not FileKind.DIRECTORY:
            raise ImageError("the root of the squashfs file system is not a directory", where=source.name)

    def child(self, directory: Inode, name: str) -> Inode | None:
        found = self._listing(directory).get(name)
        if found is None:
            return None
        inode = self._inode(found.reference)
        if inode.kind is not found.kind:
            raise ImageError("a squashfs directory and an inode disagree on the file type", where=self._source.name)
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
            identity=(self._source.identity, node.reference),
            device=node.device,
        )

    def xattrs(self, node: Inode) -> dict[bytes, bytes]:
        has_some = node.xattrs != disk.NO_XATTRS and self.superblock.xattr_table != disk.NO_TABLE
        return self._xattr_set(node.xattrs) if has_some else {}

    def directory_identity(self, directory: Inode) -> Hashable:
        return self._source.identity, directory.reference

    def open(self, node: Inode) -> SquashfsFile:
        return SquashfsFile(self, self._blocks, node, (self._source.identity, node.reference))

    def has_opaque(self) -> bool:
        """Return whether any directory may be opaque; also True if there are too many attribute sets to check."""
        if self.superblock.xattr_table == disk.NO_TABLE:
            return False
        _, count = self._xattr_table
        return count > _MAX_SETS or any(is_opaque(self._xattr_set(number)) for number in range(count))

    def stored(self, position: int, size: int) -> bytes:
        """Return bytes as they are stored; the caller must limit `size`."""
        return self._source.read_exactly(position, size)

    def content(self, node: Inode, max_blocks: int | None = None) -> Content:
        """Return the location of a regular file's content; a tail in a fragment does not count as a block.

        `max_blocks` limits the blocks listed: a list of 64 MiB may take only a few kilobytes in the image.
        """
        if node.file is None:
            raise ImageError(f"a {node.kind} cannot be opened", where=self._source.name)
        count, rest = divmod(node.size_bytes, self.superblock.block_bytes)
        count += bool(rest and node.file.fragment == disk.NO_FRAGMENT)
        if count > _MAX_BLOCKS:
            raise ImageError(f"a file of {node.size_bytes} bytes in the squashfs file system")
        count = count if max_blocks is None else min(count, max_blocks)
        words = Cursor(self._blocks, *node.words_at).read(4 * count)
        return node.file._replace(words=struct.unpack(f"<{count}I", words))

    def fragment_place(self, index: int) -> tuple[int, int]:
        """Return the position and size word of a fragment, a block with the tails of several files."""
        if index >= self.superblock.fragment_count:
            raise ImageError(f"fragment {index} of {self.superblock.fragment_count} in the squashfs file system")
        position, size_word, _ = self._blocks.entry(self.superblock.fragment_table, index, disk.FRAGMENT)
        return position, size_word

    def _inode(self, reference: int) -> Inode:
        known = self._inodes.get(reference)
        if known is None:
            inode = _read_inode(self._blocks.cursor(self.superblock.inode_table, reference), reference)
            known = self._inodes.keep(reference, inode, weight=1 + len(inode.target) // _USUAL_BYTES)
        return known

    def _listing(self, directory: Inode) -> dict[str, _Name]:
        known = self._listings.get(directory.reference)
        if known is None:
            names = self._read_listing(directory)
            known = self._listings.keep(directory.reference, names, weight=len(names) + 1)
        return known

    def _read_listing(self, directory: Inode) -> dict[str, _Name]:
        size = directory.size_bytes - disk.DOTS_BYTES
        if size <= 0:
            return {}
        if size > _MAX_LISTING_BYTES:
            raise ImageError(f"a directory listing of {size} bytes")
        block, offset = directory.listing
        listing = Cursor(self._blocks, self.superblock.directory_table + block, offset).read(size)
        try:
            return _names(listing)
        except struct.error as error:
            raise ImageError("a squashfs directory that is cut off") from error

    def _id(self, index: int) -> int:
        if index not in self._owners:
            if index >= self.superblock.id_count:
                raise ImageError(f"owner number {index} of {self.superblock.id_count} in the squashfs file system")
            self._owners[index] = self._blocks.entry(self.superblock.id_table, index, disk.ID)[0]
        return self._owners[index]

    @cached_property
    def _xattr_table(self) -> tuple[int, int]:
        """Start of the extended attributes, and the number of sets."""
        header = self._source.read_exactly(self.superblock.xattr_table, disk.XATTR_TABLE.size)
        start, count, _ = disk.XATTR_TABLE.unpack(header)
        return start, count

    def _xattr_set(self, number: int) -> dict[bytes, bytes]:
        start, count = self._xattr_table
        if number >= count:
            raise ImageError(f"set {number} of {count} sets of attributes", where=self._source.name)
        pointers = self.superblock.xattr_table + disk.XATTR_TABLE.size
        reference, count, _ = self._blocks.entry(pointers, number, disk.XATTR_SET)
        self._read_xattrs += count if count > _MAX_USUAL_XATTRS else 0
        if count > _MAX_XATTRS or self._read_xattrs > _MAX_READ_XATTRS:
            raise ImageError(f"an inode with {count} extended attributes", where=self._source.name)
        cursor = self._blocks.cursor(start, reference)
        found: dict[bytes, bytes] = {}
        for _ in range(count):
            kind, size = cursor.unpack(disk.XATTR_NAME)
            name, value = cursor.read(size), _xattr_value(cursor)
            if kind & disk.XATTR_ELSEWHERE:
                (reference,) = disk.POINTER.unpack(value.ljust(disk.POINTER.size, b"\0")[: disk.POINTER.size])
                value = _xattr_value(self._blocks.cursor(start, reference))
            if (prefix := disk.XATTR_PREFIXES.get(kind & 0xFF)) is not None:  # the kernel does not show others, either
                found[prefix + name] = value
        return found


class SquashfsFile:
    """A regular file of a squashfs file system."""

    def __init__(self, tree: SquashfsTree, blocks: Blocks, node: Inode, identity: Hashable) -> None:
        self.size = node.size_bytes
        self.identity = identity
        self._tree = tree
        self._blocks = blocks
        self._node = node
        self._block_bytes = tree.superblock.block_bytes

    @cached_property
    def _content(self) -> Content:
        return self._tree.content(self._node)

    @cached_property
    def _first(self) -> Content:
        return self._tree.content(self._node, max_blocks=1)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        sizes = (word & ~disk.BLOCK_STORED for word in self._content.words)
        return tuple(itertools.accumulate(sizes, initial=self._content.start))

    def read_at(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        if end <= _HEAD_BYTES and (words := self._first.words) and words[0]:
            return self._blocks.beginning(self._first.start, words[0], end)[offset:]
        first, skip = divmod(offset, self._block_bytes)
        parts = [self._block(index) for index in range(first, (end - 1) // self._block_bytes + 1)]
        if len(parts) == 1:
            return parts[0][skip : skip + end - offset]
        return b"".join(parts)[skip : skip + end - offset]

    def close(self) -> None:
        """Do nothing: the file has no resources of its own."""

    def _block(self, index: int) -> bytes:
        """Return one block of the content; only the last may be shorter."""
        expected = min(self._block_bytes, self.size - index * self._block_bytes)
        content = self._content if index else self._first
        words = content.words
        if index < len(words):
            if not words[index]:
                return bytes(expected)
            data = self._blocks.data(self._starts[index] if index else content.start, words[index])
        else:
            start = content.fragment_offset
            data = self._blocks.data(*self._tree.fragment_place(content.fragment))[start : start + expected]
        if len(data) != expected:
            raise ImageError(f"a squashfs block of {len(data)} bytes, {expected} expected")
        return data


def _read_superblock(source: HostFile) -> Superblock:
    """Return the superblock after checking that it is valid and fits the size of the source."""
    where = source.name
    if source.size < disk.SUPERBLOCK.size:
        raise ImageError(f"a squashfs file system of {source.size} bytes is cut off", where=where)
    found = Superblock._make(disk.SUPERBLOCK.unpack(source.read_exactly(0, disk.SUPERBLOCK.size)))
    used = found.size_bytes
    if found.magic != disk.MAGIC:
        raise ImageError("not a squashfs file system", where=where)
    if (found.major, found.minor) != disk.VERSION:
        raise ImageError(f"squashfs version {found.major}.{found.minor}; only 4.0 is supported", where=where)
    if not _MIN_BLOCK_LOG <= found.block_log <= _MAX_BLOCK_LOG or found.block_bytes != 1 << found.block_log:
        raise ImageError(f"squashfs block size {found.block_bytes} (2^{found.block_log}) is not valid", where=where)
    if used > source.size:
        what = f"cut off: the file system has {used} bytes, the file only {source.size} of them"
        raise ImageError(what, where=where, hint="download or copy it again")
    if found.compression not in list(disk.Compressor):
        raise ImageError(f"unknown squashfs compression {found.compression}", where=where)
    starts_inside = disk.SUPERBLOCK.size <= found.inode_table and disk.SUPERBLOCK.size <= found.id_table < used
    if not starts_inside or not found.inode_table < found.directory_table <= used:
        raise ImageError("the tables of the squashfs file system lie outside of it", where=where)
    return found


def _read_inode(cursor: Cursor, reference: int) -> Inode:
    number, mode, uid, gid, mtime, _ = cursor.unpack(disk.COMMON)
    is_long = number > disk.LONG
    short = number - disk.LONG if is_long else number
    kind = disk.KIND_OF_TYPE.get(short)
    if kind is None:
        raise ImageError(f"unknown squashfs inode type {number}")
    inode = Inode(reference, kind, mode & 0o7777, uid, gid, mtime)
    match kind:
        case FileKind.DIRECTORY if is_long:
            inode.links, inode.size_bytes, block, _, _, offset, inode.xattrs = cursor.unpack(disk.LONG_DIRECTORY)
            inode.listing = block, offset
        case FileKind.DIRECTORY:
            block, inode.links, inode.size_bytes, offset, _ = cursor.unpack(disk.DIRECTORY)
            inode.listing = block, offset
        case FileKind.FILE:
            if is_long:
                start, size, _, inode.links, fragment, offset, inode.xattrs = cursor.unpack(disk.LONG_FILE)
            else:
                start, fragment, offset, size = cursor.unpack(disk.FILE)
            inode.size_bytes, inode.words_at = size, cursor.place
            inode.file = Content(start, (), fragment, offset)
        case FileKind.SYMLINK:
            inode.links, size = cursor.unpack(disk.LINK)
            if size > _MAX_TARGET_BYTES:
                raise ImageError(f"a symlink target of {size} bytes")
            inode.size_bytes = size
            inode.target = cursor.read(size).decode("utf-8", "surrogateescape")
        case FileKind.DEVICE:
            inode.links, packed = cursor.unpack(disk.DEVICE)
            # kernel `include/linux/kdev_t.h`, new_decode_dev
            major, minor = packed >> 8 & 0xFFF, packed & 0xFF | packed >> 12 & 0xFFF00
            inode.device = Device(short == disk.BLOCK_DEVICE, major, minor)
        case _:
            (inode.links,) = cursor.unpack(disk.LINKS)
    if is_long and kind not in (FileKind.DIRECTORY, FileKind.FILE):
        (inode.xattrs,) = cursor.unpack(disk.XATTR_INDEX)
    return inode


def _names(listing: bytes) -> dict[str, _Name]:
    names: dict[str, _Name] = {}
    at = 0
    while at < len(listing):
        count, inode_block, _ = disk.RUN.unpack_from(listing, at)
        if count >= disk.NAMES_IN_RUN:
            raise ImageError(f"a run of {count + 1} names in a squashfs directory")
        at += disk.RUN.size
        for _ in range(count + 1):
            inode_offset, _, kind_number, name_size = disk.ENTRY.unpack_from(listing, at)
            at += disk.ENTRY.size + name_size + 1
            name = listing[at - name_size - 1 : at]
            kind = disk.KIND_OF_TYPE.get(kind_number)
            if kind is None or at > len(listing) or b"/" in name or b"\0" in name or name in (b".", b".."):
                raise ImageError("a damaged squashfs directory")
            names[name.decode("utf-8", "surrogateescape")] = _Name(inode_block << 16 | inode_offset, kind)
    return names


def _xattr_value(cursor: Cursor) -> bytes:
    (size,) = cursor.unpack(disk.XATTR_VALUE)
    if size > _MAX_XATTR_BYTES:
        raise ImageError(f"an extended attribute of {size} bytes")
    return cursor.read(size)
