"""Project pages of a package index, in HTML (PEP 503) or JSON (PEP 691): files, upload dates, withdrawn releases."""

from __future__ import annotations

import datetime as dt
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from lumiimg.core.errors import FailedError, one_line
from lumiimg.fetch.http import Bounds, Http, display_url

PAGE_LIMIT_BYTES = 32 << 20
"""The largest page of the public index is 8 MB."""
_METADATA_LIMIT_BYTES = 512 * 1024
_WORD = 3000
"""Longest value in the entry of a file, in characters."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_ABSENT = frozenset({403, 404})
"""PyTorch's index answers 403 for a project that it does not have (resolve/python_project.py)."""
_METADATA = ("core-metadata", "dist-info-metadata", "data-dist-info-metadata")
"""Keys that announce METADATA beside a file: the current, the older, and one that JSON used by mistake (PEP 714)."""
_WHEEL = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-[0-9][^-]*)?-(?P<tags>[^-]+-[^-]+-[^-]+)\.whl")


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file that an index offers."""

    name: str
    version: Version
    url: str
    tags: str
    """Tags of a wheel: `cp312-cp312-manylinux_2_27_x86_64`; empty for a source archive."""
    requires_python: str = ""
    uploaded: dt.date | None = None
    yanked: str | None = None
    """Reason why it was withdrawn, which may be empty; None if it was not."""
    has_metadata: bool = False
    """Whether the index serves its METADATA beside it (PEP 658)."""


def project_page(index: str, project: str, http: Http) -> tuple[IndexFile, ...]:
    """Return the files of a project; empty if the index does not have it.

    Raises FailedError for a response that is not an index page or is too large, MissingHereError without a network.
    """
    url = f"{index.rstrip('/')}/{project}/"
    answer = http.get(url, limit_bytes=PAGE_LIMIT_BYTES, headers={"Accept": _ACCEPT}, allow=_ABSENT)
    if answer.status in _ABSENT:
        return ()
    is_json = "json" in answer.headers.get("content-type", "")
    return (files_in_json if is_json else files_in_html)(answer.body, answer.url, project)


def has_project(index: str, project: str, http: Http) -> bool:
    """Return whether an index has a project, without reading its page. Raises as `project_page` does."""
    url = f"{index.rstrip('/')}/{project}/"
    with http.open(url, Bounds(PAGE_LIMIT_BYTES), {"Accept": _ACCEPT}, _ABSENT) as answer:
        return answer.status not in _ABSENT


def metadata_of(file: IndexFile, http: Http) -> str:
    """Return the METADATA that an index serves beside a wheel; empty if it has none. Raises as `project_page` does."""
    if not file.has_metadata:
        return ""
    answer = http.get(f"{file.url}.metadata", limit_bytes=_METADATA_LIMIT_BYTES)
    return answer.body.decode("utf-8", "replace")


def files_in_json(body: bytes, url: str, project: str) -> tuple[IndexFile, ...]:
    """Return the files on a PEP 691 page. Raises FailedError."""
    try:
        entries = json.loads(body)["files"]
        return _files([entry for entry in entries if isinstance(entry, dict)], url, project)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_a_page(url) from error


def files_in_html(body: bytes, url: str, project: str) -> tuple[IndexFile, ...]:
    """Return the files on a PEP 503 page. Raises FailedError for one without a link to a file of the project."""
    page = _Page()
    with suppress(AssertionError):  # by html.parser, for a broken declaration
        page.feed(body.decode("utf-8", "replace"))
    if not (files := _files(page.entries, url, project)):
        raise _not_a_page(url)
    return files


class _Page(HTMLParser):
    """Turns each link into the entry that PEP 691 has for it."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            return
        link = dict(attrs)
        url = link.pop("href", None) or ""
        name = unquote(url.partition("#")[0].rpartition("/")[2])
        attributes = {
            key.removeprefix("data-"): value or True for key, value in link.items() if key.startswith("data-")
        }
        self.entries.append({**attributes, "filename": name, "url": url})


def _files(entries: list[dict[str, Any]], page: str, project: str) -> tuple[IndexFile, ...]:
    found = (_file(entry, page, project) for entry in entries)
    return tuple(file for file in found if file is not None)


def _file(entry: dict[str, Any], page: str, project: str) -> IndexFile | None:
    """Return the file of an entry; None if it is not of the project or has no valid version."""
    name = _word(entry.get("filename"))
    if not (name.isascii() and name.isprintable()):
        return None
    wheel = _WHEEL.fullmatch(name)
    try:
        # not packaging's parse_wheel_filename, which takes seconds for the pages of PyTorch
        of, version = (wheel["name"], Version(wheel["version"])) if wheel else parse_sdist_filename(name)
        url = urljoin(page, _word(entry.get("url")).partition("#")[0])
        is_address = urlsplit(url).scheme in {"http", "https"}
    except (InvalidVersion, InvalidSdistFilename, InvalidWheelFilename, ValueError):
        return None
    if canonicalize_name(of) != canonicalize_name(project) or not is_address:
        return None
    uploaded = None
    with suppress(ValueError):
        uploaded = dt.date.fromisoformat(_word(entry.get("upload-time"))[:10])
    return IndexFile(
        name,
        version,
        url,
        tags=wheel["tags"] if wheel else "",
        requires_python=_word(entry.get("requires-python")),
        uploaded=uploaded,
        yanked=_word(entry["yanked"]) if entry.get("yanked") else None,
        has_metadata=any(map(entry.get, _METADATA)),
    )


def _word(value: Any) -> str:  # noqa: ANN401 - any value of a page
    return one_line(value)[:_WORD] if isinstance(value, str) else ""


def _not_a_page(url: str) -> FailedError:
    return FailedError(
        "is not a page of a package index, neither as JSON nor as HTML",
        where=display_url(url),
        hint="check that the address is a package index, or name another: --mirror pypi=URL",
    )
