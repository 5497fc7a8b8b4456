"""The files that an image is stored in, by name: in a folder, or in a tar."""

from __future__ import annotations

import posixpath
from pathlib import Path

from lumiimg.image.byte_source import ByteSource
from lumiimg.image.folder import FolderTree
from lumiimg.image.oci.tar import Member, TarReader, read_members
from lumiimg.image.root import RootFileSystem
from lumiimg.image.tree import FileKind, ImageError

_MAX_FILES = 100_000
_MAX_LINKS = 8


class StoredFolder:
    """A folder; its symlinks do not lead out of it."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        self._root = RootFileSystem(FolderTree(folder))
        self._open: dict[str, ByteSource] = {}

    def find(self, path: str) -> ByteSource | None:
        if path not in self._open:
            if not self._root.is_file(path):
                return None
            self._open[path] = ByteSource.open(self._folder / self._root.resolve(path).lstrip("/"))
        return self._open[path]

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()


class StoredArchive:
    """A tar that is not compressed; its files are ranges of it."""

    def __init__(self, source: ByteSource) -> None:
        """Read all headers. Raises ImageError."""
        self.name = source.name
        self._source = source
        self._members: dict[str, Member] = {}
        for member in read_members(TarReader(source, "the archive is cut off"), source.name):
            self._members[_normal(member.name)] = member
            if len(self._members) > _MAX_FILES:
                raise ImageError(f"more than {_MAX_FILES} files in an archive of one image", where=self.name)

    def find(self, path: str) -> ByteSource | None:
        """Return a regular file; None where there is none. Links are followed: old engines write them."""
        for _ in range(_MAX_LINKS):
            member = self._members.get(_normal(path))
            if member is None or member.kind not in (FileKind.FILE, FileKind.SYMLINK):
                return None
            if member.kind is FileKind.SYMLINK:
                path = posixpath.join(posixpath.dirname(member.name), member.target)
            elif member.is_hard_link:
                path = member.target
            else:
                return self._source.slice(member.start, member.size_bytes)
        return None


StoredFiles = StoredFolder | StoredArchive
"""Where blobs and documents are found."""


def is_oci_layout(files: StoredFiles) -> bool:
    """Tell whether there is an OCI image layout."""
    return files.find("oci-layout") is not None and files.find("index.json") is not None


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
