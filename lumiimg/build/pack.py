"""A folder packed into a squashfs, where there is no mksquashfs: the same bytes for the same files, by one processor.

The data go into a scratch file block by block; `merge` then writes the file system, as it does for layers that are
squashfs already.
"""

from __future__ import annotations

import errno
import hashlib
import tempfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lumiimg.build.merge import BLOCK_BYTES, COMPRESSION_LEVEL, write_squashfs
from lumiimg.image import FileStat, FolderTree
from lumiimg.image.squashfs.format import BLOCK_STORED, XATTR_PREFIXES, Content

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess
    from lumiimg.image import FolderNode


def pack_folder(folder: Path, target: Path, offset: int, *, owned_by_root: bool = False) -> None:
    """Write a folder as a squashfs into `target`, `offset` bytes behind its beginning, without what is in its /dev.

    `owned_by_root`: all files are root's in it. Raises ImageError, OSError.
    """
    with tempfile.TemporaryFile(dir=target.parent) as scratch, target.open("wb") as file:
        tree = _PackedFolder(folder, scratch, owned_by_root=owned_by_root)
        write_squashfs(tree, [tree], file, offset, lambda node: (0, node))


class _PackedFolder(FolderTree):
    """A folder whose files are compressed when they are first asked for."""

    def __init__(self, folder: Path, scratch: BinaryIO, *, owned_by_root: bool) -> None:
        super().__init__(folder)
        self._scratch = scratch
        self._owned_by_root = owned_by_root
        self._end = 0
        self._known: dict[bytes, Content] = {}
        """By the digest of the content: equal files are one."""
        self._tail = bytearray()
        """The block of tails that is being filled."""
        self._fragments: list[tuple[int, int]] = []

    def stat(self, node: FolderNode) -> FileStat:
        found = super().stat(node)
        # mksquashfs makes 0 of a time that 32 bits cannot hold
        found = found._replace(mtime_s=found.mtime_s if 0 <= found.mtime_s < 1 << 32 else 0)
        return found._replace(uid=0, gid=0) if self._owned_by_root else found

    def xattrs(self, node: FolderNode) -> dict[bytes, bytes]:
        can_hold = tuple(XATTR_PREFIXES.values())
        return {name: value for name, value in super().xattrs(node).items() if name.startswith(can_hold)}

    def content(self, node: FolderNode) -> Content:
        """Compress a file, a small one with others in one block; return where it is."""
        with closing(self.open(node)) as file:
            if file.size != node.status.st_size:
                raise OSError(errno.ESTALE, "was changed while it was packed", node.path)
            if file.size >= BLOCK_BYTES:
                return self._into_blocks(file)
            data = file.read_at(0, file.size)
        key = hashlib.sha256(data).digest()
        if key not in self._known:
            self._known[key] = self._into_tail(data) if data else Content()
        return self._known[key]

    def fragment_place(self, index: int) -> tuple[int, int]:
        self._close_tail()
        return self._fragments[index]

    def stored(self, position: int, size: int) -> bytes:
        self._scratch.seek(position)
        return self._scratch.read(size)

    def _into_blocks(self, file: RandomAccess) -> Content:
        start, words, digest = self._end, list[int](), hashlib.sha256()
        for offset in range(0, file.size, BLOCK_BYTES):
            block = file.read_at(offset, BLOCK_BYTES)
            digest.update(block)
            words.append(self._write(block) if block.strip(b"\0") else 0)
        content = self._known.setdefault(digest.digest(), Content(start, tuple(words)))
        if content.start != start:  # it is there already
            self._end = start
        return content

    def _into_tail(self, data: bytes) -> Content:
        if len(self._tail) + len(data) > BLOCK_BYTES:
            self._close_tail()
        self._tail += data
        return Content(fragment=len(self._fragments), fragment_offset=len(self._tail) - len(data))

    def _close_tail(self) -> None:
        if self._tail:
            start = self._end
            self._fragments.append((start, self._write(bytes(self._tail))))
            self._tail.clear()

    def _write(self, block: bytes) -> int:
        """Write a block at the end; return its size word."""
        packed = zlib.compress(block, COMPRESSION_LEVEL)
        word = len(packed)
        if len(packed) >= len(block):
            packed, word = block, len(block) | BLOCK_STORED
        self._scratch.seek(self._end)
        self._scratch.write(packed)
        self._end += len(packed)
        return word
