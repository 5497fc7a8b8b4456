"""Process many items in parallel in forked copies of lumiimg; if one copy dies, the others continue.

Copies start no other programs, which must go through `process.py`. If lumiimg is killed, the kernel ends the copies.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lumiimg.engine.namespaces.syscalls import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import FrameType

T = TypeVar("T")
R = TypeVar("R")
_GRACE_S, _POLL_S = 10.0, 0.01
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def each_apart(work: Callable[[T], R], items: Iterable[T], at_once: int) -> Generator[tuple[int, R | None]]:
    """Yield the number of each item with the result of `work`, in the order of completion.

    The result is None if the copy died at that item. Items and results must be picklable.
    """
    todo, copies = enumerate(items), dict[socket.socket, int]()
    with selectors.DefaultSelector() as busy:

        def give(copy: socket.socket | None = None) -> None:
            if (task := next(todo, None)) is None:
                return
            if copy is None:
                copy, pid = _copy_for(work)
                copies[copy] = pid
            with suppress(OSError):  # a dead copy is noticed when its answer is read
                copy.sendall(pickle.dumps(task[1]))
            busy.register(copy, selectors.EVENT_READ, (copy, task[0]))

        try:
            for _ in range(at_once):
                give()
            while busy.get_map():
                for key, _ in busy.select():
                    copy, number = key.data
                    busy.unregister(copy)
                    found: R | None = None
                    with suppress(EOFError, OSError, pickle.UnpicklingError):
                        found = _received(copy)
                    give(copy if found is not None else None)
                    yield number, found
        finally:
            for copy in copies:
                copy.close()
            _end([*copies.values()])


def _copy_for(work: Callable[[T], R]) -> tuple[socket.socket, int]:
    """Fork a copy; return the socket for its items and results, and its process id."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    # an exception from a handler is lost while Python forks: `os.register_at_fork`
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        if not (pid := os.fork()):
            ours.close()
            _be_copy(work, theirs, blocked, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()
    return ours, pid


def _end(pids: list[int]) -> None:
    """Make copies clean up and exit."""
    until = time.monotonic() + _GRACE_S
    while pids and time.monotonic() < until:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)  # repeated: one just before a copy sleeps does not wake it
        time.sleep(_POLL_S)
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG) == (0, 0)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_copy(work: Callable[[T], R], end: socket.socket, blocked: Iterable[int], parent: int) -> NoReturn:
    try:
        for number in _ENDING:  # a terminal sends them to copies too, but lumiimg ends copies by SIGTERM
            # SIGTERM is never ignored, even for a moment: a pending one would be lost
            signal.signal(number, _leave if number == signal.SIGTERM else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        die_with_parent(signal.SIGKILL)
        while os.getppid() == parent:  # else it ended before die_with_parent took effect
            end.sendall(pickle.dumps(work(_received(end))))
    finally:
        os._exit(1)  # skips lumiimg's own flushing and cleanup, which must not run twice


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit through the `finally` blocks of the work, which remove partly written files."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit


def _received(end: socket.socket) -> Any:  # noqa: ANN401 - any object
    with end.makefile("rb") as stream:
        return pickle.load(stream)  # noqa: S301 - by lumiimg itself
