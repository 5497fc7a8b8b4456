"""Files of this machine: a file read with pread, and a folder as a tree (a sandbox image, the machine's own root).

The kernel never follows a symlink for us: each component is looked up with lstat below a path looked up the same way,
and a file is opened with O_NOFOLLOW and compared with the result of lstat. Only regular files are opened: opening a
FIFO or a device would block or have side effects.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from lumiimg.core.access import read_exactly
from lumiimg.core.files import regular_file
from lumiimg.image.overlay import OVERLAY_XATTR
from lumiimg.image.tree import Device, DirectoryEntry, FileKind, FileStat, ImageError


class HostFile:
    """An open file, or a part of one. Parts share the descriptor; only the whole closes it."""

    def __init__(self, path: Path | str, *, follow: bool = True) -> None:
        """Open a file. Raises OSError, also for anything but a regular file: a FIFO would block."""
        self._descriptor = -1
        self._descriptor = regular_file(path, follow=follow)
        status = os.fstat(self._descriptor)
        self.name = str(path)
        self.identity: tuple[int, ...] = status.st_dev, status.st_ino
        """Device and inode; for a part, also its start."""
        self.size = status.st_size
        self._start = 0
        self._whole: HostFile | None = None
        """The file that this is a part of; None for a whole file."""

    @classmethod
    def from_image(cls, path: Path) -> Self:
        """Open the file of an image. Raises ImageError."""
        try:
            return cls(path)
        except OSError as error:
            raise ImageError(f"cannot be opened: {error.strerror}", where=str(path)) from error

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def slice(self, start: int, size: int) -> Self:
        """Return a part of the file. Raises ImageError if it does not fit."""
        if start < 0 or size < 0 or start + size > self.size:
            raise ImageError(f"a part of {size} bytes at {start} does not fit in {self.size} bytes", where=self.name)
        part = copy.copy(self)
        part._start, part.size, part._whole = self._start + start, size, self  # noqa: SLF001 - of this class
        part.identity = (*self.identity, start)
        return part

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, also from files in /proc, which report a size of 0."""
        if self._whole is not None:
            size = max(0, min(size, self.size - offset))
        data = os.pread(self._descriptor, size, self._start + offset)
        # files in /sys contain less than their size, which does not change
        if len(data) < min(size, self.size - offset) and os.fstat(self._descriptor).st_size < self._start + self.size:
            raise ImageError("the file became shorter while it was read", where=self.name)
        return data

    def read_exactly(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`. Raises ImageError if the file is shorter or cannot be read."""
        try:
            return read_exactly(self, offset, size)
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror}", where=self.name) from error
        except EOFError as error:
            raise ImageError(str(error), where=self.name) from error

    def close(self) -> None:
        """Close the descriptor; a part has none of its own."""
        if self._descriptor >= 0 and self._whole is None:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


_KIND_OF_FORMAT = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFCHR: FileKind.DEVICE,
    stat.S_IFBLK: FileKind.DEVICE,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFSOCK: FileKind.SOCKET,
}


class FolderNode(NamedTuple):
    """A file of the host; no component of its path below the root is a symlink."""

    path: str
    status: os.stat_result

    @property
    def kind(self) -> FileKind:
        """File type."""
        return _KIND_OF_FORMAT.get(stat.S_IFMT(self.status.st_mode), FileKind.DEVICE)


class FolderTree:
    """The files below a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        path = os.path.realpath(folder)
        self.root = FolderNode(path, os.lstat(path))

    def child(self, directory: FolderNode, name: str) -> FolderNode | None:
        path = f"{directory.path.rstrip('/')}/{name}"
        try:
            return FolderNode(path, os.lstat(path))
        except FileNotFoundError:
            return None

    def entries(self, directory: FolderNode) -> Iterator[DirectoryEntry]:
        with os.scandir(directory.path) as names:
            for name in names:
                if name.is_symlink():
                    kind = FileKind.SYMLINK
                elif name.is_dir(follow_symlinks=False):
                    kind = FileKind.DIRECTORY
                elif name.is_file(follow_symlinks=False):
                    kind = FileKind.FILE
                else:
                    try:
                        kind = FolderNode(name.path, name.stat(follow_symlinks=False)).kind
                    except FileNotFoundError:
                        continue  # removed since it was listed; overlayfs even lists whiteouts, which no lookup finds
                yield DirectoryEntry(name.name, kind)

    def link_target(self, link: FolderNode) -> str:
        return os.readlink(link.path)  # noqa: PTH115, Path would normalize the text

    def stat(self, node: FolderNode) -> FileStat:
        status = node.status
        return FileStat(
            kind=node.kind,
            permissions=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            size_bytes=status.st_size,
            mtime_s=int(status.st_mtime),
            links=status.st_nlink,
            identity=(status.st_dev, status.st_ino),
            device=Device(stat.S_ISBLK(status.st_mode), os.major(status.st_rdev), os.minor(status.st_rdev))
            if node.kind is FileKind.DEVICE
            else None,
        )

    def xattrs(self, node: FolderNode) -> dict[bytes, bytes]:
        """Return the extended attributes; none on a file system without them, or for an unreadable file.

        The attributes in which this machine's overlays store their own state are left out.
        """
        found: dict[bytes, bytes] = {}
        with contextlib.suppress(OSError):
            for name in map(os.fsencode, os.listxattr(node.path, follow_symlinks=False)):
                if not OVERLAY_XATTR.match(name):
                    found[name] = os.getxattr(node.path, name, follow_symlinks=False)
        return found

    def directory_identity(self, directory: FolderNode) -> None:
        """Return None: a bind mount may show one directory in two places, and the kernel prevents loops."""

    def open(self, node: FolderNode) -> HostFile:
        file = HostFile(node.path, follow=False)
        if file.identity != (node.status.st_dev, node.status.st_ino):
            file.close()
            raise OSError(errno.ESTALE, "it was replaced while it was opened", node.path)
        return file
