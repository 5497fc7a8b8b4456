"""Which ids a user namespace has: the user's own one, or a range of them. Source: user_namespaces(7), subuid(5)."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

from lumiimg.core.errors import FailedError, one_line
from lumiimg.engine.process import run

_RANGE = re.compile(r"^([^:\s]+):(\d{1,10}):(\d{1,10})$")
_FILE_LIMIT_BYTES = 1 << 20
_HELPER_S = 20.0
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
"""Where a set-user-id program is believed."""


def map_own(process: int) -> None:
    """Give a namespace one id, the user's own, by its own name. Raises FailedError."""
    _write(process, "setgroups", "deny")
    _write(process, "uid_map", f"{os.geteuid()} {os.geteuid()} 1")
    _write(process, "gid_map", f"{os.getegid()} {os.getegid()} 1")


def map_range(process: int) -> None:
    """Give a namespace all ids that this user has: root is the user, the others are those of /etc/subuid.

    Raises FailedError where the user has one id alone, or newuidmap is not there or refuses.
    """
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            lines = (line.split() for line in Path(f"/proc/self/{name}").read_text(encoding="ascii").splitlines())
            _write(process, name, "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines))
        return
    for program, table, own in (
        ("newuidmap", "/etc/subuid", os.geteuid()),
        ("newgidmap", "/etc/subgid", os.getegid()),
    ):
        words = [0, own, 1]
        first = 1
        for start, count in own_ranges(table):
            words += [first, start, count]
            first += count
        if first == 1:
            raise FailedError(f"{table} has no ids for {_user()}: an administrator adds some (usermod --add-subuids)")
        path = next((f"{folder}/{program}" for folder in _FOLDERS if os.access(f"{folder}/{program}", os.X_OK)), None)
        if path is None:
            raise FailedError(f"{program} is not installed (the package uidmap, or shadow-utils)")
        done = run([path, f"{process}", *map(str, words)], env={}, timeout_s=_HELPER_S)
        if not done.ok:
            raise FailedError(f"{path} refuses: {one_line(done.last_line)[:200] or f'exit status {done.exit_code}'}")


def own_ranges(table: str) -> list[tuple[int, int]]:
    """Return first id and count of each range of the user in a table; a table that cannot be read has none."""
    names = {_user(), f"{os.geteuid()}"}
    try:
        with open(table, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            lines = file.read(_FILE_LIMIT_BYTES).splitlines()
    except OSError:
        return []
    found = (_RANGE.match(line.strip()) for line in lines)
    return [(int(match[2]), int(match[3])) for match in found if match and match[1] in names and int(match[3])]


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"{os.geteuid()}"


def _write(process: int, name: str, text: str) -> None:
    try:
        with open(f"/proc/{process}/{name}", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(text.encode())  # in one piece, as the kernel takes it
    except OSError as error:
        lacks = " (this root lacks CAP_SETUID or CAP_SETGID)" if os.geteuid() == 0 else ""
        raise FailedError(f"the kernel gives a namespace of users no ids: {error.strerror}{lacks}") from error
