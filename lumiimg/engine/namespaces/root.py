"""The root file system of a container: an image and the mounts of engines, with nothing else of this machine.

Mounts are copied before any path is covered, and mount points are looked up only below the image's root (openat2(2)),
so that a link of an image leads to a place in the image. Source of the default mounts: Apptainer 1.4.5 with its own
apptainer.conf.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError
from lumiimg.engine.namespaces.syscalls import (
    MountFlag,
    copy_mounts,
    mount,
    mount_proc,
    open_in_root,
    pivot_root,
    put_mounts,
)

if TYPE_CHECKING:
    from lumiimg.engine.namespaces.options import ContainerStart

_DEFAULTS = ("/dev", "/sys", "/tmp", "/var/tmp", "/etc/resolv.conf")  # noqa: S108 - as engines show them
_DEFAULTS_OF_USER = ("/etc/localtime", "/etc/hosts")
_NEVER = frozenset(
    ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/mnt", "/opt", "/proc", "/sbin", "/sys", "/usr", "/var")
)
"""Homes and current folders that are not mounted, as they would hide files of the image."""
_STAGES = ("/tmp", "/var/tmp", "/mnt")  # noqa: S108 - covered by a mount that this process alone sees
_STAGE_OPTIONS = "mode=0755,size=16m"
"""The stage contains only mount points, and user and group tables."""
_LOCKED = {
    os.ST_NOSUID: MountFlag.NO_SUID,
    os.ST_NODEV: MountFlag.NO_DEVICES,
    os.ST_NOEXEC: MountFlag.NO_PROGRAMS,
    os.ST_NOATIME: MountFlag.NO_ATIME,
    os.ST_NODIRATIME: MountFlag.NO_FOLDER_ATIME,
    os.ST_RELATIME: MountFlag.RELATIVE_ATIME,
}
"""Mount flags that a user namespace may not clear (mount_namespaces(7))."""
_TABLE_BYTES = 1 << 22
_PROC = "/proc"


@dataclass(frozen=True, slots=True)
class ShownPath:
    """A file or folder of this machine to be mounted in the container."""

    mounts: int
    """Descriptor from `copy_mounts`."""
    target: str
    read_only: bool = False
    is_required: bool = False
    """Whether the container must not start without it."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(os.fstat(self.mounts).st_mode)


def shown_path(path: str, target: str, *, read_only: bool = False, is_required: bool = False) -> ShownPath:
    """Return a file or folder, as it is mounted now, to be shown at `target`. Raises FailedError."""
    try:
        return ShownPath(copy_mounts(path), target, read_only, is_required)
    except OSError as error:
        raise FailedError(f"{path} cannot be mounted in the container: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class User:
    """The user who starts a container, and the current folder."""

    uid: int
    home: str
    folder: str
    """The current folder; home if it was removed."""
    tables: Mapping[str, str]
    """The user's lines for the user and group tables of an image."""

    @classmethod
    def from_process(cls) -> User:
        """Return the user of this process; like Apptainer, take the home from the user table if that has the user."""
        uid, gid = os.geteuid(), os.getegid()
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            entry = pwd.struct_passwd((f"{uid}", "x", uid, gid, "", os.environ.get("HOME", ""), "/bin/sh"))
        home = os.path.normpath(f"/{entry.pw_dir.lstrip('/')}")
        groups = ""
        for each in dict.fromkeys((gid, *os.getgroups())):
            with suppress(KeyError):
                groups += f"{grp.getgrgid(each).gr_name}:x:{each}:{entry.pw_name}\n"
        line = f"{entry.pw_name}:x:{uid}:{gid}:{entry.pw_gecos}:{home}:{entry.pw_shell}\n"
        folder = home
        with suppress(FileNotFoundError):
            folder = os.getcwd()  # noqa: PTH109
        return cls(uid, home, folder, {"/etc/passwd": line, "/etc/group": groups})


def shown_paths(container: ContainerStart, user: User) -> Iterator[ShownPath]:
    """Yield the paths to be mounted, in order. Raises FailedError if the source of a bind does not exist."""
    defaults = list(_DEFAULTS)
    if not container.as_root:
        defaults += _DEFAULTS_OF_USER
        own = [user.home] if container.home else []
        if container.cwd is None and not any(Path(user.folder).is_relative_to(path) for path in defaults + own):
            own.append(user.folder)
        defaults += [path for path in own if path not in _NEVER]
    for path in defaults:
        with suppress(FailedError):  # missing on this machine
            yield shown_path(path, path)
    for bind in container.binds:
        yield shown_path(bind.source, bind.target, read_only=bind.read_only, is_required=True)


class MountStage:
    """A private mount where the root file system is assembled. All methods raise OSError and FailedError."""

    def __init__(self) -> None:
        mount("", "/", flags=MountFlag.SLAVE | MountFlag.RECURSIVE)
        self._path = next((path for path in _STAGES if os.path.isdir(path)), "/")  # noqa: PTH112
        self._root = f"{self._path}/root"
        self._processes = shown_path(_PROC, _PROC)

    def cover(self) -> None:
        """Mount the stage; files that were at its path can no longer be reached by it."""
        mount("tmpfs", self._path, "tmpfs", MountFlag.NO_SUID | MountFlag.NO_DEVICES, _STAGE_OPTIONS)
        self.folder("root")

    def folder(self, name: str) -> str:
        """Create a folder in the stage."""
        path = f"{self._path}/{name}"
        os.mkdir(path, 0o755)  # noqa: PTH102
        return path

    def put(self, shown: ShownPath) -> str:
        """Mount a folder of this machine in the stage; return its path there."""
        path = self.folder(shown.target)
        _put(shown.mounts, path)
        return path

    def write_into(self, image: ShownPath) -> None:
        """Mount a folder as the root, writable."""
        _put(image.mounts, self._root)

    def lay(self, lowers: Sequence[str], sources: Sequence[ShownPath]) -> None:
        """Make the root from folders, the lowest first, with mount points for `sources`.

        Missing mount points are made in an upper layer, as a user with a single id cannot add to folders of others.
        """
        options = f"userxattr,lowerdir={':'.join(reversed(lowers))}"
        below = lowers[0]
        if len(lowers) > 1:
            below = self.folder("below")
            mount("overlay", below, "overlay", data=options)
        upper, work = self.folder("upper"), self.folder("work")
        os.chmod(upper, stat.S_IMODE(os.stat(below).st_mode))  # noqa: PTH101, PTH116
        at = _opened(below)
        for each in sources:
            _add(at, below, upper, each.target, is_folder=each.is_folder)
        _add(at, below, upper, _PROC, is_folder=True)
        os.close(at)
        try:
            mount("overlay", self._root, "overlay", data=f"{options},upperdir={upper},workdir={work}")
        except OSError as error:  # a user cannot mount one before Linux 5.11
            raise FailedError(f"the kernel refuses an overlay for a user: {error.strerror}") from error

    def show(self, sources: Iterable[ShownPath], tables: Mapping[str, str], *, read_only: bool) -> None:
        """Mount files and folders of this machine, and add lines to the tables that the image has."""
        at = _opened(self._root)
        for path, lines in tables.items():
            content = _read(at, path)
            if content is not None:
                copy = f"{self._path}/{path.replace('/', '-')}"
                with open(copy, "xb") as file:  # noqa: PTH123
                    file.write(content + (b"" if content.endswith(b"\n") or not content else b"\n") + lines.encode())
                _show(at, ShownPath(copy_mounts(copy), path))
        for each in sources:
            _show(at, each)
        if read_only:
            _make_read_only(at, "/")
        os.close(at)

    def show_processes(self) -> bool:
        """Mount the container's own /proc; if the kernel refuses (in a container), this machine's, and return False."""
        target = open_in_root(_opened(self._root), _PROC, os.O_PATH)
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            raise FailedError("/proc of the image is not a folder, and programs need one")
        try:
            mount_proc(f"/proc/self/fd/{target}")
        except PermissionError:
            put_mounts(self._processes.mounts, target)
            return False
        return True

    def enter(self) -> None:
        """Make the assembled file system the root of this process."""
        pivot_root(self._root)


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _put(mounts: int, path: str) -> None:
    target = _opened(path)
    put_mounts(mounts, target)
    os.close(target)


def _add(at: int, below: str, upper: str, path: str, *, is_folder: bool) -> None:
    """Create in `upper` the parts of a path that are missing in the folder `below`, which is open as `at`."""
    wanted = PurePosixPath(path)
    lacking: list[str] = []
    found = -1
    for there in (wanted, *wanted.parents):
        if not _is_absolute_link(at, there):
            with suppress(OSError):
                found = open_in_root(at, f"{there}", os.O_PATH)
                break
        lacking.insert(0, there.name)
    real = os.readlink(f"/proc/self/fd/{found}").removeprefix(below)  # noqa: PTH115
    os.close(found)
    made, seen = upper, below
    for name in PurePosixPath(real).parts[1:] if lacking else ():
        made, seen = f"{made}/{name}", f"{seen}/{name}"
        if not os.path.isdir(made):  # noqa: PTH112
            os.mkdir(made)  # noqa: PTH102
            mode = os.stat(seen, follow_symlinks=False).st_mode  # noqa: PTH116
            if stat.S_ISDIR(mode):  # else it replaces a file
                os.chmod(made, stat.S_IMODE(mode))  # noqa: PTH101
    for name in lacking:
        made = f"{made}/{name}"
        if is_folder or name != lacking[-1]:
            os.makedirs(made, exist_ok=True)  # noqa: PTH103
        elif not os.path.lexists(made):
            os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def _is_absolute_link(at: int, path: PurePosixPath) -> bool:
    """Return whether a path is an absolute link, which the engine mounts over and does not follow (seen with 1.4.5)."""
    try:
        parent = open_in_root(at, f"{path.parent}", os.O_PATH)
    except OSError:
        return False
    try:
        return os.readlink(path.name, dir_fd=parent).startswith("/")
    except OSError:
        return False
    finally:
        os.close(parent)


def _show(at: int, shown: ShownPath) -> None:
    try:
        put_mounts(shown.mounts, open_in_root(at, shown.target, os.O_PATH))
        if shown.read_only:
            _make_read_only(at, shown.target)
    except OSError as error:
        if shown.is_required:
            raise FailedError(f"{shown.target} cannot be bound: {error.strerror}") from error


def _make_read_only(at: int, path: str) -> None:
    mounted = open_in_root(at, path, os.O_PATH)
    has = os.fstatvfs(mounted).f_flag
    flags = MountFlag.BIND | MountFlag.REMOUNT | MountFlag.READ_ONLY
    for flag, means in _LOCKED.items():
        flags |= means if has & flag else MountFlag.NONE
    mount("", f"/proc/self/fd/{mounted}", flags=flags)
    os.close(mounted)


def _read(at: int, path: str) -> bytes | None:
    """Return the content of a regular file of the image; None if there is none."""
    try:
        descriptor = open_in_root(at, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(descriptor, _TABLE_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)
