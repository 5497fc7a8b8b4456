"""Which wheel is chosen for the image's Python, out of index pages that may be anything."""

from __future__ import annotations

import contextlib
import hashlib
import html
import http.server
import io
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import packaging.tags
import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement

from lumiimg.errors import BadInputError, FailedError, MissingHereError
from lumiimg.resolve.network import wheel_index
from lumiimg.resolve.network.mirrors import Mirrors, general_index
from lumiimg.resolve.network.web import Response, Web
from lumiimg.resolve.network.wheel_index import IndexFile, NotInIndexError, read_index
from lumiimg.resolve.wheels import PythonTarget, offered_wheels, read_metadata

UBUNTU = PythonTarget((3, 12), (2, 39))
DIGEST = "a" * 64
HTML = "text/html"
JSON = "application/vnd.pypi.simple.v1+json"
WEB = Web()


@dataclass
class Site:
    """A loopback server: what it answers by path, and what it was asked."""

    url: str
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Accept header."""

    def put(self, path: str, body: str | bytes, kind: str = HTML) -> str:
        self.answers[path] = (200, {"Content-Type": kind}, body.encode() if isinstance(body, str) else body)
        return f"{self.url}{path}"

    def index(self, body: str | bytes, kind: str = HTML, project: str = "torch", name: str = "simple") -> str:
        """Serve a page of a project; return the index."""
        self.put(f"/{name}/{project}/", body, kind)
        return f"{self.url}/{name}"


@pytest.fixture(scope="module")
def serving() -> Iterator[Site]:
    class Serve(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

        def do_GET(self) -> None:
            loopback.asked.append((self.path, self.headers.get("Accept", "")))
            status, headers, body = loopback.answers.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serve) as server:
        loopback = Site(f"http://127.0.0.1:{server.server_port}")
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield loopback
        server.shutdown()


@pytest.fixture
def site(serving: Site) -> Site:
    serving.answers.clear()
    serving.asked.clear()
    return serving


@dataclass(frozen=True)
class Canned(Web):
    """A web without a network: one answer to everything."""

    answer: Response

    def ask(self, url: str, **_: Any) -> Response:
        return Response(self.answer.url or url, self.answer.status, self.answer.headers, self.answer.body)


def canned(body: str | bytes, kind: str = HTML, url: str = "") -> Canned:
    return Canned(Response(url, 200, {"content-type": kind}, body.encode() if isinstance(body, str) else body))


def anchors(*links: str | tuple[str, str]) -> str:
    """A page of PEP 503: hrefs, or pairs of href and attributes."""
    pairs = [(link, "") if isinstance(link, str) else link for link in links]
    return "<!DOCTYPE html><html><body>\n" + "".join(
        f'<a href="{html.escape(href)}" {more}>x</a><br/>\n' for href, more in pairs
    )


def api_page(*files: dict[str, Any], **more: Any) -> str:
    """A page of PEP 691."""
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "torch", "files": files, **more})


def whl(version: str, python: str = "cp312", platform_: str = "manylinux_2_28_x86_64", name: str = "torch") -> str:
    return f"{name}-{version}-{python if '-' in python else f'{python}-{python}'}-{platform_}.whl"


def entry(filename: str, **more: Any) -> dict[str, Any]:
    return {"filename": filename, "url": quote(filename), "hashes": {"sha256": DIGEST}, **more}


def only(body: str | bytes, kind: str = HTML, project: str = "torch", url: str = "") -> IndexFile:
    (file,) = read_index(project, "https://h/simple", canned(body, kind, url))
    return file


def best(requirement: str, indexes: Sequence[str], web: Web, target: PythonTarget = UBUNTU) -> IndexFile | None:
    """The first that is offered and fits; what is pinned may be withdrawn, or a pre-release."""
    wanted = Requirement(requirement)
    pinned = any(part.operator == "==" and "*" not in part.version for part in wanted.specifier)
    offered = offered_wheels(wanted.name, indexes, target, web, every=pinned)
    return next((file for file in offered if wanted.specifier.contains(file.version, prereleases=True)), None)


def choose(page: str, requirement: str = "torch", target: PythonTarget = UBUNTU) -> str | None:
    found = best(requirement, ["https://h/simple"], canned(page), target)
    return found.filename if found else None


# --- the target


def test_the_tags_of_this_python_are_those_that_packaging_finds() -> None:
    libc, version = platform.libc_ver()
    if libc != "glibc" or sys.implementation.name != "cpython":
        pytest.skip("this Python is no CPython on glibc")
    major, minor = map(int, version.split("."))
    target = PythonTarget((sys.version_info[0], sys.version_info[1]), (major, minor), platform.machine())
    theirs = list(packaging.tags.sys_tags())
    ours = list(target.tags())
    assert set(ours) == set(theirs)

    def without_plain(tags: Sequence[packaging.tags.Tag]) -> list[packaging.tags.Tag]:
        return [tag for tag in tags if not tag.platform.startswith("linux_")]

    assert without_plain(ours) == without_plain(theirs), "but for linux_x86_64, in the same order"


def test_the_most_specific_tag_comes_first_and_the_names_of_old_manylinux_are_among_them() -> None:
    tags = [str(tag) for tag in UBUNTU.tags()]
    assert tags[0] == "cp312-cp312-manylinux_2_39_x86_64"
    assert tags[-1] == "py30-none-any"
    assert len(tags) == len(set(tags))
    order = [
        "cp312-cp312-manylinux_2_17_x86_64",
        "cp312-cp312-manylinux2014_x86_64",
        "cp312-cp312-manylinux2010_x86_64",
        "cp312-cp312-manylinux_2_5_x86_64",
        "cp312-cp312-manylinux1_x86_64",
        "cp312-cp312-linux_x86_64",
        "cp312-abi3-manylinux_2_39_x86_64",
        "cp38-abi3-manylinux2014_x86_64",
        "py3-none-manylinux_2_28_x86_64",
        "py3-none-any",
    ]
    assert sorted(order, key=tags.index) == order
    assert not [tag for tag in tags if "_2_40_" in tag or "_2_4_" in tag or "cp313" in tag or "musl" in tag]
    assert "cp37-cp37m-manylinux1_x86_64" in {str(tag) for tag in PythonTarget((3, 7), (2, 31)).tags()}
    arm = {tag.platform for tag in PythonTarget((3, 12), (2, 39), "aarch64").tags()}
    assert "manylinux2014_aarch64" in arm
    assert "manylinux_2_16_aarch64" not in arm


def test_markers_see_the_image_not_this_machine() -> None:
    environment = UBUNTU.environment()
    assert set(environment) == set(default_environment()), "nothing is left to be taken from here"
    true = (
        'python_version == "3.12" and sys_platform == "linux" and platform_machine == "x86_64" and os_name == "posix"'
    )
    assert Marker(true).evaluate(environment)
    assert Marker('implementation_name == "cpython" and python_full_version > "3.12.1"').evaluate(environment)
    assert not Marker('python_version < "3.12"').evaluate(environment)


@pytest.mark.parametrize(
    ("version", "glibc", "machine"),
    [((2, 7), (2, 17), "x86_64"), ((3, 12), (1, 2), "x86_64"), ((3, 12), (2, 39), "x-86")],
)
def test_what_is_no_cpython_3_on_glibc_2_is_no_target(
    version: tuple[int, int], glibc: tuple[int, int], machine: str
) -> None:
    with pytest.raises(BadInputError, match="CPython 3"):
        PythonTarget(version, glibc, machine)


# --- reading pages


def test_html_says_all_that_json_says(site: Site) -> None:
    name = "torch-2.9.1%2Brocm6.4-cp312-cp312-manylinux_2_28_x86_64.whl"
    attributes = (
        'data-requires-python="&gt;=3.10" data-yanked="a &lt;bad&gt; build" '
        f'data-dist-info-metadata="true" data-core-metadata="sha256={DIGEST}"'
    )
    page = anchors((f"{name}#sha256={DIGEST.upper()}", attributes))
    (from_html,) = read_index("torch", site.index(page), WEB)
    file = entry(
        "torch-2.9.1+rocm6.4-cp312-cp312-manylinux_2_28_x86_64.whl",
        **{"requires-python": ">=3.10", "yanked": "a <bad> build", "dist-info-metadata": True},
        **{"core-metadata": {"sha256": DIGEST}},
    )
    (from_json,) = read_index("torch", site.index(api_page(file), JSON), WEB)
    assert from_html == from_json
    assert from_html.url == f"{site.url}/simple/torch/{name}"
    assert from_html.filename == "torch-2.9.1+rocm6.4-cp312-cp312-manylinux_2_28_x86_64.whl"
    assert str(from_html.version) == "2.9.1+rocm6.4"
    assert from_html.sha256 == from_html.metadata_sha256 == DIGEST
    assert (from_html.requires_python, from_html.yanked) == (">=3.10", "a <bad> build")
    accept = {words for _, words in site.asked}
    assert accept == {f"{JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"}


def test_a_project_is_asked_for_by_its_normalised_name_and_relative_links_follow_redirects(site: Site) -> None:
    site.answers["/simple/flash-attn/"] = (301, {"Location": "/deep/er/flash-attn/"}, b"")
    site.put("/deep/er/flash-attn/", anchors("../w/flash_attn-2.8-py3-none-any.whl"))
    (file,) = read_index("Flash_.Attn", f"{site.url}/simple/", WEB)
    assert (file.name, file.url) == ("flash-attn", f"{site.url}/deep/er/../w/".replace("er/../", "er/") + file.filename)


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ('<base href="/files/">', "https://h/files/"),
        ('<base href="https://cdn.example/x/"><base href="/second/">', "https://cdn.example/x/"),
        ("<base>", "https://h/simple/torch/"),
    ],
)
def test_links_are_relative_to_the_base_of_the_page(base: str, url: str) -> None:
    assert only(base + anchors(whl("1.0"))).url == url + whl("1.0")


@pytest.mark.threat("S26")
def test_links_to_other_hosts_are_kept_but_not_without_tls_and_not_with_a_password() -> None:
    elsewhere = f"https://download-r2.pytorch.org/whl/rocm6.4/{whl('1.0')}"
    assert only(anchors(elsewhere)).url == elsewhere
    with pytest.raises(FailedError, match="without TLS"):
        only(anchors(f"http://h/{whl('1.0')}"))
    assert only(anchors(f"http://h/{whl('1.0')}"), url="http://h/simple/torch/").url == f"http://h/{whl('1.0')}"
    passed_over = [f"{start}{whl('1.0')}" for start in ("https://me:secret@h/", "ftp://h/", "file:///", "javascript:")]
    assert only(anchors(*passed_over, whl("2.0"))).filename == whl("2.0")


@pytest.mark.parametrize(
    ("fragment", "digest"),
    [
        (f"#sha256={DIGEST}", DIGEST),
        (f"#md5=abc&sha256={DIGEST}&egg=torch", DIGEST),
        ("#md5=d41d8cd98f00b204e9800998ecf8427e", None),
        (f"#sha256={DIGEST[1:]}", None),
        (f"#sha256={DIGEST}0", None),
        (f"#sha512={DIGEST}", None),
        (f"?sha256={DIGEST}", None),
        ("", None),
    ],
)
def test_a_digest_is_a_sha256_of_64_hex_digits_or_none(fragment: str, digest: str | None) -> None:
    assert only(anchors(whl("1.0") + fragment)).sha256 == digest
    hashes = dict(part.split("=", 1) for part in fragment.strip("#?").split("&") if "#" in fragment)
    assert only(api_page(entry(whl("1.0"), hashes=hashes)), JSON).sha256 == digest


@pytest.mark.parametrize(
    ("attributes", "offered"),
    [
        ("", None),
        ('data-core-metadata="false" data-dist-info-metadata="true"', None),
        ('data-core-metadata="true"', True),
        ('data-core-metadata="md5=00"', True),
        ("data-core-metadata", None),
        (f'data-dist-info-metadata="sha256={DIGEST}"', DIGEST),
    ],
)
def test_metadata_is_offered_by_either_attribute(attributes: str, offered: str | bool | None) -> None:
    assert only(anchors((whl("1.0"), attributes))).metadata_sha256 == offered


@pytest.mark.parametrize(
    ("value", "offered"),
    [(None, None), (False, None), (True, True), ({"md5": "00"}, True), ({"sha256": DIGEST}, DIGEST)],
)
def test_metadata_is_offered_by_either_key(value: object, offered: str | bool | None) -> None:
    for more in ({"core-metadata": value, "dist-info-metadata": {}}, {"dist-info-metadata": value}):
        assert only(api_page(entry(whl("1.0"), **more)), JSON).metadata_sha256 == offered


@pytest.mark.parametrize(
    ("in_html", "in_json", "yanked"),
    [
        ("", {}, None),
        ("data-yanked", {"yanked": True}, ""),
        ("", {"yanked": False}, None),
        ('data-yanked="why"', {"yanked": "why"}, "why"),
        (f'data-yanked="{"x" * 999}"', {"yanked": "x" * 999}, "x" * 200),
    ],
)
def test_withdrawn_files_are_marked_with_a_reason_of_bounded_length(
    in_html: str, in_json: dict[str, Any], yanked: str | None
) -> None:
    assert only(anchors((whl("1.0"), in_html))).yanked == yanked
    assert only(api_page(entry(whl("1.0"), size=7, **in_json)), JSON).yanked == yanked


@pytest.mark.parametrize(
    "name",
    [
        "torchvision-1.0-py3-none-any.whl",
        "torch_extra-1.0.tar.gz",
        "torch-1.0-py3-none-any.exe",
        "torch-1.0-py3-none.whl",
        "torch-one-py3-none-any.whl",
        "torch-1.0.whl",
        "torch.whl",
        "../torch-1.0-py3-none-any.whl",
        "a/torch-1.0-py3-none-any.whl",
        "torch-1.0-py3-none-any.whl\\..\\torch-1.0-py3-none-any.whl",
        "torch-1..0-py3-none-any.whl",
        "torch-1.0-py3-none-any\n.whl",
        "torch-1.0-py3-none-\x1b[31many.whl",
        "torch-1.0-py3-none-$(id).whl",
        "torch-1.0-py3-none-'any'.whl",
        "-torch-1.0-py3-none-any.whl",
        "torch-1.0-py3-none-any" + "y" * 255 + ".whl",
        "torch-1.0-" + ".".join("abcdefghi") + "-" + ".".join("abcdefghi") + "-" + ".".join("abcdefghi") + ".whl",
        "tórch-1.0-py3-none-any.whl",
        "",
    ],
)
@pytest.mark.threat("S26")
def test_a_file_name_that_is_not_a_safe_one_of_this_project_is_passed_over(name: str) -> None:
    assert only(anchors(quote(name, safe=""), whl("2.0"))).filename == whl("2.0")
    evil = {**entry(whl("1.0")), "filename": name}
    assert only(api_page(evil, entry(whl("2.0"))), JSON).filename == whl("2.0")


def test_a_link_or_a_requirement_of_absurd_length_is_passed_over() -> None:
    long = (whl("1.0"), f'data-requires-python="{">=3," * 2000}>=3"')
    assert only(anchors("x" * 5000 + "/" + whl("1.0"), long, whl("2.0"))).filename == whl("2.0")
    assert only(anchors("https://[::/" + whl("1.0"), whl("2.0"))).filename == whl("2.0")
    assert only(anchors(whl("1.0").replace("torch", "%22%3E/torch/x y"), whl("2.0"))).filename == whl("2.0")


HOSTILE = {
    "empty": (HTML, b""),
    "bytes": (HTML, bytes(range(256)) * 9),
    "login": (HTML, b'<html><form action="/login"><a href="/forgot">Forgot your password?</a></form>'),
    "no-files": (HTML, b"<!DOCTYPE html><h1>Links for torch</h1>"),
    "others": (HTML, anchors(whl("1.0", name="torchvision")).encode()),
    "commented": (HTML, f"<!-- {anchors(whl('1.0'))} -->".encode()),
    "open-section": (
        HTML,
        b"<![foo[ no links here",
    ),  # html.parser of 3.11 raises; since 3.14 it is a comment, as in browsers
    "digits": (HTML, b"<a href='&#" + b"9" * 5000 + b";'>"),
    "base": (HTML, b"<base href='http://[x'>" + anchors(whl("1.0")).encode()),
    "unclosed": (HTML, b"<a href='" + b"x" * 400_000),
    "not-utf-8": (JSON, b'{"files": ["\xff"]}'),
    "json-of-html": (JSON, anchors(whl("1.0")).encode()),
    "deep": (JSON, b"[" * 200_000),
    "number": (JSON, b"1" * 5000),
    "null": (JSON, b"null"),
    "list": (JSON, b"[]"),
    "no-meta": (JSON, b'{"files": []}'),
    "no-files-json": (JSON, api_page().encode()),
    "files-no-list": (JSON, api_page().replace("[]", "{}").encode()),
    "version-no-text": (JSON, api_page(meta={"api-version": 1}).encode()),
    "file-no-table": (JSON, api_page().replace("[]", "[1]").encode()),
    "no-url": (JSON, api_page({"filename": whl("1.0"), "hashes": {}}).encode()),
    "name-no-text": (JSON, api_page({"filename": 1, "url": "x", "hashes": {}}).encode()),
    "hashes": (JSON, api_page(entry(whl("1.0"), hashes=[])).encode()),
    "requires": (JSON, api_page(entry(whl("1.0"), **{"requires-python": 3})).encode()),
    "yanked": (JSON, api_page(entry(whl("1.0"), yanked=[])).encode()),
    "metadata": (JSON, api_page(entry(whl("1.0"), **{"core-metadata": "yes"})).encode()),
    "size": (JSON, api_page(entry(whl("1.0"), size="1")).encode()),
    "size-bool": (JSON, api_page(entry(whl("1.0"), size=True)).encode()),
    "size-negative": (JSON, api_page(entry(whl("1.0"), size=-1)).encode()),
    "xml": ("application/xml", b"<Error><Code>AccessDenied</Code></Error>"),
    "no-type": ("", anchors(whl("1.0")).encode()),
    "v2-type": ("application/vnd.pypi.simple.v2+json", api_page(entry(whl("1.0"))).encode()),
    "v2-json": (JSON, api_page(entry(whl("1.0")), meta={"api-version": "2.0"}).encode()),
    "v2-html": (HTML, b'<meta name="pypi:repository-version" content="2.0">' + anchors(whl("1.0")).encode()),
    "v-none": (HTML, b'<meta name="pypi:repository-version">' + anchors(whl("1.0")).encode()),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_page_that_is_none_is_refused_in_one_line_with_its_address(site: Site, case: str) -> None:
    kind, body = HOSTILE[case]
    index = site.index(body, kind)
    site.index(anchors(whl("9.9")), name="second")
    with pytest.raises(FailedError) as caught:
        best("torch", [index, f"{site.url}/second"], WEB)
    text = str(caught.value)
    assert text.startswith(f"{index}/torch/: ")
    assert text.isprintable()
    assert len(text) < 500
    if case.startswith("v2"):
        assert "speaks version 2" in text


@pytest.mark.parametrize(
    "kind",
    [JSON, "application/vnd.pypi.simple.latest+json", f"{JSON}; charset=utf-8", "Application/Vnd.PyPI.simple.v1+JSON"],
)
def test_json_is_known_by_its_content_type(kind: str) -> None:
    assert only(api_page(entry(whl("1.0"), size=5)), kind).size_bytes == 5


@pytest.mark.parametrize("kind", [HTML, "text/html; charset=UTF-8", "application/vnd.pypi.simple.v1+html"])
def test_html_is_known_by_its_content_type(kind: str) -> None:
    meta = '<meta name="pypi:repository-version" content="1.4">'
    assert only(meta + anchors(whl("1.0")), kind).filename == whl("1.0")


@pytest.mark.parametrize(
    "part",
    ["<a", "<!--", "<![CDATA[", "<a href=' ", "</", "<script>", "&#", "<a a=' a=\" ", "<!", "<?", "<a ", "<a =="],
)
@pytest.mark.threat("S26")
def test_html_that_is_left_open_takes_no_time(part: str) -> None:
    started = time.process_time()
    with pytest.raises(FailedError):
        only(part * (8_000_000 // len(part)))
    assert time.process_time() - started < 5


@pytest.mark.threat("S22", "S26")
def test_a_page_has_bounds(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setattr(wheel_index, "FILES_LIMIT", 3)
    pages = [(anchors(*[whl("1.0")] * 4), HTML), (api_page(*[entry(whl("1.0"))] * 4), JSON)]
    for page, kind in pages:
        with pytest.raises(FailedError, match="more than 3 links"):
            only(page, kind)
    full = api_page(entry(whl("1.0"))).replace("{", '{"x": [' + "[]," * 20 + "0],", 1)
    with monkeypatch.context() as patch:
        patch.setattr(wheel_index, "_VALUES_LIMIT", 20)
        with pytest.raises(FailedError, match="more than 20 values"):
            only(full, JSON)
    long = f'<a href="https://h/{"x" * 5000}/{whl("1.0")}">{whl("1.0")}</a>{anchors(whl("2.0"))}'
    assert [file.filename for file in read_index("torch", "https://h/simple", canned(long))] == [whl("2.0")]
    monkeypatch.setattr(wheel_index, "PAGE_LIMIT_BYTES", 10)
    with pytest.raises(FailedError, match="larger than 10 bytes"):
        read_index("torch", site.index(anchors(whl("1.0"))), WEB)


def test_a_page_of_many_files_is_read_across_the_borders_of_pieces() -> None:
    names = [whl(f"1.{number}") for number in range(3000)]
    files = read_index("torch", "https://h/simple", canned(anchors(*names)))
    assert [file.filename for file in files] == names


# --- which index


@pytest.mark.threat("S25")
def test_the_first_index_that_has_the_project_is_the_only_one(site: Site) -> None:
    rocm = site.index(anchors(whl("2.9.1+rocm6.4")), name="rocm")
    pypi = site.index(anchors(whl("2.9.1"), whl("2.12.0"), whl("2.9.1+rocm6.4")), name="pypi")
    site.index(anchors(whl("2.0", "py3-none", "any", "numpy")), project="numpy", name="pypi")
    chosen = best("torch", [rocm, pypi], WEB)
    assert chosen is not None
    assert (str(chosen.version), chosen.url.startswith(rocm)) == ("2.9.1+rocm6.4", True)
    numpy = best("numpy", [rocm, pypi], WEB)
    assert numpy is not None
    assert numpy.url.startswith(pypi)
    assert best("torch==2.12.0", [rocm, pypi], WEB) is None


def test_no_index_has_it(site: Site) -> None:
    with pytest.raises(NotInIndexError, match="the index has no torch"):
        read_index("torch", f"{site.url}/simple", WEB)
    with pytest.raises(FailedError, match=rf"no package index has torch: {site.url}/a, {site.url}/b"):
        best("torch", [f"{site.url}/a", f"{site.url}/b"], WEB)
    with pytest.raises(FailedError, match="no package index has torch: none is named"):
        best("torch", [], WEB)


@pytest.mark.threat("S25")
def test_an_index_that_forbids_is_an_error_but_that_of_pytorch_means_that_it_has_none(site: Site) -> None:
    site.answers["/a/torch/"] = (403, {}, b"")
    with pytest.raises(FailedError, match="answers 403"):
        best("torch", [f"{site.url}/a", site.index(anchors(whl("1.0")))], WEB)
    forbidding = Canned(Response("", 403, {"content-type": HTML}, b""))
    with pytest.raises(NotInIndexError):
        read_index("numpy", "https://download.pytorch.org/whl/rocm6.4", forbidding)
    with pytest.raises(FailedError) as caught:
        read_index("numpy", "https://download.notpytorch.org/whl/rocm6.4", forbidding)
    assert not isinstance(caught.value, NotInIndexError)


@pytest.mark.parametrize("url", ["ftp://h/simple", "/simple", "https://h/simple?x", "https://h/a b", "https://h/é", ""])
def test_what_is_no_index_is_bad_input(url: str) -> None:
    with pytest.raises(BadInputError):
        read_index("torch", url, canned(anchors(whl("1.0"))))


def test_a_password_of_an_index_is_not_repeated() -> None:
    with pytest.raises(BadInputError) as caught:
        read_index("torch", "https://me:secret@h/simple", WEB)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "-a", "a\n", "tor\u212ah", "x" * 201])
def test_what_is_no_project_is_bad_input(name: str) -> None:
    with pytest.raises(BadInputError):
        read_index(name, "https://h/simple", WEB)


# --- which file


def test_a_local_version_is_matched_exactly_or_not_asked_for() -> None:
    page = anchors(*[whl(quote(version)) for version in ("2.9.1+rocm6.3", "2.9.1+rocm6.4", "2.9.0", "2.10.0+rocm7.0")])
    assert choose(page, "torch==2.9.1+rocm6.3") == whl("2.9.1+rocm6.3")
    assert choose(page, "torch==2.9.1") == whl("2.9.1+rocm6.4")
    assert choose(page, "torch<2.9.1") == whl("2.9.0")
    assert choose(page, "Torch") == whl("2.10.0+rocm7.0")
    assert choose(page, "torch==2.9.1+rocm6.2") is None


def test_the_closest_tag_wins_and_then_the_build_number() -> None:
    names = [
        whl("1.0", "py3-none", "any"),
        whl("1.0", "cp312", "linux_x86_64"),
        whl("1.0", "cp38-abi3", "manylinux_2_39_x86_64"),
        whl("1.0", "cp312", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
        whl("1.0", "cp312", "manylinux_2_28_x86_64"),
        whl("1.0-2", "cp312", "manylinux_2_28_x86_64"),
        whl("1.0-10", "cp312", "manylinux_2_28_x86_64"),
    ]
    random.Random(1).shuffle(names)  # noqa: S311 - the same each time
    order = [str(choose(anchors(*names)))]
    while len(order) < len(names) - 1:
        order.append(str(choose(anchors(*[name for name in names if name not in order]))))
    assert [name.removeprefix("torch-1.0-").split("_x86")[0] for name in order] == [
        "10-cp312-cp312-manylinux_2_28",
        "2-cp312-cp312-manylinux_2_28",
        "cp312-cp312-manylinux_2_28",
        "cp312-cp312-manylinux_2_17",
        "cp312-cp312-linux",
        "cp38-abi3-manylinux_2_39",
    ]


def test_a_withdrawn_file_is_taken_only_if_it_is_pinned() -> None:
    page = anchors((whl("2.0"), 'data-yanked="broken\x1b[31m"'), whl("1.0"))
    assert choose(page) == choose(page, "torch<=2.0") == choose(page, "torch!=3") == whl("1.0")
    assert choose(page, "torch==2.0") == whl("2.0")
    assert choose(page, "torch==2.*") is None
    beside = anchors((whl("2.0"), "data-yanked"), whl("2.0", platform_="manylinux_2_17_x86_64"))
    assert choose(beside, "torch==2.0") == whl("2.0", platform_="manylinux_2_17_x86_64"), "not withdrawn goes first"


def test_a_pre_release_is_taken_only_if_it_is_asked_for() -> None:
    page = anchors(whl("2.0rc1"), whl("2.0.dev20251101%2Brocm6.4"), whl("1.0"))
    assert choose(page) == choose(page, "torch>=1") == whl("1.0")
    assert choose(page, "torch==2.0rc1") == whl("2.0rc1")
    assert choose(page, "torch==2.0.dev20251101") == whl("2.0.dev20251101+rocm6.4")
    assert choose(page, "torch>1") is None
    assert choose(anchors(whl("2.0rc1"))) == whl("2.0rc1"), "where there is nothing else"


@pytest.mark.parametrize(
    ("requires", "fits"),
    [
        *[(fit, True) for fit in (">=3.12", ">=3.12.4", "!=3.12.0,>=3.9", "<3.13", "==3.12.*", "", "nonsense")],
        *[(unfit, False) for unfit in (">=3.13", "<3.12", "<=3.11")],
    ],
)
def test_the_python_that_a_wheel_requires_is_respected(requires: str, fits: bool) -> None:
    newer = (whl("2.0", "py3-none", "any"), f'data-requires-python="{html.escape(requires)}"')
    assert choose(anchors(newer, whl("1.0"))) == (whl("2.0", "py3-none", "any") if fits else whl("1.0"))
    if not fits:
        with pytest.raises(
            FailedError, match=f"no wheel of torch 2.0 for Python 3.12 .*: it requires Python {requires}"
        ):
            choose(anchors(newer))


@pytest.mark.parametrize(
    ("names", "there"),
    [
        (
            [whl("2.9.1%2Brocm6.4", f"cp{python}") for python in (313, 311, 312)],
            "cp311, cp312, cp313 (manylinux_2_28)",
        ),
        ([whl("2.9.1%2Brocm6.4", "cp310", "manylinux_2_38_x86_64")], "cp310 (manylinux_2_38)"),
        (
            [
                whl("2.9.1%2Brocm6.4", "cp39"),
                whl("2.9.1%2Brocm6.4", "cp313-cp313t"),
                whl("2.9.1%2Brocm6.4", "cp311-abi3"),
            ],
            "cp39, cp313t, cp311-abi3 (manylinux_2_28)",
        ),
        ([whl("2.9.1%2Brocm6.4", "py3-none", "win_amd64")], "py3 (win_amd64)"),
        (
            [whl("2.9.1%2Brocm6.4", "cp310", f"manylinux_2_{glibc}_x86_64") for glibc in range(36, 46)],
            "cp310 (manylinux_2_36, manylinux_2_37, manylinux_2_38, manylinux_2_39, manylinux_2_40, manylinux_2_41, manylinux_2_42, manylinux_2_43 and 2 more)",
        ),
        (["torch-2.9.1%2Brocm6.4.tar.gz"], "only its source archive"),
    ],
)
@pytest.mark.threat("S24")
def test_a_refusal_says_what_there_is(names: list[str], there: str) -> None:
    with pytest.raises(FailedError) as caught:
        choose(anchors(*names, whl("1.0", "cp27")), "torch==2.9.1+rocm6.4", PythonTarget((3, 10), (2, 35)))
    what = f"no wheel of torch 2.9.1+rocm6.4 for Python 3.10 with glibc 2.35: the index has {there}"
    assert str(caught.value) == f"https://h/simple: {what}"


def tiny_wheel(filename: str) -> bytes:
    name, version = filename.split("-")[:2]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        folder = f"{name}-{version}.dist-info"
        archive.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{folder}/RECORD", "")
    return made.getvalue()


PYTHONS = ["cp312-cp312", "cp313-cp313", "cp311-cp311", "cp38-abi3", "cp313-abi3", "py3-none", "cp312-none"]
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64.manylinux2014_x86_64", "manylinux1_x86_64", "any"]
PLATFORMS += ["manylinux_2_38_x86_64", "win_amd64", "manylinux_2_35_aarch64", "musllinux_1_2_x86_64"]
VERSIONS = ["1.0", "1.0+rocm6.4", "1.1", "1.1.post1", "2.0rc1", "2.0", "2.0-3", "1!0.5"]
SPECIFIERS = ["", "==1.0", "<2", ">=1.1", "==1.0+rocm6.4", "==1.*", "==2.0rc1", "!=2.0", "~=1.0", ">1.0"]


def test_pip_would_choose_the_same(site: Site, tmp_path: Path) -> None:
    """One run of pip over projects with random sets of wheels, for another Python than the one that runs it."""
    pytest.importorskip("pip")
    pick = random.Random(20251121).choice  # noqa: S311 - the same each time
    target = PythonTarget((3, 12), (2, 35))
    index = f"{site.url}/simple"
    asked, chosen = [], set()
    for number in range(24):
        name = f"proj{number}"
        links = {}
        for _ in range(14):
            file = whl(pick(VERSIONS), pick(PYTHONS), pick(PLATFORMS), name)
            # with a value: pip does not see a data-yanked that has none
            links[quote(file)] = pick(["", "", "", 'data-yanked=""', 'data-requires-python="&lt;3.12"'])
            site.put(f"/simple/{name}/{quote(file)}", tiny_wheel(file))
        site.index(anchors(*links.items()), project=name)
        requirement = name + pick(SPECIFIERS)
        with contextlib.suppress(FailedError):
            if (found := best(requirement, [index], WEB, target)) is not None:
                chosen.add(found.filename)
                asked.append(requirement)
    assert len(chosen) > 10
    platforms = dict.fromkeys(f"--platform={tag.platform}" for tag in target.tags() if tag.platform != "any")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    command += ["--report=-", "--only-binary=:all:", "--target", str(tmp_path), "--index-url", index]
    command += ["--implementation=cp", "--python-version=3.12", "--abi=cp312", *platforms, *asked]
    theirs = {name: value for name, value in os.environ.items() if not name.upper().startswith(("PIP_", "HTTP"))}
    theirs |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
    done = subprocess.run(command, env=theirs, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    urls = [found["download_info"]["url"] for found in json.loads(done.stdout)["install"]]
    assert {unquote(url.rpartition("/")[2]) for url in urls} == chosen


# --- metadata

METADATA = b"""\
Metadata-Version: 2.1
Name: Torch
Version: 2.9.1+rocm6.4
Requires-Python: >=3.10
Requires-Dist: filelock
Requires-Dist: pytorch-triton-rocm==3.5.1; platform_system == "Linux"
Provides-Extra: opt
License: anything, of which nothing is checked

A description.
"""


def file_with(metadata: str | bool, site: Site, body: bytes = METADATA) -> IndexFile:
    site.put(f"/simple/torch/{whl('2.9.1+rocm6.4')}.metadata", body)
    page = anchors((whl("2.9.1+rocm6.4"), f'data-core-metadata="{metadata}"' if metadata else ""))
    (file,) = read_index("torch", site.index(page), WEB)
    return file


def test_metadata_is_read_where_the_index_offers_it(site: Site) -> None:
    file = file_with(f"sha256={hashlib.sha256(METADATA).hexdigest()}", site)
    found = read_metadata(file, WEB)
    assert found is not None
    assert list(map(str, found)) == ["filelock", 'pytorch-triton-rocm==3.5.1; platform_system == "Linux"']
    assert read_metadata(file_with("true", site), WEB) == found
    assert read_metadata(file_with("", site), WEB) is None
    del site.answers[f"/simple/torch/{whl('2.9.1+rocm6.4')}.metadata"]
    assert read_metadata(file, WEB) is None, "offered, and not there"


@pytest.mark.parametrize(
    ("offered", "body", "what"),
    [
        (f"sha256={DIGEST}", METADATA, "another digest"),
        ("true", METADATA.replace(b"Torch", b"torchvision"), "is of torchvision 2.9.1"),
        ("true", METADATA.replace(b"rocm6.4", b"cu126"), r"is of torch 2.9.1\+cu126, not of torch 2.9.1\+rocm6.4"),
        ("true", METADATA.replace(b"filelock", b"file lock"), "no metadata"),
        ("true", METADATA.replace(b"filelock", b"x;" + b"(" * 20_000), "no metadata"),
        ("true", METADATA.replace(b"filelock", b"x==" + b"9" * 5000 + b".1"), "no metadata"),
        ("true", METADATA.replace(b">=3.10", b"3.10 or so"), "no metadata"),
        ("true", METADATA.replace(b"Version: 2.9.1+rocm6.4", b""), "no metadata"),
        ("true", METADATA.replace(b"Name: Torch", b"Name: ../\x1b"), "no metadata"),
        ("true", b"", "no metadata"),
        ("true", b"<html>login</html>", "no metadata"),
    ],
)
@pytest.mark.threat("S24")
def test_metadata_that_is_not_the_wheels_is_refused(site: Site, offered: str, body: bytes, what: str) -> None:
    with pytest.raises(FailedError, match=what) as caught:
        read_metadata(file_with(offered, site, body), WEB)
    assert str(caught.value).isprintable()
    assert ".metadata: " in str(caught.value)


def test_the_general_index_is_the_one_that_is_named_else_pips(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://files.example/simple\n")
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(config)}
    assert general_index(Mirrors({}), plain) == "https://files.example/simple"
    told = {**plain, "PIP_INDEX_URL": "https://variable.example/very-long/path-of/an-index/simple"}
    assert general_index(Mirrors({}), told) == told["PIP_INDEX_URL"]
    assert general_index(Mirrors({"https://files.example": "http://near"}), plain) == "http://near/simple"
    assert general_index(Mirrors({"pypi": "https://named.example/simple"}), told) == "https://named.example/simple"
    with pytest.raises(BadInputError, match="carries a password") as caught:
        general_index(Mirrors({}), {**plain, "PIP_INDEX_URL": "https://me:hunter2@x.example/simple"})
    assert "hunter2" not in str(caught.value)


def test_where_this_python_has_no_pip_that_of_the_machine_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip = "Base URL of the Python Package Index (default https://files.example/simple)."
    machine = tmp_path / "python3"
    machine.write_text(
        f'#!/bin/sh\n# a stand-in\n[ "$*" = "-m pip download --help" ] && echo "  --index-url <url>  {pip}"\n'
    )
    machine.chmod(0o755)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert general_index(Mirrors({}), {"PATH": str(tmp_path)}) == "https://files.example/simple"
    with pytest.raises(MissingHereError, match="--mirror pypi=URL"):
        general_index(Mirrors({}), {"PATH": "/nowhere"})
