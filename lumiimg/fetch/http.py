"""HTTP with limits: on size, on time, on what a redirect may carry, and on who gets a login."""

from __future__ import annotations

import netrc
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from lumiimg.core.errors import BadInputError, FailedError, MissingHereError, one_line
from lumiimg.core.files import open_regular
from lumiimg.core.redact import redact

if TYPE_CHECKING:
    from collections.abc import Collection

    import requests

    from lumiimg.fetch.connection import TimedSession

_ANSWER_S = 120.0
_ALL_S = 24 * 3600.0
"""Time limit for all requests of one command together; the times of parallel threads add up."""
_ATTEMPTS = 4
"""Retries after the first try."""
_CONNECT_S, _SOON_S = 10.0, 3.0
_REDIRECTS = 5
_NETRC_LIMIT_BYTES = 1 << 20
_MOVED = frozenset({301, 302, 303, 307, 308})
_CARRIED = frozenset({"accept", "accept-encoding", "range"})
"""Headers that may follow a redirect to another host: none is secret, and a signed address can still serve a range."""
ELSEWHERE = "name a mirror (--mirror FROM=TO), or fetch it on a machine with a network"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for a response: its size, its time, and whether it may come without TLS."""

    size_bytes: int
    within_s: float = field(default_factory=lambda: _ANSWER_S)
    plain: bool = False
    """Whether it may come without TLS, because it is compared with a digest."""
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Response:
    """A response, complete or still arriving."""

    url: str
    """Address after redirects, to which links in the body are relative; its query may be a key."""
    status: int
    headers: Mapping[str, str]
    """Values by lower-case name."""
    body: bytes = b""
    chunks: Iterator[bytes] = field(default_factory=lambda: iter(()))

    def whole(self) -> Response:
        """Return it with its whole body. Raises FailedError if that is encoded; file downloads do not check it."""
        if self.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise FailedError("has an encoding that was not requested", where=display_url(self.url))
        return replace(self, body=b"".join(self.chunks))


class BrokeOffError(FailedError):
    """The connection was lost before the end of the response; another request may get the rest."""


class ReplacedError(FailedError):
    """The content that an address or a digest stood for is no longer there."""


class Http:
    """HTTP client for one command.

    A request raises FailedError if there is no response or the response is too large, MissingHereError without a
    network.
    """

    def __init__(self, *, offline: bool = False, retry: bool = True) -> None:
        """Set `retry` for content that is required; without it there is one try, with a few seconds to connect."""
        self.offline = offline
        self._attempts, self._connect_s = (_ATTEMPTS, _CONNECT_S) if retry else (0, _SOON_S)
        self._running: set[TimedSession] = set()
        self._is_stopped = False
        self._left_s = _ALL_S

    def stop(self) -> None:
        """End the running requests of all threads with FailedError, and refuse later ones."""
        self._is_stopped = True
        for exchange in [*self._running]:
            exchange.end(FailedError("was stopped"))

    def get(
        self,
        url: str,
        *,
        limit_bytes: int,
        headers: Mapping[str, str] | None = None,
        allow: Collection[int] = (),
    ) -> Response:
        """Return the whole response. Raises FailedError for an error status that is not in `allow`."""
        with self.open(url, Bounds(limit_bytes), headers or {}, allow) as answer:
            return answer.whole()

    @contextmanager
    def open(
        self,
        url: str,
        bounds: Bounds,
        headers: Mapping[str, str],
        allow: Collection[int] = (),
        login: str | None = None,
    ) -> Iterator[Response]:
        """Yield a response as `get` does, but as chunks of the server's raw bytes, to which digests and ranges refer.

        Unless `headers` contain Authorization, the login that ~/.netrc has for the host of `login` (of `url`, if that
        is None) is sent.

        Its chunks raise BrokeOffError if the connection is lost.
        """
        if not bounds.plain:
            require_tls_or_digest(url)
        if self.offline:
            raise MissingHereError(
                "is needed from the network, which --offline forbids",
                where=display_url(url),
                hint="fetch it once without --offline, or name the file: --source NAME=FILE",
            )
        from lumiimg.fetch.connection import TimedSession  # takes 135 ms, which only requests should pay

        start = time.monotonic()
        what = f"did not arrive within {max(0, min(bounds.within_s, self._left_s)):.0f} s"
        late = FailedError(what, where=display_url(url), hint=ELSEWHERE)
        with TimedSession(min(bounds.since + bounds.within_s - start, self._left_s), late) as exchange:
            self._running.add(exchange)
            try:
                if self._is_stopped:
                    raise FailedError("was stopped")
                with self._follow(exchange, url, headers, allow, login or url) as found:
                    lower = {name.lower(): value for name, value in found.headers.items()}
                    yield Response(found.url, found.status_code, lower, chunks=_chunks(found, bounds, exchange))
            finally:
                self._running.discard(exchange)
                self._left_s -= time.monotonic() - start

    def _follow(
        self, exchange: TimedSession, url: str, headers: Mapping[str, str], allow: Collection[int], login: str | None
    ) -> requests.Response:
        """Send a request and follow redirects: never from https to http; another host gets no login or secret."""
        for _ in range(_REDIRECTS + 1):
            known = None if login is None or "Authorization" in headers else login_for(login)
            try:
                answer = exchange.ask(url, headers, known, attempts=self._attempts, connect_s=self._connect_s)
            except ValueError as error:
                what = f"is not a valid address: {one_line(str(error))}"
                raise BadInputError(what, where=display_url(url)[:200]) from error
            except OSError as error:
                exchange.check()
                # no network, or a wrong address, differs from a server that misbehaves
                kind = MissingHereError if isinstance(error, ConnectionError) else FailedError
                raise kind(f"could not be reached: {error}", where=display_url(url), hint=ELSEWHERE) from error
            target = answer.headers.get("location")
            if answer.status_code not in _MOVED or not target:
                if answer.ok or answer.status_code in allow:
                    return answer
                answer.close()
                what = f"the server answers {answer.status_code} {one_line(answer.reason or '')[:60]}".rstrip()
                raise FailedError(what, where=display_url(url), hint=ELSEWHERE)
            answer.close()
            there = _redirected(url, target)
            if urlsplit(there).netloc != urlsplit(url).netloc:
                headers = {name: value for name, value in headers.items() if name.lower() in _CARRIED}
                login = None
            url = there
        raise FailedError(f"redirects more than {_REDIRECTS} times", where=display_url(url))


def _redirected(url: str, target: str) -> str:
    """Return the target of a redirect. Raises FailedError for one that must not be followed."""
    with suppress(ValueError):  # not a valid address
        there = urljoin(url, target)
        schemes = urlsplit(url).scheme, urlsplit(there).scheme
        if schemes[1] in {"http", "https"} and schemes != ("https", "http"):
            return there
    raise FailedError(f"redirects to {display_url(target)[:200]}, which is not allowed", where=display_url(url))


def _chunks(answer: requests.Response, bounds: Bounds, exchange: TimedSession) -> Iterator[bytes]:
    from lumiimg.fetch.connection import read

    size, where = 0, display_url(answer.url)
    try:
        while chunk := read(answer):
            size += len(chunk)
            if size > bounds.size_bytes:
                raise FailedError(f"is larger than {bounds.size_bytes} bytes", where=where)
            yield chunk
    except OSError as error:
        exchange.check()
        raise BrokeOffError(f"connection lost: {error}", where=where, hint=ELSEWHERE) from error
    exchange.check()  # a connection that was shut down looks like the end of a response of unknown length


def require_tls_or_digest(url: str, sha256: str | None = None) -> None:
    """Refuse content with neither TLS nor a digest: anybody on the network path could replace it.

    Addresses of this machine itself are allowed. Raises FailedError.
    """
    parts = urlsplit(url)
    is_here = re.fullmatch(r"localhost|127(?:\.[0-9]{1,3}){3}|::1", parts.hostname or "")
    if sha256 is None and parts.scheme == "http" and not is_here:
        raise FailedError(
            "would be fetched without TLS, and its digest is not known",
            where=display_url(url),
            hint="use an https:// address, or lock the digest if there is one",
        )


def display_url(url: str) -> str:
    """Return an address for messages, without its query: that may be the key to a file (signed redirects of stores)."""
    return one_line(redact(url.partition("?")[0]))


def login_for(url: str) -> tuple[str, str] | None:
    """Return the login for exactly this host from ~/.netrc, or the file that NETRC names; None without TLS."""
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
    # the entry `default` would go to every host
    found = next((known[name] for name in known if name.lower() == parts.hostname and name != "default"), None)
    return None if found is None else (found[0] or found[1], found[2])


def with_login(url: str) -> str:
    """Return an address that contains its login, as uv reads it; uv sends it to no other host, scheme or port."""
    if (login := login_for(url)) is None:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{':'.join(quote(word, safe='') for word in login)}@{rest}"
