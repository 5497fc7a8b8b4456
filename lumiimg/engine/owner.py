"""Whose something is: a process, so named that no other is taken for it.

A number alone is not enough: numbers are used again, and each namespace of processes counts from one (containers, jobs
with namespaces of their own), often under the same name of the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from lumiimg.files import read_beginning

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_ALONE = secrets.token_hex(8)
_MARK = "lumiimg-partial"
_OWNER = re.compile(
    rf"\.(?P<pid>\d{{1,10}})(?:-(?P<started>\d{{1,20}})-(?P<place>[0-9a-f]+))?@(?P<host>[^/]*)\.{_MARK}$"
)
"""Lumiimg 0.1.0 wrote no more than number and host."""
_OLD_S = 7 * 24 * 3600.0
"""No build goes on for so long without touching its folder: Slurm ends jobs sooner."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process."""

    pid: int
    started: int
    """Clock ticks since the boot. Source: field 22 of proc_pid_stat(5)."""
    place: str
    """A short digest of the boot and of the namespace in which the number counts (random(4), pid_namespaces(7))."""
    host: str


def this_process() -> Owner:
    """Return who we are."""
    pid = os.getpid()
    seen = _seen(pid)
    return Owner(pid, seen[1] if seen else 0, _place(), socket.gethostname()[:64])


def owner_mark() -> str:
    """Return the end of a name that says whose it is: this process, on this machine; at most 130 bytes."""
    owner = this_process()
    return f".{owner.pid}-{owner.started}-{owner.place}@{owner.host}.{_MARK}"


def lives(owner: Owner) -> bool | None:
    """Tell whether a process lives; None where that cannot be seen from here, as of another node or namespace.

    One that nobody has waited for yet does not live.
    """
    here = this_process()
    if (owner.place, owner.host) != (here.place, here.host):
        return None
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return None
    except PermissionError:
        pass  # another user's has the number now, or /proc says nothing
    seen = _seen(owner.pid)
    return seen is None or seen == (True, owner.started)


def is_left(entry: Path) -> bool:
    """Whether something that is named for its owner was left by a process that no longer lives.

    That of another node, boot or namespace of processes cannot be seen from here, and may live, as the name of a
    machine proves nothing: what it has is left alone, until nothing was put there for a week. In /tmp it may be another
    user's, named so that we touch it.
    """
    match = _OWNER.search(entry.name)
    if match is None:
        return False
    try:
        seen = entry.lstat()
    except FileNotFoundError:  # its owner has just removed it
        return False
    if seen.st_uid != os.getuid():
        return False
    owner = Owner(int(match["pid"]), int(match["started"] or 0), match["place"] or "", match["host"])
    is_there = lives(owner)
    return time.time() - seen.st_mtime > _OLD_S if is_there is None else not is_there


def _seen(pid: int) -> tuple[bool, int] | None:
    """Return whether a process is more than a zombie, and when it started."""
    try:
        # behind the name in parentheses, which may hold anything (proc_pid_stat(5))
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0] != b"Z", int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _place() -> str:
    seen_from = f"{_ALONE}{os.getpid()}"  # nobody judges by what cannot be seen
    with contextlib.suppress(OSError):
        # else /proc shows another namespace, in which our numbers are other processes
        if str(Path("/proc/self").readlink()) == f"{os.getpid()}":
            seen_from = f"{read_beginning(_BOOT, 64).decode('ascii')}{_NAMESPACE.readlink()}"
    return hashlib.sha256(seen_from.encode()).hexdigest()[:12]
