"""Mounts over the root file system of an image, as an engine presents them to a process.

The kernel resolves the mount target, so a bind onto a symlink lands on the file that the link points to, and every
name of that file shows the bound file (mount(2)). Symlinks inside a bound folder are followed in the container. If the
target does not exist in the image, the engine creates the folders that lead to it (apptainer
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
    """A node of one tree, mounted over a path of another; without a tree, a folder with unknown content."""

    target: str
    tree: Tree | None = None
    node: Node = None
    by: str = ""
    """What is mounted and why, to be used in a sentence."""
    is_sure: bool = True
    """False if it depends on who starts the container or from where: then the files below it are shown."""

    def hides(self, path: str) -> bool:
        """Return whether an absolute path without symlinks is the target or below it."""
        return f"{path}/".startswith(f"{self.target.rstrip('/')}/")


class Place(NamedTuple):
    """What a path resolves to: a node of the image or of a mounted tree; without a tree, a folder made by an engine."""

    path: str
    """Path without symlinks and without a trailing slash; empty for the root."""
    tree: Tree | None = None
    node: Node = None

    @property
    def kind(self) -> FileKind:
        """File type."""
        return FileKind.DIRECTORY if self.tree is None else self.node.kind

    def stat(self) -> FileStat:
        """Return the inode's attributes; a folder that the engine created has those that engines set."""
        if self.tree is None:
            return FileStat(FileKind.DIRECTORY, 0o755, 0, 0, 0, 0, 2, ("made", self.path))
        return self.tree.stat(self.node)

    def xattrs(self) -> Mapping[bytes, bytes] | None:
        """Return the extended attributes; None if the tree does not record them."""
        return {} if self.tree is None else self.tree.xattrs(self.node)


class MountTable:
    """Mounted places by absolute path without symlinks."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.places = dict(places)
        self._leading: dict[str, dict[str, FileKind]] = {}
        """Folders on the way to a target, each with the names in it that lead there."""
        self._note_leading()

    def add(self, path: str, mount: Mount) -> None:
        """Mount at a path; earlier mounts below it are hidden."""
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
        """Return the place of a name in a folder; None if there is no such name."""
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
