"""Downloads: got once, kept by digest, never used without it."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError
from lumiimg.resolve.lock import file_sha256

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.resolve.lock import LockedSource
    from lumiimg.resolve.mirrors import Mirrors
    from lumiimg.resolve.web import Web

SIZE_LIMIT_BYTES = 16 * 1024**3
"""Of one file; a wheel of torch for ROCm has 4 GiB."""
TOTAL_S = 3600.0
"""Of one download: a server that drips is left."""


class Store:
    """A folder of downloads, each under its sha256."""

    def __init__(self, folder: Path, web: Web, mirrors: Mirrors) -> None:
        self._folder = folder
        self._web = web
        self._mirrors = mirrors

    def get(self, location: str, sha256: str) -> Path:
        """Return the path of a file in the store, after getting it there if need be, from a URL or a path.

        Raises FailedError if it cannot be had, or is not what the digest says.
        """
        kept = self._folder / sha256
        if kept.is_file() and file_sha256(kept) == sha256:
            return kept
        self._put(location, sha256)
        return kept

    def add(self, location: str) -> str:
        """Get a file whose digest nobody has published, and return its sha256. Raises FailedError."""
        return self._put(location, None)

    def source(self, source: LockedSource) -> Path:
        """Return the path of a source that is settled. Raises as `get` does."""
        if source.sha256 is None:
            raise FailedError("has no digest in the lock", where=source.location, hint="write it anew: lumiimg lock")
        return self.get(source.location, source.sha256)

    def _put(self, location: str, expected: str | None) -> str:
        try:
            with scratch_folder(self._folder) as scratch:
                partial = scratch / "download"
                actual = self._copy(location, partial)
                if expected is not None and actual != expected:
                    raise FailedError(
                        f"has another digest: sha256 is {actual}, not {expected}",
                        where=location,
                        hint="the file was replaced or broken on its way; nothing was built from it",
                    )
                partial.replace(self._folder / actual)
                return actual
        except OSError as error:
            raise FailedError(
                f"cannot be kept: {error.strerror or error}",
                where=str(self._folder),
                hint="nothing was left there; LUMIIMG_CACHE says where downloads are kept",
            ) from error

    def _copy(self, location: str, target: Path) -> str:
        if location.startswith(("http://", "https://")):
            return self._download(location, target)
        shutil.copyfile(location, target)
        return file_sha256(target)

    def _download(self, url: str, target: Path) -> str:
        digest = hashlib.sha256()
        with target.open("wb") as file:
            for chunk in self._web.stream(self._mirrors.rewrite(url), limit_bytes=SIZE_LIMIT_BYTES, within_s=TOTAL_S):
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest()
