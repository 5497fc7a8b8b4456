"""What a container shows of this machine and of its user. Source: Apptainer 1.4.5 with its own apptainer.conf."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError
from lumiimg.engine.namespaces.syscalls import copy_mounts

if TYPE_CHECKING:
    from lumiimg.engine.namespaces.options import ContainerStart

_DEFAULTS = ("/dev", "/sys", "/tmp", "/var/tmp", "/etc/resolv.conf")  # noqa: S108 - as engines show them
_DEFAULTS_OF_USER = ("/etc/localtime", "/etc/hosts")
_NEVER = frozenset(
    ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/mnt", "/opt", "/proc", "/sbin", "/sys", "/usr", "/var")
)
"""Homes and current folders that would hide what is the image's."""


@dataclass(frozen=True, slots=True)
class ShownPath:
    """Something of this machine that is to be seen in the container."""

    mounts: int
    """Of `copy_mounts`."""
    target: str
    read_only: bool = False
    is_required: bool = False
    """Whether there is no container without it."""

    @property
    def is_folder(self) -> bool:
        """Whether it is put on a folder."""
        return stat.S_ISDIR(os.fstat(self.mounts).st_mode)


def shown_path(path: str, target: str, *, read_only: bool = False, is_required: bool = False) -> ShownPath:
    """Return a file or folder as it is now. Raises FailedError."""
    try:
        return ShownPath(copy_mounts(path), target, read_only, is_required)
    except OSError as error:
        raise FailedError(f"{path} cannot be shown in the container: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class User:
    """Who starts a container, and where."""

    uid: int
    home: str
    folder: str
    """The current one; home, where it was removed."""
    tables: Mapping[str, str]
    """The lines of the user for the tables of an image."""

    @classmethod
    def own(cls) -> User:
        """Return that of this process; the home is that of the table, whatever the variable says, as in Apptainer."""
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
    """Yield what is shown, in its order. Raises FailedError for a bind that is not here."""
    defaults = list(_DEFAULTS)
    if not container.as_root:
        defaults += _DEFAULTS_OF_USER
        own = [user.home] if container.home else []
        if container.cwd is None and not any(Path(user.folder).is_relative_to(path) for path in defaults + own):
            own.append(user.folder)
        defaults += [path for path in own if path not in _NEVER]
    for path in defaults:
        with suppress(FailedError):  # not on this machine
            yield shown_path(path, path)
    for bind in container.binds:
        yield shown_path(bind.source, bind.target, read_only=bind.read_only, is_required=True)
