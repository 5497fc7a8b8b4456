"""Reading a package index: which files it offers of a project (PEP 503 pages and PEP 691 JSON). Chooses nothing."""

from __future__ import annotations

import contextlib
import json
import math
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import (
    InvalidName,
    NormalizedName,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from lumiimg.errors import BadInputError, FailedError, one_line
from lumiimg.host.codec import FormError, count_of_values, decode
from lumiimg.resolve.network.mirrors import refuse_password
from lumiimg.resolve.network.web import place, refuse_unproved
from lumiimg.secret import has_key

if TYPE_CHECKING:
    from packaging.version import Version

    from lumiimg.resolve.network.web import Response, Web

PAGE_LIMIT_BYTES = 64 * 1024 * 1024
FILES_LIMIT = 50_000
_VALUES_LIMIT = 40 * FILES_LIMIT
_ATTRIBUTE_LIMIT = 4096
_REASON_LIMIT = 200
_NAME_LIMIT = 200
_TAGS_LIMIT = 256
_PIECE = 64 * 1024
_PENDING_LIMIT = 256 * 1024

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_API_TYPE = re.compile(r"application/vnd\.pypi\.simple\.(v\d+|latest)\+(json|html)")
_INDEX_URL = re.compile(r"https?://(?:(?![?#])[!-~])+")
_FILE_URL = re.compile(r"https?://[A-Za-z0-9._~:/?@!&+,=%\[\]-]+")
# Stricter than the file name rules of wheels need: the name goes into folders, definition files and shell scripts.
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]{0,254}")
_HEX_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

# It answers 403 for a project that it does not have. Source: uv, IndexStatusCodeStrategy::from_index_url;
# pytorch/pytorch#145983. Anywhere else 403 is "not for you", which must not send a request on to the next index.
_FORBIDDEN_MEANS_ABSENT = ("pytorch.org",)


class NotInIndexError(FailedError):
    """The index does not have the project, and says so."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file that an index offers."""

    name: str
    """Of the project, normalised."""
    version: Version
    filename: str
    url: str
    """Without fragment."""
    sha256: str | None
    """In lower case; None if the index gives no digest, or only one of another kind."""
    size_bytes: int | None
    requires_python: str | None
    yanked: str | None
    """The reason ("" if none is given) of a file that was withdrawn (PEP 592), otherwise None."""
    metadata_sha256: str | Literal[True] | None
    """Of the metadata beside it (PEP 658): its digest, True if offered without, None if not offered."""

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel, not a source archive."""
        return self.filename.endswith(".whl")


def read_index(project: str, index_url: str, web: Web) -> tuple[IndexFile, ...]:
    """Return the wheels and source archives that an index has of a project, in the order of its page.

    A file whose name cannot be read, is no safe file name, or belongs to another project is passed over.

    Raises NotInIndexError if the index says that it has no such project; BadInputError if the project or the index is
    none; FailedError for whatever else the index answers that is no page of the project.
    Source: PEP 503 (HTML), 592 (yanked), 629 (versions), 658 and 714 (metadata), 691 (JSON), 700 (sizes).
    """
    name = normalised(project)
    refuse_password(index_url, "the package index")
    if not _INDEX_URL.fullmatch(index_url):
        raise BadInputError("is no http(s) address of a package index", where=index_url[:_REASON_LIMIT])
    refuse_unproved(index_url)
    url = f"{index_url.rstrip('/')}/{name}/"
    answer = web.ask(url, limit_bytes=PAGE_LIMIT_BYTES, headers={"Accept": _ACCEPT}, allow=absent_statuses(url))
    if answer.status in absent_statuses(url):
        raise NotInIndexError(f"the index has no {name}", where=url)
    base, links = _links(answer)
    files = tuple(file for link in links if (file := _file(link, base, name, answer.url)) is not None)
    if not files:
        raise _no_page(answer.url, f"it has no wheel and no source archive of {name}")
    return files


def normalised(project: str) -> NormalizedName:
    """Return a project's name as indexes write it (PEP 503).

    Raises BadInputError if it is none.
    """
    # In older releases of packaging the pattern also takes the Kelvin sign for a `k`, and a newline at the end.
    if len(project) <= _NAME_LIMIT and project.isascii() and project.isprintable():
        with contextlib.suppress(InvalidName):
            return canonicalize_name(project, validate=True)
    raise BadInputError(f"{project[:_REASON_LIMIT]!r} is no name of a Python project")


def absent_statuses(url: str) -> frozenset[int]:
    """Return the HTTP statuses by which the server of this address says that it does not have something."""
    host = urlsplit(url).hostname or ""
    forbidden = any(host == known or host.endswith(f".{known}") for known in _FORBIDDEN_MEANS_ABSENT)
    return frozenset({404, 403}) if forbidden else frozenset({404})


@dataclass(frozen=True, slots=True)
class _Link:
    """A file as the page has it: nothing judged yet."""

    href: str
    filename: str | None
    """None in HTML: the end of the address is the name."""
    sha256: str | None
    requires_python: str | None
    yanked: str | None
    metadata_sha256: str | Literal[True] | None
    size_bytes: int | None = None


def _no_page(url: str, why: str) -> FailedError:
    return FailedError(
        f"is no page of a package index: {one_line(why)}",
        where=place(url)[:_ATTRIBUTE_LIMIT],
        hint="is the address of the index right (…/simple, …/whl/rocm6.4), and does it want a login?",
    )


def _links(answer: Response) -> tuple[str, list[_Link]]:
    """Return what links are relative to, and the links."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    api = _API_TYPE.fullmatch(kind)
    if api is None and kind != "text/html":
        raise _no_page(answer.url, f"its content type is {kind[:_REASON_LIMIT] or 'not given'}")
    if api is not None and api[1] != "latest":
        _refuse_unknown_api(api[1].removeprefix("v"), answer.url)
    if api is not None and api[2] == "json":
        return answer.url, _json_links(answer)
    return _html_links(answer)


def _refuse_unknown_api(version: str, url: str) -> None:
    """Refuse a major version that this reader does not know; a new minor one only adds (PEP 629)."""
    if version.partition(".")[0] != "1":
        raise FailedError(
            f"speaks version {version[:_REASON_LIMIT]} of the index protocol; this lumiimg knows version 1",
            where=place(url)[:_ATTRIBUTE_LIMIT],
        )


class _Page(HTMLParser):
    """A page of PEP 503."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.base: str | None = None
        self.api_version = "1.0"
        self.links: list[_Link] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        match tag:
            case "a":
                href = values.get("href") or ""
                metadata = values.get("data-core-metadata", values.get("data-dist-info-metadata"))
                self.links.append(
                    _Link(
                        href=href,
                        filename=None,
                        sha256=_digest_in(href.partition("#")[2]),
                        requires_python=values.get("data-requires-python"),
                        yanked=(values["data-yanked"] or "") if "data-yanked" in values else None,
                        metadata_sha256=None if metadata in {None, "false"} else _digest_in(metadata or "") or True,
                    )
                )
            case "base" if self.base is None:
                self.base = values.get("href")
            case "meta" if values.get("name") == "pypi:repository-version":
                self.api_version = values.get("content") or ""


def _html_links(answer: Response) -> tuple[str, list[_Link]]:
    page = _Page()
    text = answer.body.decode("utf-8", "replace")
    try:
        # In pieces, with a bound on what waits for its end, and never close(): on html that is left open the parser
        # takes quadratic time otherwise (CVE-2025-6069), days for a page of this size.
        for start in range(0, len(text), _PIECE):
            page.feed(text[start : start + _PIECE])
            if len(page.rawdata) > _PENDING_LIMIT:
                raise _no_page(answer.url, "its HTML cannot be read")
            _refuse_too_many(len(page.links), answer.url)
    except (AssertionError, ValueError) as error:  # a broken `<![`, a character's number of thousands of digits
        raise _no_page(answer.url, "its HTML cannot be read") from error
    _refuse_unknown_api(page.api_version, answer.url)
    try:
        return urljoin(answer.url, page.base or ""), page.links
    except ValueError as error:
        raise _no_page(answer.url, "its base address is none") from error


def _json_links(answer: Response) -> list[_Link]:
    if count_of_values(answer.body) > _VALUES_LIMIT:
        raise _no_page(answer.url, f"its JSON has more than {_VALUES_LIMIT} values")
    try:
        page = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise _no_page(answer.url, "its JSON cannot be read") from error
    match page:
        case {"meta": {"api-version": str(version)}, "files": list(entries)}:
            _refuse_unknown_api(version, answer.url)
            _refuse_too_many(len(entries), answer.url)
        case _:
            raise _no_page(answer.url, "its JSON lacks meta.api-version and files")
    try:
        return [_json_link(entry) for entry in decode(list[_JsonFile], entries)]
    except FormError as error:
        raise _no_page(answer.url, f"files{error.key} {error.what}") from error
    except RecursionError as error:
        raise _no_page(answer.url, "its JSON cannot be read") from error


_JsonFile = TypedDict(
    "_JsonFile",
    {
        "filename": str,
        "url": str,
        "hashes": dict[str, Any],
        "requires-python": NotRequired[str | None],
        "yanked": NotRequired[bool | str | None],
        "core-metadata": NotRequired[bool | dict[str, Any] | None],
        "dist-info-metadata": NotRequired[bool | dict[str, Any] | None],
        "size": NotRequired[int | None],
    },
)
"""An entry of `files` (PEP 691)."""


def _json_link(entry: _JsonFile) -> _Link:
    yanked = entry.get("yanked")
    metadata = entry.get("core-metadata", entry.get("dist-info-metadata"))
    digest = _digest(metadata.get("sha256")) if isinstance(metadata, dict) else None
    return _Link(
        href=entry["url"],
        filename=entry["filename"],
        sha256=_digest(entry["hashes"].get("sha256")),
        requires_python=entry.get("requires-python"),
        yanked="" if yanked is True else yanked or None,
        metadata_sha256=None if metadata is None or metadata is False else digest or True,
        size_bytes=entry.get("size"),
    )


def _refuse_too_many(links: int, url: str) -> None:
    if links > FILES_LIMIT:
        raise _no_page(url, f"it has more than {FILES_LIMIT} links")


def _file(link: _Link, base: str, project: NormalizedName, page_url: str) -> IndexFile | None:
    """Return the file that a link offers, or None if it is to be passed over."""
    if max(len(link.href), len(link.requires_python or "")) > _ATTRIBUTE_LIMIT:
        return None
    try:
        url = urldefrag(urljoin(base, link.href.strip())).url
        parts = urlsplit(url)
    except ValueError:
        return None
    filename = unquote(parts.path.rpartition("/")[2]) if link.filename is None else link.filename
    version = _version_in(filename, project)
    if version is None or not _FILE_URL.fullmatch(url) or "@" in parts.netloc or has_key(url):
        return None
    if parts.scheme == "http" and page_url.startswith("https:"):
        raise FailedError(
            f"links to {place(url)[:_REASON_LIMIT]}, without TLS, which is not followed",
            where=place(page_url)[:_ATTRIBUTE_LIMIT],
        )
    return IndexFile(
        name=project,
        version=version,
        filename=filename,
        url=url,
        sha256=link.sha256,
        size_bytes=link.size_bytes,
        requires_python=link.requires_python or None,
        yanked=None if link.yanked is None else link.yanked[:_REASON_LIMIT],
        metadata_sha256=link.metadata_sha256,
    )


def _version_in(filename: str, project: NormalizedName) -> Version | None:
    """Return the version that a distribution of the project has by its file name, or None if it is none."""
    if not _FILENAME.fullmatch(filename) or ".." in filename:
        return None
    try:
        if not filename.endswith(".whl"):
            name, version = parse_sdist_filename(filename)
        # Reading a compressed tag set multiplies it out (PEP 425): 255 characters can hold 40,000 tags.
        elif math.prod(part.count(".") + 1 for part in filename.split("-")[-3:]) <= _TAGS_LIMIT:
            name, version, _, _ = parse_wheel_filename(filename)
        else:
            return None
    except ValueError:
        return None
    return version if name == project else None


def _digest(value: object) -> str | None:
    return value.lower() if isinstance(value, str) and _HEX_SHA256.fullmatch(value) else None


def _digest_in(text: str) -> str | None:
    """Return the SHA-256 in the fragment of an address, or in an attribute: `sha256=…`, among others."""
    found = (_digest(part.removeprefix("sha256=")) for part in text.split("&") if part.startswith("sha256="))
    return next(found, None)
