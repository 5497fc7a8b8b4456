"""Files below a root folder that an image, a layer or a script has filled: no link in it leads this program anywhere.

Each folder of a path is opened by its name in the one above, never through a link, so that nobody can put one there
between a look and a write (openat(2), O_NOFOLLOW). Paths are those of the image, and have no `..`. All raise OSError
for what the system refuses, FailedError for what of the image is in the way.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lumiimg.errors import FailedError

OWN_XATTRS = "user.overlay."
"""What overlayfs notes down about its own work. Source: kernel Documentation/filesystems/overlayfs.rst, `userxattr`."""
_OPAQUE = f"{OWN_XATTRS}opaque"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _for_all(_path: str) -> int:
    return 0o755


@contextmanager
def folder(
    root: Path,
    path: str,
    *,
    makes: bool = False,
    replaces: bool = False,
    permissions: Callable[[str], int] = _for_all,
) -> Iterator[int]:
    """Yield the descriptor of a folder.

    `makes`: folders that are not there are made, with `permissions` of their paths; `replaces`: what is in the way and
    is not a folder makes way for one, for folders that are an engine's or lumiimg's own.
    """
    at, here = os.open(root, _FOLDER), ""
    try:
        for name in _names(path):
            here = f"{here}/{name}"
            inner = _enter(at, name, here, makes=makes, replaces=replaces, permissions=permissions)
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


@contextmanager
def new_file(
    root: Path, path: str, mode: int, *, replaces: bool = False, permissions: Callable[[str], int] = _for_all
) -> Iterator[IO[bytes]]:
    """Yield a new file to write to, in place of any file or link of that name; folders above it are made.

    `replaces` and `permissions` are those of `folder`.
    """
    above, name = _split(path)
    with folder(root, above, makes=True, replaces=replaces, permissions=permissions) as at:
        with _written(at):
            _make_way(at, name, path)
            descriptor = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at
            )
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            yield file
            file.flush()  # a write takes set-user-id bits away
            os.fchmod(descriptor, mode)


def new_link(root: Path, path: str, text: str) -> None:
    """Make a symlink in place of any file or link of that name, and folders above it in place of what is none."""
    above, name = _split(path)
    with folder(root, above, makes=True, replaces=True) as at, _written(at):
        _make_way(at, name, path)
        os.symlink(text, name, dir_fd=at)


def open_file(root: Path, path: str, flags: int) -> int:
    """Return the descriptor of a regular file: of nothing else, as a FIFO would be waited for."""
    above, name = _split(path)
    with folder(root, above) as at:
        mode = _mode(at, name)
        if mode is not None and not stat.S_ISREG(mode):
            raise _in_the_way(mode, path, "file")
        # what came in its place since then is opened without waiting, and is not a regular file either
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        if stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise _in_the_way(mode, path, "file")


def read_file(root: Path, path: str, limit_bytes: int) -> bytes:
    """Return all of a regular file. Raises FailedError for one of more than `limit_bytes`."""
    with open(open_file(root, path, os.O_RDONLY), "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise FailedError(f"a file of more than {limit_bytes} bytes", where=path)
    return content


def mode_of(root: Path, path: str) -> int | None:
    """Return st_mode of what has a name, the link's where it is one; None where there is none."""
    above, name = _split(path)
    try:
        with folder(root, above) as at:
            return _mode(at, name)
    except (FailedError, FileNotFoundError):
        return None  # below a link or a file there is nothing


def is_opaque(folder: Path) -> bool:
    """Whether a folder in the upper one of an overlay hides all that is below it."""
    return _OPAQUE in listed(folder)


def listed(path: str | Path) -> list[str]:
    """Return the names of extended attributes: none on a file system that has none."""
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []


def remove(root: Path, path: str) -> None:
    """Remove a file or a link, if there is one."""
    above, name = _split(path)
    with folder(root, above) as at, suppress(FileNotFoundError), _written(at):
        os.unlink(name, dir_fd=at)


def take_folder(root: Path, name: str, target: Path) -> None:
    """Move a folder out of the root, if there is one of that name."""
    with folder(root, "/") as at:
        mode = _mode(at, name)
        if mode is not None and stat.S_ISDIR(mode):
            with _written(at):
                os.rename(name, target, src_dir_fd=at)


def set_mode(at: int, name: str, mode: int) -> None:
    """Set permissions of a file or folder in an open folder; never those of what a link leads to."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            # fchmod(2) would want one that can be read; fchmodat(2) has no AT_SYMLINK_NOFOLLOW before Linux 6.6
            Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


def _enter(at: int, name: str, path: str, *, makes: bool, replaces: bool, permissions: Callable[[str], int]) -> int:
    """Return the descriptor of a folder in an open one."""
    mode = _mode(at, name)
    if mode is not None and not stat.S_ISDIR(mode):
        if not replaces:
            raise _in_the_way(mode, path, "folder")
        with _written(at):
            os.unlink(name, dir_fd=at)
        mode = None
    if mode is not None or not makes:
        return os.open(name, _FOLDER, dir_fd=at)
    with _written(at):
        os.mkdir(name, 0o700, dir_fd=at)
    made = os.open(name, _FOLDER, dir_fd=at)
    os.fchmod(made, permissions(path))
    return made


@contextmanager
def _written(at: int) -> Iterator[None]:
    """Have a folder of our own open to us while names in it change: `/` is 0555 in the images of Red Hat's family."""
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


def _make_way(at: int, name: str, path: str) -> None:
    mode = _mode(at, name)
    if mode is not None and stat.S_ISDIR(mode):
        raise _in_the_way(mode, path, "file")
    if mode is not None:
        os.unlink(name, dir_fd=at)


def _in_the_way(mode: int, path: str, wanted: str) -> FailedError:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    what = kinds.get(stat.S_IFMT(mode), "a device or a pipe")
    return FailedError(f"is {what} in the image, where a {wanted} is wanted", where=path)


def _mode(at: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _split(path: str) -> tuple[str, str]:
    names = _names(path)
    if not names:
        raise FailedError("names no file", where=path)
    return "/".join(names[:-1]), names[-1]


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names or "\0" in path:
        raise FailedError("is not a valid path in an image", where=path)
    return names
