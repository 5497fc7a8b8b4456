"""Of `resolve/`: what registries and package indexes answer, and what was kept of it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

from packaging.version import Version

from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.errors import BadInputError, FailedError, MissingHereError, RefusedError, UndecidedError
from lumiimg.resolve import pin
from lumiimg.resolve.lockfile import read_lock
from lumiimg.resolve.network.download import download
from lumiimg.resolve.network.mirrors import Mirrors, checked
from lumiimg.resolve.network.registry import parse_reference, resolve_image
from lumiimg.resolve.network.resume import Partial
from lumiimg.resolve.network.web import Response, Stream, Web
from lumiimg.resolve.network.wheel_index import IndexFile, read_index
from lumiimg.resolve.wheels import PythonTarget, offered_wheels, read_metadata
from tests.fuzz.target import Target
from tests.fuzz.targets.scratch import BORDER, parts, text_of, written
from tests.shared.world import metadata_of, wheel

_TARGET = PythonTarget((3, 12), (2, 39))
_NO_MIRRORS = Mirrors({})
_OF_TORCH = "torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl"


class _Served(Web):
    """A web that gives one answer, or what `by_name` has under the end of the address."""

    def __init__(self, answer: Response, by_name: Mapping[str, bytes] | None = None) -> None:
        super().__init__()
        self._answer = answer
        self._by_name = by_name

    def ask(self, url: str, **_: Any) -> Response:
        if self._by_name is None:
            return Response(url, self._answer.status, self._answer.headers, self._answer.body)
        found = self._by_name.get(url.rpartition("/")[2])
        return Response(url, 404 if found is None else 200, self._answer.headers, found or b"")


def _page(kind: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        web = _Served(Response("", 200, {"content-type": kind}, data))
        read_index("torch", "https://h.test/simple", web)
        for every in (False, True):
            list(offered_wheels("torch", ["https://h.test/simple"], _TARGET, web, every=every))

    return read


def _file(*, has_metadata: bool) -> IndexFile:
    return IndexFile(
        name="torch",
        version=Version("2.9.1"),
        filename=_OF_TORCH,
        url="https://h.test/x.whl",
        sha256=None,
        size_bytes=None,
        requires_python=None,
        yanked=None,
        metadata_sha256=has_metadata or None,
    )  # type: ignore[call-arg,arg-type,unused-ignore]


def _metadata(data: bytes) -> None:
    read_metadata(_file(has_metadata=True), _Served(Response("", 200, {}, data)))


def _wheel(data: bytes) -> None:
    """A wheel whose index offers no metadata beside it."""
    pin._required_by(written(data, "x.whl"), _file(has_metadata=False))


def _registry(data: bytes) -> None:
    """Config, image and index, which name each other by digest whatever they say; and headers."""
    config, image, index, headers = parts(data, 4)
    image = _filled(image, config)
    index = _filled(index, image)
    named = {f"sha256:{hashlib.sha256(one).hexdigest()}": one for one in (config, image)}
    told = dict(re.findall(r"(?m)^([a-z-]{1,40}): ([ -~]*)$", text_of(headers)))
    resolve_image(
        parse_reference("host.test/a", _NO_MIRRORS), _Served(Response("", 200, told, b""), {**named, "latest": index})
    )


def _filled(document: bytes, below: bytes) -> bytes:
    found = document.replace(b"DIGEST", hashlib.sha256(below).hexdigest().encode())
    return found.replace(b"111", b"%d" % len(below))


_OF_SIF = json.dumps(
    {
        "schemaVersion": 2,
        "layers": [{"mediaType": "application/vnd.sylabs.sif.layer.v1.sif", "digest": f"sha256:{'0' * 64}", "size": 1}],
    }
).encode()


def _token(data: bytes) -> None:
    """What a registry answers to who has no token, and what its token server does."""
    challenge, retry, token = parts(data, 3)
    manifest = "https://host.test/v2/a/manifests/latest"
    last = (
        Response(manifest, 429, {"retry-after": text_of(retry)}, b"") if retry else Response(manifest, 200, {}, _OF_SIF)
    )
    refusal = Response(manifest, 401, {"www-authenticate": text_of(challenge)}, b"")
    answers = [refusal, Response("https://auth.test/token", 200, {}, token), last]
    web = Web()
    with mock.patch.object(web, "ask", side_effect=answers):
        resolve_image(parse_reference("host.test/a", _NO_MIRRORS), web)


def _reference(data: bytes) -> None:
    text = text_of(data)
    mirrors = Mirrors({"docker.io": "http://near.test:5000/hub", "host.test": "near.test"})
    for reference in (parse_reference(text, _NO_MIRRORS), parse_reference(text, mirrors)):
        str(reference)


def _address(data: bytes) -> None:
    checked(text_of(data), "the address")


class _Rest(Web):
    """A server that sends the rest of a file, or says that it does."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._stream = Stream(status, headers, iter((b"rest",)), "https://h.test/x")

    def pause(self, seconds: float) -> None:
        pass

    @contextmanager
    def open(self, url: str, *_: object, **__: object) -> Iterator[Stream]:
        del url
        yield self._stream


def _download(data: bytes) -> None:
    """The note of a partial download, and the headers of the answer that goes on with it."""
    note, headers = parts(data, 2)
    folder = written(note, "partial/from.json").parent
    (folder / "data").write_bytes(b"beginning")
    told = dict(re.findall(r"(?m)^([a-z-]{1,40}): ([ -~]*)$", text_of(headers)))
    status = int(told.get("status", "206") == "206") * 6 + 200
    for known in (None, "0" * 64):
        partial = Partial(folder, known is not None)
        partial.validator("https://h.test/x")
        download("https://h.test/x", partial, _Rest(status, told), known)


@cache
def _catalogue() -> Catalogue:
    return open_catalogue({"HOME": "/nonexistent"})


def _lock(data: bytes) -> None:
    read_lock(written(data, "lumiimg.lock"), _catalogue(), _NO_MIRRORS, None, check_layers=False)


def signed(data: bytes) -> bytes:
    """Return a lock with the digest of what stands in it."""
    head, border, body = data.partition(b"\n\n")
    line = b'digest = "sha256:%s"' % hashlib.sha256(body).hexdigest().encode()
    return re.sub(rb'(?m)^digest = "[^"]*"$', line, head, count=1) + border + body


def _page_seeds() -> Iterator[bytes]:
    yield (
        b'<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.1"><base href="/x/"></head><body>'
        b'<a href="' + _OF_TORCH.encode() + b"#sha256=" + b"0" * 64 + b'" data-requires-python="&gt;=3.9" '
        b'data-core-metadata="sha256=' + b"1" * 64 + b'" data-yanked="bad">x</a>\n'
        b'<a href="../torch-2.9.0-py3-none-any.whl" data-dist-info-metadata=true>y</a></body></html>'
    )


def _json_seeds() -> Iterator[bytes]:
    file = {
        "filename": _OF_TORCH,
        "url": "https://h.test/" + _OF_TORCH,
        "hashes": {"sha256": "0" * 64},
        "requires-python": ">=3.9",
        "yanked": False,
        "core-metadata": {"sha256": "1" * 64},
        "size": 10,
    }
    other = {**file, "filename": "torch-2.0.tar.gz", "yanked": "bad", "dist-info-metadata": True}
    yield json.dumps({"meta": {"api-version": "1.1"}, "name": "torch", "files": [file, other]}).encode()


def _metadata_seeds() -> Iterator[bytes]:
    requires = ("numpy>=1.20; python_version > '3.8'", "x[a,b] (==1.*)", "y ; extra == 'z'")
    yield metadata_of("torch", "2.9.1", requires).encode() + b"Requires-Python: >=3.10\nProvides-Extra: z\n\nbody\n"
    yield b"Metadata-Version: 2.1\nName: Torch\nVersion: 2.9.1\nContent-Type: multipart/mixed; boundary=x\n\n--x\n"


def _wheel_seeds() -> Iterator[bytes]:
    yield wheel("torch", "2.9.1", ("numpy>=1",))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch-2.9.1.dist-info/METADATA", metadata_of("torch", "2.9.1", ("a", "b")) * 3)
    yield packed.getvalue()


def _registry_seeds() -> Iterator[bytes]:
    kind = "application/vnd.oci.image."
    config = json.dumps({"os": "linux", "architecture": "amd64", "variant": "v8", "config": {"Env": ["A=1"]}})
    layer = {"mediaType": f"{kind}layer.v1.tar+gzip", "digest": "sha256:" + "0" * 64, "size": 5}
    of_config = {"mediaType": f"{kind}config.v1+json", "digest": "sha256:DIGEST", "size": 111}
    image = json.dumps(
        {"schemaVersion": 2, "mediaType": f"{kind}manifest.v1+json", "config": of_config, "layers": [layer]}
    )
    platform = {"os": "linux", "architecture": "amd64"}
    one = {"mediaType": f"{kind}manifest.v1+json", "digest": "sha256:DIGEST", "size": 111, "platform": platform}
    index = json.dumps({"schemaVersion": 2, "mediaType": f"{kind}index.v1+json", "manifests": [one]})
    yield BORDER.join(part.encode() for part in (config, image, index, ""))
    yield BORDER.join(part.encode() for part in (config, "", image.replace("DIGEST", "0" * 64), "retry-after: 5\n"))


def _token_seeds() -> Iterator[bytes]:
    challenge = b'Bearer realm="https://auth.test/token",service="host.test",scope="repository:a:pull"'
    yield BORDER.join((challenge, b"30", b'{"token": "abc"}'))
    yield BORDER.join((challenge, b"", b'{"access_token": "abc"}'))
    yield BORDER.join((b'Basic realm="x"', b"", b'{"access_token": "a"}'))


def _download_seeds() -> Iterator[bytes]:
    note = {"url": hashlib.sha256(b"https://h.test/x").hexdigest(), "validator": '"abc"'}
    date = b"last-modified: Sat, 21 Nov 2026 10:00:00 GMT\ndate: Sat, 21 Nov 2026 10:00:02 GMT\n"
    yield json.dumps(note).encode() + BORDER + b'etag: "abc"\ncontent-range: bytes 9-12/13\n' + date
    yield json.dumps({**note, "validator": None}).encode() + BORDER + b"status: 200\n" + date


def _lock_seeds() -> Iterator[bytes]:
    from tests.fuzz.locks import settled_texts  # they are made by the resolver

    for text in settled_texts():
        yield text.encode()


_FAILED = (FailedError, BadInputError)
TARGETS = (
    Target(
        "index-html", ("resolve.network.wheel_index.read_index",), _page("text/html"), _page_seeds, _FAILED, rounds=5
    ),
    Target(
        "index-json",
        ("resolve.network.wheel_index.read_index",),
        _page("application/vnd.pypi.simple.v1+json"),
        _json_seeds,
        _FAILED,
        "json",
        rounds=10,
    ),
    Target("wheel-metadata", ("resolve.wheels.read_metadata",), _metadata, _metadata_seeds, (FailedError,)),
    Target("wheel-file", ("resolve.pin._required_by",), _wheel, _wheel_seeds, (FailedError,), "bytes"),
    Target(
        "registry",
        ("resolve.network.registry.resolve_image",),
        _registry,
        _registry_seeds,
        (FailedError, UndecidedError),
        "json",
    ),
    Target("registry-token", ("resolve.network.registry.Repository",), _token, _token_seeds, (FailedError,)),
    Target(
        "image-reference",
        ("resolve.network.registry.parse_reference",),
        _reference,
        lambda: [b"docker://rocm/pytorch:latest", b"host.test:5000/a/b@sha256:" + b"0" * 64, b"localhost/x"],
    ),
    Target(
        "web-address",
        ("resolve.network.mirrors.checked",),
        _address,
        lambda: [b"https://h.test:80/x?y#z", b"http://[::1]/"],
    ),
    Target(
        "download-headers",
        ("resolve.network.download.download", "resolve.network.resume.Partial"),
        _download,
        _download_seeds,
        _FAILED,
    ),
    Target(
        "lock",
        ("resolve.lockfile.read_lock",),
        _lock,
        _lock_seeds,
        (BadInputError, RefusedError, MissingHereError),
        "toml",
        repair=signed,
        rounds=8,
    ),
)
