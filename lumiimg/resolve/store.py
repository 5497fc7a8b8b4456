"""Downloads: got once, several at a time, kept by digest, never used without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial as bound
from pathlib import Path
from typing import Any

from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError
from lumiimg.files import open_regular
from lumiimg.resolve.lock import LockedSource, file_sha256
from lumiimg.resolve.network.download import SIZE_LIMIT_BYTES, download
from lumiimg.resolve.network.mirrors import Mirrors
from lumiimg.resolve.network.parallel import at_once
from lumiimg.resolve.network.pull import save_image, save_sif
from lumiimg.resolve.network.registry import ImageManifest, parse_reference, resolve_image
from lumiimg.resolve.network.resume import taken
from lumiimg.resolve.network.web import ReplacedError, Web, place, refuse_unproved

_CHUNK_BYTES = 1 << 20
_NO_MIRRORS = Mirrors({})


class Store:
    """A folder of downloads, each under its sha256. What is got in one call is got by up to `jobs` threads."""

    def __init__(self, folder: Path, web: Web, mirrors: Mirrors, jobs: int = 1) -> None:
        self._folder = folder
        self._web = web
        self._mirrors = mirrors
        self._jobs = jobs
        self._read: dict[str, tuple[int, int, int]] = {}
        """Files whose digest was found right, with what shows whether they were touched since."""

    def has(self, source: LockedSource) -> bool:
        """Whether a file of that digest is there; `get` reads whether it still is what it was."""
        return source.sha256 is not None and (self._folder / source.sha256).is_file()

    def get(self, location: str, sha256: str, on_line: Callable[[str], None] | None = None) -> Path:
        """Return the path of a file in the store, after getting it there if need be, from a URL or a path.

        `on_line` is called before it is fetched. Raises FailedError if that fails, or the digest is another.
        """
        kept = self._folder / sha256
        if not self._is_whole(kept, sha256):
            if on_line is not None:
                on_line(f"fetching {place(location)}")
            self._put(location, sha256)
        return kept

    def add(self, location: str) -> str:
        """Get a file whose digest nobody has published, and return its sha256. Raises FailedError."""
        return self._put(location, None)

    def sources(self, wanted: Iterable[LockedSource], on_line: Callable[[str], None]) -> dict[LockedSource, Path]:
        """Return the paths of sources that are settled; what is not there is got, at once. Raises as `get` does."""
        unique = dict.fromkeys(wanted)
        by_digest: dict[str, LockedSource] = {}
        for source in unique:
            if source.sha256 is None:
                hint = "write it again: lumiimg lock"
                raise FailedError("has no digest in the lock", where=source.location, hint=hint)
            by_digest.setdefault(source.sha256, source)
        tasks = {sha256: bound(self.get, source.location, sha256) for sha256, source in by_digest.items()}
        paths = at_once(tasks, self._jobs, on_line=on_line, stop=self._web.stop)
        return {source: paths[source.sha256] for source in unique if source.sha256 is not None}

    def digests(self, locations: Iterable[str], on_line: Callable[[str], None]) -> dict[str, str]:
        """Get files whose digest nobody has published, at once; return their sha256. Raises as `add` does."""

        def add(location: str, tell: Callable[[str], None]) -> str:
            tell(f"fetching {place(location)}, for its digest")
            return self.add(location)

        tasks = {location: bound(add, location) for location in locations}
        return at_once(tasks, self._jobs, on_line=on_line, stop=self._web.stop)

    def image(
        self, origin: str, folder: Path, on_line: Callable[[str], None], *, plain_http: bool
    ) -> Mapping[str, Any]:
        """Write an image of a registry into a new folder, as an OCI layout; return `config` of its config.

        `origin` is where it is, mirrors already in their places. Raises FailedError if it cannot be had.
        """
        found = self._found(origin, plain_http=plain_http)
        self._folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(self._folder) as scratch:
            save_image(found, self._web, scratch / "image", self._folder, on_line)
            shutil.move(scratch / "image", folder)
        how = found.config.get("config")
        return how if isinstance(how, dict) else {}

    def sif(self, origin: str, target: Path, *, plain_http: bool) -> None:
        """Write a SIF of a registry to a file. Raises as `image` does."""
        found = self._found(origin, plain_http=plain_http)
        self._folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(self._folder) as scratch:
            save_sif(found, self._web, scratch / "image.sif")
            shutil.move(scratch / "image.sif", target)

    def _found(self, origin: str, *, plain_http: bool) -> ImageManifest:
        reference = replace(parse_reference(origin, _NO_MIRRORS), plain_http=plain_http)
        reference.refuse_unproved()
        return resolve_image(reference, self._web)

    def _is_whole(self, kept: Path, sha256: str) -> bool:
        """Whether a file is there and is what it must be; one is read once, unless it was touched."""
        if not kept.is_file():
            return False
        mark = _mark(kept)
        if self._read.get(sha256) != mark and file_sha256(kept) == sha256:
            self._read[sha256] = mark
        return self._read.get(sha256) == mark

    def _put(self, location: str, expected: str | None) -> str:
        try:
            if location.startswith(("http://", "https://")):
                url = self._mirrors.rewrite(location)
                refuse_unproved(url, expected)
                return self._download(url, location, expected)
            with scratch_folder(self._folder) as scratch:
                copy = scratch / "copy"
                _copy(location, copy)
                return self._keep(copy, file_sha256(copy), location, expected)
        except OSError as error:
            raise FailedError(
                f"cannot be kept: {error.strerror or error}",
                where=str(self._folder),
                hint="LUMIIMG_CACHE names the folder for downloads",
            ) from error

    def _download(self, url: str, location: str, expected: str | None) -> str:
        with taken(self._folder, url, expected) as partial:
            actual = download(url, partial, self._web, expected)
            return self._keep(partial.data, actual, location, expected)

    def _keep(self, file: Path, actual: str, location: str, expected: str | None) -> str:
        if expected not in {None, actual}:
            raise ReplacedError(
                f"has another digest: sha256 is {actual}, not {expected}",
                where=location,
                hint="the file was replaced or broken on its way; nothing was built from it",
            )
        kept = file.replace(self._folder / actual)
        self._read[actual] = _mark(kept)
        return actual


def _copy(location: str, target: Path) -> None:
    """Copy a file of this machine. Raises FailedError if it is not a file or too large, OSError if it cannot be kept.

    A pipe would never end its opening, and a device never its reading.
    """
    try:
        source = open_regular(location)
    except (OSError, ValueError) as error:
        raise FailedError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=location) from error
    with source, target.open("wb") as file:
        left = SIZE_LIMIT_BYTES
        while chunk := source.read(min(_CHUNK_BYTES, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise FailedError(f"is larger than {SIZE_LIMIT_BYTES} bytes", where=location)
            file.write(chunk)


def _mark(file: Path) -> tuple[int, int, int]:
    seen = file.stat()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
