"""Connections to servers that cannot hold us: every read of one has an end, whatever it is a read of.

The limits of requests and urllib3 count between two bytes: a server that sends one now and then, in a header, the size
of a chunk, a trailer or a `100 Continue`, would never be left.
"""

from __future__ import annotations

import io
import netrc
import os
import threading
import time
from http.client import HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter

from lumiimg.errors import FailedError
from lumiimg.files import open_regular

if TYPE_CHECKING:
    import socket

_NETRC_LIMIT_BYTES = 1 << 20
_ENCODING = "gzip"
"""The one way to pack an answer that is asked for."""


class Exchange:
    """A question with its answer, redirects, tries and every byte included, and the time that it has."""

    def __init__(self, until: float, late: FailedError, stopped: threading.Event) -> None:
        self._until = until
        self._late = late
        self._stopped = stopped

    def left_s(self) -> float:
        """Return the seconds that are left, above 0. Raises FailedError where none are, or all was stopped."""
        if self._stopped.is_set():
            raise FailedError("was stopped")
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._late
        return left


class _OfThread(threading.local):
    exchange: Exchange | None = None


of_thread = _OfThread()
"""What this thread asks a server at this moment: answers that begin take their time from it."""


class _Reads(io.RawIOBase):
    """What a connection brings, as long as its exchange has time."""

    def __init__(self, connection: io.RawIOBase, sock: socket.socket, exchange: Exchange) -> None:
        self._connection = connection
        self._socket = sock
        self._between_s = sock.gettimeout()
        self._exchange = exchange

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - as in io
        left = self._exchange.left_s()
        self._socket.settimeout(left if self._between_s is None else min(left, self._between_s))
        try:
            return self._connection.readinto(buffer)
        except TimeoutError:
            self._exchange.left_s()
            raise

    def close(self) -> None:
        self._connection.close()
        super().close()


class _Answer(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - as in http.client
        super().__init__(sock, *args, **settings)
        if of_thread.exchange is not None:
            self.fp = io.BufferedReader(_Reads(self.fp.detach(), sock, of_thread.exchange))


class _Adapter(HTTPAdapter):
    def get_connection_with_tls_context(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 - as in requests
        pool: Any = super().get_connection_with_tls_context(*args, **settings)
        if pool.ConnectionCls.response_class is not _Answer:
            pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), {"response_class": _Answer})
        return pool


class Session(requests.Session):
    """A session of requests whose answers end, and which leaves the body of a redirect unread."""

    def __init__(self, user_agent: str) -> None:
        super().__init__()
        self.headers.update({"User-Agent": user_agent, "Accept-Encoding": _ENCODING})
        for scheme in ("https://", "http://"):
            self.mount(scheme, _Adapter())

    def merge_environment_settings(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 - as in requests
        """Return what requests takes of the environment; SSL_CERT_FILE, OpenSSL's name, counts after its own two."""
        merged: Any = super().merge_environment_settings(*args, **settings)
        if merged["verify"] is True and (file := os.environ.get("SSL_CERT_FILE")):
            merged["verify"] = file
        return merged

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return nothing: requests reads, and unpacks, all that comes with a redirect, also of one not followed."""


def is_packed_as_asked(answer: requests.Response) -> bool:
    """Whether a body is plain or packed once: what is packed twice may unpack to a million times its size."""
    return answer.headers.get("content-encoding", "identity").strip().lower() in {"identity", _ENCODING}


def login_for(url: str) -> tuple[str, str] | None:
    """Return the login that ~/.netrc, or the file that NETRC names, has for exactly this host; never without TLS."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return None
    try:
        with open_regular(os.environ.get("NETRC") or Path.home() / ".netrc") as file:
            if os.fstat(file.fileno()).st_size > _NETRC_LIMIT_BYTES:
                return None
            known = netrc.netrc(f"/proc/self/fd/{file.fileno()}").hosts
    except (OSError, ValueError, RuntimeError, netrc.NetrcParseError):
        return None
    # under this name stands what would go to every host
    found = next((known[name] for name in known if name.lower() == parts.hostname and name != "default"), None)
    return None if found is None else (found[0] or found[1], found[2])


def with_login(url: str) -> str:
    """Return an address with its login in it, as uv takes one: it then goes to no other host, scheme or port."""
    if (login := login_for(url)) is None:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{':'.join(quote(word, safe='') for word in login)}@{rest}"
