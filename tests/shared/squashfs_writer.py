"""A folder packed as squashfs 4.0, in place of mksquashfs; kernel `fs/squashfs/squashfs_fs.h`.

Options are those of mksquashfs that tests use. That it is as mksquashfs has it: tests/engine/test_squashfs.py.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lumiimg.files import EPOCH
from lumiimg.image.squashfs import inodes
from lumiimg.image.squashfs.superblock import MAGIC, NO_TABLE, SUPERBLOCK, VERSION, Compressor, Superblock
from lumiimg.image.squashfs.table_writer import MetadataWriter, XattrWriter, lookup_table

_STORED = 1 << 24
_TYPES = {stat.S_IFDIR: 1, stat.S_IFREG: 2, stat.S_IFLNK: 3, stat.S_IFBLK: 4, stat.S_IFCHR: 5, stat.S_IFIFO: 6}
_TYPES[stat.S_IFSOCK] = 7


@dataclass
class _Node:
    """One inode."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    device: int = 0
    content: Path | None = None
    target: bytes = b""
    children: dict[bytes, _Node] = field(default_factory=dict)
    attributes: dict[bytes, bytes] = field(default_factory=dict)
    links: int = 0
    number: int = 0
    reference: int = -1

    @property
    def type(self) -> int:
        return _TYPES[stat.S_IFMT(self.mode)]


def pack(folder: Path, target: Path, options: Sequence[str] = ()) -> None:
    """Write the file system; bytes before `-offset` stay as they are."""
    values = {
        "-comp": "gzip",
        "-Xcompression-level": "9",
        "-b": "128K",
        "-offset": "0",
        "-all-time": "",
        "-root-time": "",
    }
    flags: set[str] = set()
    pseudo: list[str] = []
    rest = iter(options)
    for word in rest:
        if word == "-p":
            pseudo.append(next(rest))
        elif word in values:
            values[word] = next(rest)
        else:
            flags.add(word)
    known = {"-all-root", "-no-xattrs", "-noappend", "-quiet", "-no-progress", "-no-exports", "-nopad"}
    if unknown := flags - known:
        raise ValueError(unknown)
    links: dict[tuple[int, int], _Node] = {}
    root = _read(folder, links, with_attributes="-no-xattrs" not in flags)
    for line in pseudo:
        _add(root, line)
    every = [root]
    for node in every:
        every += node.children.values()
    for node in every:
        if "-all-root" in flags:
            node.uid = node.gid = 0
        node.mtime = int(values["-all-time"] or min(max(node.mtime, 0), EPOCH))
    root.mtime = int(values["-root-time"] or root.mtime)
    size = int(values["-b"].rstrip("KM")) << {"K": 10, "M": 20}.get(values["-b"][-1], 0)
    _Writer(root, int(values["-Xcompression-level"]), size).write(target, int(values["-offset"]))


def _read(path: Path, links: dict[tuple[int, int], _Node], *, with_attributes: bool) -> _Node:
    status = path.lstat()
    key = (status.st_dev, status.st_ino)
    if not stat.S_ISDIR(status.st_mode) and key in links:
        return links[key]
    node = links[key] = _Node(status.st_mode, status.st_uid, status.st_gid, int(status.st_mtime), status.st_rdev)
    if stat.S_ISLNK(status.st_mode):
        node.target = os.fsencode(path.readlink())
    elif with_attributes and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        names = [name for name in os.listxattr(path) if name.startswith("user.")]
        node.attributes = {name.encode(): os.getxattr(path, name) for name in names}
    if stat.S_ISREG(status.st_mode):
        node.content = path
    if stat.S_ISDIR(status.st_mode):
        for child in sorted(path.iterdir(), key=lambda child: os.fsencode(child.name)):
            node.children[os.fsencode(child.name)] = _read(child, links, with_attributes=with_attributes)
    return node


def _add(root: _Node, line: str) -> None:
    """Follow a pseudo definition: `NAME c|b MODE UID GID MAJOR MINOR`, or `NAME x ATTRIBUTE=VALUE`, a value in hex."""
    name, kind, *more = line.split(" ")
    *folders, last = os.fsencode(name.strip("/")).split(b"/")
    node = root
    for folder in folders:
        node = node.children[folder]
    if kind == "x":
        owner = node.children[last] if last else root
        attribute, _, value = more[0].partition("=")
        content = bytes.fromhex(value[2:]) if value.startswith("0x") else value.encode()
        owner.attributes[attribute.encode()] = content
        return
    mode, uid, gid = int(more[0], 8), int(more[1]), int(more[2])
    major, minor = map(int, more[3:])
    device = minor & 0xFF | major << 8 | (minor & ~0xFF) << 12
    kinds = {"c": stat.S_IFCHR, "b": stat.S_IFBLK}
    node.children[last] = _Node(kinds[kind] | mode, uid, gid, EPOCH, device)
    node.children = dict(sorted(node.children.items()))


class _Writer:
    def __init__(self, root: _Node, level: int, block_bytes: int) -> None:
        self.root, self.level, self.block_bytes = root, level, block_bytes
        self.data = bytearray(SUPERBLOCK.size)
        self.inodes, self.directories, self.xattrs = MetadataWriter(), MetadataWriter(), XattrWriter()
        self.ids: dict[int, int] = {}
        self.nodes: list[_Node] = []
        self.known: dict[bytes, tuple[int, list[int], int, int]] = {}
        self.tails = bytearray()
        self.fragments: list[bytes] = []

    def write(self, target: Path, offset: int) -> None:
        self.number(self.root)
        self.put(self.root, len(self.nodes) + 1)
        self.close_fragment()
        blocks, listings = self.inodes.finish(), self.directories.finish()
        inode_table = len(self.data)
        self.data += blocks
        directory_table = len(self.data)
        self.data += listings
        tables = []
        references = (struct.pack("<Q", node.reference) for node in self.nodes)
        for records in (self.fragments, references, (struct.pack("<I", one) for one in self.ids)):
            table, index = lookup_table(records, len(self.data))
            self.data += table
            tables.append(index)
        attributes, xattr_table = self.xattrs.finish(len(self.data))
        self.data += attributes
        size = len(self.data)
        self.data[: SUPERBLOCK.size] = SUPERBLOCK.pack(
            *Superblock(
                magic=MAGIC,
                inode_count=len(self.nodes),
                mtime_s=EPOCH,
                block_bytes=self.block_bytes,
                fragment_count=len(self.fragments),
                compression=Compressor.GZIP,
                block_log=self.block_bytes.bit_length() - 1,
                flags=0x40 | 0x80 | (0x200 if xattr_table is None else 0),
                id_count=len(self.ids),
                major=VERSION[0],
                minor=VERSION[1],
                root_inode=self.root.reference,
                size_bytes=size,
                id_table=tables[2],
                xattr_table=NO_TABLE if xattr_table is None else xattr_table,
                inode_table=inode_table,
                directory_table=directory_table,
                fragment_table=tables[0],
                export_table=tables[1],
            )
        )
        with target.open("r+b" if target.exists() and offset else "wb") as file:
            file.seek(offset)
            file.write(self.data + bytes(-size % 4096))

    def number(self, node: _Node) -> None:
        for child in node.children.values():
            child.links += 1
            if child.links == 1:
                self.number(child)
        self.nodes.append(node)
        node.number = len(self.nodes)

    def put(self, node: _Node, parent: int) -> None:
        if node.reference >= 0:
            return
        for child in node.children.values():
            self.put(child, node.number)
        xattrs = self.xattrs.add(node.attributes) if node.attributes else inodes.NO_XATTRS
        is_long = xattrs != inodes.NO_XATTRS
        links = max(node.links, 1)
        match node.type:
            case 1:
                folders = sum(child.type == 1 for child in node.children.values())
                block, offset, size = self.listing(node)
                is_long = is_long or size >= 1 << 16
                if is_long:
                    body = inodes.LONG_DIRECTORY.pack(folders + 2, size, block, parent, 0, offset, xattrs)
                else:
                    body = inodes.DIRECTORY.pack(block, folders + 2, size, offset, parent)
            case 2:
                start, words, fragment, at = self.content(node)
                size = node.content.stat().st_size if node.content else 0
                is_long = is_long or links > 1 or size >= 1 << 32
                if is_long:
                    body = inodes.LONG_FILE.pack(start, size, 0, links, fragment, at, xattrs)
                else:
                    body = inodes.FILE.pack(start, fragment, at, size)
                body += struct.pack(f"<{len(words)}I", *words)
            case 3:
                body = inodes.LINK.pack(links, len(node.target)) + node.target
                body += struct.pack("<I", xattrs) if is_long else b""
            case 4 | 5:
                body = inodes.DEVICE.pack(links, node.device) + (struct.pack("<I", xattrs) if is_long else b"")
            case _:
                body = inodes.LINKS.pack(links) + (struct.pack("<I", xattrs) if is_long else b"")
        user, group = (self.ids.setdefault(one, len(self.ids)) for one in (node.uid, node.gid))
        kind = node.type + inodes.LONG * is_long
        node.reference = self.inodes.reference
        common = inodes.COMMON.pack(kind, stat.S_IMODE(node.mode), user, group, node.mtime, node.number)
        self.inodes.write(common + body)

    def listing(self, node: _Node) -> tuple[int, int, int]:
        """Write the names of a directory, a run for those whose inodes are in one block; return where, and its size."""
        block, offset = self.directories.block, self.directories.offset
        runs: list[list[tuple[bytes, _Node]]] = []
        for name, child in node.children.items():
            last = runs[-1] if runs else []
            first = last[0][1] if last else child
            is_near = child.reference >> 16 == first.reference >> 16 and abs(child.number - first.number) < 1 << 15
            if last and is_near and len(last) < inodes.MAX_NAMES_IN_RUN:
                last.append((name, child))
            else:
                runs.append([(name, child)])
        data = b""
        for run in runs:
            first = run[0][1]
            data += inodes.RUN.pack(len(run) - 1, first.reference >> 16, first.number)
            for name, child in run:
                near = child.number - first.number
                data += inodes.ENTRY.pack(child.reference & 0xFFFF, near, child.type, len(name) - 1) + name
        self.directories.write(data)
        return block, offset, len(data) + inodes.DOTS_BYTES

    def content(self, node: _Node) -> tuple[int, list[int], int, int]:
        """Write the blocks of a file, its tail into a fragment; return start, words of the blocks, fragment and place."""
        content = node.content.read_bytes() if node.content else b""
        if content in self.known:
            return self.known[content]
        start, words = len(self.data), []
        whole = len(content) - len(content) % self.block_bytes
        for at in range(0, whole, self.block_bytes):
            block = content[at : at + self.block_bytes]
            words.append(self.block(block) if any(block) else 0)  # else a hole
        fragment, place = inodes.NO_FRAGMENT, 0
        tail = content[whole:]
        if tail and whole:
            words.append(self.block(tail) if any(tail) else 0)
        elif tail:
            if len(self.tails) + len(tail) > self.block_bytes:
                self.close_fragment()
            fragment, place = len(self.fragments), len(self.tails)
            self.tails += tail
        self.known[content] = start, words, fragment, place
        return self.known[content]

    def block(self, content: bytes) -> int:
        """Write a block; return its size as stored, and whether it is compressed."""
        packed = zlib.compress(content, self.level)
        stored = content if len(packed) >= len(content) else packed
        self.data += stored
        return len(stored) | _STORED * (stored is content)

    def close_fragment(self) -> None:
        if self.tails:
            start = len(self.data)
            self.fragments.append(struct.pack("<QII", start, self.block(bytes(self.tails)), 0))
            self.tails.clear()
