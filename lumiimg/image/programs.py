"""The programs of an image, by its own search path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.environment import DEFAULT_PATH
from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.image.image import Image
    from lumiimg.image.root import RootFileSystem

_EXECUTABLE = 0o111
_HEAD_BYTES = 256
_PYTHON_SCRIPT = re.compile(rb"#!\s*\S*/(?:env\s+)?python[0-9.]*(?:\s|$)")


@dataclass(frozen=True, slots=True)
class Program:
    """One program of an image."""

    name: str
    path: str
    """In the image, by the folder in which it is found first."""
    is_python: bool
    """Whether it is a script for Python."""


def search_path(image: Image) -> tuple[str, ...]:
    """Return the folders in which a process in the container looks for programs."""
    path = image.environment.get("PATH", DEFAULT_PATH)
    return tuple(dict.fromkeys(folder.rstrip("/") for folder in path.split(":") if folder.startswith("/")))


def find_program(root: RootFileSystem, name: str, folders: Sequence[str]) -> Program | None:
    """Return the program that a name starts there; None where there is none."""
    for folder in folders:
        path = f"{folder}/{name}"
        try:
            status = root.stat(path)
        except (OSError, ImageError):
            continue
        if status.kind is FileKind.FILE and status.permissions & _EXECUTABLE:
            return Program(name, path, _is_python(root, path))
    return None


def _is_python(root: RootFileSystem, path: str) -> bool:
    try:
        file = root.open(path)
    except (OSError, ImageError):
        return False
    try:
        return _PYTHON_SCRIPT.match(file.read_at(0, min(file.size, _HEAD_BYTES))) is not None
    finally:
        file.close()
