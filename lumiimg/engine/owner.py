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
from pathlib import Path

from lumiimg.files import read_beginning

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_ALONE = secrets.token_hex(8)
_MARK = "lumiimg-partial"
_OWNER = re.compile(rf"\.(?P<pid>\d{{1,10}})-(?P<started>\d{{1,20}})-(?P<place>[0-9a-f]+@[^/]*)\.{_MARK}$")
_OLD_S = 7 * 24 * 3600.0
"""No build goes on for so long without touching its folder: Slurm ends jobs sooner."""


def owner_mark() -> str:
    """Return the end of a name that says whose it is: this process, on this machine; at most 130 bytes."""
    pid = os.getpid()
    seen = _seen(pid)
    return f".{pid}-{seen[1] if seen else 0}-{_place()}.{_MARK}"


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
    if match["place"] != _place():
        return time.time() - seen.st_mtime > _OLD_S
    return not _lives(int(match["pid"]), int(match["started"]))


def _lives(pid: int, started: int) -> bool:
    """Whether a process of this machine, boot and namespace lives. One that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's has the number now, or /proc says nothing
    seen = _seen(pid)
    return seen is None or seen == (True, started)


def _seen(pid: int) -> tuple[bool, int] | None:
    """Return whether a process is more than a zombie, and when it started, in clock ticks since the boot."""
    try:
        # behind the name in parentheses, which may hold anything (proc_pid_stat(5))
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0] != b"Z", int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _place() -> str:
    """Return where a number of a process counts: a short digest of boot and namespace, and the name of the machine.

    Source: random(4), pid_namespaces(7).
    """
    seen_from = f"{_ALONE}{os.getpid()}"  # nobody judges by what cannot be seen
    with contextlib.suppress(OSError):
        # else /proc shows another namespace, in which our numbers are other processes
        if str(Path("/proc/self").readlink()) == f"{os.getpid()}":
            seen_from = f"{read_beginning(_BOOT, 64).decode('ascii')}{_NAMESPACE.readlink()}"
    return f"{hashlib.sha256(seen_from.encode()).hexdigest()[:12]}@{socket.gethostname()[:64]}"
