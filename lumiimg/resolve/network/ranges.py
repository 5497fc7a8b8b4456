"""A file of a server that is read in parts, as an archive is read whose table is at its end (RFC 9110 section 14)."""

from __future__ import annotations

import os
import re

from lumiimg.errors import FailedError
from lumiimg.resolve.network.web import Web, place, refuse_unproved

_PART = 206
_END_BYTES = 64 << 10
_FIRST_BYTES, _MOST_BYTES = 32 << 10, 4 << 20
_LONGEST_BYTES = 64 << 20
"""Of one part that is asked for."""
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d{1,18})-\d{1,18}/(?P<total>\d{1,18})", re.IGNORECASE)


class RemoteFile:
    """A file of a server, as `zipfile` reads one. What is read on and on comes in ever larger parts.

    Raises FailedError where the server does not answer, or has no parts.
    """

    def __init__(self, url: str, web: Web) -> None:
        refuse_unproved(url)
        self._url, self._web = url, web
        self._at, self._step = 0, _FIRST_BYTES
        self._end_at, self.size, self._end = self._ask(f"bytes=-{_END_BYTES}", _END_BYTES)
        self._start, self._part = self._end_at, self._end

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes; fewer only at the end of the file."""
        size = self.size - self._at if size < 0 else min(size, max(self.size - self._at, 0))
        if size > _LONGEST_BYTES:
            raise FailedError(f"has a part of {size} bytes, which was not requested", where=place(self._url))
        for start, part in ((self._end_at, self._end), (self._start, self._part)):
            if start <= self._at and self._at + size <= start + len(part):
                break
        else:
            start, part = self._fetch(size)
        data = part[self._at - start :][:size]
        self._at += size
        return data

    def _fetch(self, size: int) -> tuple[int, bytes]:
        goes_on = self._start <= self._at <= self._start + len(self._part)
        self._step = min(2 * self._step, _MOST_BYTES) if goes_on else _FIRST_BYTES
        wanted = min(max(size, self._step), self.size - self._at)
        start, total, part = self._ask(f"bytes={self._at}-{self._at + wanted - 1}", wanted)
        if (start, total, len(part)) != (self._at, self.size, wanted):
            raise FailedError("sends another part than was asked for", where=place(self._url))
        self._start, self._part = start, part
        return start, part

    def _ask(self, part: str, limit_bytes: int) -> tuple[int, int, bytes]:
        """Return (where a part begins, how long the file is, the part)."""
        headers = {"Range": part, "Accept-Encoding": "identity"}
        answer = self._web.ask(self._url, limit_bytes=limit_bytes, headers=headers)
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
        if answer.status != _PART or found is None:
            raise FailedError("its server sends no parts of files", where=place(self._url))
        return int(found["first"]), int(found["total"]), answer.body
