"""Whose something is: a process, so named that no other is taken for it.

A number alone is not enough: each namespace of processes counts from one (containers, jobs with namespaces of their
own), often under the same name of the machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from pathlib import Path

from lumiimg.core.files import read_beginning

_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_ALONE = secrets.token_hex(8)
MARK = ".lumiimg-partial"
"""How the name of what has an owner ends."""
_OWNER = re.compile(rf"\.(?P<pid>\d{{1,10}})-(?P<place>[0-9a-f]+@[^/]*){re.escape(MARK)}$")
_OLD_S = 7 * 24 * 3600.0
"""No build goes on for so long without touching its folder: Slurm ends jobs sooner."""


def owner_mark() -> str:
    """Return the end of a name that says whose it is: this process, on this machine; at most 110 bytes."""
    return f".{os.getpid()}-{_place()}{MARK}"


def is_left(name: str, seen: os.stat_result) -> bool:
    """Whether something of this user's that is named for its owner was left by a process that no longer lives.

    That of another node, boot or namespace of processes cannot be seen from here, and may live, as the name of a
    machine proves nothing: what it has is left alone, until nothing was put there for a week.
    """
    match = _OWNER.search(name)
    if match is None:
        return False
    if match["place"] != _place():
        return time.time() - seen.st_mtime > _OLD_S
    try:
        os.kill(int(match["pid"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # another user's has the number now, or it gained privileges
        return False
    return False


def _place() -> str:
    """Return where a number of a process counts: a short digest of boot and namespace, and the name of the machine.

    Source: random(4), pid_namespaces(7).
    """
    try:
        counts = f"{read_beginning(_BOOT, 64).decode('ascii')}{_NAMESPACE.readlink()}"
    except OSError:  # nobody judges by what cannot be seen
        counts = f"{_ALONE}{os.getpid()}"
    return f"{hashlib.sha256(counts.encode()).hexdigest()[:12]}@{socket.gethostname()[:64]}"
