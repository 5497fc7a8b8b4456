"""A server that sends fixed bytes in reply to any request."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def serving(first: bytes, again: bytes) -> Iterator[str]:
    """Answer with `first`, then endlessly with `again`; yield the address.

    If `again` is `end`, the connection is closed after `first`; if `reset`, it is reset.
    """
    over = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(first)
            if again == b"reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            while again not in {b"end", b"reset"} and not over.wait(0.01):
                connection.sendall(again)

    def accept(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
        scheme = "https" if first.startswith(b"\x16") else "http"
        try:
            yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
