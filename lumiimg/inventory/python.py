"""Which program a name starts in an image, and which Python of it counts."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image import DEFAULT_PATH, FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumiimg.image import Image, RootFileSystem

_EXECUTABLE, _RUN = 0o111, 0o1
_PROGRAM = re.compile(r".*/python(3\.\d{1,2})")
_FRAMEWORKS = frozenset(("torch", "jax"))


@dataclass(frozen=True, slots=True)
class Program:
    """One program of an image."""

    name: str
    path: str
    """In the image, by the folder in which it is found first."""


def search_path(image: Image) -> tuple[str, ...]:
    """Return the folders in which a process in the container looks for programs."""
    path = image.environment.get("PATH", DEFAULT_PATH)
    return tuple(dict.fromkeys(folder.rstrip("/") for folder in path.split(":") if folder.startswith("/")))


def find_program(root: RootFileSystem, name: str, folders: Sequence[str]) -> Program | None:
    """Return the program that a name starts there, or that is the first not to start for its mode; else None."""
    first: Program | None = None
    for folder in folders:
        with suppress(OSError, ImageError):
            status = root.stat(path := f"{folder}/{name}")
            if status.kind is FileKind.FILE and status.gives(_RUN):
                return Program(name, path)
            if status.kind is FileKind.FILE and status.permissions & _EXECUTABLE:
                first = first or Program(name, path)
    return first


@dataclass(frozen=True, slots=True)
class Python:
    """A Python of an image."""

    path: str
    folder: str | None
    """The folder that is put in front of the image's own search path; None where Python is on it."""


def version_of_program(root: RootFileSystem, path: str) -> str | None:
    """Return the version of a Python, `3.12`, by the name of the file that a path leads to; None where it has none."""
    with suppress(OSError, ImageError):
        if named := _PROGRAM.fullmatch(root.resolve(path)):
            return named[1]
    return None


def python_of(image: Image, site: str | None, has: Iterable[str]) -> Python | None:
    """Return the Python that counts: that of the site folder with torch or JAX, else the first on the search path.

    Images with an environment of conda that is not activated (AMD's for LUMI) have another one on their path.
    """
    folders = search_path(image)
    prefix, inside, _ = (site or "").partition("/lib/python")
    if inside and not _FRAMEWORKS.isdisjoint(has) and f"{prefix}/bin" not in folders:
        found = find_program(image.root, "python3", (f"{prefix}/bin",))
        if found is not None:
            return Python(found.path, f"{prefix}/bin")
    found = find_program(image.root, "python3", folders) or find_program(image.root, "python", folders)
    return Python(found.path, None) if found else None


def note_of_program(name: str, image: Image, python: Python | None) -> str | None:
    """Return what to say of a program that is in no folder of the image's search path; None of one that is there."""
    own = (python.folder,) if python and python.folder else ()
    if "/" in name or find_program(image.root, name, (*own, *search_path(image))):
        return None
    instead = f": its Python is {python.path}" if python and name.startswith("python") else ""
    return f"{name} is in no folder of the image's PATH{instead}"
