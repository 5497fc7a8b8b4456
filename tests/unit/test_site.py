"""The site that `make docs` builds: its search finds the page about a pasted error message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from tests.shared.browser import Browser, browser, program

if TYPE_CHECKING:
    from collections.abc import Iterator

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
pytestmark = [
    pytest.mark.documents,
    pytest.mark.skipif(program() is None, reason="no Chromium on PATH"),
    pytest.mark.skipif(not SITE.exists(), reason="the site is built by `make docs`"),
]

PASTED = {
    "NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented": "howto/rc-38",
    "nid005012:61423:61689 [3] NCCL INFO Using network Socket": "howto/using-network-socket",
    "nid005012:61423:61423 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so. Using internal net plugin.": (
        "reference/findings"
    ),
    "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /opt/cray/lib64/libfabric.so.1)": (
        "explanation/binds"
    ),
    "RuntimeError: No HIP GPUs are available": "explanation/visible-devices",
    "nid005012:61423:61423 [0] src/bootstrap.cc:41 NCCL WARN Bootstrap : no socket interface found": "explanation/hsn",
    "htop half the cores busy": "howto/course-questions",
    "ssh to a running node to monitor resources": "howto/course-questions",
    "Driver not initialized (amdgpu not found in modules)": "howto/course-questions",
    "NCCL_NET_GDR_LEVEL=3": "howto/course-questions",
    "/usr/local/lib/librccl-net.so": "howto/course-questions",
    "flip the tables": "howto/course-questions",
    "CANNOT TELL": "reference/exit-codes",
    "requirements.txt": "howto/own-packages",
    "openai": "howto/serve",
    "endpoint": "howto/serve",
    "slow job": "tutorials/slow-job",
    "RC: -38": "howto/rc-38",
    "No module named vllm": "howto/newest-vllm",
    "torchrun": "howto/job-script",
    "time limit": "howto/job-script",
    "FATAL: could not open image /scratch/project_465000001/me/vllm.sif: no such file": "reference/signatures",
}
"""Texts as people paste or type them, and the page that must be among the first three results."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.mark.parametrize(("message", "page"), PASTED.items())
def test_an_error_message_pasted_whole_is_found(message: str, page: str, reader: Browser) -> None:
    reader.open(SITE / "search.html")
    reader.call("Page.navigate", url=f"{(SITE / 'search.html').as_uri()}?{urlencode({'q': message})}")
    found = reader.ask(
        """new Promise(done => { let turns = 0; const look = () => {
            const links = [...document.querySelectorAll("ul.search li a")].map(a => a.href);
            const over = document.querySelector(".search-summary")?.textContent;
            over || ++turns > 200 ? done(links) : setTimeout(look, 50) }; look() })"""
    )
    pages = [link.partition("_build/html/")[2].partition(".html")[0] for link in found]
    assert page in pages[:3], pages


def test_no_page_fetches_anything() -> None:
    """Links may lead elsewhere; scripts, styles and pictures belong to the site."""
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="(?:stylesheet|preload|icon)[^>]*href="(?:https?:)?//"""
    )
    in_a_sheet = re.compile(r"url\(['\"]?(?:https?:)?//|@import")
    pages, sheets = sorted(SITE.rglob("*.html")), sorted(SITE.rglob("*.css"))
    assert pages
    assert [page for page in pages if fetched.search(page.read_text())] == []
    assert [sheet for sheet in sheets if in_a_sheet.search(sheet.read_text())] == []
