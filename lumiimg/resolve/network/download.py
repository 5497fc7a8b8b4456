"""One file over HTTP, which goes on where an earlier try broke off. Rules: RFC 9110 sections 13.1.5 and 14."""

from __future__ import annotations

import hashlib
import os
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Self

from lumiimg.errors import FailedError
from lumiimg.files import regular_file
from lumiimg.resolve.network.resume import TOTAL_S, Partial
from lumiimg.resolve.network.web import Bounds, BrokeOffError, Stream, Web, place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from lumiimg.resolve.network.registry import Repository

SIZE_LIMIT_BYTES = 16 * 1024**3
"""Of one file, if nothing else is said; a wheel of torch for ROCm has 4 GiB."""
_ATTEMPTS = 4
_PAUSE_S = 0.5
"""Before the second try; twice as long before each that follows."""
_READ_BYTES = 1024 * 1024
_PART, _NO_SUCH_PART = 206, 416
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d{1,18})-\d{1,18}/(?P<total>\d{1,18}|\*)", re.IGNORECASE)
_STRONG_TAG = re.compile(r'"[!#-~]{0,500}"')


def download(
    url: str, partial: Partial, server: Web | Repository, sha256: str | None, bounds: Bounds | None = None
) -> str:
    """Complete a partial, and return the digest of what is then its data.

    A file that came in pieces, and is not what it must be, is fetched once more from its first byte: the pieces may not
    have been of one file. What is wrong even so is not kept. Raises FailedError if it cannot be had, OSError if it
    cannot be written.
    """
    bounds = bounds or Bounds(SIZE_LIMIT_BYTES, TOTAL_S)
    with _Growing(partial.data) as file:
        if file.size and file.sha256() == sha256:  # killed between the last byte and the end
            return file.sha256()
        _complete(url, server, bounds, file, partial)
        if sha256 is not None and file.sha256() != sha256 and file.pieces > 1:
            file.clear()
            _complete(url, server, bounds, file, partial)
        actual = file.sha256()
        if sha256 not in {None, actual}:
            file.clear()
        return actual


class _Growing:
    """A file that is written at its end, and its digest."""

    def __init__(self, path: Path) -> None:
        self._digest = hashlib.sha256()
        self._file = os.fdopen(regular_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, follow=False), "a+b")
        self._file.seek(0)
        self.size = 0
        while chunk := self._file.read(_READ_BYTES):
            self._digest.update(chunk)
            self.size += len(chunk)
        self.pieces = 1 if self.size else 0
        """From how many answers it is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def append(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._file.flush()  # kill -9 takes nothing of it away
        self._digest.update(chunk)
        self.size += len(chunk)

    def clear(self) -> None:
        self._file.truncate(0)
        self._digest = hashlib.sha256()
        self.size = self.pieces = 0

    def sha256(self) -> str:
        return self._digest.hexdigest()


def _complete(url: str, server: Web | Repository, bounds: Bounds, file: _Growing, partial: Partial) -> None:
    """Get what is missing, and ask again a few times where the connection breaks."""
    for attempt in range(_ATTEMPTS):
        try:
            if not _goes_on(url, server, bounds, file, partial):
                file.clear()
                _goes_on(url, server, bounds, file, partial)
        except BrokeOffError:
            if attempt == _ATTEMPTS - 1:
                raise
            server.pause(_PAUSE_S * 2**attempt)
        else:
            return


def _goes_on(url: str, server: Web | Repository, bounds: Bounds, file: _Growing, partial: Partial) -> bool:
    """Get the rest of a file, the whole of one that is empty; False where the server has no rest of this file."""
    if not partial.can_go_on(url):
        file.clear()
    start = file.size
    validator = partial.validator(url) if start else None
    headers = {"Range": f"bytes={start}-"} if start else {}
    if validator is not None:
        headers["If-Range"] = validator
    with server.open(url, bounds, headers, allow={_NO_SUCH_PART} if start else ()) as stream:
        total = None
        if stream.status in {_PART, _NO_SUCH_PART}:
            if not start:
                raise FailedError("sends a part of the file, and was asked for all of it", where=place(url))
            part = _part(stream, start, validator)
            if part is None:
                return False
            total = None if part["total"] == "*" else int(part["total"])
        else:
            file.clear()  # the whole: the file has changed, or the server knows no ranges
            partial.note(url, _validator(stream.headers))
        file.pieces += 1
        for chunk in stream.chunks:
            if file.size + len(chunk) > bounds.size_bytes:
                file.clear()
                raise FailedError(f"is larger than {bounds.size_bytes} bytes", where=place(url))
            file.append(chunk)
    if total is not None and file.size != total:
        raise BrokeOffError(f"broke off: {file.size} bytes came, of {total}", where=place(url))
    return True


def _part(stream: Stream, start: int, validator: str | None) -> re.Match[str] | None:
    """Return where a part begins and how long the whole is, if it is what follows `start` of the same file."""
    match = _CONTENT_RANGE.fullmatch(stream.headers.get("content-range", "").strip())
    if stream.status != _PART or match is None or int(match["first"]) != start:
        return None
    if validator is None:
        return match
    # a server that does not know If-Range sends a part of whatever the file is now
    told = stream.headers.get("etag" if validator.startswith('"') else "last-modified", validator)
    return match if told.strip() == validator else None


def _validator(headers: Mapping[str, str]) -> str | None:
    """Return what stands for these very bytes: a strong entity tag, or a date that is not of the answer's own second.

    Source: RFC 9110 sections 8.8.2.2 and 8.8.3.
    """
    tag, modified = headers.get("etag", "").strip(), headers.get("last-modified", "").strip()
    if _STRONG_TAG.fullmatch(tag):
        return tag
    try:
        age = parsedate_to_datetime(headers.get("date", "")) - parsedate_to_datetime(modified)
    except (ValueError, TypeError, OverflowError):
        return None
    return modified if age.total_seconds() >= 1 else None
