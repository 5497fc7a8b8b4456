"""Safe access to a root folder that an image, a layer or a script has filled: its links cannot lead this program away.

Each folder of a path is opened by name in its parent, never through a link, so that nobody can insert a link between
check and use (openat(2), O_NOFOLLOW). Paths are those of the image, and have no `..`. All functions raise OSError for
what the system refuses, including a link in the path, and FailedError for an invalid path.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError
from lumiimg.definition.definition import BUILD_FOLDER

if TYPE_CHECKING:
    from lumiimg.image import RootFileSystem

OWN = "/.singularity.d"
"""The folder in an image that belongs to the engine."""
MOUNT_FOLDERS = ("/dev", "/proc", "/root", "/var/tmp", "/tmp", "/etc", "/sys", "/home", f"{OWN}/env")  # noqa: S108
MOUNT_FILES = ("/etc/hosts", "/etc/resolv.conf")
"""Where engines mount files and folders of this machine, and where scripts add to the environment. Source: apptainer
1.4.5, internal/pkg/build/sources/base_environment.go."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def folder(root: Path, path: str, below: RootFileSystem | None = None) -> Iterator[int]:
    """Yield the descriptor of a folder.

    With `below`, it and its parents are created if they are missing, with the permissions that they have there.
    """
    at, here = os.open(root, _FOLDER), ""
    try:
        for name in _names(path):
            here = f"{here}/{name}"
            try:
                inner = os.open(name, _FOLDER, dir_fd=at)
            except FileNotFoundError:
                if below is None:
                    raise
                mode = below.stat(here).permissions if below.is_dir(here) else 0o755  # may show it once it is made
                with _written(at):
                    os.mkdir(name, 0o700, dir_fd=at)
                inner = os.open(name, _FOLDER, dir_fd=at)
                os.fchmod(inner, mode)
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


@contextmanager
def mount_points(root: Path, below: RootFileSystem) -> Iterator[str]:
    """Create all mount points that a script needs in a root folder; yield that of the build folder.

    `below`: the view of a container, as the folder may be the upper one of an overlay. A mount point behind a link of
    the image is created where the link leads in the image. Only that of the build folder is removed afterwards.

    Raises FailedError if the image has something other than a folder at BUILD_FOLDER.
    """
    for path in (*MOUNT_FOLDERS, *MOUNT_FILES):
        place = None if below.exists(path) else resolve_missing(below, path)
        if place is not None and path in MOUNT_FILES:
            above, _, name = place.rpartition("/")
            with folder(root, above, below) as at, _written(at):
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=at))
        elif place is not None:
            with folder(root, place, below):
                pass
    place = resolve_missing(below, BUILD_FOLDER)
    if place is None or (below.exists(BUILD_FOLDER) and not below.is_dir(BUILD_FOLDER)):
        raise FailedError("is not a folder in the image, but lumiimg builds there", where=BUILD_FOLDER)
    with folder(root, place, below):
        pass
    try:
        yield place
    finally:
        above, _, name = place.rpartition("/")
        with suppress(OSError, FailedError), folder(root, above) as at, _written(at):
            os.rmdir(name, dir_fd=at)


def resolve_missing(below: RootFileSystem, path: str) -> str | None:
    """Return where in the image a path is or would be, with links resolved; None below a broken link or a file."""
    there, rest = path, ""
    while not below.exists(there):
        above, _, name = there.rpartition("/")
        with suppress(FileNotFoundError, NotADirectoryError):
            below.stat(there, follow=False)
            return None
        there, rest = above or "/", f"/{name}{rest}"
    if rest and not below.is_dir(there):
        return None
    return below.resolve(there).rstrip("/") + rest


def open_file(at: int, name: str, flags: int) -> int:
    """Return the descriptor of a regular file in an open folder; anything else is refused, as a FIFO could block."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a file", name)


def set_mode(at: int, name: str, mode: int) -> None:
    """Set the permissions of a file or folder in an open folder; never those of a symlink target."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            # fchmod(2) would need a readable file; fchmodat(2) has no AT_SYMLINK_NOFOLLOW before Linux 6.6
            Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


@contextmanager
def _written(at: int) -> Iterator[None]:
    """Make our own folder writable while names in it change: `/` is 0555 in images of the Red Hat family."""
    seen = os.fstat(at)
    mode = stat.S_IMODE(seen.st_mode)
    if mode & stat.S_IRWXU == stat.S_IRWXU or seen.st_uid != os.geteuid():
        yield
        return
    os.fchmod(at, mode | stat.S_IRWXU)
    try:
        yield
    finally:
        os.fchmod(at, mode)


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names or "\0" in path:
        raise FailedError("is not a valid path in an image", where=path)
    return names
