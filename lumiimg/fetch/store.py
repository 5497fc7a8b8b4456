"""Downloads: fetched once, several in parallel, stored by digest, and never used without one."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from functools import partial as bound
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lumiimg.core.errors import FailedError
from lumiimg.core.files import file_sha256, open_regular
from lumiimg.fetch.download import SIZE_LIMIT_BYTES, claim_partial, download, require_digest, storage_errors
from lumiimg.fetch.git import SCHEME, git_address, write_commit
from lumiimg.fetch.http import Http, display_url
from lumiimg.fetch.mirrors import Mirrors, is_address
from lumiimg.fetch.pull import save_image
from lumiimg.fetch.registry import parse_reference, resolve_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_CHUNK_BYTES = 1 << 20
_GRACE_S = 1.0
"""Time for stopped downloads to put their partial files in order."""


class RemoteSource(Protocol):
    """Something that is fetched by its digest."""

    @property
    def location(self) -> str:
        """Address, or path of a file."""

    @property
    def sha256(self) -> str | None:
        """In hexadecimal; None if it is not known yet."""


_S = TypeVar("_S", bound=RemoteSource)
_K = TypeVar("_K")
_T = TypeVar("_T")


class Store:
    """A folder of downloads, each named by its sha256. Each call fetches with up to `jobs` threads."""

    def __init__(self, folder: Path, http: Http, mirrors: Mirrors, jobs: int = 1) -> None:
        self._folder = folder
        self._http = http
        self._mirrors = mirrors
        self._jobs = jobs
        self._verified: set[tuple[str, int, int, int]] = set()

    def has(self, source: RemoteSource) -> bool:
        """Return whether the store has a file of that digest; only `get` verifies its content."""
        return source.sha256 is not None and (self._folder / source.sha256).is_file()

    def get(self, location: str, sha256: str | None, on_line: Callable[[str], None] = lambda _: None) -> Path:
        """Return the path of a file in the store, fetching it first if needed: from a URL, by git, or from a path.

        The file is named by its digest; without a published digest it is fetched to compute one. `on_line` is called
        before a fetch. Raises FailedError if the fetch fails or the digest differs.
        """
        if sha256 is not None and self._is_whole(file := self._folder / sha256):
            return file
        on_line(f"fetching {display_url(location)}{'' if sha256 else ' to compute its digest'}")
        return self._put(location, sha256)

    def sources(self, wanted: Iterable[_S], on_line: Callable[[str], None]) -> dict[_S, Path]:
        """Return the paths of locked sources, fetching missing ones in parallel. Raises as `get` does."""
        tasks: dict[str, Callable[[], Path]] = {}
        digests: dict[_S, str] = {}
        for source in wanted:
            if source.sha256 is None:
                hint = "write it again with `lumiimg lock`"
                raise FailedError("has no digest in the lock", where=source.location, hint=hint)
            digests[source] = source.sha256
            tasks.setdefault(source.sha256, bound(self.get, source.location, source.sha256, on_line))
        paths = run_parallel(tasks, self._jobs, self._http.stop)
        return {source: paths[sha256] for source, sha256 in digests.items()}

    def digests(self, locations: Iterable[str], on_line: Callable[[str], None]) -> dict[str, str]:
        """Fetch files without a published digest in parallel, and return their sha256. Raises as `get` does."""
        tasks = {one: bound(self.get, one, None, on_line) for one in locations}
        return {one: path.name for one, path in run_parallel(tasks, self._jobs, self._http.stop).items()}

    def image(self, origin: str, target: Path, on_line: Callable[[str], None], *, insecure: bool) -> Mapping[str, Any]:
        """Write an image from a registry as `save_image` does, and return `config` of its config.

        `origin` is its address, with mirrors already in place. Raises FailedError if it is not available.
        """
        found = resolve_image(replace(parse_reference(origin, Mirrors({})), insecure=insecure), self._http)
        save_image(found, target, self._folder, on_line)
        how = found.config.get("config")
        return how if isinstance(how, dict) else {}

    def _is_whole(self, file: Path) -> bool:
        """Return whether a file exists and has the digest in its name; it is read again only if it was modified."""
        if not file.is_file():
            return False
        file_stamp = _file_stamp(file)
        if file_stamp not in self._verified and file_sha256(file) == file.name:
            self._verified.add(file_stamp)
        return file_stamp in self._verified

    def _put(self, location: str, expected: str | None) -> Path:
        is_remote = is_address(location)
        with storage_errors(self._folder), claim_partial(self._folder, expected if is_remote else None) as file:
            if location.startswith(SCHEME) and (commit := git_address(location)) is not None:
                write_commit(commit, file, self._mirrors, offline=self._http.offline)
                actual = file_sha256(file)
            elif is_remote:
                actual = download(self._mirrors.rewrite(location), file, self._http, expected)
            else:
                _copy(location, file)
                actual = file_sha256(file)
            require_digest(actual, expected, location)
            self._verified.add(_file_stamp(whole := file.replace(self._folder / actual)))
            return whole


def run_parallel(tasks: Mapping[_K, Callable[[], _T]], jobs: int, stop: Callable[[], None]) -> dict[_K, _T]:
    """Return the result of each task; up to `jobs` run at a time.

    If one fails, or something is raised in the caller's thread (Ctrl-C), no other task starts, `stop` is called to end
    the running ones, and the error is raised.
    """
    futures: dict[_K, Future[_T]] = {name: Future() for name in tasks}
    waiting, over = iter(futures.items()), threading.Event()

    def work() -> None:
        for name, future in waiting:
            if over.is_set():
                return
            future.set_running_or_notify_cancel()
            try:
                future.set_result(tasks[name]())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                over.set()
                future.set_exception(error)

    # not an executor: at exit Python waits for its threads, even for one that is connecting to a silent host
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    except BaseException:
        over.set()
        stop()
        wait([future for future in futures.values() if future.running()], _GRACE_S)
        raise
    return {name: future.result() for name, future in futures.items()}


def _file_stamp(file: Path) -> tuple[str, int, int, int]:
    """Return a value that changes when a file is modified."""
    seen = file.stat()
    return file.name, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _copy(location: str, target: Path) -> None:
    """Copy a local file. Raises FailedError if it is not a regular file or is too large, OSError if copying fails.

    Opening a pipe, or reading a device, might never end.
    """
    try:
        source = open_regular(location)
    except (OSError, ValueError) as error:
        raise FailedError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=location) from error
    with source, target.open("wb") as file:
        if os.fstat(source.fileno()).st_size > SIZE_LIMIT_BYTES:
            raise FailedError(f"is larger than {SIZE_LIMIT_BYTES} bytes", where=location)
        shutil.copyfileobj(source, file, _CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class Sources:
    """Access to downloads and servers in one command."""

    web: Http
    store: Store
    mirrors: Mirrors
    cache: Path
    """Folder of downloads."""
    on_line: Callable[[str], None]
    """Called with a line about each fetch."""
