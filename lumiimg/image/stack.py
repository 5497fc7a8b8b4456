"""Trees laid over each other, as overlayfs shows them (kernel `Documentation/filesystems/overlayfs.rst`).

A name in an upper tree hides the same name below; directories of one name are merged. A character device 0:0 is a
whiteout: the name is gone. An opaque directory hides what the directories below it hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lumiimg.image.tree import DirectoryEntry, FileKind, FileStat, OpenFile, Tree, TreeNode

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

NodeT = TypeVar("NodeT", bound=TreeNode)


class OverlayLayer(Tree[NodeT], Protocol[NodeT]):
    """A tree that can hide what is below it."""

    def is_whiteout(self, node: NodeT) -> bool:
        """Tell whether it is the mark of a name that is gone."""

    def is_opaque(self, directory: NodeT) -> bool:
        """Tell whether it hides what the directories below it hold. Raises ImageError."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A node of one of the layers, which are counted from the top."""

    layer: int
    node: Any


@dataclass(frozen=True, slots=True)
class StackedNode:
    """What a name stands for: one node or, of a merged directory, one of each layer that has part in it."""

    kind: FileKind
    parts: tuple[_Part, ...]
    """From the top; attributes are those of the first."""


class StackedTree:
    """One tree of several."""

    def __init__(self, layers: Sequence[OverlayLayer[Any]]) -> None:
        """`layers` begin with the lowest."""
        self._layers = tuple(reversed(layers))
        parts = (_Part(number, layer.root) for number, layer in enumerate(self._layers))
        self.root = StackedNode(FileKind.DIRECTORY, self._visible(parts))

    @property
    def layers(self) -> tuple[OverlayLayer[Any], ...]:
        """The layers, the lowest first."""
        return tuple(reversed(self._layers))

    def child(self, directory: StackedNode, name: str) -> StackedNode | None:
        candidates = (_Part(part.layer, self._layers[part.layer].child(part.node, name)) for part in directory.parts)
        parts = self._visible(part for part in candidates if part.node is not None)
        return StackedNode(parts[0].node.kind, parts) if parts else None

    def entries(self, directory: StackedNode) -> Iterator[DirectoryEntry]:
        known: set[str] = set()
        for part in directory.parts:
            layer = self._layers[part.layer]
            for entry in layer.entries(part.node):
                if entry.name in known:
                    continue
                known.add(entry.name)
                if entry.kind is FileKind.DEVICE and layer.is_whiteout(layer.child(part.node, entry.name)):
                    continue
                yield entry

    def link_target(self, link: StackedNode) -> str:
        part = link.parts[0]
        target: str = self._layers[part.layer].link_target(part.node)
        return target

    def stat(self, node: StackedNode) -> FileStat:
        part = node.parts[0]
        seen: FileStat = self._layers[part.layer].stat(part.node)
        return replace(seen, identity=(part.layer, seen.identity))

    def directory_identity(self, directory: StackedNode) -> Hashable:
        part = directory.parts[0]
        return part.layer, self._layers[part.layer].directory_identity(part.node)

    def open(self, node: StackedNode) -> StackedFile:
        part = node.parts[0]
        return StackedFile(part.layer, self._layers[part.layer].open(part.node))

    def _visible(self, candidates: Iterator[_Part]) -> tuple[_Part, ...]:
        """Return those of the nodes of one name, from the top, that have part in what is seen."""
        parts: list[_Part] = []
        for part in candidates:
            layer = self._layers[part.layer]
            if layer.is_whiteout(part.node):
                break
            if part.node.kind is not FileKind.DIRECTORY:
                return tuple(parts or [part])
            parts.append(part)
            # in the lowest layer there is nothing left to hide
            if part.layer + 1 < len(self._layers) and layer.is_opaque(part.node):
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
