"""The network, in one place: bounded answers, retries, redirects that keep secrets, and a word where there is none."""

from __future__ import annotations

import re
import threading
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from lumiimg import __version__
from lumiimg.errors import BadInputError, FailedError, MissingHereError, one_line
from lumiimg.secret import hidden

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import requests

    from lumiimg.resolve.network.session import Exchange, Session

TIMEOUT_S = (10.0, 60.0)
"""To connect, and between two reads."""
_ANSWER_S = 120.0
_ALL_ANSWERS_S, _ALL_FILES_S = 3600.0, 24 * 3600.0
"""What all answers, and all files, of one command may take together."""
_ATTEMPTS = 4
_SOON_S = 3.0
_PAUSE_S = 0.5
"""Before the second try; twice as long before each that follows."""
_REDIRECTS = 5
_CHUNK_BYTES = 64 * 1024
_MOVED = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({429, 500, 502, 503, 504})
_CARRIED = frozenset({"accept", "accept-encoding", "range", "if-range"})
"""What a redirect to another host may carry: none of it is a secret, and a signed address still serves a part."""
ELSEWHERE = "name a mirror (--mirror FROM=TO), or fetch it on a machine with a network"


@dataclass(frozen=True, slots=True)
class Response:
    """What a server said."""

    url: str
    """After redirects: what links in the body are relative to."""
    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large an answer may be, and how long it may take."""

    size_bytes: int
    within_s: float
    since: float = field(default_factory=time.monotonic)


class BrokeOffError(FailedError):
    """The connection ended before the answer did: the rest may come when it is asked for."""


class ReplacedError(FailedError):
    """What an address, or a digest, stood for is not there any more."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A file, or its end, on its way."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    chunks: Iterator[bytes]
    url: str
    """After redirects; what is behind its `?` may be a key."""


class Web:
    """Sessions, one a thread: requests promises nothing of one that threads share.

    Every request raises FailedError if there is no answer, or one that is too large or too slow.
    """

    def __init__(self, *, offline: bool = False, patient: bool = True) -> None:
        """`patient` is for what must come: where something else will do, one try of few seconds is enough."""
        self.offline = offline
        self._attempts, self._connect_s = (_ATTEMPTS, TIMEOUT_S[0]) if patient else (0, _SOON_S)
        self._of_thread = threading.local()
        self._stopped = threading.Event()
        self._left_s = {"answers": _ALL_ANSWERS_S, "files": _ALL_FILES_S}

    def stop(self) -> None:
        """End what comes at this moment in other threads, with FailedError there; nothing can be asked for any more."""
        self._stopped.set()

    def pause(self, seconds: float) -> None:
        """Wait, unless it ends here. Raises FailedError once `stop` was called."""
        if self._stopped.wait(seconds):
            raise FailedError("was stopped")

    def ask(
        self,
        url: str,
        *,
        limit_bytes: int,
        headers: Mapping[str, str] | None = None,
        allow: Collection[int] = (),
        login: str | None = None,
    ) -> Response:
        """Return the whole answer; one of another status than 2xx or `allow` is a FailedError.

        Where `headers` carry no Authorization, the login that ~/.netrc has for the host of `login` (of `url`, if that
        is None) is shown.
        """
        bounds = Bounds(limit_bytes, _ANSWER_S)
        with (
            self._exchange(url, bounds, "answers") as exchange,
            self._open(url, headers or {}, allow, login or url, exchange) as answer,
        ):
            body = b"".join(_bounded(answer, bounds, answer.url, decode=True))
            return Response(answer.url, answer.status_code, _lower(answer), body)

    @contextmanager
    def open(
        self, url: str, bounds: Bounds, headers: Mapping[str, str], allow: Collection[int] = ()
    ) -> Iterator[Stream]:
        """Yield a file, byte by byte as it lies on the server: what a digest is of, and a range.

        Its chunks raise BrokeOffError where the connection ends early.
        """
        headers = {"Accept-Encoding": "identity", **headers}
        with (
            self._exchange(url, bounds, "files") as exchange,
            self._open(url, headers, allow, url, exchange) as answer,
        ):
            yield Stream(answer.status_code, _lower(answer), _bounded(answer, bounds, url, decode=False), answer.url)

    @contextmanager
    def _exchange(self, url: str, bounds: Bounds, kind: str) -> Iterator[Exchange]:
        """Yield the time of one exchange: what is left of its own, and of that of all of its kind."""
        from lumiimg.resolve.network.session import Exchange, of_thread  # 135 ms that only the network should cost

        start, left_s = time.monotonic(), self._left_s[kind]
        until = min(bounds.since + bounds.within_s, start + left_s)
        of_all = "" if until < start + left_s else f", all that is left for the {kind} of one command"
        late = FailedError(
            f"did not come within {max(0.0, min(bounds.within_s, left_s)):.0f} s{of_all}",
            where=place(url),
            hint=ELSEWHERE,
        )
        before = of_thread.exchange
        of_thread.exchange = exchange = Exchange(until, late, self._stopped)
        try:
            yield exchange
        finally:
            of_thread.exchange = before
            self._left_s[kind] -= time.monotonic() - start

    def _open(
        self, url: str, headers: Mapping[str, str], allow: Collection[int], login: str | None, exchange: Exchange
    ) -> AbstractContextManager[requests.Response]:
        """Ask, and follow redirects by hand: never from https to http, and with no word of ours to another host."""
        for _ in range(_REDIRECTS + 1):
            answer = self._tried(url, headers, login, exchange)
            target = answer.headers.get("location")
            if answer.status_code not in _MOVED or not target:
                if answer.ok or answer.status_code in allow:
                    return answer
                answer.close()
                raise FailedError(
                    f"the server answers {answer.status_code} {one_line(answer.reason or '')[:60]}".rstrip(),
                    where=place(url),
                    hint=ELSEWHERE,
                )
            answer.close()
            try:
                there = urljoin(url, target)
                parts = urlsplit(there)
            except ValueError as error:
                what = f"redirects to {place(target)[:200]}, which is not a valid address"
                raise FailedError(what, where=place(url)) from error
            if parts.scheme not in {"http", "https"} or (urlsplit(url).scheme == "https" and parts.scheme == "http"):
                raise FailedError(f"redirects to {place(there)[:200]}, which is not followed", where=place(url))
            if parts.netloc != urlsplit(url).netloc:
                headers = {name: value for name, value in headers.items() if name.lower() in _CARRIED}
                login = None
            url = there
        raise FailedError(f"redirects more than {_REDIRECTS} times", where=place(url))

    def _tried(self, url: str, headers: Mapping[str, str], login: str | None, exchange: Exchange) -> requests.Response:
        """Ask, and ask again a few times a server that is busy or breaks off before it answers."""
        import requests
        from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

        if self.offline:
            raise MissingHereError(
                "would be needed from the network, which --offline forbids",
                where=place(url),
                hint="fetch it once without --offline, or name the file: --source NAME=FILE",
            )
        for pause_s in (*(_PAUSE_S * 2**attempt for attempt in range(self._attempts)), None):
            try:
                answer = self._once(url, headers, login, exchange.left_s())
                if pause_s is None or answer.status_code not in _BUSY:
                    return answer
                answer.close()
            except requests.RequestException as error:
                if pause_s is None or not isinstance(error, (requests.ConnectionError, requests.Timeout)):
                    # no network, or a wrong address, is another thing than a server that misbehaves
                    is_there = not isinstance(_innermost(error), (NewConnectionError, ConnectTimeoutError))
                    kind = FailedError if is_there else MissingHereError
                    raise kind(f"could not be reached: {_reason(error)}", where=place(url), hint=ELSEWHERE) from error
            except (ValueError, UnicodeError) as error:
                raise BadInputError(f"is not an address: {one_line(str(error))}", where=place(url)[:200]) from error
            self.pause(min(pause_s, exchange.left_s()))
        raise AssertionError

    def _once(self, url: str, headers: Mapping[str, str], login: str | None, left_s: float) -> requests.Response:
        from lumiimg.resolve.network.session import login_for

        def authenticate(request: requests.PreparedRequest) -> requests.PreparedRequest:
            """Do by hand what requests does unasked: it puts ~/.netrc over an Authorization of ours."""
            known = None if login is None else login_for(login)
            if known is not None and "Authorization" not in request.headers:
                request.prepare_auth(known)
            return request

        return self._opened().get(
            url,
            headers=dict(headers),
            auth=authenticate,
            stream=True,
            timeout=(min(self._connect_s, left_s), TIMEOUT_S[1]),
            allow_redirects=False,
        )

    def _opened(self) -> Session:
        session: Session | None = getattr(self._of_thread, "session", None)
        if session is None:
            from lumiimg.resolve.network.session import Session

            session = self._of_thread.session = Session(f"lumiimg/{__version__}")
        return session


def _lower(answer: requests.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def _bounded(answer: requests.Response, bounds: Bounds, url: str, *, decode: bool) -> Iterator[bytes]:
    from urllib3.exceptions import HTTPError

    from lumiimg.resolve.network.session import is_packed_as_asked

    if decode and not is_packed_as_asked(answer):
        raise FailedError("has an encoding that was not requested", where=place(url))
    size = 0
    try:
        # not iter_content, which waits for a whole chunk
        while chunk := answer.raw.read1(_CHUNK_BYTES, decode_content=decode):
            size += len(chunk)
            if size > bounds.size_bytes:
                raise FailedError(f"is larger than {bounds.size_bytes} bytes", where=place(url))
            yield chunk
    except (HTTPError, OSError) as error:
        raise BrokeOffError(f"broke off: {_reason(error)}", where=place(url), hint=ELSEWHERE) from error


def refuse_unproved(url: str, sha256: str | None = None) -> None:
    """Refuse what would come without TLS and without a digest: whoever is on the way could put another in its place.

    This machine itself is no way. Raises FailedError.
    """
    if sha256 is None and url.startswith("http://") and not _is_here(urlsplit(url).hostname or ""):
        raise FailedError(
            "would come without TLS, and its digest is not known",
            where=place(url),
            hint="name an address with https://, or lock the digest where there is one",
        )


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def place(url: str) -> str:
    """Return an address for a message: what is behind its `?` may be the key to a file (signed redirects of stores)."""
    return one_line(hidden(url.partition("?")[0]))


def _innermost(error: BaseException) -> BaseException:
    """Return the reason: requests wraps urllib3's, which wraps its own several times."""
    inner = getattr(error, "reason", None) or next(iter(error.args), None)
    return _innermost(inner) if isinstance(inner, BaseException) else error


def _reason(error: BaseException) -> str:
    """Return the reason in words."""
    from urllib3.exceptions import ConnectTimeoutError, NameResolutionError

    error = _innermost(error)
    if isinstance(error, NameResolutionError):
        return "its name is not known here"
    if isinstance(error, ConnectTimeoutError):
        return f"no answer within {TIMEOUT_S[0]:g} s"
    # urllib3 puts the object in front: `HTTPSConnection(host='…', port=443): Failed to …`
    return one_line(re.sub(r"^(\w*(Connection|Pool)\(.*?\)|<[^>]*>): ", "", str(error))[:300])
