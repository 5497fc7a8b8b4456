"""What a user binds for a job, and paths of its command that nothing brings into the container."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.host.manifest import Bind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.image import RootFileSystem

_MOUNTED = ("/dev", "/proc", "/sys", "/tmp", "/var/tmp")  # noqa: S108 - names, nothing is made there
"""Engines mount these unasked (apptainer.conf: mount dev, mount proc, mount sys, mount tmp)."""
_FORM = "--bind PATH, or SRC:DEST, or SRC:DEST:ro"


@dataclass(frozen=True, slots=True)
class MissingPath:
    """A path of a command that the image does not have."""

    path: str
    folder: str
    """The highest above it that the image does not have: a bind there hides nothing of the image."""


def with_own(binds: Sequence[Bind], own: Iterable[str]) -> tuple[Bind, ...]:
    """Return the binds of a site with those of a user, who comes first where both have one target.

    Raises BadInputError for what is no `PATH` or `SRC:DEST[:ro]`, and for two with one target.
    """
    wanted: dict[str, Bind] = {}
    for text in own:
        bind = _read(text)
        if wanted.setdefault(bind.target, bind) != bind:
            raise BadInputError("another bind has this target", where=f"--bind {text}", hint="name each target once")
    if not wanted:
        return tuple(binds)
    both = (*(bind for bind in binds if bind.target not in wanted), *wanted.values())
    # a folder before what is bound below it, which it would hide
    return tuple(sorted(both, key=lambda bind: bind.target.count("/")))


def _read(text: str) -> Bind:
    where = f"--bind {text}"
    if "," in text or not text.isprintable():
        raise BadInputError("no path with a comma or a control character can be bound", where=where, hint=_FORM)
    source, *rest = text.split(":")
    target, flags = rest[0] if rest else source, rest[1:]
    if flags not in ([], ["ro"], ["rw"]):
        raise BadInputError("is more than a source, a target and `ro`", where=where, hint=_FORM)
    for path in (source, target):
        if not path.startswith("/"):
            raise BadInputError("is not an absolute path", where=where, hint=_FORM)
    source, target = (path.rstrip("/") or "/" for path in (source, target))
    if target == "/":
        raise BadInputError("would hide the whole image", where=where, hint=_FORM)
    return Bind(source, target, "as you asked (--bind)", read_only=flags == ["ro"])


def absent_paths(words: Iterable[str], root: RootFileSystem, mounted: Iterable[str]) -> tuple[MissingPath, ...]:
    """Return the absolute paths among words, or behind a `=`, that an image does not have.

    `mounted` is what the engine mounts beside its own folders: home, where it is started.
    """
    known = [*_MOUNTED, *(folder for folder in mounted if folder != "/")]
    found: dict[str, MissingPath] = {}
    for word in words:
        path = word if word.startswith("/") else word.partition("=")[2]
        if not path.startswith("/") or path.startswith("//"):
            continue
        path = posixpath.normpath(path)
        if not any(_is_under(path, folder) for folder in known) and not root.exists(path):
            parts = path.split("/")
            from_the_top = ("/".join(parts[:depth]) for depth in range(2, len(parts) + 1))
            folder = next(above for above in from_the_top if not root.exists(above))
            found.setdefault(folder, MissingPath(path, folder))
    return tuple(found.values())


def unbound(absent: Iterable[MissingPath], binds: Sequence[Bind]) -> Iterator[str]:
    """Yield a note for each path that neither the image has nor a bind brings."""
    for item in absent:
        if not any(_is_under(item.path, bind.target) for bind in binds):
            yield f"{item.path} is not in the image, nor under a bind of the job: add --bind {item.folder}"


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
