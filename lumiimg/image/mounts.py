"""An image with other trees mounted over it, as an engine shows it to a process: `--bind SRC:DST`.

The kernel mounts on what the target resolves to, so a bind onto a symlink lands on the file behind it, and every name
of that file shows the bound one (mount(2), path_resolution(7)). Symlinks inside a bound folder are followed in the
container, not on the host. Where the target is not in the image, the engine makes the folders that lead to it
(apptainer `internal/pkg/runtime/engine/apptainer/container_linux.go`, overlay or underlay).

Engines also put folders of the host over the image's without being asked: `Cover`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.image.tree import DirectoryEntry, FileKind, FileStat, Tree, TreeNode

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile


@dataclass(frozen=True, slots=True)
class Mounted:
    """A node of some tree, put over a path of the image; without one, a folder of which nothing is known."""

    tree: Tree[Any] | None = None
    node: TreeNode | None = None

    @property
    def kind(self) -> FileKind:
        """What it is."""
        return self.node.kind if self.node is not None else FileKind.DIRECTORY


@dataclass(frozen=True, slots=True)
class Cover:
    """A folder of the image that a process in the container does not see: the engine mounts another over it."""

    path: str
    """In the image."""
    by: str
    """What is mounted there, and why, for a sentence."""
    is_sure: bool = True
    """False where it depends on who starts the container, or from where."""

    def hides(self, path: str) -> bool:
        """Whether an absolute path without symlinks lies below it."""
        return f"{path}/".startswith(f"{self.path.rstrip('/')}/")


@dataclass(frozen=True, slots=True, eq=False)
class MountNode:
    """A node of the image, of a mounted tree, or (without a tree) a folder that the engine made for a target."""

    path: str
    """Where it is in the container, without a slash at the end; empty for the root."""
    tree: Tree[Any] | None
    node: TreeNode | None

    @property
    def kind(self) -> FileKind:
        """What it is."""
        return self.node.kind if self.node is not None else FileKind.DIRECTORY


class MountedTree:
    """One tree with others over it; `mounts` are keyed by absolute paths without symlinks."""

    def __init__(self, base: Tree[Any], mounts: Mapping[str, Mounted]) -> None:
        self._base = base
        self._mounts = dict(mounts)
        # folders that lead to a target, with the names in them that do
        self._leading: dict[str, dict[str, FileKind]] = {}
        for path, mounted in self._mounts.items():
            kind, rest = mounted.kind, path
            while rest:
                above, _, name = rest.rpartition("/")
                self._leading.setdefault(above, {}).setdefault(name, kind)
                kind, rest = FileKind.DIRECTORY, above
        self.root = MountNode("", base, base.root)

    def child(self, directory: MountNode, name: str) -> MountNode | None:
        path = f"{directory.path}/{name}"
        leads = name in self._leading.get(directory.path, ())
        if leads and (mounted := self._mounts.get(path)) is not None:
            return MountNode(path, mounted.tree, mounted.node)
        tree = directory.tree
        node = tree.child(directory.node, name) if tree is not None else None
        if node is not None:
            return MountNode(path, tree, node)
        return MountNode(path, None, None) if leads else None

    def entries(self, directory: MountNode) -> Iterator[DirectoryEntry]:
        leading = self._leading.get(directory.path)
        if leading is None:
            if directory.tree is not None:
                yield from directory.tree.entries(directory.node)
            return
        listed: set[str] = set()
        if directory.tree is not None:
            for entry in directory.tree.entries(directory.node):
                listed.add(entry.name)
                mounted = self._mounts.get(f"{directory.path}/{entry.name}")
                yield DirectoryEntry(entry.name, mounted.kind) if mounted else entry
        for name, kind in leading.items():
            if name not in listed:
                yield DirectoryEntry(name, kind)

    def link_target(self, link: MountNode) -> str:
        tree, node = _inside(link)
        return tree.link_target(node)

    def stat(self, node: MountNode) -> FileStat:
        """Return the inode's attributes; those of a made folder are what engines give it."""
        if node.tree is None:
            return FileStat(FileKind.DIRECTORY, 0o755, 0, 0, 0, 0, 2, ("made", node.path))
        return node.tree.stat(node.node)

    def directory_identity(self, directory: MountNode) -> Hashable:
        """Return None for what is not of the image: a folder may be mounted in two places."""
        if directory.tree is not self._base or directory.path in self._mounts:
            return None
        return self._base.directory_identity(directory.node)

    def open(self, node: MountNode) -> OpenFile:
        tree, inner = _inside(node)
        return tree.open(inner)


def _inside(node: MountNode) -> tuple[Tree[Any], TreeNode]:
    assert node.tree is not None  # noqa: S101 - only a directory is without a tree
    assert node.node is not None  # noqa: S101
    return node.tree, node.node
