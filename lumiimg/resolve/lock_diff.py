"""What two locks differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.errors import BadInputError
from lumiimg.files import write_text
from lumiimg.resolve.lock_trust import outside_catalogue
from lumiimg.resolve.lockfile import read_document, to_text
from lumiimg.resolve.request import words_of
from lumiimg.wording import count, typed

if TYPE_CHECKING:
    from lumiimg.fetch.mirrors import Mirrors
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.request import Request

_USUAL = "lumiimg.lock"


@dataclass(frozen=True, slots=True)
class LockChange:
    """One thing that one lock has otherwise than the other; None where it has it not."""

    what: str
    """A name for people."""
    old: str | None
    """In the older lock; null where it has it not."""
    new: str | None
    """In the newer lock; null where it has it not."""

    def __str__(self) -> str:
        """Return it on one line."""
        return f"{self.what}: {self.old or '(not there)'} -> {self.new or '(gone)'}"


@dataclass(frozen=True, slots=True)
class LockDiff:
    """What two locks settle otherwise."""

    changes: tuple[LockChange, ...]
    """In the order of the newer; what it has no more comes last."""


@dataclass(frozen=True, slots=True)
class WrittenLock(LockDiff):
    """What was locked, beside the lock that was there."""

    lock: Path
    """The file."""
    replaces: bool
    """Whether a lock was there that could be read."""
    of: Lock
    """What was locked."""
    request: Request
    """What was asked for."""
    beyond: tuple[str, ...]
    """What is not from where the catalogue has it; each for people."""

    @property
    def sentence(self) -> str:
        """What is in it, for a person."""
        stack = self.of.stack
        parts = (
            count(len(self.of.layers), "layer"),
            count(sum(len(layer.sources) for layer in stack), "source"),
            count(sum(len(layer.wheels) for layer in stack), "Python distribution"),
        )
        return f"{self.of.base.name} with {', '.join(parts)}, fabric {self.of.fabric.value}"

    @property
    def notes(self) -> Iterator[str]:
        """What is worth knowing of it, a sentence each."""
        bootstrap = self.of.bootstrap
        if self.replaces and not self.changes:
            yield "no difference from the lock that was there"
        if (bootstrap.image is None or bootstrap.is_open) and not bootstrap.sha256:
            yield f"the base has no digest: it is what {bootstrap.agent} finds when it is built"
        yield from (f"not from the catalogue: {one}" for one in self.beyond)

    @property
    def command(self) -> str:
        """The build by this lock, on this machine: a lock does not have where things are fetched from."""
        words = ["lumiimg", "build", "--locked"]
        words += ["--lock", str(self.lock)] if str(self.lock) != _USUAL else []
        words += ["--trust-lock"] if self.beyond else []
        found_by = words_of(("--mirror", self.request.mirrors), ("--layers", self.request.layers))
        return " ".join(filter(None, (typed(words), found_by, "-o image.sif")))


def diff_locks(old: Path, new: Path) -> LockDiff:
    """Return what two locks settle otherwise. Raises BadInputError for what is not a lock."""
    return LockDiff(_changes(_settled(old), _settled(new)))


def write_lock(lock: Lock, request: Request, path: Path, mirrors: Mirrors, *, replaces: bool) -> WrittenLock:
    """Write a lock, and return what it has otherwise than the one that it replaces; `mirrors` it was settled from."""
    old = _settled(path) if replaces else None
    write_text(path, to_text(lock, request))
    changes = () if old is None else _changes(old, _settled(path))
    return WrittenLock(changes, path, replaces, lock, request, tuple(outside_catalogue(lock, mirrors)))


def _settled(path: Path) -> dict[str, str]:
    """Return what a lock settles, each thing by a name for people. Raises BadInputError for what is not a lock."""
    try:
        return dict(_entries(read_document(path)))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadInputError(f"is not a lock: {error} is missing or wrong", where=str(path)) from error


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[LockChange, ...]:
    names = [*new, *(name for name in old if name not in new)]
    return tuple(LockChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    base = document["base"]
    yield "site", document["site"] or "none"
    yield "fabric", document["fabric"]
    yield "base", f"{base['name']} ({base['agent']} {base['from']})"
    if digest := base.get("digest") or base.get("sha256"):
        yield "digest of the base", digest
    for name, version in base.get("has", {}).items():
        yield f"{name} of the base", version
    for layer in (base, *document.get("layer", ())):
        name = layer["name"]
        yield f"layer {name}", layer["release"] or layer["layer"][:19]
        yield f"scripts of {name}", layer["layer"][:19]
        for argument, value in layer["arguments"].items():
            yield f"argument {name}.{argument}", value
        for source in layer["source"]:
            yield f"source {source['name']} of {name}", f"{source['url']} sha256 {source['sha256'][:12]}"
    for package in document.get("python", {}).get("packages", ()):
        digest = package["wheels"][0]["hashes"]["sha256"][:12]
        layer = package["tool"]["lumiimg"]["layer"]
        yield f"python {package['name']} of {layer}", f"{package['version']} sha256 {digest}"
