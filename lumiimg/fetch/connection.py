"""The sessions of requests that all of lumiimg's HTTP goes through; to import this costs what requests costs."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError

from lumiimg import __version__
from lumiimg.errors import one_line
from lumiimg.fetch.logins import login_for

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from lumiimg.fetch.deadline import Deadline

_READ_S = 60.0
"""Between two reads."""
_PAUSE_S = 0.5
"""Before the second try; twice as long before each that follows."""
_BUSY = frozenset({429, 500, 502, 503, 504})
_CHUNK_BYTES = 64 * 1024


class _OfThread(threading.local):
    deadline: Deadline
    """Of the exchange for which this thread asks a server at this moment."""


_of_thread = _OfThread()


class Session(requests.Session):
    """A session of requests that keeps deadlines, and leaves the body of a redirect unread."""

    def __init__(self, attempts: int, connect_s: float) -> None:
        super().__init__()
        self._connect_s = connect_s
        self.headers.update({"User-Agent": f"lumiimg/{__version__}", "Accept-Encoding": "gzip"})
        self._attempts = attempts
        for scheme in ("https://", "http://"):
            self.mount(scheme, _Adapter())

    def ask(self, url: str, headers: Mapping[str, str], login: str | None, deadline: Deadline) -> requests.Response:
        """Return the answer of a server, its body unread; the login of the address `login` is shown, if there is one.

        Raises ConnectionError without a connection, OSError without an answer, ValueError for what is not an address.
        """

        def authenticate(request: requests.PreparedRequest) -> requests.PreparedRequest:
            """Do by hand what requests does unasked: it puts ~/.netrc over an Authorization of ours."""
            known = None if login is None else login_for(login)
            if known is not None and "Authorization" not in request.headers:
                request.prepare_auth(known)
            return request

        _of_thread.deadline = deadline
        timeout, headers = (self._connect_s, _READ_S), dict(headers)
        # not by urllib3's Retry, which reads what a busy server says to its end
        for attempt in range(self._attempts + 1):
            is_last = attempt == self._attempts
            try:
                answer = self.get(
                    url, headers=headers, auth=authenticate, stream=True, timeout=timeout, allow_redirects=False
                )
            except requests.RequestException as error:
                if is_last or not isinstance(error, (requests.ConnectionError, requests.Timeout)):
                    is_unconnected = isinstance(_innermost(error), (NewConnectionError, ConnectTimeoutError))
                    raise (ConnectionError if is_unconnected else OSError)(_reason(error)) from error
            else:
                if is_last or answer.status_code not in _BUSY:
                    return answer
                answer.close()
            deadline.check(wait_s=_PAUSE_S * 2**attempt)
        raise AssertionError

    def merge_environment_settings(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 - as in requests
        """Return what requests takes of the environment; SSL_CERT_FILE, OpenSSL's name, counts after its own two."""
        merged: Any = super().merge_environment_settings(*args, **settings)
        if merged["verify"] is True and (file := os.environ.get("SSL_CERT_FILE")):
            merged["verify"] = file
        return merged

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return nothing: requests reads, and unpacks, all that comes with a redirect, also of one not followed."""


class _Adapter(HTTPAdapter):
    def get_connection_with_tls_context(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 - as in requests
        pool: Any = super().get_connection_with_tls_context(*args, **settings)
        if not issubclass(pool.ConnectionCls, _Watched):
            pool.ConnectionCls = type("Connection", (_Watched, pool.ConnectionCls), {})
        return pool


class _Watched:
    """What a connection of urllib3 becomes, also one to a proxy: one that the deadline of its exchange shuts down."""

    sock: socket.socket | None

    def _new_conn(self) -> socket.socket:
        connection: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            _of_thread.deadline.watch(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _tunnel(self) -> None:
        super()._tunnel()  # type: ignore[misc]
        _of_thread.deadline.check()  # to http.client, an end is the end of what the proxy says

    def request(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - as in urllib3
        if self.sock is not None:  # of an earlier exchange
            _of_thread.deadline.watch(self.sock)
        super().request(*args, **settings)  # type: ignore[misc]


def read(answer: requests.Response, *, decode: bool) -> bytes:
    """Return what has come of a body, nothing at its end. Raises OSError where it breaks off."""
    try:  # not iter_content, which waits for a whole chunk
        chunk: bytes = answer.raw.read1(_CHUNK_BYTES, decode_content=decode)
    except (HTTPError, OSError) as error:
        raise OSError(_reason(error)) from error
    return chunk


def _reason(error: BaseException) -> str:
    """Return the reason of an error in words."""
    error = _innermost(error)
    if isinstance(error, NameResolutionError):
        return "its name is not known here"
    if isinstance(error, ConnectTimeoutError):
        return "no answer in time"
    # urllib3 puts the object in front: `HTTPSConnection(host='…', port=443): Failed to …`
    return one_line(re.sub(r"^(\w*(Connection|Pool)\(.*?\)|<[^>]*>): ", "", str(error))[:300])


def _innermost(error: BaseException) -> BaseException:
    """Return the reason: requests wraps urllib3's, which wraps its own several times."""
    inner = getattr(error, "reason", None) or next(iter(error.args), None)
    return _innermost(inner) if isinstance(inner, BaseException) else error
