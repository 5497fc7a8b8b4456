"""A web server on loopback whose answers are defined by a test."""

from __future__ import annotations

import contextlib
import http.server
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass
class Asked:
    """A request."""

    path: str
    headers: dict[str, str]
    """By name in lower case."""
    served_bytes: int = 0
    """Bytes of the answer's body sent."""

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass(frozen=True)
class Reply:
    """An answer; an iterable body is sent piece by piece until it is exhausted."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    """The Content-Length to claim; None: the true one, or no header for a body in pieces."""


Answer = Callable[[Asked], Reply | None]
"""A function that returns the reply to a request; None closes the connection without one."""


def part(reply: Reply, asked: Asked) -> Reply:
    """Return the part of an answer that the request asks for (RFC 9110, 14.2), or all of it."""
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.range or "")
    if wanted is None or reply.status != 200 or not isinstance(reply.body, bytes):
        return reply
    size = len(reply.body)
    first = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
    last = min(int(wanted[2]) if wanted[1] and wanted[2] else size, size - 1)
    headers = {**reply.headers, "Content-Range": f"bytes {first}-{last}/{size}"}
    return replace(reply, status=206, body=reply.body[first : last + 1], headers=headers)


@contextlib.contextmanager
def listening(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve until the block ends, each request in its own thread, over TLS if given; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()})
            self.close_connection = True
            if (reply := answer(asked)) is None:
                return
            pieces = [reply.body] if isinstance(reply.body, bytes) else reply.body
            length = len(reply.body) if isinstance(reply.body, bytes) and reply.length is None else reply.length
            headers = {} if length is None else {"Content-Length": str(length)}
            self.send_response_only(reply.status)
            for name, value in {**headers, "Connection": "close", **reply.headers}.items():
                self.send_header(name, value)
            with contextlib.suppress(OSError):  # a client that has read enough closes the connection
                self.end_headers()
                for piece in pieces if self.command == "GET" else ():
                    asked.served_bytes += len(piece)  # first: a client that has the whole body may check at once
                    self.wfile.write(piece)

        do_HEAD = do_GET  # noqa: N815 - the name that the module calls

        def log_message(self, *_: object) -> None: ...

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, address: object) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # the other side may hang up
                super().handle_error(request, address)  # type: ignore[arg-type]

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        # a short poll interval, because shutdown() waits for it
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        finally:  # otherwise its thread would find the closed socket ready, and spin until the end of all tests
            server.shutdown()
