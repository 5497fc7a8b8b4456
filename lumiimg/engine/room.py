"""Room in a folder: what is free on its disk, and what a user's quota leaves there, which `lfs` (of Lustre) or `quota`
says within a few seconds.
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
"""Of a file system, in KiB; in two lines where its name is long. Source: quota(1) of quota 4.06, lfs-quota(1)."""
_PROJECT = re.compile(r"^ *(?P<project>\d{1,10}) ")
"""Source: lfs-project(1)."""
_KIB = 1024
_LUSTRE = "lustre"
_HANG: set[str] = set()
"""Programs that did not answer in this run: for its other folders they are not asked."""
_WITHOUT = _IN_MEMORY | {"overlay", "squashfs", ""}
"""Types of file systems that have no quota of a user."""


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What is left at a place."""

    folder: Path
    """Where."""
    free_bytes: int
    """That are left on the disk."""
    in_memory: bool
    """Whether what is written there counts as memory."""
    quota_bytes: int | None = None
    """That the quotas of this user leave; null: there are none, or they are not known."""
    note: str = ""
    """Why quotas are not known."""

    @property
    def left_bytes(self) -> int:
        """That can be written."""
        return min(self.free_bytes, self.free_bytes if self.quota_bytes is None else self.quota_bytes)


class Mount(NamedTuple):
    """A file system, where it is mounted."""

    kind: str
    """`lustre`, `nfs4`; empty where it is not known."""
    point: str


def room_at(folder: Path) -> FreeSpace:
    """Return what is left where `folder` is, or will be. Raises FailedError if nothing of its path is there."""
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
    if there is None:
        raise FailedError("cannot be read", where=str(folder))
    mount = _mount(there)
    quota = quota_at(there, mount)
    return FreeSpace(there, shutil.disk_usage(there).free, mount.kind in _IN_MEMORY, quota.left_bytes, quota.note)


def require_room_in_cache(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise MissingHereError where less is left in a folder of the cache than `what` takes."""
    room = room_at(folder)
    if needed_bytes > room.left_bytes:
        left = f"needs {size(needed_bytes)}, but {size(room.left_bytes)} are left in {room.folder}"
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
    """What is left of the tightest limit on a file system."""

    left_bytes: int | None
    """null: there is none, or it is not known."""
    note: str = ""
    """Why it is not known."""


NO_QUOTA = Quota(None)


def quota_at(folder: Path, mount: Mount) -> Quota:
    """Return what the quotas of this user leave in a folder."""
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
    """Return what a program prints, whatever its status: of `quota` it says that a limit is reached; None: it hangs."""
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
