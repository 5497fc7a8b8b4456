"""Trees layered over each other, as overlayfs presents them (kernel `Documentation/filesystems/overlayfs.rst`).

A name in an upper tree hides the same name below; directories with the same name are merged. A character device 0:0 is
a whiteout: it removes the name. An opaque directory hides the content of the directories below it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.image.tree import Device, DirectoryEntry, FileKind, FileStat, Node, Tree

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from lumiimg.core.access import OpenFile

OVERLAY_XATTR = re.compile(rb"(trusted|user)\.(overlay|fuseoverlayfs)\.")
_OPAQUE = (b"trusted.overlay.opaque", b"user.overlay.opaque")
_WHITEOUT = Device(is_block=False, major=0, minor=0)


def is_opaque(xattrs: Mapping[bytes, bytes] | None) -> bool:
    """Return whether a directory with these attributes hides the directories below it in overlayfs."""
    return any(xattrs.get(name) == b"y" for name in _OPAQUE) if xattrs else False


@dataclass(frozen=True, slots=True)
class OverlayPart:
    """A node of one layer; layers are numbered from the lowest."""

    layer: int
    tree: Tree
    node: Node


@dataclass(frozen=True, slots=True, eq=False)
class OverlayNode:
    """The nodes of a name: one or, for a merged directory, one per contributing layer."""

    kind: FileKind
    parts: tuple[OverlayPart, ...]
    """Nodes from the top; the first determines the attributes."""


class OverlayTree:
    """One tree merged from several."""

    def __init__(self, layers: Sequence[Tree]) -> None:
        """Merge the layers, the lowest first."""
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
        """Return the extended attributes without the overlay marks, which a mounted overlay does not show."""
        part = node.parts[0]
        found = part.tree.xattrs(part.node)
        return found and {name: value for name, value in found.items() if not OVERLAY_XATTR.match(name)}

    def directory_identity(self, directory: OverlayNode) -> Hashable:
        part = directory.parts[0]
        return part.tree.directory_identity(part.node)

    def open(self, node: OverlayNode) -> OpenFile:
        part = node.parts[0]
        return part.tree.open(part.node)

    def part(self, node: OverlayNode) -> tuple[int, Any]:
        """Return the number of the layer that provides a node, and the node in that layer."""
        return node.parts[0].layer, node.parts[0].node

    def _visible(self, candidates: Iterator[OverlayPart]) -> tuple[OverlayPart, ...]:
        """Return the nodes of one name that contribute to the merged view, from the top."""
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
