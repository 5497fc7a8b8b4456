"""Whose something is: a process, so named that no other is taken for it.

A number alone is not enough: numbers are used again, and each namespace of processes counts from one (containers, jobs
with namespaces of their own), often under the same name of the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_ALONE = secrets.token_hex(8)


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


def _seen(pid: int) -> tuple[bool, int] | None:
    """Return whether a process is more than a zombie, and when it started."""
    try:
        # behind the name in parentheses, which may hold anything (proc_pid_stat(5))
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0] != b"Z", int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _place() -> str:
    told = f"{_ALONE}{os.getpid()}"  # nobody judges by what cannot be seen
    with contextlib.suppress(OSError):
        # else /proc shows another namespace, in which our numbers are other processes
        if str(Path("/proc/self").readlink()) == f"{os.getpid()}":
            told = f"{_BOOT.read_text(encoding='ascii')}{_NAMESPACE.readlink()}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]
