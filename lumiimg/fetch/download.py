"""HTTP download of one file by its digest, resumed where an earlier try stopped. Rules: RFC 9110 section 14.

    part-<sha256>                                    free: the next download of the file takes it
    part-<sha256>.<word>.<owner>.lumiimg-partial     owned, until its process has ended (engine/workspace.py)

No file lock is used: a partial file changes owner by a rename, which only one process can win. Without a known digest
a wrong end would go unnoticed, so such a download starts at the first byte and leaves no partial file.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError
from lumiimg.core.files import regular_file
from lumiimg.engine.workspace import MARK, is_abandoned, owner_mark
from lumiimg.fetch.http import Bounds, BrokeOffError, Http, ReplacedError, display_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

    from lumiimg.fetch.registry import Repository

SIZE_LIMIT_BYTES = 16 * 1024**3
"""Default size limit of one file; a torch wheel for ROCm has 4 GiB."""
TOTAL_S = 3600.0
"""Time limit of one download with all its tries, unless the caller sets another."""
OLD_S = 7 * 24 * 3600.0
"""Age of its last byte at which a partial file that nobody has taken up is removed."""
_ATTEMPTS = 4
_PAUSE_S = 0.5
"""Pause before the second try; doubled before each further one."""
_PART, _NO_SUCH_PART = 206, 416
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d{1,18})-\d{1,18}/(?P<total>\d{1,18}|\*)", re.IGNORECASE)


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError in a download folder into a FailedError."""
    try:
        yield
    except OSError as error:
        what, hint = f"cannot cache files: {error.strerror or error}", "LUMIIMG_CACHE names the folder for downloads"
        raise FailedError(what, where=str(folder), hint=hint) from error


@contextmanager
def claim_partial(store: Path, sha256: str | None) -> Iterator[Path]:
    """Yield the path of a digest's partial file, or a new path; until the end no other process takes it.

    Afterwards it is free for the next download, even if this one failed or was interrupted, unless it was moved to its
    place. Old partial files of any download are removed. Raises OSError if the folder cannot be written.
    """
    store.mkdir(parents=True, exist_ok=True)
    free = store / f"part-{sha256 or 'unknown'}"
    mine = store / f"{free.name}.{secrets.token_hex(8)}{owner_mark()}"
    for entry in store.glob("part-*"):
        with suppress(OSError):  # another process was faster
            seen = entry.lstat()
            is_own_file = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid()
            if not is_own_file or (entry.name.endswith(MARK) and not is_abandoned(entry.name, seen)):
                continue
            if entry.name.partition(".")[0] == free.name:
                _keep_larger(entry, mine)
            elif time.time() - seen.st_mtime > OLD_S:
                entry.unlink()
    try:
        yield mine
    finally:
        with suppress(OSError):  # it was moved
            if sha256 is None or not mine.stat().st_size:
                mine.unlink()
            else:
                _keep_larger(mine, free)


def _keep_larger(partial: Path, target: Path) -> None:
    """Rename a partial file, or remove it if the target already exists and is larger."""
    if target.exists() and target.stat().st_size > partial.stat().st_size:
        partial.unlink()
    else:
        partial.rename(target)


def require_digest(actual: str, expected: str | None, where: str) -> None:
    """Raise ReplacedError if a file does not have the expected digest; None accepts any."""
    if expected not in {None, actual}:
        what = f"has the wrong digest: it is sha256:{actual}, not sha256:{expected}"
        hint = "the file was replaced or damaged in transit; nothing was built from it"
        raise ReplacedError(what, where=where, hint=hint)


def download(
    url: str, partial: Path, server: Http | Repository, sha256: str | None, bounds: Bounds | None = None
) -> str:
    """Complete a partial file, and return its digest.

    A file that came in pieces and has the wrong digest is fetched once more from its first byte: the pieces may be from
    different files. If it is still wrong, it is emptied. Raises FailedError if the download fails, OSError if the file
    cannot be written.
    """
    bounds = bounds or Bounds(SIZE_LIMIT_BYTES, TOTAL_S, plain=sha256 is not None)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    # unbuffered, so that kill -9 loses nothing
    with os.fdopen(regular_file(partial, flags, follow=False), "ab+", buffering=0) as file:
        actual, breaks, is_intact = _digest(file), 0, False
        while actual != sha256 and not is_intact:
            if sha256 is None:
                file.truncate(0)
            try:
                is_intact = not _append(url, server, bounds, file)
            except BrokeOffError:
                breaks += 1
                if breaks == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE_S * 2 ** (breaks - 1))
            else:
                actual = _digest(file)
                if sha256 not in {None, actual}:
                    file.truncate(0)
        return actual


def _append(url: str, server: Http | Repository, bounds: Bounds, file: FileIO) -> bool:
    """Fetch the rest of a file, or all of it; return whether its beginning is from an earlier response.

    If the server does not have that range, the file is emptied, as if its beginning were from another file.
    """
    start = size = os.fstat(file.fileno()).st_size
    headers = {"Range": f"bytes={start}-"} if start else {}
    with server.open(url, bounds, headers, allow={_NO_SUCH_PART} if start else ()) as answer:
        part = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
        if answer.status in {_PART, _NO_SUCH_PART}:
            if not start:
                raise FailedError("returned a partial response to a full request", where=display_url(url))
            if answer.status == _NO_SUCH_PART or part is None or int(part["first"]) != start:
                file.truncate(0)
                return True
        else:  # the whole file: the server does not support ranges
            file.truncate(0)
            size, part = 0, None
        for chunk in answer.chunks:
            size += len(chunk)
            if size > bounds.size_bytes:
                file.truncate(0)
                raise FailedError(f"is larger than {bounds.size_bytes} bytes", where=display_url(url))
            file.write(chunk)
    if part is not None and part["total"] not in {"*", f"{size}"}:
        raise BrokeOffError(f"connection lost: received {size} bytes of {part['total']}", where=display_url(url))
    return part is not None


def _digest(file: FileIO) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()
