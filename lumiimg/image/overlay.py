"""Trees laid over each other, as overlayfs shows them (kernel `Documentation/filesystems/overlayfs.rst`).

A name in an upper tree hides the same name below; directories of one name are merged. A character device 0:0 is a
whiteout: the name is gone. An opaque directory hides what the directories below it hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.image.tree import Device, DirectoryEntry, FileKind, FileStat, Node, Tree

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from lumiimg.core.access import OpenFile

OF_OVERLAYS = re.compile(rb"(trusted|user)\.(overlay|fuseoverlayfs)\.")
_OPAQUE = (b"trusted.overlay.opaque", b"user.overlay.opaque")
_WHITEOUT = Device(is_block=False, major=0, minor=0)


def is_opaque(xattrs: Mapping[bytes, bytes] | None) -> bool:
    """Whether overlayfs shows nothing of the directories below one with these attributes."""
    return any(xattrs.get(name) == b"y" for name in _OPAQUE) if xattrs else False


@dataclass(frozen=True, slots=True)
class OverlayPart:
    """A node of one of the layers, which are counted from the lowest."""

    layer: int
    tree: Tree
    node: Node


@dataclass(frozen=True, slots=True, eq=False)
class OverlayNode:
    """What a name stands for: one node or, of a merged directory, one of each layer that has part in it."""

    kind: FileKind
    parts: tuple[OverlayPart, ...]
    """From the top; attributes are those of the first."""


class OverlayTree:
    """One tree of several."""

    def __init__(self, layers: Sequence[Tree]) -> None:
        """`layers` begin with the lowest."""
        self.layers: tuple[Any, ...] = tuple(layers)
        parts = [OverlayPart(number, layer, layer.root) for number, layer in enumerate(layers)]
        self.root = OverlayNode(FileKind.DIRECTORY, self._visible(reversed(parts)))

    def child(self, directory: OverlayNode, name: str) -> OverlayNode | None:
        found = ((part, part.tree.child(part.node, name)) for part in directory.parts)
        parts = self._visible(OverlayPart(part.layer, part.tree, node) for part, node in found if node is not None)
        return OverlayNode(parts[0].node.kind, parts) if parts else None

    def entries(self, directory: OverlayNode) -> Iterator[DirectoryEntry]:
        known: set[str] = set()
        for part in directory.parts:
            for entry in part.tree.entries(part.node):
                if entry.name in known:
                    continue
                known.add(entry.name)
                node = part.tree.child(part.node, entry.name) if entry.kind is FileKind.DEVICE else None
                if node is None or not _is_whiteout(part.tree, node):
                    yield entry

    def link_target(self, link: OverlayNode) -> str:
        part = link.parts[0]
        return part.tree.link_target(part.node)

    def stat(self, node: OverlayNode) -> FileStat:
        part = node.parts[0]
        return part.tree.stat(part.node)

    def xattrs(self, node: OverlayNode) -> Mapping[bytes, bytes] | None:
        """Return extended attributes without the marks of overlays, which nobody sees in what they are laid over."""
        part = node.parts[0]
        found = part.tree.xattrs(part.node)
        return found and {name: value for name, value in found.items() if not OF_OVERLAYS.match(name)}

    def directory_identity(self, directory: OverlayNode) -> Hashable:
        part = directory.parts[0]
        return part.tree.directory_identity(part.node)

    def open(self, node: OverlayNode) -> OpenFile:
        part = node.parts[0]
        return part.tree.open(part.node)

    def part(self, node: OverlayNode) -> tuple[int, Any]:
        """Return the number of the layer that a node is seen of, and the node there."""
        return node.parts[0].layer, node.parts[0].node

    def _visible(self, candidates: Iterator[OverlayPart]) -> tuple[OverlayPart, ...]:
        """Return those of the nodes of one name, from the top, that have part in what is seen."""
        parts: list[OverlayPart] = []
        for part in candidates:
            if _is_whiteout(part.tree, part.node):
                break
            if part.node.kind is not FileKind.DIRECTORY:
                return tuple(parts or [part])
            parts.append(part)
            # below the lowest layer there is nothing left to hide
            if part.layer and is_opaque(part.tree.xattrs(part.node)):
                break
        return tuple(parts)


def _is_whiteout(tree: Tree, node: Node) -> bool:
    return node.kind is FileKind.DEVICE and tree.stat(node).device == _WHITEOUT
