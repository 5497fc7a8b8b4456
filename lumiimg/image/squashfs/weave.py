"""Layers woven into one squashfs: data blocks are copied as they are compressed, only the tables are written again.

mksquashfs would unpack and compress the whole image for each change of a layer: minutes for ROCm's tens of gigabytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lumiimg.core.files import EPOCH
from lumiimg.image import FileKind, ImageError, open_stack, stacked
from lumiimg.image.squashfs import inodes
from lumiimg.image.squashfs.inodes import NO_FRAGMENT, NO_XATTRS, Inode
from lumiimg.image.squashfs.superblock import MAGIC, NO_TABLE, SUPERBLOCK, VERSION, Compressor, Superblock
from lumiimg.image.squashfs.table_writer import MetadataWriter, XattrWriter, lookup_table
from lumiimg.image.squashfs.tree import FRAGMENT, STORED
from lumiimg.image.squashfs.xattrs import POINTER

if TYPE_CHECKING:
    from lumiimg.image.overlay import OverlayNode, OverlayTree

_TYPES = {FileKind.DIRECTORY: 1, FileKind.FILE: 2, FileKind.SYMLINK: 3, FileKind.FIFO: 6, FileKind.SOCKET: 7}
_BLOCK_DEVICE, _CHAR_DEVICE = 4, 5
_WORD = struct.Struct("<I")
_FLAGS = 0x40 | 0x80
"""Equal files are one; there is an export table."""
_NO_XATTRS_FLAG = 0x200
BLOCK_BYTES = 128 << 10
"""Of data, as mksquashfs has it where nobody asks for another size."""
_PAD_BYTES = 4096
_CHUNK_BYTES = 8 << 20
_MAX_NAMES = 20_000_000
_MAX_DEPTH = 1000
_NOT_KEPT = "dev"
"""Engines mount their own /dev over it, and leave what an image has there out of a SIF."""


def can_weave(layers: Sequence[Path]) -> bool:
    """Whether layers are compressed as lumiimg compresses, by gzip in blocks of one size. Raises ImageError."""
    with open_stack(layers) as image:
        return _are_alike(stacked(image))


def weave(layers: Sequence[Path], target: Path, offset: int) -> None:
    """Write the stack of layers as one squashfs into `target`, `offset` bytes behind its beginning.

    Raises ImageError for a layer that is damaged or `can_weave` says no of, OSError if it cannot be written.
    """
    with open_stack(layers) as image:
        tree = stacked(image)
        if not _are_alike(tree):
            raise ImageError("layers that are compressed in different ways cannot be woven")
        with target.open("wb") as file:
            write_tree(tree, file, offset)


def write_tree(tree: OverlayTree, file: BinaryIO, offset: int) -> None:
    """Write layers that are compressed alike as one squashfs into a file, `offset` bytes behind its beginning."""
    _Weaver(tree, file, offset).write()


@dataclass(slots=True)
class _File:
    """A node on its way into the inode table."""

    number: int
    links: int = 0
    reference: int = -1
    words: tuple[int, ...] = ()
    """Of its blocks: stored size, and whether it is compressed."""


@dataclass(slots=True)
class _Directory:
    """A directory whose children are being written."""

    node: OverlayNode
    number: int
    parent: int
    names: list[tuple[bytes, OverlayNode]]
    done: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    """Name, inode reference, inode number, type."""
    folders: int = 0


class _Weaver:
    def __init__(self, tree: OverlayTree, file: BinaryIO, offset: int) -> None:
        self._tree = tree
        self._trees: tuple[Any, ...] = tree.layers
        self._file = file
        self._offset = offset
        self._inodes = MetadataWriter()
        self._directories = MetadataWriter()
        self._xattrs = XattrWriter()
        self._ids: dict[int, int] = {}
        self._owners: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._files: dict[tuple[int, int], _File] = {}
        self._references: dict[int, int] = {}
        self._starts: dict[tuple[int, int], int] = {}
        self._fragments: dict[tuple[int, int], int] = {}
        self._fragment_records: list[bytes] = []
        self._count = 0
        self._dev: OverlayNode | None = None

    def write(self) -> None:
        names = self._names_and_data()
        at = self._copy_data()
        root = self._write_tree(names)
        inode_blocks, directories = self._inodes.finish(), self._directories.finish()
        inode_table = at
        directory_table = inode_table + len(inode_blocks)
        at = directory_table + len(directories)
        fragments, fragment_table = lookup_table(self._fragment_records, at)
        at += len(fragments)
        exported = (POINTER.pack(self._references[number]) for number in range(1, self._count + 1))
        export, export_table = lookup_table(exported, at)
        at += len(export)
        ids, id_table = lookup_table(map(_WORD.pack, self._ids), at)
        at += len(ids)
        xattrs, xattr_table = self._xattrs.finish(at)
        at += len(xattrs)
        self._file.seek(self._offset + inode_table)
        for table in (inode_blocks, directories, fragments, export, ids, xattrs):
            self._file.write(table)
        self._file.write(bytes(-at % _PAD_BYTES))
        self._file.seek(self._offset)
        superblock = Superblock(
            magic=MAGIC,
            inode_count=self._count,
            mtime_s=EPOCH,
            block_bytes=BLOCK_BYTES,
            fragment_count=len(self._fragment_records),
            compression=Compressor.GZIP,
            block_log=BLOCK_BYTES.bit_length() - 1,
            flags=_FLAGS | (_NO_XATTRS_FLAG if xattr_table is None else 0),
            id_count=len(self._ids),
            major=VERSION[0],
            minor=VERSION[1],
            root_inode=root,
            size_bytes=at,
            id_table=id_table,
            xattr_table=NO_TABLE if xattr_table is None else xattr_table,
            inode_table=inode_table,
            directory_table=directory_table,
            fragment_table=fragment_table,
            export_table=export_table,
        )
        self._file.write(SUPERBLOCK.pack(*superblock))

    # what there is

    def _names_and_data(self) -> dict[OverlayNode, list[tuple[bytes, OverlayNode]]]:
        """Return what each directory holds, in the order of names; note the files, and where their data lies."""
        found: dict[OverlayNode, list[tuple[bytes, OverlayNode]]] = {}
        entered: set[Hashable] = set()
        pending: list[tuple[OverlayNode, int]] = [(self._tree.root, 0)]
        while pending:
            directory, depth = pending.pop()
            identity = self._tree.directory_identity(directory)
            if identity in entered or depth > _MAX_DEPTH:
                raise ImageError("directories of the image contain each other")
            entered.add(identity)
            names = found[directory] = []
            is_dev = depth == 1 and directory is self._dev
            for entry in [] if is_dev else self._tree.entries(directory):
                node = self._tree.child(directory, entry.name)
                if node is None:
                    continue
                names.append((os.fsencode(entry.name), node))
                if depth == 0 and entry.name == _NOT_KEPT:
                    self._dev = node
                if node.kind is FileKind.DIRECTORY:
                    pending.append((node, depth + 1))
                else:
                    self._note(node)
            names.sort(key=lambda pair: pair[0])
            if len(self._files) > _MAX_NAMES:
                raise ImageError(f"more than {_MAX_NAMES} files in one image")
        return found

    def _note(self, node: OverlayNode) -> None:
        layer, inode = _source(node)
        file = self._files.setdefault((layer, inode.reference), _File(0))
        file.links += 1
        if inode.file is None or file.links > 1:
            return
        file.words = self._trees[layer].block_sizes(inode.file)
        size = sum(word & ~STORED for word in file.words)
        if size:
            self._starts[layer, inode.file.start] = max(size, self._starts.get((layer, inode.file.start), 0))
        if inode.file.fragment != NO_FRAGMENT:
            self._fragments[layer, inode.file.fragment] = -1

    # data

    def _copy_data(self) -> int:
        """Copy the blocks that are seen, from the lowest layer up, and note where they went; return the end of them."""
        at = SUPERBLOCK.size
        pieces: list[tuple[int, int, int, int | None]] = [
            (layer, start, size, None) for (layer, start), size in self._starts.items()
        ]
        words: dict[int, int] = {}
        for layer, index in self._fragments:
            place, word = self._trees[layer].fragment_place(index)
            pieces.append((layer, place, word & ~STORED, index))
            words[len(pieces) - 1] = word
        order = sorted(range(len(pieces)), key=lambda number: pieces[number][:3])
        runs: list[list[int]] = []  # layer, start, size: what lies side by side is copied at once
        for number in order:
            layer, start, size, fragment = pieces[number]
            if not runs or runs[-1][0] != layer or not runs[-1][1] <= start <= runs[-1][1] + runs[-1][2]:
                runs.append([layer, start, 0])
            run = runs[-1]
            here = at - run[2] + start - run[1]
            # equal files share their blocks, and one may be the beginning of another
            more = max(0, start + size - run[1] - run[2])
            run[2] += more
            at += more
            if fragment is None:
                self._starts[layer, start] = here
            else:
                self._fragments[layer, fragment] = len(self._fragment_records)
                self._fragment_records.append(FRAGMENT.pack(here, words[number], 0))
        self._file.seek(self._offset + SUPERBLOCK.size)
        for layer, start, size in runs:
            self._copy(layer, start, size)
        return at

    def _copy(self, layer: int, start: int, size: int) -> None:
        for done in range(0, size, _CHUNK_BYTES):
            data = self._trees[layer].stored(start + done, min(_CHUNK_BYTES, size - done))
            self._file.write(data)

    # tables

    def _write_tree(self, found: dict[OverlayNode, list[tuple[bytes, OverlayNode]]]) -> int:
        """Write all inodes, what a directory holds before it; return the reference of the root's."""
        root = _Directory(self._tree.root, self._next(), 0, list(reversed(found[self._tree.root])))
        open_directories = [root]
        while True:
            directory = open_directories[-1]
            if directory.names:
                name, node = directory.names.pop()
                if node.kind is FileKind.DIRECTORY:
                    inner = _Directory(node, self._next(), directory.number, list(reversed(found[node])))
                    directory.done.append((name, -1, inner.number, _TYPES[FileKind.DIRECTORY]))
                    directory.folders += 1
                    open_directories.append(inner)
                else:
                    file = self._write_file(node)
                    directory.done.append((name, file.reference, file.number, _type(_source(node)[1])))
                continue
            reference = self._write_directory(directory)
            self._references[directory.number] = reference
            open_directories.pop()
            if not open_directories:
                return reference
            above = open_directories[-1]
            name, _, number, kind = above.done[-1]
            above.done[-1] = (name, reference, number, kind)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _write_file(self, node: OverlayNode) -> _File:
        layer, inode = _source(node)
        file = self._files[layer, inode.reference]
        if file.reference >= 0:
            return file
        file.number = self._next()
        xattrs = self._xattrs_of(layer, inode)
        if inode.file is not None:
            type_number, body = self._regular(layer, inode, file, xattrs)
        else:
            type_number, body = _type(inode), _special(inode, file.links)
            if xattrs != NO_XATTRS:
                type_number, body = type_number + inodes.LONG, body + _WORD.pack(xattrs)
        file.reference = self._inodes.reference
        self._inodes.write(self._common(type_number, layer, inode, file.number) + body)
        self._references[file.number] = file.reference
        return file

    def _regular(self, layer: int, inode: Inode, file: _File, xattrs: int) -> tuple[int, bytes]:
        layout = inode.file
        assert layout is not None  # noqa: S101 - the caller looked
        words = file.words
        stored = any(words)
        start = self._starts[layer, layout.start] if stored else 0
        fragment, at = NO_FRAGMENT, 0
        if layout.fragment != NO_FRAGMENT:
            fragment, at = self._fragments[layer, layout.fragment], layout.fragment_offset
        holes = sum(min(BLOCK_BYTES, layout.size_bytes - n * BLOCK_BYTES) for n, word in enumerate(words) if not word)
        sizes = struct.pack(f"<{len(words)}I", *words)
        if file.links == 1 and xattrs == NO_XATTRS and not holes and max(start, layout.size_bytes) < 1 << 32:
            return _TYPES[FileKind.FILE], inodes.FILE.pack(start, fragment, at, layout.size_bytes) + sizes
        # as mksquashfs has it: never all of the file
        holes = min(holes, layout.size_bytes - 1) if holes else 0
        body = inodes.LONG_FILE.pack(start, layout.size_bytes, holes, file.links, fragment, at, xattrs)
        return _TYPES[FileKind.FILE] + inodes.LONG, body + sizes

    def _write_directory(self, directory: _Directory) -> int:
        layer, inode = _source(directory.node)
        block, offset = self._directories.block, self._directories.offset
        size, index = self._write_listing(directory.done)
        xattrs = self._xattrs_of(layer, inode)
        links = directory.folders + 2
        reference = self._inodes.reference
        parent = directory.parent or self._count + 1
        if xattrs == NO_XATTRS and not index and size + inodes.DOTS_BYTES < 1 << 16:
            common = self._common(_TYPES[FileKind.DIRECTORY], layer, inode, directory.number)
            self._inodes.write(common + inodes.DIRECTORY.pack(block, links, size + inodes.DOTS_BYTES, offset, parent))
            return reference
        common = self._common(_TYPES[FileKind.DIRECTORY] + inodes.LONG, layer, inode, directory.number)
        body = inodes.LONG_DIRECTORY.pack(links, size + inodes.DOTS_BYTES, block, parent, len(index), offset, xattrs)
        self._inodes.write(common + body + b"".join(index))
        return reference

    def _write_listing(self, names: Sequence[tuple[bytes, int, int, int]]) -> tuple[int, list[bytes]]:
        """Write what a directory holds; return its bytes, and an index: a name for each block that it goes on in."""
        size = 0
        index: list[bytes] = []
        block = self._directories.block
        at = 0
        while at < len(names):
            first_name, first, number, _ = names[at]
            fits = partial(_is_near, block=first >> 16, number=number)
            run = list(takewhile(fits, names[at : at + inodes.MAX_NAMES_IN_RUN]))
            if self._directories.block != block:
                block = self._directories.block
                index.append(inodes.INDEX.pack(size, block, len(first_name) - 1) + first_name)
            data = inodes.RUN.pack(len(run) - 1, first >> 16, number) + b"".join(
                inodes.ENTRY.pack(reference & 0xFFFF, other - number, kind, len(name) - 1) + name
                for name, reference, other, kind in run
            )
            self._directories.write(data)
            size += len(data)
            at += len(run)
        return size, index

    def _common(self, type_number: int, layer: int, inode: Inode, number: int) -> bytes:
        user, group = self._owner(layer, inode)
        return inodes.COMMON.pack(type_number, inode.permissions, user, group, min(inode.mtime_s, EPOCH), number)

    def _owner(self, layer: int, inode: Inode) -> tuple[int, int]:
        """Return the places of user and group in the id table."""
        key = (layer, inode.uid_index, inode.gid_index)
        if key not in self._owners:
            owner = self._trees[layer].stat(inode)
            user, group = (self._ids.setdefault(one, len(self._ids)) for one in (owner.uid, owner.gid))
            self._owners[key] = (user, group)
        return self._owners[key]

    def _xattrs_of(self, layer: int, inode: Inode) -> int:
        attributes = self._trees[layer].xattrs(inode)
        return self._xattrs.add(attributes) if attributes else NO_XATTRS


def _are_alike(tree: OverlayTree) -> bool:
    return {getattr(layer, "packing", None) for layer in tree.layers} == {(Compressor.GZIP, BLOCK_BYTES)}


def _source(node: OverlayNode) -> tuple[int, Any]:
    """Return whose inode it is: the number of the layer, and the inode."""
    part = node.parts[0]
    return part.layer, part.node


def _type(inode: Inode) -> int:
    if inode.kind is FileKind.DEVICE:
        return _BLOCK_DEVICE if inode.device and inode.device.is_block else _CHAR_DEVICE
    return _TYPES[inode.kind]


def _special(inode: Inode, links: int) -> bytes:
    if inode.kind is FileKind.SYMLINK:
        target = os.fsencode(inode.target)
        return inodes.LINK.pack(links, len(target)) + target
    if inode.device is not None:
        # kernel `include/linux/kdev_t.h`, new_encode_dev
        stored = inode.device.minor & 0xFF | inode.device.major << 8 | (inode.device.minor & ~0xFF) << 12
        return inodes.DEVICE.pack(links, stored)
    return _WORD.pack(links)


def _is_near(name: tuple[bytes, int, int, int], block: int, number: int) -> bool:
    """Whether one run of names can hold a name with others: their inodes are in one block, their numbers near."""
    _, reference, other, _ = name
    return reference >> 16 == block and -(1 << 15) <= other - number < 1 << 15
