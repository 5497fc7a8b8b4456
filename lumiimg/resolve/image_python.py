"""The Python of an image in which its frameworks are, for what starts programs there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.programs import find_program, search_path

if TYPE_CHECKING:
    from lumiimg.image import Image
    from lumiimg.resolve.inventory import Inventory

_FRAMEWORKS = frozenset(("torch", "jax"))


@dataclass(frozen=True, slots=True)
class Python:
    """A Python of an image."""

    path: str
    folder: str | None
    """The folder that is put in front of the image's own search path; None where Python is on it."""


def python_of(image: Image, contents: Inventory) -> Python | None:
    """Return the Python that counts: that of torch's folder, else the first on the image's search path.

    Images with an environment of conda that is not activated (AMD's for LUMI) have another one on their path.
    """
    folders = search_path(image)
    prefix, inside, _ = (contents.site_packages or "").partition("/lib/python")
    if inside and not _FRAMEWORKS.isdisjoint(contents.has) and f"{prefix}/bin" not in folders:
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
