"""A folder packed into a squashfs, where there is no mksquashfs: the same bytes for the same files, by one processor.

The data go into a scratch file block by block; `weave` then writes the file system, as it does for layers that are
squashfs already.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn

from lumiimg.core.files import open_regular
from lumiimg.image.overlay import OF_OVERLAYS, OverlayTree
from lumiimg.image.squashfs.inodes import NO_FRAGMENT, FileLayout, Inode
from lumiimg.image.squashfs.superblock import Compressor
from lumiimg.image.squashfs.tree import STORED
from lumiimg.image.squashfs.weave import BLOCK_BYTES, write_tree
from lumiimg.image.squashfs.xattrs import PREFIXES
from lumiimg.image.tree import Device, DirectoryEntry, FileKind, FileStat

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEVEL = 4
"""As mksquashfs packs (docs/decisions/0026-images-are-gzip.md)."""
_KINDS = {
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFBLK: FileKind.DEVICE,
    stat.S_IFCHR: FileKind.DEVICE,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFSOCK: FileKind.SOCKET,
}


def pack_folder(folder: Path, target: Path, offset: int, *, owned_by_root: bool = False) -> None:
    """Write a folder as a squashfs into `target`, `offset` bytes behind its beginning, without what is in its /dev.

    `owned_by_root`: all files are root's in it. Raises ImageError, OSError.
    """
    with tempfile.TemporaryFile(dir=target.parent) as scratch, target.open("wb") as file:
        write_tree(OverlayTree([_PackedFolder(folder, scratch, owned_by_root=owned_by_root)]), file, offset)


class _Content(NamedTuple):
    """Where the content of a file is in the scratch file."""

    start: int = 0
    words: tuple[int, ...] = ()
    """Of its blocks: stored size, and whether it is compressed; 0 is a hole."""
    fragment: int = NO_FRAGMENT
    fragment_offset: int = 0


class _PackedFolder:
    """A folder as a tree: a file is compressed when it is looked up for the first time."""

    packing = int(Compressor.GZIP), BLOCK_BYTES

    def __init__(self, folder: Path, scratch: BinaryIO, *, owned_by_root: bool) -> None:
        self._scratch = scratch
        self._owned_by_root = owned_by_root
        self._end = 0
        self._paths: dict[int, str] = {}
        """Of the first name of each inode."""
        self._inodes: dict[int, Inode] = {}
        self._contents: list[_Content] = []
        self._known: dict[bytes, _Content] = {}
        """By the digest of the content: equal files are one."""
        self._tail = bytearray()
        """The block of tails that is being filled."""
        self._fragments: list[tuple[int, int]] = []
        self.root = self._inode(f"{folder}")

    def child(self, directory: Inode, name: str) -> Inode:
        return self._inode(f"{self._paths[directory.reference]}/{name}")

    def entries(self, directory: Inode) -> Iterator[DirectoryEntry]:
        with os.scandir(self._paths[directory.reference]) as found:
            names = sorted(found, key=lambda entry: os.fsencode(entry.name))
        for entry in names:
            yield DirectoryEntry(entry.name, _KINDS[stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)])

    def stat(self, node: Inode) -> FileStat:
        """Return the inode's attributes but for the number of a device: a whiteout is packed as it is."""
        owners = (0, 0) if self._owned_by_root else (node.uid_index, node.gid_index)
        return FileStat(
            node.kind, node.permissions, *owners, node.size_bytes, node.mtime_s, node.links, identity=node.reference
        )

    def xattrs(self, node: Inode) -> dict[bytes, bytes]:
        path = self._paths[node.reference]
        try:
            names = [os.fsencode(name) for name in os.listxattr(path, follow_symlinks=False)]
        except OSError:  # a file system that has none
            return {}
        wanted = [name for name in names if name.startswith((*PREFIXES.values(),)) and not OF_OVERLAYS.match(name)]
        return {name: os.getxattr(path, name, follow_symlinks=False) for name in wanted}

    def directory_identity(self, directory: Inode) -> int:
        return directory.reference

    def link_target(self, link: Inode) -> str:
        return link.target

    def block_sizes(self, layout: FileLayout) -> tuple[int, ...]:
        return self._contents[layout.sizes_at[0]].words

    def fragment_place(self, index: int) -> tuple[int, int]:
        self._close_tail()
        return self._fragments[index]

    def stored(self, position: int, size: int) -> bytes:
        self._scratch.seek(position)
        return self._scratch.read(size)

    def open(self, node: Inode) -> NoReturn:
        raise NotImplementedError

    def _inode(self, path: str) -> Inode:
        seen = os.lstat(path)
        if seen.st_ino in self._inodes:
            return self._inodes[seen.st_ino]
        self._paths[seen.st_ino] = path
        kind = _KINDS[stat.S_IFMT(seen.st_mode)]
        self._inodes[seen.st_ino] = inode = Inode(
            reference=seen.st_ino,
            kind=kind,
            permissions=stat.S_IMODE(seen.st_mode),
            uid_index=seen.st_uid,
            gid_index=seen.st_gid,
            # mksquashfs makes 0 of what 32 bits cannot hold
            mtime_s=int(seen.st_mtime) if 0 <= seen.st_mtime < 1 << 32 else 0,
            number=0,
            size_bytes=seen.st_size,
            file=self._layout(path) if kind is FileKind.FILE else None,
            target=os.readlink(path) if kind is FileKind.SYMLINK else "",  # noqa: PTH115 - any bytes
            device=Device(stat.S_ISBLK(seen.st_mode), os.major(seen.st_rdev), os.minor(seen.st_rdev)),
        )
        return inode

    def _layout(self, path: str) -> FileLayout:
        with open_regular(path, follow=False) as file:
            content, size = self._packed(file)
        self._contents.append(content)
        at = len(self._contents) - 1, 0
        return FileLayout(content.start, size, content.fragment, content.fragment_offset, at)

    def _packed(self, file: BinaryIO) -> tuple[_Content, int]:
        """Compress a file, a small one with others in one block; return where it is, and its bytes."""
        first = file.read(BLOCK_BYTES)
        if len(first) < BLOCK_BYTES:
            key = hashlib.sha256(first).digest()
            if key not in self._known:
                self._known[key] = self._into_tail(first) if first else _Content()
            return self._known[key], len(first)
        start, size, words, digest = self._end, 0, list[int](), hashlib.sha256()
        block = first
        while block:
            size += len(block)
            digest.update(block)
            words.append(self._write(block) if block.strip(b"\0") else 0)
            block = file.read(BLOCK_BYTES)
        content = self._known.setdefault(digest.digest(), _Content(start, tuple(words)))
        if content.start != start:  # it is there already
            self._end = start
        return content, size

    def _into_tail(self, content: bytes) -> _Content:
        if len(self._tail) + len(content) > BLOCK_BYTES:
            self._close_tail()
        self._tail += content
        return _Content(0, (), len(self._fragments), len(self._tail) - len(content))

    def _close_tail(self) -> None:
        if self._tail:
            start = self._end
            self._fragments.append((start, self._write(bytes(self._tail))))
            self._tail.clear()

    def _write(self, block: bytes) -> int:
        """Write a block at the end; return its size word."""
        packed = zlib.compress(block, _LEVEL)
        word = len(packed)
        if len(packed) >= len(block):
            packed, word = block, len(block) | STORED
        self._scratch.seek(self._end)
        self._scratch.write(packed)
        self._end += len(packed)
        return word
