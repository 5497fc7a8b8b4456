"""Processes of the engine around a container: each dies with the one before it, and ends as the one within it does."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lumiimg.core.errors import LumiimgError, one_line
from lumiimg.engine.namespaces.syscalls import Namespace, die_with_parent, forbid_tracing, unshare

_FAILED = 255
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HEARD = frozenset(number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN)
"""A signal that is ignored stays so (SIGHUP under nohup)."""
MOST_USERS = Path("/proc/sys/user/max_user_namespaces")
_LIMITS = {
    MOST_USERS: "0",
    Path("/proc/sys/kernel/unprivileged_userns_clone"): "0",
    Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"): "1",
}
"""Settings that keep users from namespaces. Source: user_namespaces(7), kernels of Debian and Ubuntu."""


def in_namespaces(maker: Callable[[int], None] | None, inside: Callable[[], int]) -> int:
    """Run `inside` in a process of its own, in a namespace of users to which `maker` gives its ids from outside."""

    def untraced() -> int:
        # root of this namespace of users cannot look into this process, nor into those forked from it
        forbid_tracing()
        return inside()

    if maker is None:
        return child(untraced)
    ours, theirs = socket.socketpair()

    def wait_for_ids() -> int:
        ours.close()
        unshare(Namespace.USER)
        theirs.send(b"1")
        # where there are none, why is said outside
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


def apart(act: Callable[[], int]) -> int:
    """Run `act` below the first process of a new namespace of processes, which is this program.

    It dies with its parent, whatever those below it do, and then the kernel ends all of them.
    """
    unshare(Namespace.PID)
    return child(lambda: child(act))


def child(act: Callable[[], int]) -> int:
    """Run `act` in a process of its own, and return how that ends: its status, or -N for signal N."""
    return _wait(_fork(act))


def makes_users() -> bool:
    """Whether the kernel makes a namespace of users."""
    number = os.fork()
    if number == 0:
        with suppress(OSError):
            unshare(Namespace.USER)
            os._exit(0)
        os._exit(1)
    return os.waitpid(number, 0)[1] == 0


def become(argv: Sequence[str | bytes], environment: dict[str, str] | os._Environ[str]) -> int:
    """Become a program, with the signals that it would have anywhere."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *_HEARD):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(argv[0], list(argv), environment)  # noqa: S606 - that is what it is for


def end_as(act: Callable[[], int]) -> NoReturn:
    """Carry out an act, or say in one line why it cannot be; and end as the program did."""
    status = _FAILED
    try:
        status = act()
    except LumiimgError as error:
        _say("FATAL:   ", f"{error}")
    except OSError as error:
        what = f"{os.fsdecode(error.filename or 'the kernel')}: {error.strerror or error}"
        _say("FATAL:   ", f"{what}{_why_not()}")
    except Exception as error:  # noqa: BLE001 - a process that was forked would end without a word
        _say("FATAL:   ", f"{type(error).__name__}: {error}")
    if status < 0:
        with suppress(OSError):  # that of SIGKILL cannot be set, and need not be
            signal.signal(-status, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own, if any
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)  # the first process of a namespace ends by no signal of its own


def warn(text: str) -> None:
    """Say what a container has not, or has too much."""
    _say("WARNING: ", text)


def _say(level: str, text: str) -> None:
    sys.stderr.write(f"{level}{one_line(text)}\n")  # as engines begin such lines
    sys.stderr.flush()


def _why_not() -> str:
    """Return which setting of this machine keeps users from namespaces, as the end of a sentence; or nothing."""
    for path, value in _LIMITS.items():
        with suppress(OSError):
            if path.read_text(encoding="utf-8").strip() == value:
                return f" ({'.'.join(path.parts[-2:])} is {value})"
    return ""


def _fork(act: Callable[[], int]) -> int:
    """Return a process that carries out an act, and ends when this one does."""
    parent = os.pidfd_open(os.getpid())
    number = os.fork()
    if number == 0:
        try:
            die_with_parent(signal.SIGKILL)
            if not select.select([parent], [], [], 0)[0]:  # it has not ended before that
                os.close(parent)
                end_as(act)
        finally:
            os._exit(_FAILED)
    os.close(parent)
    # what ends the program in the container comes to all of its group; those around it wait for its end
    for heard in _HEARD:
        signal.signal(heard, signal.SIG_IGN)
    return number


def _wait(number: int) -> int:
    ended = status = 0
    while ended != number:  # the first of a namespace gets the processes that others leave
        ended, status = os.wait()
    return os.waitstatus_to_exitcode(status)
