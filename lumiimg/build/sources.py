"""Source archives: downloaded or copied once, kept by digest, never used without it."""

from __future__ import annotations

import hashlib
import shutil
import time
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.build.workspace import written_by_rename
from lumiimg.errors import FailedError
from lumiimg.resolve.lock import file_sha256

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.resolve.lock import LockedSource

SIZE_LIMIT_BYTES = 4 * 1024**3
_CHUNK_BYTES = 64 * 1024
_ELSEWHERE = "fetch it where there is a network and name it: --source NAME=FILE; or --mirror FROM=TO"
_TIMEOUT_S = (10.0, 60.0)
"""To connect, and between two reads."""
TOTAL_S = 3600.0
"""Of one download: a server that drips is left."""
_ATTEMPTS = 4


def fetch(source: LockedSource, store: Path) -> Path:
    """Return the path of the archive in the store, after getting it there if need be.

    Raises FailedError if it cannot be had, or is not what the lock says.
    """
    kept = store / source.sha256
    if kept.is_file() and file_sha256(kept) == source.sha256:
        return kept
    store.mkdir(parents=True, exist_ok=True)
    with written_by_rename(kept) as partial:
        if source.is_local:
            shutil.copyfile(source.location, partial)
            actual = file_sha256(partial)
        else:
            actual = _download(source.location, partial)
        if actual != source.sha256:
            raise FailedError(
                f"has another digest: sha256 is {actual}, not {source.sha256}",
                where=source.location,
                hint="the file was replaced or broken on its way; nothing was built from it",
            )
    return kept


def _download(url: str, target: Path) -> str:
    import requests  # noqa: PLC0415 - 135 ms that only a download should cost
    from requests.adapters import HTTPAdapter  # noqa: PLC0415
    from urllib3.util import Retry  # noqa: PLC0415

    session = requests.Session()
    session.headers["User-Agent"] = f"lumiimg/{__version__}"
    retry = Retry(
        total=_ATTEMPTS,
        backoff_factor=0.5,
        status_forcelist=(429, 500, 502, 503, 504),
        allowed_methods={"GET"},
    )
    session.mount("https://", HTTPAdapter(max_retries=retry))
    session.mount("http://", HTTPAdapter(max_retries=retry))
    digest = hashlib.sha256()
    size_bytes = 0
    deadline = time.monotonic() + TOTAL_S
    try:
        with session, session.get(url, stream=True, timeout=_TIMEOUT_S) as answer, target.open("wb") as file:
            answer.raise_for_status()
            for chunk in answer.iter_content(_CHUNK_BYTES):
                size_bytes += len(chunk)
                if size_bytes > SIZE_LIMIT_BYTES:
                    raise FailedError(f"is larger than {SIZE_LIMIT_BYTES} bytes", where=url)
                if time.monotonic() > deadline:
                    raise FailedError(f"did not come within {TOTAL_S:.0f} s", where=url, hint=_ELSEWHERE)
                digest.update(chunk)
                file.write(chunk)
    except requests.RequestException as error:
        raise FailedError(
            f"could not be downloaded: {_reason(error)}",
            where=url,
            hint=_ELSEWHERE,
        ) from error
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    text = str(error)
    # urllib3 wraps its reasons several times; the innermost says it.
    return text.rpartition("Caused by ")[2].rstrip(")")[:300] if "Caused by " in text else text[:300]
