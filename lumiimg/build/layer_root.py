"""A root folder that is written to, seen together with what it is laid over."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.build.safe_fs import folder, new_file, new_link, remove
from lumiimg.errors import FailedError
from lumiimg.image import FileKind, ImageError
from lumiimg.image.folder import FolderTree
from lumiimg.image.root import RootFileSystem

if TYPE_CHECKING:
    from lumiimg.image.tree import FileStat

OWN = "/.singularity.d"
"""The folder in an image that is an engine's own: what is in its way makes way."""
_LIMIT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class LayerRoot:
    """The root folder of a base, or the upper folder of an overlay and what is below it.

    No link in it is followed on this machine. All raise FailedError for what of the image is in the way, OSError for
    what the system refuses.
    """

    folder: Path
    below: RootFileSystem | None = None

    def stat(self, path: str) -> FileStat | None:
        """Return what is known of a name, of a link itself; None where nothing is, or only beyond a link."""
        found = self._found(path)
        return found[1] if found else None

    def read(self, path: str) -> bytes | None:
        """Return what is in a regular file; None where there is none."""
        found = self._found(path)
        if found is None or found[1].kind is not FileKind.FILE:
            return None
        try:
            return found[0].read_bytes(path, _LIMIT_BYTES)
        except ImageError as error:
            raise FailedError(error.what, where=path) from error

    def names(self, path: str) -> set[str]:
        """Return the names in a folder."""
        found: set[str] = set()
        for root in self._views():
            if root.is_dir(path) and root.resolve(path) == path:
                found |= {entry.name for entry in root.list_dir(path)}
        return {name for name in found if self.stat(f"{path}/{name}") is not None}

    def place(self, path: str) -> str | None:
        """Return where in the image a path leads, as far as it is there; None for a link to nothing."""
        # a layer is begun before anything is in its own folder
        root = self.below or RootFileSystem(FolderTree(self.folder))
        there, rest = path, ""
        while not root.exists(there):
            if self.stat(there) is not None:
                return None
            there, _, name = there.rpartition("/")
            there, rest = there or "/", f"/{name}{rest}"
        return root.resolve(there).rstrip("/") + rest

    def write(self, path: str, content: bytes, permissions: int) -> None:
        """Write a file, where it is another than that which is seen: an overlay holds only what is new."""
        seen = self.stat(path)
        if seen and seen.kind is FileKind.FILE and seen.permissions == permissions and self.read(path) == content:
            return
        own = path.startswith(f"{OWN}/")
        with new_file(self.folder, path, permissions, replaces=own, permissions=self._permissions) as file:
            file.write(content)

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it, where they are not seen."""
        own = path.startswith(OWN)
        if (seen := self.stat(path)) is None or (own and seen.kind is not FileKind.DIRECTORY):
            with folder(self.folder, path, makes=True, replaces=own, permissions=self._permissions):
                pass

    def link(self, path: str, text: str) -> None:
        """Make a link where there is nothing."""
        if self.stat(path) is None:
            new_link(self.folder, path, text)

    def remove(self, path: str) -> None:
        """Remove a file that the folder itself has."""
        remove(self.folder, path)

    def open_to_owner(self) -> None:
        """Let the owner write to `/`, which is 0555 in the images of Red Hat's family."""
        self.folder.chmod(stat.S_IMODE(self.folder.stat().st_mode) | stat.S_IWUSR)

    def _permissions(self, path: str) -> int:
        """Return the permissions of a folder that is made: those that it has below."""
        return self.below.stat(path).permissions if self.below and self.below.is_dir(path) else 0o755

    def _views(self) -> list[RootFileSystem]:
        return [RootFileSystem(FolderTree(self.folder)), *([self.below] if self.below else [])]

    def _found(self, path: str) -> tuple[RootFileSystem, FileStat] | None:
        above = path.rpartition("/")[0] or "/"
        for root in self._views():
            try:
                if root.resolve(above) != above:
                    if path.startswith(f"{OWN}/"):
                        continue  # it makes way
                    return None
                seen = root.stat(path, follow=False)
            except FileNotFoundError:
                continue
            except (OSError, ImageError):
                return None
            # a device in an overlay's folder says that what is below is deleted
            is_whiteout = seen.kind is FileKind.DEVICE and self.below not in {None, root}
            return None if is_whiteout else (root, seen)
        return None
