"""Free space in a folder: on its disk, and within the user's quotas, as `lfs` (of Lustre) or `quota` report them within
a few seconds.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lumiimg.core.errors import FailedError, MissingHereError
from lumiimg.core.text import size
from lumiimg.engine.process import run, which
from lumiimg.engine.workspace import MOVE_CACHE

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_LIMIT_S = 5.0
_NUMBERS = re.compile(
    r"(?m)^ *(?:/\S*|\S+:/\S*)\s+\[?(?P<used>\d{1,15})\]?\*? +(?P<soft>\d{1,15}) +(?P<hard>\d{1,15})\b"
)
"""Numbers of a file system in KiB; two lines if its name is long. Source: quota(1) of quota 4.06, lfs-quota(1)."""
_PROJECT = re.compile(r"^ *(?P<project>\d{1,10}) ")
"""Source: lfs-project(1)."""
_KIB = 1024
_LUSTRE = "lustre"
_HANG: set[str] = set()
"""Programs that timed out in this run, and are not run again for other folders."""
_WITHOUT = _IN_MEMORY | {"overlay", "squashfs", ""}
"""Types of file systems without user quotas."""


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Free space in a folder."""

    folder: Path
    """The folder, or the nearest parent that exists."""
    free_bytes: int
    """Bytes that are free on the disk."""
    in_memory: bool
    """Whether files there use memory."""
    quota_bytes: int | None = None
    """Bytes left within this user's quotas; null: no quotas, or not known."""
    note: str = ""
    """Why quotas are not known."""

    @property
    def left_bytes(self) -> int:
        """Bytes that can be written, by disk and quotas."""
        return min(self.free_bytes, self.free_bytes if self.quota_bytes is None else self.quota_bytes)


class Mount(NamedTuple):
    """A mounted file system."""

    kind: str
    """Type, as `lustre` or `nfs4`; empty if it is not known."""
    point: str


def room_at(folder: Path) -> FreeSpace:
    """Return the free space where `folder` is, or will be. Raises FailedError if no part of its path exists."""
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
    if there is None:
        raise FailedError("cannot be read", where=str(folder))
    mount = _mount(there)
    quota = quota_at(there, mount)
    return FreeSpace(there, shutil.disk_usage(there).free, mount.kind in _IN_MEMORY, quota.left_bytes, quota.note)


def require_room_in_cache(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise MissingHereError if a cache folder has less than `needed_bytes` left, which `what` needs."""
    room = room_at(folder)
    if needed_bytes > room.left_bytes:
        left = f"needs {size(needed_bytes)}, but only {size(room.left_bytes)} is left in {room.folder}"
        raise MissingHereError(left, where=what, hint=MOVE_CACHE)


def _mount(folder: Path) -> Mount:
    """Return the file system of a folder. Source: proc_pid_mountinfo(5)."""
    try:
        device = folder.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == wanted:
                return Mount(rest.split()[0], fields.split()[4])
    except (OSError, IndexError):
        pass
    return Mount("", "")


# -- quotas --


@dataclass(frozen=True, slots=True)
class Quota:
    """The remainder of the tightest limit on a file system."""

    left_bytes: int | None
    """Remaining bytes; null: no limit, or not known."""
    note: str = ""
    """Why it is not known."""


NO_QUOTA = Quota(None)


def quota_at(folder: Path, mount: Mount) -> Quota:
    """Return what is left of this user's quotas in a folder."""
    program = which("lfs" if mount.kind == _LUSTRE else "quota", os.environ.get("PATH"))
    if mount.kind in _WITHOUT or program is None:
        return NO_QUOTA
    if mount.kind != _LUSTRE:
        return _asked([program, "-w", "-u", "-g", "-f", mount.point])
    asked = [["-u", f"{os.getuid()}"], ["-g", f"{os.getgid()}"]]
    output = _output([program, "project", "-d", f"{folder}"])
    if output is not None and (project := _PROJECT.match(output)) and int(project["project"]):
        asked.append(["-p", project["project"]])
    found = []
    for of in asked if output is not None else ():
        found.append(_asked([program, "quota", "-q", *of, f"{folder}"]))
        if found[-1].note:
            break
    return _tightest(found) if found else _silent(program)


def _asked(argv: list[str]) -> Quota:
    """Return what is left of the tightest limit that a program prints."""
    output = _output(argv)
    if output is None:
        return _silent(argv[0])
    numbers = [tuple(map(int, hit.groups())) for hit in _NUMBERS.finditer(output)]
    # 0 means without a limit
    limits = [(used, min(filter(None, limits))) for used, *limits in numbers if any(limits)]
    return _tightest([Quota(max(0, limit - used) * _KIB) for used, limit in limits])


def _output(argv: list[str]) -> str | None:
    """Return the output of a program with any status, as `quota` fails at a limit; None if the program hangs."""
    if argv[0] in _HANG:
        return None
    try:
        done = run(argv, env={**os.environ, "LC_ALL": "C"}, timeout_s=_LIMIT_S)
    except MissingHereError:
        return ""
    if done.timed_out:
        _HANG.add(argv[0])
        return None
    return done.output


def _tightest(found: list[Quota]) -> Quota:
    note = next((one.note for one in found if one.note), "")
    return Quota(min((one.left_bytes for one in found if one.left_bytes is not None), default=None), note)


def _silent(program: str) -> Quota:
    return Quota(None, f"{os.path.basename(program)} did not answer within {_LIMIT_S:.0f} s")  # noqa: PTH119
