"""Servers that never end or send too much, and which server gets which data. They are real ones, on loopback."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import itertools
import os
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lumiimg.core.errors import FailedError, LumiimgError
from lumiimg.fetch import connection, download, http
from lumiimg.fetch.http import Http, login_for
from lumiimg.fetch.mirrors import Mirrors, parse_mirrors
from lumiimg.fetch.package_index import project_page
from lumiimg.fetch.registry import parse_reference, resolve_image
from lumiimg.fetch.store import Store
from tests.shared.hostile_server import serving
from tests.shared.loopback import Asked, Reply, listening
from tests.shared.programs import patient
from tests.shared.tls import CERTIFICATE, certified
from tests.shared.world import resolved_at

ENDLESS = b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"
"""What a server sends first, and then repeats; test_hostile_servers.py has more of them."""
LIMIT_S = 0.4


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWER_S", LIMIT_S)
    monkeypatch.setattr(download, "TOTAL_S", LIMIT_S)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.mark.threat
def test_a_proxy_that_goes_on_for_ever_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(*ENDLESS) as url:
        monkeypatch.setenv("https_proxy", url)
        with pytest.raises(LumiimgError, match="did not arrive within 0 s"):
            Http().get("https://host.test/file", limit_bytes=10)


@pytest.mark.threat
def test_many_slow_answers_take_no_more_than_the_command_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ALL_S", 2 * LIMIT_S)
    with serving(*ENDLESS) as url:
        asking = Http()
        for _ in range(2):
            with pytest.raises(FailedError, match="did not arrive within"):
                asking.get(url, limit_bytes=10)
        with pytest.raises(FailedError, match="did not arrive within 0 s"):
            asking.get(url, limit_bytes=10)


PACKED = gzip.compress(b"\0" * 1_000_000)
REPLIES = {
    "/long": Reply(200, b"\0" * 1_000_000),
    "/packed": Reply(200, PACKED, {"Content-Encoding": "gzip"}),
    "/moved": Reply(302, gzip.compress(b"\0" * (64 << 20)), {"Location": "/", "Content-Encoding": "gzip"}),
    "/busy": Reply(503, itertools.repeat(b"\0" * (1 << 20))),
    "/down": Reply(302, b"", {"Location": "http://127.0.0.1:1/"}),
    "/": Reply(200, b"good"),
}


@dataclass
class Server:
    url: str = ""
    logins: list[str | None] = field(default_factory=list)
    """Logins sent with the requests."""

    def answer(self, asked: Asked) -> Reply:
        self.logins.append(asked.headers.get("authorization"))
        return REPLIES[asked.path]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    state = Server()
    with listening(state.answer, certified() if "tls" in request.fixturenames else None) as state.url:
        yield state


@pytest.mark.threat
def test_an_answer_is_never_unpacked_and_no_longer_than_it_may_be(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_ANSWER_S", 60.0)
    monkeypatch.setattr(connection, "_PAUSE_S", 0.0)
    url = server.url
    assert len(Http().get(f"{url}/long", limit_bytes=1_000_000).body) == 1_000_000
    with pytest.raises(FailedError, match="is larger than 999999 bytes"):
        Http().get(f"{url}/long", limit_bytes=999_999)
    with pytest.raises(FailedError, match="/packed: has an encoding that was not requested"):
        Http().get(f"{url}/packed", limit_bytes=10_000)
    # a file is stored as it is: some servers declare a .tar.gz as encoded
    sha256 = hashlib.sha256(PACKED).hexdigest()
    assert Store(tmp_path, Http(), Mirrors({})).get(f"{url}/packed", sha256).read_bytes() == PACKED
    # the body of a redirect or an error is not stored
    for path in ("/moved", "/busy"):
        tracemalloc.start()
        began = time.monotonic()
        try:
            with contextlib.suppress(FailedError):
                Http().get(f"{url}{path}", limit_bytes=10)
            assert time.monotonic() - began < patient(20), path
            assert tracemalloc.get_traced_memory()[1] < 16 << 20, path
        finally:
            tracemalloc.stop()


@pytest.fixture
def tls(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the server over TLS."""
    monkeypatch.setattr(http, "_ANSWER_S", 60.0)
    monkeypatch.setattr(connection, "_PAUSE_S", 0.0)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(CERTIFICATE))
    return server.url


@pytest.mark.threat
def test_no_redirect_leads_away_from_tls(tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking, leads_away = Http(), r"redirects to http://127\.0\.0\.1:1/, which is not allowed"
    with pytest.raises(FailedError, match=leads_away):
        Store(tmp_path, asking, Mirrors({})).get(f"{tls}/down", None)
    # the server is spoken to under OpenSSL's own name for its certificate, too
    monkeypatch.setenv("SSL_CERT_FILE", os.environ["REQUESTS_CA_BUNDLE"])
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with pytest.raises(FailedError, match=leads_away):
        Http().get(f"{tls}/down", limit_bytes=10)
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(FailedError, match=r"certificate"):
        Http().get(f"{tls}/down", limit_bytes=10)


LOGINS = {
    "machine 127.0.0.1 login me password word\n": "me:word",
    "machine LOCALHOST login me password word\n": None,
    "default login me password word\n": None,
    "machine host.test login you password other\ndefault login me password word\n": None,
    "machine 127.0.0.1 login me password word\nnonsense\n": None,
    "": None,
}


@pytest.mark.threat
def test_a_login_goes_to_a_host_that_is_named(
    tls: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for text, login in LOGINS.items():
        (tmp_path / "netrc").write_text(text)
        server.logins.clear()
        Http().get(f"{tls}/", limit_bytes=10)
        assert server.logins == [f"Basic {base64.b64encode(login.encode()).decode()}" if login else None], text
        for other in ("default", "not-127.0.0.1", "1127.0.0.1", "127.0.0.1.host.test", "x.127.0.0.1"):
            assert login_for(f"https://{other}/") is None, text


@pytest.mark.threat
def test_what_comes_without_tls_must_have_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def opened(_: Http, url: str, *__: object) -> None:
        asked.append(url)
        raise FailedError("was asked")

    monkeypatch.setattr(Http, "_follow", opened)
    mirrors = parse_mirrors({}, ["https://github.com=http://mirror.test", "docker.io=http://mirror.test"])
    store = Store(tmp_path, Http(), mirrors)
    digest = hashlib.sha256(b"x").hexdigest()
    for refused in (
        lambda: store.get("http://host.test/file", None),
        lambda: store.get("HTTP://host.test/file", None),
        lambda: store.get("http://127.0.0.1.host.test/file", None),
        lambda: store.get("http://localhost.host.test/file", None),
        lambda: store.get("http://localhost@host.test/file", None),
        lambda: store.get("https://github.com/file", None),
        lambda: resolve_image(parse_reference("a/b:tag", mirrors), Http()),
        lambda: resolved_at("http://host.test/simple", tmp_path, requires=("egg",)),
        lambda: Http().get("http://host.test/page", limit_bytes=10),
        lambda: project_page("http://host.test/simple", "egg", Http()),
    ):
        with pytest.raises(FailedError, match="without TLS, and its digest is not known"):
            refused()
    assert asked == []
    for taken in (
        lambda: store.get("https://github.com/file", digest),
        lambda: store.get("http://127.0.0.1/file", None),
        lambda: store.get("http://localhost/file", None),
        lambda: store.get("https://host.test/file", None),
        lambda: resolve_image(parse_reference(f"a/b@sha256:{digest}", mirrors), Http()),
    ):
        with pytest.raises(FailedError, match="was asked"):
            taken()
