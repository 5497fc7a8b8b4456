"""An image with other trees mounted over it, as an engine shows it to a process: `--bind SRC:DST`.

The kernel mounts on what the target resolves to, so a bind onto a symlink lands on the file behind it, and every name
of that file shows the bound one (mount(2), path_resolution(7)). Symlinks inside a bound folder are followed in the
container, not on the host. Where the target is not in the image, the engine makes the folders that lead to it
(apptainer `internal/pkg/runtime/engine/apptainer/container_linux.go`, overlay or underlay).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.image.tree import DirectoryEntry, FileKind, FileStat, Tree, TreeNode

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile


@dataclass(frozen=True, slots=True)
class Mount:
    """A node of some tree, put over a path of another; without one, a folder of which nothing is known."""

    target: str
    tree: Tree[Any] | None = None
    node: TreeNode | None = None
    by: str = ""
    """What is mounted there, and why, for a sentence."""
    is_sure: bool = True
    """False where it depends on who starts the container, or from where: the files below are shown then."""

    def hides(self, path: str) -> bool:
        """Whether an absolute path without symlinks lies below it."""
        return f"{path}/".startswith(f"{self.target.rstrip('/')}/")


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
    """One tree with others over it."""

    def __init__(self, base: Tree[Any]) -> None:
        """Begin with no mounts over `base`, or with those that it has."""
        self.base: Tree[Any] = base.base if isinstance(base, MountedTree) else base
        self.mounts: dict[str, MountNode] = dict(base.mounts) if isinstance(base, MountedTree) else {}
        self._leading: dict[str, dict[str, FileKind]] = {}
        """Folders that lead to a target, with the names in them that do."""
        self.root = MountNode("", self.base, self.base.root)
        self._note_leading()

    def add(self, path: str, mount: Mount) -> None:
        """Mount at an absolute path without symlinks; what was mounted below it is hidden."""
        self.mounts = {at: node for at, node in self.mounts.items() if not at.startswith(f"{path}/")}
        self.mounts[path] = MountNode(path, mount.tree, mount.node)
        self._note_leading()

    def _note_leading(self) -> None:
        self._leading.clear()
        for path, mounted in self.mounts.items():
            kind, rest = mounted.kind, path
            while rest:
                above, _, name = rest.rpartition("/")
                self._leading.setdefault(above, {}).setdefault(name, kind)
                kind, rest = FileKind.DIRECTORY, above

    def child(self, directory: MountNode, name: str) -> MountNode | None:
        path = f"{directory.path}/{name}"
        leads = name in self._leading.get(directory.path, ())
        if leads and (mounted := self.mounts.get(path)) is not None:
            return mounted
        tree = directory.tree
        node = tree.child(directory.node, name) if tree is not None else None
        if node is not None:
            return MountNode(path, tree, node)
        return MountNode(path, None, None) if leads else None

    def entries(self, directory: MountNode) -> Iterator[DirectoryEntry]:
        inner = directory.tree.entries(directory.node) if directory.tree is not None else iter(())
        leading = self._leading.get(directory.path)
        if leading is None:
            yield from inner
            return
        listed: set[str] = set()
        for entry in inner:
            listed.add(entry.name)
            mounted = self.mounts.get(f"{directory.path}/{entry.name}")
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

    def xattrs(self, node: MountNode) -> Mapping[bytes, bytes] | None:
        return node.tree.xattrs(node.node) if node.tree is not None else {}

    def directory_identity(self, directory: MountNode) -> Hashable:
        """Return None for what is not of the image: a folder may be mounted in two places."""
        if directory.tree is not self.base or directory.path in self.mounts:
            return None
        return self.base.directory_identity(directory.node)

    def open(self, node: MountNode) -> OpenFile:
        tree, inner = _inside(node)
        return tree.open(inner)


def _inside(node: MountNode) -> tuple[Tree[Any], TreeNode]:
    assert node.tree is not None  # noqa: S101 - only a directory is without a tree
    assert node.node is not None  # noqa: S101
    return node.tree, node.node
