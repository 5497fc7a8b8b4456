"""One HTTP exchange through requests, with a deadline. Importing this module costs what importing requests costs."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from lumiimg import __version__
from lumiimg.core.errors import FailedError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_READ_S = 60.0
"""Timeout between two reads."""
_PAUSE_S = 0.5
"""Pause before the second try; doubled before each further one."""
_BUSY = frozenset({429, 500, 502, 503, 504})
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables that name the trusted certificates: requests' own two, and OpenSSL's."""
_CHUNK_BYTES = 64 * 1024


class TimedSession(requests.Session):
    """All tries, redirects and bytes of one response, under one deadline; for use in a `with` statement.

    The timeouts of requests count between two bytes. A server that sends one now and then, in a header, a chunk size or
    a trailer, would never time out. So at the deadline all connections are shut down, whatever is being read.
    """

    def __init__(self, seconds: float, late: FailedError) -> None:
        super().__init__()
        self.headers.update({"User-Agent": f"lumiimg/{__version__}", "Accept-Encoding": "identity"})
        for scheme in ("https://", "http://"):
            self.mount(scheme, _Adapter(self))
        self._error: FailedError | None = None
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(max(0.0, seconds), self.end, (late,))
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        self._timer.cancel()
        super().close()
        with self._lock:
            while self._connections:
                self._connections.pop().close()

    def end(self, error: FailedError) -> None:
        """End the exchange with an error, from any thread."""
        with self._lock:
            self._error = self._error or error
            self._has_ended.set()
            for connection in self._connections:
                with suppress(OSError):  # the server closed it first
                    connection.shutdown(socket.SHUT_RDWR)

    def check(self, wait_s: float = 0.0) -> None:
        """Raise the error of the exchange if it has ended, or ends during the wait."""
        if self._has_ended.wait(wait_s) and self._error is not None:
            raise self._error

    def watch(self, connection: socket.socket) -> None:
        """Register a connection that is to be shut down at the end. Raises as `check` does."""
        with self._lock:  # a duplicate descriptor: TLS takes over the socket's, and may be in the middle of a read
            self._connections.append(socket.socket(fileno=os.dup(connection.fileno())))
        self.check()

    def ask(
        self, url: str, headers: Mapping[str, str], login: tuple[str, str] | None, *, attempts: int, connect_s: float
    ) -> requests.Response:
        """Return the server's response with its body unread.

        Raises ConnectionError without a connection, OSError without a response, ValueError for an invalid address.
        """
        bundle = next(filter(None, map(os.environ.get, _BUNDLES)), None)
        # without urllib3's Retry, which reads a busy server's response to its end
        for attempt in range(attempts + 1):
            try:
                answer = self.get(
                    url,
                    headers=dict(headers),
                    auth=login or _without_login,
                    stream=True,
                    timeout=(connect_s, _READ_S),
                    allow_redirects=False,
                    verify=bundle or True,
                )
            except (requests.ConnectionError, requests.Timeout) as error:
                if attempt == attempts:
                    unconnected = (NewConnectionError, ConnectTimeoutError)
                    is_unconnected = any(isinstance(one, unconnected) for one in _causes(error))
                    raise (ConnectionError if is_unconnected else OSError)(_reason(error)) from error
            else:
                if attempt == attempts or answer.status_code not in _BUSY:
                    return answer
                answer.close()
            self.check(wait_s=_PAUSE_S * 2**attempt)
        raise AssertionError

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: requests would read and unpack the body of every redirect, even of one that is not followed."""


def _without_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return the request unchanged, so that requests does not replace our Authorization by a login of ~/.netrc."""
    return request


class _Adapter(HTTPAdapter):
    """Makes urllib3 open only connections that the exchange watches, also to a proxy."""

    def __init__(self, exchange: TimedSession) -> None:
        super().__init__()
        self._exchange = exchange

    def get_connection_with_tls_context(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 - as in requests
        pool: Any = super().get_connection_with_tls_context(*args, **settings)
        if not issubclass(pool.ConnectionCls, _Watched):
            pool.ConnectionCls = type("Connection", (_Watched, pool.ConnectionCls), {"exchange": self._exchange})
        return pool


class _Watched:
    exchange: TimedSession

    def _new_conn(self) -> socket.socket:
        connection: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            self.exchange.watch(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _tunnel(self) -> None:
        super()._tunnel()  # type: ignore[misc]
        self.exchange.check()  # http.client takes a shutdown for the end of the proxy's response


def read(answer: requests.Response) -> bytes:
    """Return the next bytes of a body, empty at its end. Raises OSError if the connection is lost."""
    try:  # not iter_content, which waits for a whole chunk
        chunk: bytes = answer.raw.read1(_CHUNK_BYTES, decode_content=False)
    except (HTTPError, OSError) as error:
        raise OSError(_reason(error)) from error
    return chunk


def _reason(error: BaseException) -> str:
    """Return the message of an error's innermost cause."""
    *_, innermost = _causes(error)
    return one_line(getattr(innermost, "strerror", None) or str(innermost))[:300]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its nested causes: requests wraps urllib3's errors, which wrap others several times."""
    yield error
    inner = (error.__cause__, getattr(error, "reason", None), *error.args)
    for one in (one for one in inner if isinstance(one, BaseException)):
        yield from _causes(one)
        return
