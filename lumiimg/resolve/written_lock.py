"""A written lock, and how it differs from the previous one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.files import write_text
from lumiimg.core.text import count, shell_join
from lumiimg.resolve.lock_check import outside_catalogue
from lumiimg.resolve.lock_file import LockFile, document_of, to_text
from lumiimg.resolve.request import words_of

if TYPE_CHECKING:
    from lumiimg.fetch.mirrors import Mirrors
    from lumiimg.resolve.lock import Lock

_USUAL = "lumiimg.lock"


@dataclass(frozen=True, slots=True)
class LockChange:
    """One difference between two locks; a value is None if its lock has none."""

    what: str
    """Name for people."""
    old: str | None
    """Value in the older lock; null if it has none."""
    new: str | None
    """Value in the newer lock; null if it has none."""

    def __str__(self) -> str:
        """Return the difference on one line."""
        return f"{self.what}: {self.old or '(none)'} -> {self.new or '(removed)'}"


@dataclass(frozen=True, slots=True)
class WrittenLock:
    """A written lock, and its differences from the previous one."""

    changes: tuple[LockChange, ...]
    """In the order of the newer lock; removed entries come last."""
    lock: Path
    """The file."""
    replaces: bool
    """Whether there was a readable lock before."""
    of: Lock
    """The lock that was written."""
    not_shipped: tuple[str, ...]
    """Descriptions of the parts that are not from the catalogue's sources."""
    host: Path | None = None
    """The node snapshot that was named now, and not by the previous lock."""

    @property
    def sentence(self) -> str:
        """Its contents, for people."""
        stack = self.of.stack
        parts = (
            count(len(self.of.layers), "layer"),
            count(sum(len(layer.sources) for layer in stack), "source"),
            count(sum(len(layer.wheels) for layer in stack), "Python distribution"),
        )
        return f"{self.of.base.name} with {', '.join(parts)}, fabric {self.of.fabric.value}"

    @property
    def notes(self) -> Iterator[str]:
        """Notes about it, one sentence each."""
        bootstrap = self.of.bootstrap
        if self.replaces and not self.changes:
            yield "no difference from the existing lock"
        if bootstrap.image is None and not bootstrap.sha256:
            yield f"the base has no digest: {bootstrap.agent} decides its contents when it is built"
        yield from (f"not from the catalogue: {one}" for one in self.not_shipped)

    @property
    def command(self) -> str:
        """The command to build from this lock here; it names mirrors and folders, which a lock does not contain."""
        words = ["lumiimg", "build", "--locked"]
        words += ["--lock", str(self.lock)] if str(self.lock) != _USUAL else []
        words += ["--trust-lock"] if self.not_shipped else []
        request = self.of.request
        found_by = words_of(("--mirror", request.mirrors), ("--layers", request.layers), ("--host", (self.host,)))
        return " ".join(filter(None, (shell_join(words), found_by, "-o image.sif")))


def write_lock(
    lock: Lock, path: Path, mirrors: Mirrors, before: LockFile | None, host: Path | None = None
) -> WrittenLock:
    """Write a lock, and return its differences from the lock `before`; `mirrors` were used to make it."""
    write_text(path, to_text(lock))
    new = dict(_entries(document_of(lock)))
    old = dict(_entries(before)) if before else new
    changes = (LockChange(name, old.get(name), new.get(name)) for name in new | old if old.get(name) != new.get(name))
    return WrittenLock(tuple(changes), path, before is not None, lock, tuple(outside_catalogue(lock, mirrors)), host)


def _entries(document: LockFile) -> Iterator[tuple[str, str]]:
    """Yield what a lock determines: a name for people, and the value."""
    base, asked, image = document.base, document.request, document.base.image
    yield "site", document.site or "none"
    yield "GPU", document.gpu or "not known"
    yield "fabric", document.fabric
    yield "base", f"{base.name} ({base.agent} {base.origin})"
    if digest := base.digest or (image and image.sha256):
        yield "digest of the base", digest
    yield from ((f"{name} of the base", version) for name, version in (image.has if image else {}).items())
    for entry in document.stack:
        scripts = (entry.layer or "")[:19]
        yield f"layer {entry.name}", entry.release or scripts
        yield f"scripts of {entry.name}", scripts
        for wheel in entry.locked_wheels:
            yield f"python {wheel.name} of {entry.name}", f"{wheel.version} sha256 {(wheel.sha256 or '')[:12]}"
    yield from ((f"argument {name}", value) for name, value in asked.arguments.items())
    yield from ((f"source {name}", place) for name, place in asked.sources.items())
    yield from (
        (f"first download of {url}", f"sha256 {sha256[:12]}") for url, sha256 in document.first_download.items()
    )
