"""Each kind of download from each kind of hostile server ends in time, in one line, and leaves nothing that counts."""

from __future__ import annotations

import gzip
import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.build.base import make_base
from lumiimg.build.layer_build import LayerBuild
from lumiimg.core.errors import LumiimgError
from lumiimg.definition.definition import Definition, Header, Sections
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.fetch import connection, download, http, pull
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors, parse_mirrors
from lumiimg.fetch.pull import save_image
from lumiimg.fetch.registry import (
    Descriptor,
    Document,
    ImageManifest,
    Repository,
    parse_reference,
    resolve_image,
)
from lumiimg.fetch.store import Store
from lumiimg.resolve import uv
from tests.shared.build_machine import build_machine
from tests.shared.hostile_server import serving
from tests.shared.loopback import Reply, listening
from tests.shared.programs import EVERYTHING
from tests.shared.tls import CERTIFICATE
from tests.shared.world import resolved_at

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = b"good"
MARK = "0" * 64
LIMIT_S = 2.0 if EVERYTHING else 0.1
SLACK_S = 8
"""Extra time for a busy machine."""


def sized(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    """Return an answer with a body and a claim about its length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return OK + lines + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def moved(target: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: " + target + b"\r\nContent-Length: 0\r\n\r\n"


PACKED = gzip.compress(b"\0" * (66 << 20), compresslevel=1)
PACKED_TWICE = gzip.compress(PACKED)
SERVERS: dict[str, tuple[bytes, bytes]] = {
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a dripped header": (OK + b"X-Long: ", b"x"),
    "a dripped body": (OK + b"\r\n", b"x"),
    "a body that stops": (sized(GOOD, length=1000), b""),
    "nothing at all": (b"", b""),
    "TLS that goes on": (b"\x16\x03\x03\x40\x00\x02\x00\x3f\x00", b"\0"),
    "redirects in a circle": (moved(b"again"), b"end"),
    "a redirect to a file": (moved(b"file:///etc/passwd"), b"end"),
    "a packed bomb": (sized(PACKED, b"Content-Encoding: gzip"), b"end"),
    "a bomb packed twice": (sized(PACKED_TWICE, b"Content-Encoding: gzip, gzip"), b"end"),
    "less than it says": (sized(GOOD, length=1000), b"end"),
    "more than it says": (sized(GOOD * 1000, length=4), b"end"),
    "a chunk of an exabyte": (CHUNKED + b"FFFFFFFFFFFFFFFF\r\nx", b"end"),
    "a header of a megabyte": (OK + b"X: " + b"x" * (1 << 20) + b"\r\n\r\n", b"end"),
    "ten thousand headers": (OK + b"X: x\r\n" * 10_000 + b"\r\n", b"end"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", b"end"),
    "a reset midway": (sized(GOOD, length=1000), b"reset"),
    "what nobody asked for behind it": (sized(GOOD) + sized(b"evil") * 100, b"end"),
    "another file": (sized(GOOD), b"end"),
}
"""What a server sends first, and what it then repeats; or how it ends."""


def _image(url: str, name: str) -> Repository:
    return Repository(parse_reference(name, parse_mirrors({}, [f"docker.io={url}"])), Http())


def _manifest(url: str, _: Path) -> None:
    resolve_image(parse_reference("a/b:tag", parse_mirrors({}, [f"docker.io={url}"])), Http())


def _config(url: str, _: Path) -> None:
    found = Descriptor("application/vnd.oci.image.config.v1+json", f"sha256:{MARK}", 4)
    image = _image(url, "a/b")
    image.config(ImageManifest(image, "", "", "", Document(2, config=found), b""))


def _token(url: str, _: Path) -> None:
    refusal = Reply(401, b"", {"WWW-Authenticate": f'Bearer realm="{url}/token",service="x"'})
    with listening(lambda _: refusal) as registry:
        _manifest(registry, Path())


def _index(url: str, folder: Path) -> None:
    resolved_at(f"{url}/simple", folder, pins=("egg==1.0",))


def _general_index(url: str, folder: Path) -> None:
    """Fetch from the index that only uv uses."""
    resolved_at(f"{url}/simple", folder, requires=("egg",))


def _wheel(url: str, folder: Path) -> None:
    Store(folder, Http(), Mirrors({})).get(f"{url}/egg-1.0-py3-none-any.whl", MARK)


def _new_source(url: str, folder: Path) -> None:
    Store(folder, Http(), Mirrors({})).get(f"{url}/source.tar.gz", None)


def _layers(url: str, folder: Path) -> None:
    reference = parse_reference("a/b:tag", parse_mirrors({}, [f"docker.io={url}"]))
    digest = f"sha256:{MARK}"
    document = Document(2, layers=(Descriptor("application/vnd.oci.image.layer.v1.tar", digest, 4),))
    found = ImageManifest(Repository(reference, Http()), "", digest, "", document, b"")
    save_image(found, folder / "image", folder, print)


def _base(url: str, folder: Path) -> None:
    """Fetch by lumiimg, even if there is an engine, as that has no such limits."""
    machine = build_machine(Engine(folder / "no-apptainer", EngineKind.APPTAINER, "1.4.5", frozenset()))
    header = Header("docker", f"{url.partition('://')[2]}/a/b@sha256:{MARK}")
    definition = Definition("01-box", ("box",), None, Sections(header), (), plain_http=True)
    step = LayerBuild(machine, {}, definition, folder, io.BytesIO(), print)
    make_base(step, folder / "image", Store(folder / "store", Http(), Mirrors({})))


KINDS: dict[str, Callable[[str, Path], None]] = {
    "the manifest of an image": _manifest,
    "the config of an image": _config,
    "a token": _token,
    "the index of a layer": _index,
    "the index of Python packages": _general_index,
    "a wheel": _wheel,
    "a source whose digest nobody knows": _new_source,
    "the layers of an image": _layers,
    "the base of a build": _base,
}
OF_UV = {_index, _general_index}
"""Each of these starts a program, so it is tried with every fourth server only."""
HARMLESS = {
    "more than it says": GOOD,
    "what nobody asked for behind it": GOOD,
    "another file": GOOD,
    "a packed bomb": PACKED,
    "a bomb packed twice": PACKED_TWICE,
}
"""What is stored for a file of which nothing is known: the body as received, which is not unpacked."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWER_S", LIMIT_S)
    monkeypatch.setattr(connection, "_PAUSE_S", 0.01)
    monkeypatch.setattr(download, "TOTAL_S", LIMIT_S)
    monkeypatch.setattr(download, "_PAUSE_S", 0.01)
    monkeypatch.setattr(pull, "_LAYER_S", LIMIT_S)
    monkeypatch.setattr(uv, "_LIMIT_S", LIMIT_S)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "*")
    # quick to read: Python does not close a socket that ends between connection and handshake
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(CERTIFICATE))


@pytest.mark.threat
@pytest.mark.parametrize("server", SERVERS)
def test_no_download_is_held_or_filled_by_any_server(server: str, tmp_path: Path) -> None:
    with serving(*SERVERS[server]) as url:
        for number, (kind, fetch) in enumerate(KINDS.items()):
            if fetch in OF_UV and not EVERYTHING and list(SERVERS).index(server) % 4:
                continue
            folder = tmp_path / str(number)
            folder.mkdir()
            start = time.monotonic()
            try:
                fetch(url, folder)
            except LumiimgError as error:
                message = str(error)
                assert (message.isprintable(), len(message) < 1000) == (True, True), (kind, message)
                kept = [path for path in folder.iterdir() if path.name in {MARK, "image"}]
                assert not kept, kind
            else:
                assert (fetch, server in HARMLESS) == (_new_source, True), kind
                whole = [path.read_bytes() for path in folder.iterdir() if re.fullmatch("[0-9a-f]{64}", path.name)]
                assert whole == [HARMLESS[server]], kind
            assert time.monotonic() - start < LIMIT_S + SLACK_S, kind
