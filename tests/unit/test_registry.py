"""A registry on loopback: names, tokens, indexes, digests, and a server that misbehaves in every way we know."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.core.errors import BadInputError, FailedError, LumiimgError
from lumiimg.fetch import connection, http, registry
from lumiimg.fetch.http import Http, Response
from lumiimg.fetch.mirrors import Mirrors, parse_mirrors
from lumiimg.fetch.pull import pull_image
from lumiimg.fetch.registry import DOCKER_HUB_API, ImageManifest, ImageReference, parse_reference, resolve_image
from tests.shared.loopback import Asked, Reply, listening, part
from tests.shared.tls import CERTIFICATE, certified

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NO_MIRRORS = Mirrors({})
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
IMAGE = "application/vnd.oci.image.manifest.v1+json"
DOCKER_IMAGE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
AMD64 = {"os": "linux", "architecture": "amd64"}
ARM64 = {"os": "linux", "architecture": "arm64", "variant": "v8"}
TOKEN = "t0k-en"  # noqa: S105 - which opens nothing
SHA = f"sha256:{'a' * 64}"
LAYERS = [{"mediaType": LAYER, "digest": f"sha256:{number * 64}", "size": 1000} for number in "12"]


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def descriptor(media_type: str, data: bytes, **more: object) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": sha256(data), "size": len(data), **more}


# -- names --


def test_a_name_means_what_docker_takes_it_for() -> None:
    for text, meant in (
        ("busybox", "docker.io/library/busybox:latest"),
        ("docker://docker.io/rocm/dev-ubuntu-22.04:6.2.4-complete", "docker.io/rocm/dev-ubuntu-22.04:6.2.4-complete"),
        ("rocm/pytorch:latest", "docker.io/rocm/pytorch:latest"),
        (f"localhost:5000/a/b@{SHA}", f"localhost:5000/a/b@{SHA}"),
        (f"localhost/a:tag@{SHA}", f"localhost/a@{SHA}"),
        ("docker://Registry.Example.org/a__b/c--d:V_1.2-3", "Registry.Example.org/a__b/c--d:V_1.2-3"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ("index.docker.io/a", "docker.io/library/a:latest"),
    ):
        reference = parse_reference(text, NO_MIRRORS)
        assert str(reference) == meant
        assert not reference.insecure
        assert parse_reference(meant, NO_MIRRORS) == replace(reference, tag=None if "@" in meant else reference.tag)
    text = f"host.org/{'a' * 246}:{'t' * 128}@{SHA}"
    assert parse_reference(text, NO_MIRRORS).repository == "a" * 246
    # a tag beside a digest is only informative
    assert parse_reference(f"a:tag@{SHA}", NO_MIRRORS) == ImageReference("docker.io", "library/a", "tag", SHA, False)


def test_what_is_not_a_name_of_an_image_is_refused() -> None:
    names = "UPPER a//b a: a/b:.x docker:io/a docker-io./a foo_bar.org/a host.org:123456/a"
    for text in ("", *names.split(), f"Rocm/pytorch@{SHA}", f"{'a' * 240}.org/{'b' * 20}", "a" * 10_000):
        with pytest.raises(BadInputError, match="is not a valid image reference"):
            parse_reference(text, NO_MIRRORS)
    for text in ("me:hunter2@host.org/a", f"a@{SHA}@{SHA}", "a@sha256:1", f"hunter2@host.org/a@{SHA}"):
        with pytest.raises(BadInputError, match="may follow an @") as caught:
            parse_reference(text, NO_MIRRORS)
        assert "hunter2" not in str(caught.value)


def test_a_mirror_takes_the_place_of_its_registry() -> None:
    for mirror, meant, plain in (
        ("docker.io=http://127.0.0.1:5000", "127.0.0.1:5000/library/a:latest", True),
        ("docker.io=https://host.org/hub/", "host.org/hub/library/a:latest", False),
        ("quay.io=http://host.org", "docker.io/library/a:latest", False),
    ):
        reference = parse_reference("a", parse_mirrors({}, [mirror]))
        assert (str(reference), reference.insecure) == (meant, plain)
    for target in ("http://", "ftp://host.org", "http://me:hunter2@host.org", "host.org/UPPER", "http://host"):
        with pytest.raises(BadInputError, match=r"^mirror 'docker\.io': is not a registry") as caught:
            parse_reference("a", Mirrors({"docker.io": target}))
        assert "hunter2" not in str(caught.value)


# -- a registry --


SILENT = Reply()
"""No answer until the test ends."""
ENDLESS = Reply(body=itertools.repeat(b" " * 65536))


@dataclass
class Registry:
    """The replies of a server by path, and the requests to it."""

    url: str = ""
    replies: dict[str, Reply | list[Reply]] = field(default_factory=dict)
    """Replies by path; those of a list in turn, and then always the last one."""
    challenge: str = ""
    token: str = ""
    """Required for all of /v2/, if not empty."""
    used: int = 0
    lasts: int = 0
    """Number of requests for which a token is valid; 0 for no limit."""
    asked: list[Asked] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]

    @property
    def by_another_name(self) -> str:
        return self.url.replace("127.0.0.1", "localhost")

    def manifest(self, name: str, document: object, media_type: str = IMAGE, **headers: str) -> bytes:
        """Store a manifest by tag and by digest; return its bytes."""
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        reported = {"Content-Type": media_type, "Docker-Content-Digest": sha256(data), **headers}
        for key in (name, sha256(data)):
            self.replies[f"/v2/a/b/manifests/{key}"] = Reply(body=data, headers=reported)
        return data

    def blob(self, document: object) -> bytes:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.replies[f"/v2/a/b/blobs/{sha256(data)}"] = Reply(body=data)
        return data

    def image(self, name: str = "tag", platform: Mapping[str, str] = AMD64, **config: object) -> bytes:
        """Store an image with two layers and its config."""
        data = self.blob({**platform, "config": {"Env": ["A=1"], "Labels": {}}, "history": [], **config})
        return self.manifest(name, manifest_of(data))

    def resolve(self, name: str = ":tag") -> ImageManifest:
        reference = parse_reference(f"registry.test/a/b{name}", Mirrors({"registry.test": self.url}))
        return resolve_image(reference, Http())

    def authorised(self, shown: str | None) -> bool:
        """Return whether the token is the current one; after its last use, a new one replaces it."""
        if not self.token or shown != f"Bearer {self.token}":
            return not self.token
        self.used += 1
        if self.lasts and self.used % self.lasts == 0:
            self.token += "n"
            self.replies["/token"] = Reply(body=json.dumps({"access_token": self.token}).encode())
        return True

    def headers_of(self, path: str) -> list[Mapping[str, str]]:
        return [asked.headers for asked in self.asked if asked.path.partition("?")[0] == path]

    def answer(self, asked: Asked) -> Reply | None:
        self.asked.append(asked)
        path = asked.path.partition("?")[0]
        if path.startswith("/v2/") and not self.authorised(asked.headers.get("authorization")):
            return Reply(401, b"{}", {"WWW-Authenticate": self.challenge})
        reply = self.replies.get(path, Reply(404, b"{}"))
        if isinstance(reply, list):
            reply = reply.pop(0) if len(reply) > 1 else reply[0]
        if reply is SILENT:
            self.closing.wait(10)
            return None
        return part(reply, asked)


def manifest_of(config: bytes, **more: object) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": IMAGE, "config": descriptor(CONFIG, config), "layers": LAYERS, **more}


def index_of(*manifests: dict[str, Any]) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(manifests)}


@contextlib.contextmanager
def served(tls: ssl.SSLContext | None) -> Iterator[Registry]:
    state = Registry()
    with listening(state.answer, tls) as state.url:
        yield state
        state.closing.set()


@pytest.fixture
def tls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext | None:
    """The TLS context of servers in tests with a login, which is never sent without TLS."""
    if "login" not in request.fixturenames:
        return None
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(CERTIFICATE))
    return certified()


@pytest.fixture
def server(tls: ssl.SSLContext | None) -> Iterator[Registry]:
    with served(tls) as state:
        yield state


@pytest.fixture
def other(tls: ssl.SSLContext | None) -> Iterator[Registry]:
    with served(tls) as state:
        yield state


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No logins, no proxies, and no pauses."""
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(http, "_CONNECT_S", 5.0)
    monkeypatch.setattr(connection, "_READ_S", 1.0)
    monkeypatch.setattr(http, "_ATTEMPTS", 1)


def test_the_platform_is_chosen_from_an_index(server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    arm = server.image("arm", ARM64)
    config = server.blob(AMD64)
    for listing, image in ((INDEX, IMAGE), (DOCKER_LIST, DOCKER_IMAGE)):
        amd = server.manifest("amd", manifest_of(config, mediaType=image), image)
        attestation = descriptor(IMAGE, b"", platform={"os": "unknown", "architecture": "unknown"})
        entries = [attestation, descriptor(IMAGE, arm, platform=ARM64), descriptor(image, amd, platform=AMD64)]
        index = server.manifest("tag", index_of(*entries) | {"mediaType": listing}, f"{listing} ; charset=utf-8")
        found = server.resolve()
        assert (found.digest, found.index_digest, found.media_type) == (
            sha256(amd),
            sha256(index),
            image,
        )
    monkeypatch.setattr(registry, "_PLATFORM", "linux/arm64")
    assert server.resolve().digest == sha256(arm)
    monkeypatch.setattr(registry, "_PLATFORM", "linux/s390x")
    with pytest.raises(FailedError, match=r"no image for linux/s390x; there is: linux/amd64, linux/arm64; name"):
        server.resolve()
    accepted = server.headers_of("/v2/a/b/manifests/tag")[0]["accept"]
    assert {INDEX, DOCKER_LIST, IMAGE, DOCKER_IMAGE} == set(accepted.split(", "))


def test_an_image_for_another_platform_is_not_taken(server: Registry) -> None:
    manifest = server.image(platform=ARM64)
    server.manifest("index", index_of(descriptor(IMAGE, manifest, platform=AMD64)), INDEX)
    for name in (":tag", ":index"):
        with pytest.raises(FailedError, match="is an image for linux/arm64, not for linux/amd64"):
            server.resolve(name)
    server.manifest("index", index_of(descriptor(IMAGE, manifest)), INDEX)
    with pytest.raises(FailedError, match="is an image for linux/arm64, not for linux/amd64"):
        server.resolve(":index")
    for silent, what in (
        ({}, "does not state its architecture"),
        ({"os": "linux"}, "does not state its architecture"),
        ({"os": "linux", "architecture": 7}, "is an image for linux/7, not for linux/amd64"),
    ):
        server.manifest("tag", manifest_of(server.blob(silent)))
        with pytest.raises(FailedError, match=what):
            server.resolve()


def test_an_index_may_leave_out_of_an_image_what_its_config_says(server: Registry) -> None:
    """`platform` is optional (image-spec image-index.md)."""
    manifest = server.image()
    server.manifest("tag", index_of(descriptor(IMAGE, manifest)), INDEX)
    assert server.resolve().digest == sha256(manifest)
    inner = server.manifest("tag", index_of(descriptor(IMAGE, manifest, platform=AMD64)), INDEX)
    assert server.resolve().index_digest == sha256(inner)
    server.manifest("tag", index_of(descriptor(INDEX, inner, platform=AMD64)), INDEX)
    with pytest.raises(FailedError, match="is an index of image indexes"):
        server.resolve()


@pytest.mark.threat
def test_what_is_no_image_is_refused(server: Registry) -> None:
    chart = "application/vnd.cncf.helm.config.v1+json"
    server.manifest("tag", manifest_of(b"") | {"config": descriptor(chart, b"{}")})
    with pytest.raises(FailedError, match=f"is not an image: its config is {chart.replace('+', '.')}"):
        server.resolve()
    config = server.blob(AMD64)
    for lie in ({"digest": "sha256:5"}, {"size": -1}, {"size": 1e400}, {"size": "5"}, {"mediaType": None}):
        document = manifest_of(config, layers=[LAYERS[0] | lie])
        server.manifest("tag", json.dumps(document).replace("Infinity", "1e400").encode())
        with pytest.raises(
            FailedError,
            match=r"/v2/a/b/manifests/tag: is not valid JSON from a registry: .*layers\[0\]|out of range",
        ):
            server.resolve()


# -- tokens and logins --


def guarded(server: Registry, realm: str | None = None) -> None:
    server.token = TOKEN
    server.challenge = f'Bearer realm="{realm or f"{server.url}/token"}",service="the service"'
    server.replies["/token"] = Reply(body=json.dumps({"token": server.token}).encode())


def test_what_is_not_for_everyone_needs_a_login(server: Registry) -> None:
    guarded(server)
    for status in (401, 403):
        server.replies["/token"] = Reply(status)
        with pytest.raises(FailedError, match=r"needs a login.*~/\.netrc.* registry login"):
            server.resolve()
    server.asked.clear()
    server.replies["/token"] = Reply(body=b'{"token": "no-good"}')
    with pytest.raises(FailedError, match="needs a login") as caught:
        server.resolve()
    assert len(server.asked) == 3, "asked again once"
    assert "no-good" not in str(caught.value)
    server.token = ""
    server.replies["/v2/a/b/manifests/tag"] = Reply(403, headers={"WWW-Authenticate": 'Basic realm="x"'})
    with pytest.raises(FailedError, match="needs a login"):
        server.resolve()


@pytest.mark.threat
def test_a_token_is_not_asked_for_just_anywhere(server: Registry) -> None:
    guarded(server)
    for realm in ("", "file:///etc/passwd", "https://a b/", "/token", "http://[zz]/", "http://é/"):
        server.challenge = f'Bearer realm="{realm}"'.encode().decode("latin-1")
        server.asked.clear()
        with pytest.raises(LumiimgError) as caught:
            server.resolve()
        assert str(caught.value).isprintable(), realm
        assert len(server.asked) == 1, realm
    guarded(server)
    for body in (b"", b'{"token": 5}', b'{"token": "a\\r\\nX: y"}', b'{"token": "hunter2\\u00e9"}'):
        server.replies["/token"] = Reply(body=body)
        server.asked.clear()
        with pytest.raises(FailedError, match=f"^{server.url}/token: ") as caught:
            server.resolve()
        assert "hunter2" not in str(caught.value), body
        assert len(server.asked) == 2, body


class Answering(Http):
    """A stand-in for the network with the same answer to all requests."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__()
        self.status, self.headers, self.asked = status, headers, list[str]()

    @contextlib.contextmanager
    def open(self, url: str, *_: Any, **__: Any) -> Iterator[Response]:
        self.asked.append(url)
        yield Response(url, self.status, {name.replace("_", "-"): text for name, text in self.headers.items()})


@pytest.mark.threat
def test_docker_hub_is_asked_where_it_answers_and_a_registry_with_tls_sends_nobody_to_a_realm_without() -> None:
    hub = Answering(404)
    with pytest.raises(FailedError, match=r"no such image or tag; look up .*docker\.io/library/busybox:1"):
        resolve_image(parse_reference("busybox:1", NO_MIRRORS), hub)
    assert hub.asked == [f"https://{DOCKER_HUB_API}/v2/library/busybox/manifests/1"]
    leading = Answering(401, www_authenticate='Bearer realm="http://host.org/token"')
    with pytest.raises(FailedError, match=r"asks for a token from 'http://host\.org/token', which lumiimg does not"):
        resolve_image(parse_reference("host.org/a", NO_MIRRORS), leading)
    assert len(leading.asked) == 1


ME = f"Basic {base64.b64encode(b'me:hunter2').decode()}"
"""The login below, as sent over the network."""


@pytest.fixture
def login(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text(
        "machine 127.0.0.1 login me password hunter2\nmachine localhost login other password other\n"
    )


@pytest.mark.usefixtures("login")
@pytest.mark.threat
def test_the_login_of_the_registry_goes_to_the_registry_and_its_realm_alone(server: Registry, other: Registry) -> None:
    """Not the login for the realm's own host, as the token obtained with it is sent to the registry."""
    server.image()
    other.replies["/token"] = Reply(body=json.dumps({"token": TOKEN}).encode())
    guarded(server, f"{other.by_another_name}/token")
    assert server.resolve().layers
    assert other.headers_of("/token")[0]["authorization"] == ME
    assert [asked.headers.get("authorization") for asked in server.asked] == [ME, *[f"Bearer {TOKEN}"] * 2]


@pytest.mark.usefixtures("login")
@pytest.mark.threat
def test_no_secret_follows_a_redirect_to_another_host(server: Registry, other: Registry) -> None:
    server.image()
    (path,) = [path for path in server.replies if "/blobs/" in path]
    other.replies["/store"] = server.replies[path]
    elsewhere = f"{other.by_another_name}/store?signature=hunter3"
    server.replies[path] = Reply(307, headers={"Location": elsewhere, "Set-Cookie": "a=hunter4"})
    for shown in (ME, f"Bearer {TOKEN}"):
        other.asked.clear()
        server.asked.clear()
        assert server.resolve().config["architecture"] == "amd64"
        (headers,) = other.headers_of("/store")
        assert not {"authorization", "cookie"} & set(headers), shown
        assert server.headers_of(path)[0]["authorization"] == shown
        guarded(server)
    for reply in (Reply(body=b"{}"), Reply(403), Reply(410), Reply(length=9), SILENT):
        other.replies["/store"] = reply
        with pytest.raises(FailedError, match=r"^https://localhost:[0-9]+/store: ") as caught:
            server.resolve()
        assert "hunter" not in str(caught.value)
        assert "needs a login" not in str(caught.value)


@pytest.mark.usefixtures("login")
@pytest.mark.threat
def test_only_the_registry_itself_says_where_tokens_are(server: Registry, other: Registry) -> None:
    guarded(other, f"{other.url}/token")
    server.replies["/v2/a/b/manifests/tag"] = Reply(307, headers={"Location": f"{other.url}/v2/a/b"})
    with pytest.raises(FailedError, match="the server answers 401"):
        server.resolve()
    assert [asked.path for asked in other.asked] == ["/v2/a/b"]


# -- images as files --

BLOBS = (b"lower" * 2000, b"upper" * 3000)


def filled(server: Registry) -> None:
    """Store an image whose layers can be downloaded."""
    layers = [descriptor(LAYER, server.blob(data)) for data in BLOBS]
    server.manifest("tag", manifest_of(server.blob({**AMD64}), layers=layers))


def blob_path(data: bytes) -> str:
    return f"/v2/a/b/blobs/{sha256(data)}"


def cut(data: bytes, *after: int) -> list[Reply]:
    """Return answers that are cut off, and then a complete one."""
    return [*(Reply(body=data[:size], length=len(data)) for size in after), Reply(body=data)]


def pull(server: Registry, cache: Path, base: str = "docker://registry.test/a/b:tag") -> Path:
    """Fetch the image in a new run."""
    web, mirrors = Http(), Mirrors({"registry.test": server.url})
    return pull_image(base, web, mirrors, cache, lambda _: None)


def is_intact(image: Path) -> bool:
    """Return whether every blob of a layout exists and matches its name, and nothing else is left beside it."""
    files = list((image / "blobs" / "sha256").iterdir())
    assert [path.name for path in image.parent.iterdir()] == [image.name]
    assert all(sha256(path.read_bytes()) == f"sha256:{path.name}" for path in files)
    return {blob_path(data)[-64:] for data in BLOBS} <= {path.name for path in files}


def test_a_token_that_expires_while_layers_come_is_had_anew(server: Registry, tmp_path: Path) -> None:
    filled(server)
    guarded(server)
    server.lasts = 2
    server.challenge = f'Basic realm="x", bearer Realm = "{server.url}/token?q=1", scope="a:b,x", Basic realm="y"'
    assert is_intact(pull(server, tmp_path))
    assert len(server.headers_of("/token")) > 2
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in kept


def test_the_next_run_fetches_only_what_is_missing_of_an_image(
    server: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(server)
    server.replies[blob_path(BLOBS[1])] = cut(BLOBS[1], 1000)
    with monkeypatch.context() as ending:
        ending.setattr("lumiimg.fetch.download.time.sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pull(server, tmp_path)
    assert not list((tmp_path / "oci").glob("*/oci-layout"))
    server.asked.clear()
    assert is_intact(pull(server, tmp_path))
    assert server.headers_of(blob_path(BLOBS[0])) == []
    assert [asked.get("range") for asked in server.headers_of(blob_path(BLOBS[1]))] == ["bytes=1000-"]
    server.asked.clear()
    assert is_intact(pull(server, tmp_path))
    assert not [asked for asked in server.asked if "/blobs/" in asked.path and asked.path in map(blob_path, BLOBS)]


@pytest.mark.threat
def test_nothing_is_larger_than_the_manifest_says(server: Registry, tmp_path: Path) -> None:
    """The manifest decides whether there is enough space before the download."""
    filled(server)
    manifest = json.loads(server.resolve().body)
    manifest["layers"][0]["size"] -= 1
    server.manifest("tag", manifest, IMAGE)
    with pytest.raises(FailedError, match=f"is larger than {manifest['layers'][0]['size']} bytes"):
        pull(server, tmp_path)


@pytest.mark.threat
def test_a_layer_that_is_another_is_refused_and_not_stored(server: Registry, tmp_path: Path) -> None:
    filled(server)
    wrong = b"wrong" * 2000
    for number, beginning in enumerate((b"x" * 1000, b"")):
        server.replies[blob_path(BLOBS[0])] = [Reply(body=beginning, length=len(wrong)), Reply(body=wrong)]
        with pytest.raises(FailedError, match=f"has the wrong digest: it is {sha256(wrong)}, not {sha256(BLOBS[0])}"):
            pull(server, tmp_path / f"{number}")
    assert not any(wrong in path.read_bytes() for path in tmp_path.rglob("data"))


# -- what goes wrong --


@pytest.mark.threat
def test_each_misbehaviour_is_one_line_with_the_address(server: Registry) -> None:
    digest = sha256(server.image())
    path = "/v2/a/b/manifests/tag"
    good = server.replies[path]
    for reply, what in (
        (Reply(404), "no such image or tag; look up"),
        (Reply(429), r"the rate limit of 127\.0\.0\.1:[0-9]+ is reached; try later, .*--mirror"),
        (Reply(500), "the server answers 500"),
        (SILENT, "could not be reached"),
        (Reply(body=b"{", length=100), "connection lost"),
        (ENDLESS, "is larger than 4194304 bytes"),
        (Reply(body=b"<html>"), "is not valid JSON"),
        (Reply(body=b"[" * 100_000), "is not valid JSON"),
        (Reply(body=b'{"schemaVersion": 1' + b"0" * 5000 + b"}"), "is not valid JSON"),
        (Reply(body=b"[]"), "is not valid JSON from a registry: Expected `object`"),
        (Reply(body=b"{}"), "is not valid JSON .*`schemaVersion`"),
        (Reply(body=b'{"schemaVersion": 2}'), "is neither an image nor an index"),
        (Reply(body=b'{"schemaVersion": 1, "fsLayers": []}'), "is neither an image nor an index"),
        (Reply(body=b'{"schemaVersion": 1, "layers": []}'), "is neither an image nor an index"),
        (Reply(body=b'{"schemaVersion": 2, "manifests": []}'), "has no image for linux/amd64; there is: none"),
        (Reply(body=b'{"schemaVersion": 2, "layers": []}'), "is not an image: its config is missing"),
        (
            Reply(body=b'{"schemaVersion": 2, "layers": []}', headers={"Content-Type": INDEX}),
            "is neither an image nor an index",
        ),
        (Reply(302, headers={"Location": "http://[zz"}), ": "),
        (Reply(302, headers={"Location": "file:///etc/passwd"}), ": "),
        (Reply(302, headers={"Location": "http://x:y:z/"}), ": "),
    ):
        server.replies[path] = reply
        with pytest.raises(LumiimgError, match=what) as caught:
            server.resolve()
        message = str(caught.value)
        assert message.startswith((f"{server.url}{path}: ", "http://x:y:z/: ")), what
        assert message.isprintable(), what
        assert len(message) < 600, what
    assert isinstance(good, Reply)
    server.replies[path] = [Reply(500), good]
    assert server.resolve().digest == digest, "who stumbles is asked again"


@pytest.mark.threat
def test_a_lie_about_a_digest_says_both(server: Registry) -> None:
    manifest = server.image()
    (blob,) = [path for path in server.replies if "/blobs/" in path]
    config, server.replies[blob] = server.replies[blob], Reply(body=b"{}")
    with pytest.raises(FailedError, match=f"{sha256(b'{}')}, not {blob.rpartition('/')[2]}"):
        server.resolve()
    server.replies[blob] = ENDLESS
    with pytest.raises(FailedError, match="is larger than 8388608 bytes"):
        server.resolve()
    server.replies[blob] = config
    path = f"/v2/a/b/manifests/{sha256(manifest)}"
    fake = server.manifest("tag", manifest_of(b"{}"), **{"Docker-Content-Digest": SHA})
    with pytest.raises(FailedError, match=f"{sha256(fake)}, not {SHA}"):
        server.resolve()
    server.replies[path] = Reply(body=fake, headers={"Docker-Content-Digest": sha256(fake)})
    with pytest.raises(FailedError, match=f"{sha256(fake)}, not {sha256(manifest)}"):
        server.resolve(f"@{sha256(manifest)}")
    server.manifest("tag", index_of(descriptor(IMAGE, manifest, platform=AMD64)), INDEX)
    with pytest.raises(FailedError, match=f"{sha256(fake)}, not {sha256(manifest)}"):
        server.resolve()
