"""How long a server is listened to: then its connection is shut down, whatever is read from it at that moment."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from lumiimg.errors import FailedError


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large an answer may be, and how long it may take."""

    size_bytes: int
    within_s: float
    since: float = field(default_factory=time.monotonic)


class Deadline:
    """The end of an exchange: of all its tries, redirects and bytes.

    The timeouts of requests count between two bytes. A server that sends one now and then, in a header, the size of a
    chunk or a trailer, would never be left.
    """

    def __init__(self, seconds: float, late: FailedError) -> None:
        self._error: FailedError | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(max(0.0, seconds), self.end, (late,))
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            while self._connections:
                self._connections.pop().close()

    def end(self, error: FailedError) -> None:
        """End the exchange with an error, from any thread."""
        with self._lock:
            self._error = self._error or error
            self._over.set()
            for connection in self._connections:
                with suppress(OSError):  # the server was quicker
                    connection.shutdown(socket.SHUT_RDWR)

    def check(self, wait_s: float = 0.0) -> None:
        """Raise the error of the exchange if it has ended, or does so while this waits."""
        if self._over.wait(wait_s) and self._error is not None:
            raise self._error

    def watch(self, connection: socket.socket) -> None:
        """Take a connection that will be shut down. Raises as `check`."""
        with self._lock:  # a descriptor of its own: TLS takes that of the socket, and may be in the middle of a read
            self._connections.append(socket.socket(fileno=os.dup(connection.fileno())))
        self.check()
