"""A folder of this machine as a tree: a sandbox image, or the root of the machine itself.

No symlink is ever followed by the kernel for us: each component is looked up with lstat under a path that was itself
looked up so, and a file is opened with O_NOFOLLOW and compared with what lstat saw. Only regular files are opened: the
open of a FIFO or a device would wait, or do something.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lumiimg.image.host_file import HostFile
from lumiimg.image.overlay import OF_OVERLAYS
from lumiimg.image.tree import Device, DirectoryEntry, FileKind, FileStat

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
    """A file of the host, by a path none of whose parts below the root is a symlink."""

    path: str
    status: os.stat_result

    @property
    def kind(self) -> FileKind:
        """What it is."""
        return _KIND_OF_FORMAT.get(stat.S_IFMT(self.status.st_mode), FileKind.DEVICE)


class FolderTree:
    """One folder."""

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
                        continue  # gone since it was listed; overlayfs even lists whiteouts that nobody can look up
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
        """Return the extended attributes; none on a file system without them, or of what may not be read.

        Those by which overlays of this machine note down their own work are left out.
        """
        found: dict[bytes, bytes] = {}
        with contextlib.suppress(OSError):
            for name in map(os.fsencode, os.listxattr(node.path, follow_symlinks=False)):
                if not OF_OVERLAYS.match(name):
                    found[name] = os.getxattr(node.path, name, follow_symlinks=False)
        return found

    def directory_identity(self, directory: FolderNode) -> None:
        """Return None: a bind mount may show one directory in two places, and the kernel lets none be in itself."""

    def open(self, node: FolderNode) -> HostFile:
        file = HostFile(node.path, follow=False)
        if file.identity != (node.status.st_dev, node.status.st_ino):
            file.close()
            raise OSError(errno.ESTALE, "another file came in its place while it was opened", node.path)
        return file
