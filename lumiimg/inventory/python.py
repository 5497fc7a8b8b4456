"""The program that a name starts in an image, and the image's main Python."""

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
    """Path in the image, below the first folder that contains it."""


def search_path(image: Image) -> tuple[str, ...]:
    """Return the folders in which a process in the container searches for programs."""
    path = image.environment.get("PATH", DEFAULT_PATH)
    return tuple(dict.fromkeys(folder.rstrip("/") for folder in path.split(":") if folder.startswith("/")))


def find_program(root: RootFileSystem, name: str, folders: Sequence[str]) -> Program | None:
    """Return the program that a name starts from these folders, else the first whose mode prevents that, else None."""
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
    """Folder to put in front of the image's own search path; None if Python is on that path."""


def version_of_program(root: RootFileSystem, path: str) -> str | None:
    """Return the version of a Python (`3.12`) from the name of the file a path resolves to; None if it has none."""
    with suppress(OSError, ImageError):
        if named := _PROGRAM.fullmatch(root.resolve(path)):
            return named[1]
    return None


def python_of(image: Image, site: str | None, has: Iterable[str]) -> Python | None:
    """Return the main Python: that of the site folder with torch or JAX, else the first on the search path.

    Images with a conda environment that is not activated (AMD's for LUMI) have another Python on their path.
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
    """Return a note about a program that is not on the image's search path; None for one that is."""
    own = (python.folder,) if python and python.folder else ()
    if "/" in name or find_program(image.root, name, (*own, *search_path(image))):
        return None
    instead = f": its Python is {python.path}" if python and name.startswith("python") else ""
    return f"{name} is not on the image's PATH{instead}"
