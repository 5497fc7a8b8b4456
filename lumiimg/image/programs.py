"""The programs of an image, by its own search path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.environment import DEFAULT_PATH
from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.image.image import Image
    from lumiimg.image.root import RootFileSystem

_EXECUTABLE = 0o111


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
    """Return the program that a name starts there; None where there is none."""
    for folder in folders:
        path = f"{folder}/{name}"
        try:
            status = root.stat(path)
        except (OSError, ImageError):
            continue
        if status.kind is FileKind.FILE and status.permissions & _EXECUTABLE:
            return Program(name, path)
    return None
