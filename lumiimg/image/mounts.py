"""What is mounted over the root file system of an image, as an engine shows it to a process.

The kernel mounts on what the target resolves to, so a bind onto a symlink lands on the file behind it, and every name
of that file shows the bound one (mount(2)). Symlinks inside a bound folder are followed in the container. Where the
target is not in the image, the engine makes the folders that lead to it (apptainer
`internal/pkg/runtime/engine/apptainer/container_linux.go`, overlay or underlay).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.image.tree import FileKind, FileStat, Node, Tree

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mount:
    """A node of some tree, put over a path of another; without one, a folder of which nothing is known."""

    target: str
    tree: Tree | None = None
    node: Node = None
    by: str = ""
    """What is mounted there, and why, for a sentence."""
    is_sure: bool = True
    """False where it depends on who starts the container, or from where: the files below are shown then."""

    def hides(self, path: str) -> bool:
        """Whether an absolute path without symlinks lies below it."""
        return f"{path}/".startswith(f"{self.target.rstrip('/')}/")


class Place(NamedTuple):
    """What a path leads to: a node of the image, or of a mounted tree; without a tree, a folder that an engine made."""

    path: str
    """Without symlinks and without a slash at the end; empty for the root."""
    tree: Tree | None = None
    node: Node = None

    @property
    def kind(self) -> FileKind:
        """What it is."""
        return FileKind.DIRECTORY if self.tree is None else self.node.kind

    def stat(self) -> FileStat:
        """Return the inode's attributes; those of a made folder are what engines give it."""
        if self.tree is None:
            return FileStat(FileKind.DIRECTORY, 0o755, 0, 0, 0, 0, 2, ("made", self.path))
        return self.tree.stat(self.node)

    def xattrs(self) -> Mapping[bytes, bytes] | None:
        """Return the extended attributes; None where the tree does not record them."""
        return {} if self.tree is None else self.tree.xattrs(self.node)


class MountTable:
    """What is mounted where, by absolute paths without symlinks."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.places = dict(places)
        self._leading: dict[str, dict[str, FileKind]] = {}
        """Folders that lead to a target, with the names in them that do."""
        self._note_leading()

    def add(self, path: str, mount: Mount) -> None:
        """Mount at a path; what was mounted below it is hidden."""
        self.places = {at: place for at, place in self.places.items() if not at.startswith(f"{path}/")}
        self.places[path] = Place(path, mount.tree, mount.node)
        self._note_leading()

    def _note_leading(self) -> None:
        self._leading.clear()
        for path, place in self.places.items():
            kind = place.kind
            while path:
                path, _, name = path.rpartition("/")  # noqa: PLW2901 - up to the root
                self._leading.setdefault(path, {}).setdefault(name, kind)
                kind = FileKind.DIRECTORY

    def child(self, folder: Place, name: str) -> Place | None:
        """Return what a name in a folder stands for; None where there is no such name."""
        path = f"{folder.path}/{name}"
        if path in self.places:
            return self.places[path]
        node = folder.tree.child(folder.node, name) if folder.tree is not None else None
        if node is not None:
            return Place(path, folder.tree, node)
        return Place(path) if path in self._leading else None

    def entries(self, folder: Place) -> dict[str, FileKind]:
        """Return the names in a folder."""
        found = dict(folder.tree.entries(folder.node)) if folder.tree is not None else {}
        for name, kind in self._leading.get(folder.path, {}).items():
            if f"{folder.path}/{name}" in self.places:
                found[name] = kind
            else:
                found.setdefault(name, kind)
        return found
