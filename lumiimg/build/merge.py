"""Merge layers into one squashfs: compressed data blocks are copied as they are, only the tables are rewritten.

mksquashfs would decompress and recompress the whole image after each change: minutes for ROCm's tens of gigabytes.

The kernel accepts a file system only if its tables follow each other without gaps: inodes, directories, fragments,
export, ids, extended attributes (`fs/squashfs/super.c`, squashfs_fill_super; `image/squashfs/format.py` has the rest).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import lumiimg.image.squashfs.format as disk
from lumiimg.core.files import EPOCH
from lumiimg.image import FileKind, FileStat, ImageError, open_squashfs
from lumiimg.image.squashfs.format import Content

_BLOCK_BYTES = 128 << 10
"""Size of a data block, the default of mksquashfs."""
_COMPRESSION_LEVEL = 4
"""The level that mksquashfs is run with (docs/decisions.md#everything-is-gzip)."""
_TYPE_OF_KIND = {kind: number for number, kind in disk.KIND_OF_TYPE.items()}
_FLAGS = 0x40 | 0x80
"""Duplicate files are merged; there is an export table."""
_NO_XATTRS_FLAG = 0x200
_PAD_BYTES = 4096
_CHUNK_BYTES = 8 << 20
_MAX_FILES = 20_000_000
_LEFT_OUT = "dev"
"""Left empty: engines mount their own /dev over it, and leave its content out of a SIF."""
_NO_CONTENT = Content()
_PREFIXES = {prefix: number for number, prefix in disk.XATTR_PREFIXES.items()}


def can_merge(layers: Sequence[Path]) -> bool:
    """Return whether layers are compressed like lumiimg's: by gzip, in blocks of its size. Raises ImageError."""
    with open_squashfs(layers) as overlay:
        return _are_alike(overlay.layers)


def merge_squashfs(layers: Sequence[Path], target: Path, offset: int) -> None:
    """Write layers, the lowest first, as one squashfs into `target` at `offset` bytes.

    Raises ImageError if a layer is damaged or cannot be merged (`can_merge`), OSError if `target` cannot be written.
    """
    with open_squashfs(layers) as overlay:
        if not _are_alike(overlay.layers):
            raise ImageError("layers with different compression cannot be merged")
        with target.open("wb") as file:
            _Writer(overlay, file, offset).write()


def _are_alike(trees: Iterable[Any]) -> bool:
    found = {(tree.superblock.compression, tree.superblock.block_bytes) for tree in trees}
    return found == {(disk.Compressor.GZIP, _BLOCK_BYTES)}


@dataclass(slots=True, eq=False)
class _Inode:
    """A file or directory that will go into the inode table."""

    node: Any
    stat: FileStat
    number: int
    parent: int
    layer: int = 0
    content: Content = _NO_CONTENT
    """Data of a regular file, in `layer`."""
    names: list[tuple[bytes, _Inode]] = field(default_factory=list)
    """Sorted entries of a directory."""
    links: int = 0
    reference: int = -1
    """Position in the inode table; -1 until it is written."""

    @property
    def type(self) -> int:
        is_block = self.stat.device is not None and self.stat.device.is_block
        return disk.BLOCK_DEVICE if is_block else _TYPE_OF_KIND[self.stat.kind]


class _Writer:
    def __init__(self, tree: Any, file: BinaryIO, offset: int) -> None:  # noqa: ANN401 - an overlay of squashfs trees
        self._tree = tree
        self._layers = tree.layers
        self._file = file
        self._offset = offset
        self._inodes = _MetadataWriter()
        self._listings = _MetadataWriter()
        self._xattrs = _XattrWriter()
        self._ids: dict[int, int] = {}
        self._known: dict[Hashable, _Inode] = {}
        """Inodes by their identities, in the order of their numbers."""
        self._starts: dict[tuple[int, int], int] = {}
        """By layer and start of a file's blocks: first their size, then, once copied, their new start."""
        self._fragments: dict[tuple[int, int], int] = {}
        """New numbers of fragments, by layer and old number."""
        self._fragment_records: list[bytes] = []

    def write(self) -> None:
        folders = self._collect()
        at = self._copy_data()
        for folder in reversed(folders):  # the content of a directory before the directory
            self._write_folder(folder)
        inodes, listings = self._inodes.finish(), self._listings.finish()
        inode_table, directory_table = at, at + len(inodes)
        at = directory_table + len(listings)
        fragments, fragment_table = _lookup_table(self._fragment_records, at)
        at += len(fragments)
        references = (disk.POINTER.pack(inode.reference) for inode in self._known.values())
        export, export_table = _lookup_table(references, at)
        at += len(export)
        ids, id_table = _lookup_table(map(disk.ID.pack, self._ids), at)
        at += len(ids)
        xattrs, xattr_table = self._xattrs.finish(at)
        at += len(xattrs)
        self._file.seek(self._offset + inode_table)
        for table in (inodes, listings, fragments, export, ids, xattrs):
            self._file.write(table)
        self._file.write(bytes(-at % _PAD_BYTES))
        superblock = disk.Superblock(
            magic=disk.MAGIC,
            inode_count=len(self._known),
            mtime_s=EPOCH,
            block_bytes=_BLOCK_BYTES,
            fragment_count=len(self._fragment_records),
            compression=disk.Compressor.GZIP,
            block_log=_BLOCK_BYTES.bit_length() - 1,
            flags=_FLAGS | (_NO_XATTRS_FLAG if xattr_table == disk.NO_TABLE else 0),
            id_count=len(self._ids),
            major=disk.VERSION[0],
            minor=disk.VERSION[1],
            root_inode=folders[0].reference,
            size_bytes=at,
            id_table=id_table,
            xattr_table=xattr_table,
            inode_table=inode_table,
            directory_table=directory_table,
            fragment_table=fragment_table,
            export_table=export_table,
        )
        self._file.seek(self._offset)
        self._file.write(disk.SUPERBLOCK.pack(*superblock))

    # -- inodes --

    def _collect(self) -> list[_Inode]:
        """Return all directories, each before its subdirectories; record all files, and where their data is."""
        folders, left_out = [self._inode(self._tree.root, 0)], None
        for folder in folders:  # the list grows meanwhile
            names = () if folder is left_out else self._tree.entries(folder.node)
            for name in sorted((entry.name for entry in names), key=os.fsencode):
                node = self._tree.child(folder.node, name)
                if node is None:
                    continue
                inode = self._inode(node, folder.number)
                folder.names.append((os.fsencode(name), inode))
                if node.kind is FileKind.DIRECTORY:
                    folders.append(inode)
                    left_out = inode if folder is folders[0] and name == _LEFT_OUT else left_out
        return folders

    def _inode(self, node: Any, parent: int) -> _Inode:  # noqa: ANN401
        stat = self._tree.stat(node)
        inode = self._known.get(stat.identity)
        if inode is None:
            inode = self._known[stat.identity] = _Inode(node, stat, len(self._known) + 1, parent)
            if len(self._known) > _MAX_FILES:
                raise ImageError(f"more than {_MAX_FILES} files in one image")
            if stat.kind is FileKind.FILE:
                self._note_content(inode)
        elif stat.kind is FileKind.DIRECTORY:
            raise ImageError("directories of the image contain each other")
        inode.links += 1
        return inode

    def _note_content(self, inode: _Inode) -> None:
        inode.layer, own = self._tree.part(inode.node)
        inode.content = content = self._layers[inode.layer].content(own)
        if size := sum(word & ~disk.BLOCK_STORED for word in content.words):
            key = inode.layer, content.start
            self._starts[key] = max(size, self._starts.get(key, 0))
        if content.fragment != disk.NO_FRAGMENT:
            self._fragments[inode.layer, content.fragment] = -1

    # -- data --

    def _copy_data(self) -> int:
        """Copy the visible blocks, from the lowest layer up, and record where they are; return their end."""
        pieces = [(layer, start, size, -1, 0) for (layer, start), size in self._starts.items()]
        for layer, number in self._fragments:
            start, word = self._layers[layer].fragment_place(number)
            pieces.append((layer, start, word & ~disk.BLOCK_STORED, number, word))
        at = disk.SUPERBLOCK.size
        runs: list[list[int]] = []  # layer, start, size: adjacent pieces are copied at once
        for layer, start, size, number, word in sorted(pieces):
            if not runs or runs[-1][0] != layer or start > runs[-1][1] + runs[-1][2]:
                runs.append([layer, start, 0])
            run = runs[-1]
            here = at - run[2] + start - run[1]
            # equal files share their blocks, and a file's blocks may be a prefix of another's
            more = max(0, start + size - run[1] - run[2])
            run[2] += more
            at += more
            if number < 0:
                self._starts[layer, start] = here
            else:
                self._fragments[layer, number] = len(self._fragment_records)
                self._fragment_records.append(disk.FRAGMENT.pack(here, word, 0))
        self._file.seek(self._offset + disk.SUPERBLOCK.size)
        for layer, start, size in runs:
            for done in range(0, size, _CHUNK_BYTES):
                self._file.write(self._layers[layer].stored(start + done, min(_CHUNK_BYTES, size - done)))
        return at

    # -- tables --

    def _write_folder(self, folder: _Inode) -> None:
        """Write the inodes of the files in a directory, its listing, and its own inode."""
        for _, inode in folder.names:
            if inode.reference < 0:  # else it is a directory, or a file already written under another name
                self._write_file(inode)
        block, offset = self._listings.block, self._listings.offset
        size, index = self._write_listing(folder.names)
        size += disk.DOTS_BYTES
        links = 2 + sum(inode.stat.kind is FileKind.DIRECTORY for _, inode in folder.names)
        parent = folder.parent or len(self._known) + 1
        xattrs = self._xattrs.add(self._tree.xattrs(folder.node))
        if xattrs == disk.NO_XATTRS and not index and size < 1 << 16:
            self._write(folder, 0, disk.DIRECTORY.pack(block, links, size, offset, parent))
        else:
            body = disk.LONG_DIRECTORY.pack(links, size, block, parent, len(index), offset, xattrs)
            self._write(folder, disk.LONG, body + b"".join(index))

    def _write_listing(self, names: Sequence[tuple[bytes, _Inode]]) -> tuple[int, list[bytes]]:
        """Write the entries of a directory; return their size, and an index with a name for each further block."""
        size = at = 0
        index: list[bytes] = []
        block = self._listings.block
        while at < len(names):
            first_name, first = names[at]
            run = list(takewhile(partial(_is_near, first), names[at : at + disk.NAMES_IN_RUN]))
            if self._listings.block != block:
                block = self._listings.block
                index.append(disk.INDEX.pack(size, block, len(first_name) - 1) + first_name)
            data = disk.RUN.pack(len(run) - 1, first.reference >> 16, first.number)
            for name, inode in run:
                place = inode.reference & 0xFFFF, inode.number - first.number
                data += disk.ENTRY.pack(*place, inode.type, len(name) - 1) + name
            self._listings.write(data)
            size += len(data)
            at += len(run)
        return size, index

    def _write_file(self, inode: _Inode) -> None:
        xattrs = self._xattrs.add(self._tree.xattrs(inode.node))
        if inode.stat.kind is FileKind.FILE:
            self._write_regular(inode, xattrs)
            return
        if inode.stat.kind is FileKind.SYMLINK:
            target = os.fsencode(self._tree.link_target(inode.node))
            body = disk.LINK.pack(inode.links, len(target)) + target
        elif inode.stat.device is not None:
            # kernel `include/linux/kdev_t.h`, new_encode_dev
            _, major, minor = inode.stat.device
            body = disk.DEVICE.pack(inode.links, minor & 0xFF | major << 8 | (minor & ~0xFF) << 12)
        else:
            body = disk.LINKS.pack(inode.links)
        if xattrs == disk.NO_XATTRS:
            self._write(inode, 0, body)
        else:
            self._write(inode, disk.LONG, body + disk.XATTR_INDEX.pack(xattrs))

    def _write_regular(self, inode: _Inode, xattrs: int) -> None:
        content, size = inode.content, inode.stat.size_bytes
        start = self._starts[inode.layer, content.start] if any(content.words) else 0
        fragment = self._fragments.get((inode.layer, content.fragment), disk.NO_FRAGMENT)
        tail = fragment, content.fragment_offset
        words = struct.pack(f"<{len(content.words)}I", *content.words)
        holes = sum(min(_BLOCK_BYTES, size - n * _BLOCK_BYTES) for n, word in enumerate(content.words) if not word)
        if inode.links == 1 and xattrs == disk.NO_XATTRS and not holes and max(start, size) < 1 << 32:
            self._write(inode, 0, disk.FILE.pack(start, *tail, size) + words)
        else:
            holes = min(holes, size - 1) if holes else 0  # as in mksquashfs: never the whole file
            body = disk.LONG_FILE.pack(start, size, holes, inode.links, *tail, xattrs)
            self._write(inode, disk.LONG, body + words)

    def _write(self, inode: _Inode, more: int, body: bytes) -> None:
        """Write an inode, whose type is `more` above its short type."""
        stat = inode.stat
        owner = (self._ids.setdefault(one, len(self._ids)) for one in (stat.uid, stat.gid))
        time = min(stat.mtime_s, EPOCH)
        inode.reference = self._inodes.reference
        self._inodes.write(disk.COMMON.pack(inode.type + more, stat.permissions, *owner, time, inode.number) + body)


def _is_near(first: _Inode, name: tuple[bytes, _Inode]) -> bool:
    """Return whether a name can share a run with `first`: inodes in the same block, inode numbers close."""
    inode = name[1]
    return inode.reference >> 16 == first.reference >> 16 and -(1 << 15) <= inode.number - first.number < 1 << 15


class _MetadataWriter:
    """A sequence of metadata blocks that grows at its end."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._open = bytearray()
        self.block = 0
        """Start of the current block, relative to the table."""

    @property
    def offset(self) -> int:
        """Position of the next byte in the current block."""
        return len(self._open)

    @property
    def reference(self) -> int:
        """Position of the next byte, in the form of an inode reference."""
        return self.block << 16 | self.offset

    def write(self, data: bytes) -> None:
        """Add bytes, across block boundaries if necessary."""
        self._open += data
        while len(self._open) >= disk.METADATA_BYTES:
            self._close(bytes(self._open[: disk.METADATA_BYTES]))
            del self._open[: disk.METADATA_BYTES]

    def finish(self) -> bytes:
        if self._open:
            self._close(bytes(self._open))
            self._open.clear()
        return b"".join(self._blocks)

    def _close(self, content: bytes) -> None:
        packed = zlib.compress(content, _COMPRESSION_LEVEL)
        stored = disk.METADATA_HEADER.pack(len(packed)) + packed
        if len(packed) >= len(content):
            stored = disk.METADATA_HEADER.pack(len(content) | disk.METADATA_STORED) + content
        self._blocks.append(stored)
        self.block += len(stored)


def _lookup_table(records: Iterable[bytes], start: int) -> tuple[bytes, int]:
    """Return a table of equal-sized records, looked up by number and written at `start`, and where its index is."""
    body = _MetadataWriter()
    places: list[int] = []
    for record in records:
        if body.offset == 0:
            places.append(start + body.block)
        body.write(record)
    blocks = body.finish()
    return blocks + b"".join(map(disk.POINTER.pack, places)), start + len(blocks)


class _XattrWriter:
    """Sets of extended attributes: inodes with equal attributes share a set."""

    def __init__(self) -> None:
        self._body = _MetadataWriter()
        self._sets: list[bytes] = []
        self._known: dict[tuple[tuple[bytes, bytes], ...], int] = {}

    def add(self, attributes: Mapping[bytes, bytes]) -> int:
        """Return the number of the set with these attributes."""
        if not attributes:
            return disk.NO_XATTRS
        key = tuple(sorted(attributes.items()))
        if key not in self._known:
            self._known[key] = len(self._sets)
            reference, size = self._body.reference, 0
            for name, value in key:
                prefix, dot, bare = name.partition(b".")
                entry = disk.XATTR_NAME.pack(_PREFIXES[prefix + dot], len(bare)) + bare
                entry += disk.XATTR_VALUE.pack(len(value)) + value
                self._body.write(entry)
                size += len(entry)
            self._sets.append(disk.XATTR_SET.pack(reference, len(key), size))
        return self._known[key]

    def finish(self, start: int) -> tuple[bytes, int]:
        """Return the table, to be written at `start`, and where its header is; an empty table if there is no set."""
        if not self._sets:
            return b"", disk.NO_TABLE
        body = self._body.finish()
        table, index = _lookup_table(self._sets, start + len(body))
        blocks = index - start - len(body)
        header = disk.XATTR_TABLE.pack(start, len(self._sets), 0)
        return body + table[:blocks] + header + table[blocks:], index
