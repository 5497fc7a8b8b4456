"""Of `resolve/`: what registries and package indexes answer, and what was stored of it."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from lumiimg.build.venv import _listed
from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.catalog.releases import IndexFact
from lumiimg.core.errors import BadInputError, FailedError, MissingHereError, RefusedError
from lumiimg.engine.binds import parse_binds
from lumiimg.engine.process import Completed
from lumiimg.fetch.download import download
from lumiimg.fetch.git import git_address
from lumiimg.fetch.http import Http, Response
from lumiimg.fetch.mirrors import Mirrors, validated_url
from lumiimg.fetch.package_index import IndexFile, files_in_html, files_in_json
from lumiimg.fetch.registry import parse_reference, resolve_image
from lumiimg.resolve.conda_environment import pip_lines
from lumiimg.resolve.lock_check import lock_of, outside_catalogue
from lumiimg.resolve.lock_file import read_document, request_of
from lumiimg.resolve.requirements import read_own
from lumiimg.resolve.source_archive import read_texts, requirements_in
from lumiimg.resolve.unlisted import filled, needs_of, value_of
from lumiimg.resolve.venv import RECORD, faults_of, open_venv
from tests.fuzz.locks import signed
from tests.fuzz.target import target
from tests.fuzz.targets.scratch import parts, text_of, written

_NO_MIRRORS = Mirrors({})
_WRITTEN = Path(__file__).parents[2] / "fixtures/written/0.1.0"


class _Served(Http):
    """A web that gives one answer, or what `by_name` has under the end of the address."""

    def __init__(self, answer: Response, by_name: Mapping[str, bytes] | None = None) -> None:
        super().__init__()
        self._answer = answer
        self._by_name = by_name

    @contextmanager
    def open(self, url: str, *_: Any, **__: Any) -> Iterator[Response]:
        body, status = self._answer.body, self._answer.status
        if self._by_name is not None:
            found = self._by_name.get(url.rpartition("/")[2])
            body, status = found or b"", 404 if found is None else 200
        yield Response(url, status, self._answer.headers, chunks=iter([body]))


@target("requirement-file", "resolve.requirements.requirement_of", refuses=(FailedError,))
def _requirement_file(data: bytes) -> None:
    texts = {"a/b.txt": text_of(data), "a/c.txt": "egg>=1"}
    requirements_in(texts, ["a/b.txt"], (), "archive")


@target("own-requirements", "resolve.requirements.read_own", "fetch.git.git_address")
def _own_requirements(data: bytes) -> str:
    """A requirement file that includes a second one."""
    own, more = parts(data, 2)
    written(more, "own/more.txt")
    addresses = [git_address(line) for line in text_of(own).split()]
    return str([*addresses, read_own([f"{written(own, 'own/own.txt')}"], ["pip:egg==1"])])


@target("conda-environment", "core.yaml.parse_yaml", "resolve.conda_environment.pip_lines")
def _conda_environment(data: bytes) -> str:
    """An environment of conda; every second name is in the index."""
    return str([*pip_lines(text_of(data), "environment.yml", lambda name: len(name) % 2 == 0)])


@target("venv", "resolve.venv.open_venv", "resolve.venv.faults_of", "build.venv._listed")
def _venv(data: bytes) -> str:
    """An environment that somebody hands over: its record and configuration; and what its Python says of it."""
    record, configuration, reported = parts(data, 3)
    folder = written(record, f"venv/{RECORD}").parent
    written(configuration, "venv/pyvenv.cfg")
    written(b"", "venv/bin/python")
    with suppress(FailedError):
        _listed(Completed(("python",), 0, text_of(reported)))
    return " ".join(text for _, text in faults_of(open_venv(folder), folder, {"python": "3.12", "torch": "2.9.1"}))


@target("registry", "fetch.registry.resolve_image", refuses=(FailedError,), form="json")
def _registry(data: bytes) -> None:
    """Config, image and index, which name each other by digest whatever they say; and headers."""
    config, image, index, headers = parts(data, 4)
    image = _filled(image, config)
    index = _filled(index, image)
    named = {f"sha256:{hashlib.sha256(one).hexdigest()}": one for one in (config, image)}
    fields = dict(re.findall(r"(?m)^([a-z-]{1,40}): ([ -~]*)$", text_of(headers)))
    resolve_image(
        parse_reference("host.test/a", _NO_MIRRORS), _Served(Response("", 200, fields, b""), {**named, "latest": index})
    )


def _filled(document: bytes, below: bytes) -> bytes:
    found = document.replace(b"DIGEST", hashlib.sha256(below).hexdigest().encode())
    return found.replace(b"111", b"%d" % len(below))


_CONFIG = b'{"architecture": "amd64", "os": "linux"}'
_IMAGE = json.dumps(
    {
        "schemaVersion": 2,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": f"sha256:{hashlib.sha256(_CONFIG).hexdigest()}",
            "size": len(_CONFIG),
        },
        "layers": [],
    }
).encode()


@target("registry-token", "fetch.registry.Repository", refuses=(FailedError,))
def _token(data: bytes) -> None:
    """What a registry answers to who has no token, and what its token server does."""
    challenge, retry, token = parts(data, 3)
    manifest = "https://host.test/v2/a/manifests/latest"
    last = [Response(manifest, 200, {}, chunks=iter([_IMAGE])), Response(manifest, 200, {}, chunks=iter([_CONFIG]))]
    if retry:
        last = [Response(manifest, 429, {"retry-after": text_of(retry)})]
    refusal = Response(manifest, 401, {"www-authenticate": text_of(challenge)})
    answers = [refusal, Response("https://auth.test/token", 200, {}, chunks=iter([token])), *last]
    web = Http()
    with mock.patch.object(web, "open", side_effect=map(nullcontext, answers)):
        resolve_image(parse_reference("host.test/a", _NO_MIRRORS), web)


@target(
    "image-reference",
    "fetch.registry.parse_reference",
    "fetch.mirrors.validated_url",
    "engine.binds.parse_binds",
)
def _reference(data: bytes) -> None:
    """Words of a command line: an image, a mirror, a bind."""
    text = text_of(data)
    with suppress(BadInputError):
        validated_url(text, "the address")
    with suppress(BadInputError):
        " ".join(map(str, parse_binds(text)))
    mirrors = Mirrors({"docker.io": "http://near.test:5000/hub", "host.test": "near.test"})
    for reference in (parse_reference(text, _NO_MIRRORS), parse_reference(text, mirrors)):
        str(reference)


class _Rest(Http):
    """A server that sends the rest of a file, or says that it does."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._answer = Response("https://h.test/x", status, headers, chunks=iter((b"rest",)))

    @contextmanager
    def open(self, url: str, *_: object, **__: object) -> Iterator[Response]:
        del url
        yield self._answer


@target("download-headers", "fetch.download.download", refuses=(FailedError, BadInputError))
def _download(data: bytes) -> None:
    """The headers of the answer that goes on with a file."""
    _, headers = parts(data, 2)
    fields = dict(re.findall(r"(?m)^([a-z-]{1,40}): ([ -~]*)$", text_of(headers)))
    status = int(fields.get("status", "206") == "206") * 6 + 200
    for known in (None, "0" * 64):
        partial = written(b"beginning", "partial")
        with suppress(FailedError):
            download("https://h.test/x", partial, _Rest(status, fields), known)


@cache
def _catalogue() -> Catalogue:
    return open_catalogue({"HOME": "/nonexistent"})


@target(
    "lock",
    "resolve.lock_file.read_document",
    "resolve.lock_file.request_of",
    "resolve.lock_check.lock_of",
    refuses=(BadInputError, RefusedError, MissingHereError),
    form="toml",
    repair=signed,
    rounds=8,
)
def _lock(data: bytes) -> None:
    path = written(data, "lumiimg.lock")
    document = read_document(path)
    request_of(document)
    catalogues = [Catalogue((_WRITTEN / "layers",), ())]  # whose digests stay
    outside_catalogue(lock_of(document, catalogues, _NO_MIRRORS, None, path), Mirrors({"pypi": "https://h.test"}))


@target(
    "index-page",
    "fetch.package_index.files_in_json",
    "fetch.package_index.files_in_html",
    refuses=(FailedError,),
    form="json",
)
def _index_page(data: bytes) -> str:
    """A page of an index, as what it is and as what it is not."""
    found = list[IndexFile]()
    for read in (files_in_json, files_in_html):
        with suppress(FailedError):
            found += read(data, "https://h.test/simple/vllm/", "vllm")
    if not found:
        files_in_json(data, "https://h.test/simple/vllm/", "vllm")
    return " ".join(f"{one.name} {one.version} {one.url} {one.requires_python} {one.yanked}" for one in found[:20])


@target("source-archive", "resolve.source_archive.read_texts", refuses=(FailedError,), form="bytes")
def _source_archive(data: bytes) -> None:
    read_texts(io.BytesIO(data), "CMakeLists.txt".__eq__, 1 << 28, "archive")


_FACT = IndexFact("fact", ("file",), re.compile(r"^fact (.*)$", re.MULTILINE))


@target("release-facts", "resolve.unlisted.needs_of")
def _release_facts(data: bytes) -> str | None:
    value = value_of(_FACT, {"file": data.decode("utf-8", "replace")})
    if value is None:
        return None
    return " ".join(map(str, needs_of(filled(("torch=={fact}", "python{fact}"), {"fact": value})))) or None


@target("project-file", "resolve.source_archive.requirements_in", refuses=(FailedError,))
def _project_file(data: bytes) -> None:
    requirements_in({"a.toml": text_of(data)}, ["a.toml[hip,test]"], (), "archive")
