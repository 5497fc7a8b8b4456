"""Copies of lumiimg itself, which work on many things at once; one that ends takes none of the others along.

They run no other program: those pass the gate (`process.py`). The kernel ends them with lumiimg, however that ends.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from lumiimg.engine.namespaces.syscalls import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")
R = TypeVar("R")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def each_apart(work: Callable[[T], R], items: Iterable[T], at_once: int) -> Generator[tuple[int, R | None]]:
    """Yield the number of an item, and what `work` makes of it, in the order in which they are done.

    None is of an item at which its copy of lumiimg ended. Items and results can be pickled.
    """
    todo, copies = enumerate(items), list[_Copy[T, R]]()
    with selectors.DefaultSelector() as busy:

        def give(copy: _Copy[T, R] | None = None) -> None:
            if (task := next(todo, None)) is None:
                return
            number, item = task
            if copy is None:
                copies.append(copy := _Copy(work))
            copy.give(item)
            busy.register(copy.socket, selectors.EVENT_READ, (copy, number))

        try:
            for _ in range(at_once):
                give()
            while busy.get_map():
                for key, _ in busy.select():
                    copy, number = key.data
                    busy.unregister(copy.socket)
                    found = copy.answer()
                    give(copy if found is not None else None)
                    yield number, found
        finally:
            for copy in copies:
                copy.end()


class _Copy(Generic[T, R]):
    """One copy, which works on one item after another."""

    def __init__(self, work: Callable[[T], R]) -> None:
        ours, theirs = socket.socketpair()
        # what a handler raises while Python forks is lost: `os.register_at_fork`
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self._pid = os.fork()
            for number in () if self._pid else _ENDING:
                signal.signal(number, signal.SIG_IGN)  # a terminal sends them to copies too; lumiimg ends these
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.socket, other = (ours, theirs) if self._pid else (theirs, ours)
        other.close()
        self._received = self.socket.makefile("rb")
        if not self._pid:
            self._serve(work)

    def _serve(self, work: Callable[[T], R]) -> NoReturn:
        try:
            die_with_parent(signal.SIGKILL)
            while True:
                self._send(work(self._receive()))
        finally:
            os._exit(1)  # what lumiimg itself has to write, or to put in order, is not done twice

    def _send(self, value: T | R) -> None:
        self.socket.sendall(pickle.dumps(value))

    def _receive(self) -> Any:  # noqa: ANN401 - what was sent
        return pickle.load(self._received)  # noqa: S301 - by lumiimg itself

    def give(self, item: T) -> None:
        with suppress(OSError):  # that it has ended shows where its answer is read
            self._send(item)

    def answer(self) -> R | None:
        """Return what it made of its item; None where it has ended."""
        try:
            answer: R = self._receive()
        except (EOFError, OSError, pickle.UnpicklingError):
            return None
        return answer

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._received.close()
        self.socket.close()
