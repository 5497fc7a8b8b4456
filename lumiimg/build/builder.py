"""Definition files to an image, with the engine's own `build`: one step a layer, each kept in a store by its key."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from lumiimg.engine import engine as engines
from lumiimg.engine.failures import explain, telling_line
from lumiimg.engine.workspace import remove_tree, scratch_folder, written_by_rename
from lumiimg.errors import BadInputError, FailedError
from lumiimg.image import ImageError, open_image
from lumiimg.resolve.lock import LockedSource, file_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumiimg.definition.writer import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.resolve.store import Store

_KEY_FORMAT = "lumiimg-layer-1"
_FULL_BYTES = 16 * 1024 * 1024
_DISK_FULL = "No space left on device"


class Progress(Protocol):
    """Told what happens while it happens."""

    def step_started(self, number: int, total: int, name: str) -> None:
        """Hear that step `number` of `total` begins."""

    def line(self, text: str) -> None:
        """Hear a line that the engine, or a script in it, printed."""

    def step_done(self, name: str, seconds: float, size_bytes: int, *, reused: bool) -> None:
        """Hear that the image of the step is in the store."""

    def stop(self) -> None:
        """Hear that nothing more comes, also where a step failed."""


@dataclass(frozen=True, slots=True)
class Built:
    """A finished image."""

    image: Path
    key: str
    size_bytes: int
    seconds: float
    reused_steps: int
    steps: int


def write_definitions(
    definitions: Sequence[Definition], folder: Path, store: Store, on_line: Callable[[str], None]
) -> None:
    """Write definition files and what they need beside them into `folder`; nothing before every source is there.

    Raises FailedError if a source cannot be had, BadInputError if the folder cannot be made.
    """
    archives: dict[LockedSource, Path] = {}
    for file in (file for definition in definitions for file in definition.files):
        if isinstance(file.origin, LockedSource) and file.origin not in archives:
            on_line(f"fetching {file.origin.location}")
            archives[file.origin] = store.source(file.origin)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"cannot be made: {error.strerror}", where=str(folder)) from error
    for definition in definitions:
        (folder / f"{definition.name}.def").write_text(definition.text, encoding="utf-8")
        for file in definition.files:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            origin = archives[file.origin] if isinstance(file.origin, LockedSource) else file.origin
            shutil.copyfile(origin, target)
            target.chmod(0o644)


def build_image(
    chain: Sequence[Definition],
    output: Path,
    *,
    engine: Engine,
    environment: Mapping[str, str],
    cache: Path,
    downloads: Store,
    log_path: Path,
    progress: Progress,
) -> Built:
    """Build the chain and put the last image at `output`, by rename.

    Steps whose key is in the store are not built again. The engine's output goes to `log_path`.

    Raises FailedError if a step fails: with the layer, the line that tells, and the log; nothing is left at `output`.
    """
    start = time.monotonic()
    images = cache / "images"
    try:
        images.mkdir(parents=True, exist_ok=True)
        # Unbuffered: whoever watches it sees the build, and kill -9 takes nothing of it away.
        log = log_path.open("wb", buffering=0)
    except OSError as error:
        raise BadInputError(f"cannot be written: {error.strerror}", where=str(error.filename)) from error
    with log, scratch_folder(_scratch_parent(cache)) as scratch:
        parent: Path | None = None
        parent_key = ""
        reused = 0
        for number, definition in enumerate(chain, start=1):
            progress.step_started(number, len(chain), definition.name)
            step_start = time.monotonic()
            parent_key = layer_key(definition, parent_key, engine)
            kept = images / f"{parent_key}.sif"
            hit = _is_whole(kept)
            if hit:
                reused += 1
                log.write(f"== {definition.name}: kept from before, {kept}\n".encode())
            else:
                folder = scratch / definition.name
                folder.mkdir()
                step = _Step(engine, environment, definition, folder, log, progress)
                with written_by_rename(kept) as partial:
                    step.run(parent, partial, downloads)
                remove_tree(folder)
            seconds = time.monotonic() - step_start
            progress.step_done(definition.name, seconds, kept.stat().st_size, reused=hit)
            parent = kept
        assert parent is not None  # noqa: S101 - a chain has a base
        with written_by_rename(output) as partial:
            shutil.copyfile(parent, partial)
            partial.chmod(0o755 & ~_umask())
    return Built(output, parent_key, output.stat().st_size, time.monotonic() - start, reused, len(chain))


def _is_whole(image: Path) -> bool:
    """Whether an image is in the store and can be read: a name alone is no evidence."""
    try:
        open_image(image).close()
    except (ImageError, OSError):
        return False
    return True


def layer_key(definition: Definition, parent_key: str, engine: Engine) -> str:
    """Return the name under which a step's image is kept: everything that its bytes depend on, hashed.

    That is the image below it, the definition's text, every file beside it, and the engine's family and compressor. It
    is not the day: a base from a moving archive stays as it was until its image is removed from the store.
    """
    digest = hashlib.sha256()
    parts = [_KEY_FORMAT, parent_key, engine.kind, str("--mksquashfs-args" in engine.build_flags), definition.text]
    for file in definition.files:
        origin = file.origin
        content = f"{origin.sha256}" if isinstance(origin, LockedSource) else file_sha256(origin)
        parts += [file.path, content]
    parts += [stamp(definition.origin)] if definition.origin else []
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def stamp(origin: Path) -> str:
    """Return what tells whether a file, or anything in a folder, was touched since: the kernel's own time of change.

    Raises BadInputError if it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        _stamp(digest, "", origin.stat())
        for folder, folders, files in os.walk(origin):
            folders.sort()
            for name in sorted((*folders, *files)):
                path = f"{folder}/{name}"
                _stamp(digest, path, os.lstat(path))
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(error.filename)) from error
    return digest.hexdigest()


def _stamp(digest: hashlib._Hash, path: str, seen: os.stat_result) -> None:
    digest.update(
        f"{path}\0{seen.st_ino} {seen.st_mode} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns}\n".encode(
            "utf-8", "surrogateescape"
        )
    )


@dataclass(frozen=True, slots=True)
class _Step:
    engine: Engine
    environment: Mapping[str, str]
    definition: Definition
    folder: Path
    log: IO[bytes]
    progress: Progress

    def run(self, parent: Path | None, target: Path, downloads: Store) -> None:
        name = self.definition.name
        write_definitions([self.definition], self.folder, downloads, self.progress.line)
        if self.definition.parent is not None and parent is not None:
            (self.folder / f"{self.definition.parent}.sif").symlink_to(parent)
        scratch = self.folder / "scratch"
        scratch.mkdir()
        self.log.write(f"== {name}\n".encode())
        space = _Space(scratch, self.progress.line)
        completed = engines.build(
            self.engine,
            self.folder / f"{name}.def",
            target,
            environment=self.environment,
            scratch=scratch,
            plain_http=self.definition.plain_http,
            log=self.log,
            on_line=space.line,
        )
        if not completed.ok:
            raise self._failure(completed.output, disk_was_full=space.ran_out)
        # The engine's word is not taken for it: what it wrote is opened, by our own reader.
        open_image(target).close()

    def _failure(self, output: str, *, disk_was_full: bool) -> FailedError:
        known = explain(_DISK_FULL if disk_was_full else output)
        what = known.meaning if known else f"the build stopped at: {telling_line(output)[:300]}"
        log = f"the whole log: {self.log.name}"
        return FailedError(
            f"layer {', '.join(self.definition.layers)}: {what}", hint=f"{known.remedy}; {log}" if known else log
        )


class _Space:
    """Watches the room that is left while an engine works: once it has failed, it cleans up, and there is room again.

    Programs in a build say many things of a full disk (debootstrap: "Couldn't download packages").
    """

    def __init__(self, folder: Path, on_line: Callable[[str], None]) -> None:
        self._folder = folder
        self._on_line = on_line
        self.ran_out = False

    def line(self, text: str) -> None:
        self.ran_out = self.ran_out or shutil.disk_usage(self._folder).free < _FULL_BYTES
        self._on_line(text)


def _scratch_parent(cache: Path) -> Path:
    """Return where the engine may unpack: in the cache, unless its path has what Apptainer stumbles over.

    With a quote, comma, colon, semicolon, ampersand or line break in its temporary folder, Apptainer 1.4.5 fails in
    `%post` or in its own inspection of the image; with a blank, debootstrap fails to enter its root.
    """
    preferred = cache / "work"
    if re.fullmatch(r"[A-Za-z0-9_/.%@=+-]+", str(preferred)):
        return preferred
    return Path(tempfile.gettempdir())


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
