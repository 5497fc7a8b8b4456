"""The Pythons of an image: where its frameworks are, its distributions, and what compiled modules were built for.

A distribution is known by the name of its metadata: `NAME-VERSION.dist-info`, a folder (PEP 376, PEP 427), or
`NAME-VERSION-pyX.Y.egg-info`, a folder or a file, of which the part behind the version may lack (setuptools; Debian).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from lumiimg.elf import exported_at, facts_at, wanted_at
from lumiimg.image.programs import find_program, search_path
from lumiimg.image.tree import ImageError
from lumiimg.inventory.system import read_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.image import Image, RootFileSystem

MOST_DISTRIBUTIONS = 20_000
"""Of one image, or of the folders that are looked into together: more are left out."""
METADATA = (".dist-info", ".egg-info")
"""What the names of the metadata of distributions end in."""
_NAME, _VERSION = r"[A-Za-z0-9._]{1,128}", r"[A-Za-z0-9.+!_]{1,64}"
_NAMED = re.compile(rf"({_NAME})-({_VERSION})(?:-py3[\w.-]{{0,64}})?\.(?:dist|egg)-info", re.ASCII)
_PROGRAM = re.compile(r".*/python(3\.\d{1,2})")
_FRAMEWORKS = frozenset(("torch", "jax"))
_MODULE = re.compile(r".+\.(?:cpython-3[0-9]+[^/]*|abi3)\.so")
_OLD_NUMPY, _NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_LARGEST_MODULE_BYTES, _MOST_READ_BYTES = 4 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Python distribution that is installed."""

    name: str
    """As PEP 503 writes it: `flash-attn`."""
    version: str
    """As its metadata is called: `2.7.1+rocm6.2`."""
    metadata: str
    """Path of its metadata in the image."""

    @property
    def site(self) -> str:
        """The folder that it is in."""
        return self.metadata.rpartition("/")[0]


def distribution_of(path: str) -> Distribution | None:
    """Return the distribution whose metadata is at a path; None for the path of anything else."""
    found = _NAMED.fullmatch(path.rpartition("/")[2])
    return Distribution(canonicalize_name(found[1]), found[2], path) if found else None


def distributions_in(root: RootFileSystem, folders: Iterable[str]) -> dict[str, Distribution]:
    """Return the distributions in some folders by their names; of two, that of the first folder, as Python takes it."""
    found: dict[str, Distribution] = {}
    for folder in folders:
        with contextlib.suppress(OSError, ImageError):
            for distribution in filter(None, (distribution_of(f"{folder}/{n}") for n, _ in root.list_dir(folder))):
                if len(found) < MOST_DISTRIBUTIONS:
                    found.setdefault(distribution.name, distribution)
    return found


@dataclass(frozen=True, slots=True)
class Python:
    """A Python of an image."""

    path: str
    folder: str | None
    """The folder that is put in front of the image's own search path; None where Python is on it."""


def version_of_program(root: RootFileSystem, path: str) -> str | None:
    """Return the version of a Python, `3.12`, by the name of the file that a path leads to; None where it has none."""
    with contextlib.suppress(OSError, ImageError):
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


def of_other_torch(root: RootFileSystem, c10: str, modules: Sequence[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the modules that ask for what the image's libc10 does not have, each with the first such symbol."""
    offered = exported_at(root, c10)
    found: dict[str, str] = {}
    for path in modules if offered else ():
        facts = facts_at(root, path)
        if facts is not None and "libc10.so" in facts.needed:
            lacking = [name for name in wanted_at(root, path) - offered if name.startswith(prefixes)]
            found |= {path: min(lacking)} if lacking else {}
    return found


def of_numpy_1(root: RootFileSystem, modules: Sequence[str]) -> Iterator[str]:
    """Yield the modules that were compiled with NumPy 1; large ones are not read."""
    left = _MOST_READ_BYTES
    for path in filter(_MODULE.fullmatch, modules):
        data = read_or_empty(root, path, min(_LARGEST_MODULE_BYTES, left))
        left -= len(data)
        if _OLD_NUMPY in data and _NEW_NUMPY not in data:
            yield path
