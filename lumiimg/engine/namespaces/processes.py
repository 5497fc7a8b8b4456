"""The engine's processes around a container: each dies with its parent, and ends with the same status as its child.

Also the ids of their user namespace: only the user's own, or a range (user_namespaces(7), subuid(5)).
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lumiimg.core.errors import FailedError, LumiimgError, one_line
from lumiimg.engine.namespaces.syscalls import Namespace, die_with_parent, forbid_tracing, unshare
from lumiimg.engine.process import run

_FAILED = 255
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HEARD = frozenset(number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN)
"""Signals that are handled; an ignored one stays ignored (SIGHUP under nohup)."""
MAX_USERNS = Path("/proc/sys/user/max_user_namespaces")
_LIMITS = {
    MAX_USERNS: "0",
    Path("/proc/sys/kernel/unprivileged_userns_clone"): "0",
    Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"): "1",
}
"""Settings, with the values that forbid user namespaces. Source: user_namespaces(7), kernels of Debian and Ubuntu."""

_RANGE = re.compile(r"^([^:\s]+):(\d{1,10}):(\d{1,10})$")
_FILE_LIMIT_BYTES = 1 << 20
_HELPER_S = 20.0
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
"""Trusted folders for set-user-id programs."""


def in_namespaces(maker: Callable[[int], None] | None, inside: Callable[[], int]) -> int:
    """Run `inside` in a child process, in a user namespace whose ids `maker` maps from outside; None: in this one."""

    def untraced() -> int:
        # root of this user namespace must not be able to trace this process, or those forked from it
        forbid_tracing()
        return inside()

    if maker is None:
        return child(untraced)
    ours, theirs = socket.socketpair()

    def wait_for_ids() -> int:
        ours.close()
        unshare(Namespace.USER)
        theirs.send(b"1")
        # if there are no ids, the reason is reported outside
        return untraced() if theirs.recv(1) else _FAILED

    number = _fork(wait_for_ids)
    theirs.close()
    try:
        with ours:
            if ours.recv(1):
                maker(number)
                ours.send(b"1")
    finally:
        status = _wait(number)
    return status


def in_pid_namespace(act: Callable[[], int]) -> int:
    """Run `act` below the first process of a new PID namespace, which runs this program.

    That process dies with its parent, whatever its children do, and then the kernel kills all of them.
    """
    unshare(Namespace.PID)
    return child(lambda: child(act))


def child(act: Callable[[], int]) -> int:
    """Run `act` in a child process, and return how that ended: its status, or -N for signal N."""
    return _wait(_fork(act))


def makes_users() -> bool:
    """Return whether the kernel lets this process create a user namespace."""
    number = os.fork()
    if number == 0:
        with suppress(OSError):
            unshare(Namespace.USER)
            os._exit(0)
        os._exit(1)
    return os.waitpid(number, 0)[1] == 0


def become(argv: Sequence[str | bytes], environment: dict[str, str] | os._Environ[str]) -> int:
    """Replace this process with a program, with default handling of signals."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *_HEARD):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(argv[0], list(argv), environment)  # noqa: S606 - that is what it is for


def end_as(act: Callable[[], int]) -> NoReturn:
    """Run `act`, or report in one line why it failed; then exit as the program did."""
    status = _FAILED
    try:
        status = act()
    except LumiimgError as error:
        _say("FATAL:   ", f"{error}")
    except OSError as error:
        what = f"{os.fsdecode(error.filename or 'the kernel')}: {error.strerror or error}"
        _say("FATAL:   ", f"{what}{_why_not()}")
    except Exception as error:  # noqa: BLE001 - else a forked process would end silently
        _say("FATAL:   ", f"{type(error).__name__}: {error}")
    if status < 0:
        with suppress(OSError):  # the handler of SIGKILL cannot, and need not, be set
            signal.signal(-status, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped its own core, if any
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)  # the first process of a namespace cannot kill itself by a signal


def warn(text: str) -> None:
    """Report something that a container lacks, or should not have."""
    _say("WARNING: ", text)


def _say(level: str, text: str) -> None:
    sys.stderr.write(f"{level}{one_line(text)}\n")  # in the style of engines
    sys.stderr.flush()


def _why_not() -> str:
    """Return the setting of this machine that forbids user namespaces, as the end of a sentence; empty if none does."""
    for path, value in _LIMITS.items():
        with suppress(OSError):
            if path.read_text(encoding="utf-8").strip() == value:
                return f" ({'.'.join(path.parts[-2:])} is {value})"
    return ""


def _fork(act: Callable[[], int]) -> int:
    """Return the id of a new process that runs `act`, and dies with this one."""
    parent = os.pidfd_open(os.getpid())
    number = os.fork()
    if number == 0:
        try:
            die_with_parent(signal.SIGKILL)
            if not select.select([parent], [], [], 0)[0]:  # the parent has not already ended
                os.close(parent)
                end_as(act)
        finally:
            os._exit(_FAILED)
    os.close(parent)
    # a signal that ends the program in the container reaches its whole group; the processes around wait for its end
    for heard in _HEARD:
        signal.signal(heard, signal.SIG_IGN)
    return number


def _wait(number: int) -> int:
    ended = status = 0
    while ended != number:  # the first process of a namespace inherits orphans
        ended, status = os.wait()
    return os.waitstatus_to_exitcode(status)


# -- ids


def map_own(process: int) -> None:
    """Map only the user's own id in a namespace, to itself. Raises FailedError."""
    _write(process, "setgroups", "deny")
    _write(process, "uid_map", f"{os.geteuid()} {os.geteuid()} 1")
    _write(process, "gid_map", f"{os.getegid()} {os.getegid()} 1")


def map_range(process: int) -> None:
    """Map all ids of this user in a namespace: root is the user, the others are from /etc/subuid and /etc/subgid.

    Raises FailedError if the user has only one id, or newuidmap or newgidmap is missing or refuses.
    """
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            lines = (line.split() for line in Path(f"/proc/self/{name}").read_text(encoding="ascii").splitlines())
            _write(process, name, "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines))
        return
    for program, table, own in (("newuidmap", "/etc/subuid", os.geteuid()), ("newgidmap", "/etc/subgid", os.getegid())):
        words = [0, own, 1]
        first = 1
        for start, count in own_ranges(table):
            words += [first, start, count]
            first += count
        if first == 1:
            raise FailedError(f"{table} has no ids for {_user()}: ask an administrator (usermod --add-subuids)")
        path = next((f"{folder}/{program}" for folder in _FOLDERS if os.access(f"{folder}/{program}", os.X_OK)), None)
        if path is None:
            raise FailedError(f"{program} is not installed (the package uidmap, or shadow-utils)")
        done = run([path, f"{process}", *map(str, words)], env={}, timeout_s=_HELPER_S)
        if not done.ok:
            raise FailedError(f"{path} refuses: {one_line(done.last_line)[:200] or f'exit status {done.exit_code}'}")


def own_ranges(table: str) -> list[tuple[int, int]]:
    """Return first id and count of each range of the user in a table; none if the table cannot be read."""
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
            file.write(text.encode())  # in a single write, as the kernel requires
    except OSError as error:
        lacks = " (this root lacks CAP_SETUID or CAP_SETGID)" if os.geteuid() == 0 else ""
        raise FailedError(f"the kernel refuses ids for a user namespace: {error.strerror}{lacks}") from error
