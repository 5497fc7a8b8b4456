"""Trees laid over each other, as overlayfs shows them (kernel `Documentation/filesystems/overlayfs.rst`).

A name in an upper tree hides the same name below; directories of one name are merged. A character device 0:0 is a
whiteout: the name is gone. An opaque directory hides what the directories below it hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from lumiimg.image.tree import DirectoryEntry, FileKind, FileStat

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from lumiimg.core.access import OpenFile
    from lumiimg.image.squashfs.inodes import FileLayout, Inode

OF_OVERLAYS = re.compile(rb"(trusted|user)\.(overlay|fuseoverlayfs)\.")


class BlockTree(Protocol):
    """A tree whose files are compressed blocks: a squashfs, or a folder on its way into one."""

    root: Inode

    @property
    def packing(self) -> tuple[int, int]:
        """How its blocks are compressed (a `Compressor`), and the bytes of each."""

    def child(self, directory: Inode, name: str) -> Inode | None: ...
    def entries(self, directory: Inode) -> Iterator[DirectoryEntry]: ...
    def stat(self, node: Inode) -> FileStat: ...
    def open(self, node: Inode) -> OpenFile: ...
    def xattrs(self, node: Inode) -> dict[bytes, bytes]: ...
    def is_whiteout(self, node: Inode) -> bool:
        """Tell whether overlayfs takes it for the mark of a name that is gone."""

    def is_opaque(self, directory: Inode) -> bool:
        """Tell whether overlayfs shows nothing of the directories below it."""

    def block_sizes(self, layout: FileLayout) -> tuple[int, ...]:
        """Return the size words of a file's blocks."""

    def fragment_place(self, index: int) -> tuple[int, int]:
        """Return where a block of tails is, and its size word."""

    def stored(self, position: int, size: int) -> bytes:
        """Return bytes as they are stored; `size` is the caller's to bound."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A node of one of the layers, which are counted from the top."""

    layer: int
    tree: BlockTree
    node: Inode


@dataclass(frozen=True, slots=True)
class StackedNode:
    """What a name stands for: one node or, of a merged directory, one of each layer that has part in it."""

    kind: FileKind
    parts: tuple[_Part, ...]
    """From the top; attributes are those of the first."""


class StackedTree:
    """One tree of several squashfs file systems."""

    def __init__(self, layers: Sequence[BlockTree]) -> None:
        """`layers` begin with the lowest."""
        self.layers = tuple(reversed(layers))
        """From the top."""
        parts = (_Part(number, layer, layer.root) for number, layer in enumerate(self.layers))
        self.root = StackedNode(FileKind.DIRECTORY, self._visible(parts))

    def child(self, directory: StackedNode, name: str) -> StackedNode | None:
        found = ((part, part.tree.child(part.node, name)) for part in directory.parts)
        parts = self._visible(_Part(part.layer, part.tree, node) for part, node in found if node is not None)
        return StackedNode(parts[0].node.kind, parts) if parts else None

    def entries(self, directory: StackedNode) -> Iterator[DirectoryEntry]:
        known: set[str] = set()
        for part in directory.parts:
            for entry in part.tree.entries(part.node):
                if entry.name in known:
                    continue
                known.add(entry.name)
                node = part.tree.child(part.node, entry.name) if entry.kind is FileKind.DEVICE else None
                if node is None or not part.tree.is_whiteout(node):
                    yield entry

    def link_target(self, link: StackedNode) -> str:
        return link.parts[0].node.target

    def stat(self, node: StackedNode) -> FileStat:
        part = node.parts[0]
        seen = part.tree.stat(part.node)
        return replace(seen, identity=(part.layer, seen.identity))

    def xattrs(self, node: StackedNode) -> dict[bytes, bytes]:
        """Return extended attributes without the marks of overlays, which nobody sees in what they are laid over."""
        part = node.parts[0]
        return {name: value for name, value in part.tree.xattrs(part.node).items() if not OF_OVERLAYS.match(name)}

    def directory_identity(self, directory: StackedNode) -> Hashable:
        part = directory.parts[0]
        return part.layer, part.node.reference

    def open(self, node: StackedNode) -> StackedFile:
        part = node.parts[0]
        return StackedFile(part.layer, part.tree.open(part.node))

    def _visible(self, candidates: Iterator[_Part]) -> tuple[_Part, ...]:
        """Return those of the nodes of one name, from the top, that have part in what is seen."""
        parts: list[_Part] = []
        for part in candidates:
            if part.tree.is_whiteout(part.node):
                break
            if part.node.kind is not FileKind.DIRECTORY:
                return tuple(parts or [part])
            parts.append(part)
            # in the lowest layer there is nothing left to hide
            if part.layer + 1 < len(self.layers) and part.tree.is_opaque(part.node):
                break
        return tuple(parts)


class StackedFile:
    """A regular file of one of the layers."""

    def __init__(self, layer: int, file: OpenFile) -> None:
        self.size = file.size
        self.identity = (layer, file.identity)
        self._file = file

    def read_at(self, offset: int, size: int) -> bytes:
        return self._file.read_at(offset, size)

    def close(self) -> None:
        self._file.close()
