"""The Pythons of an image: its distributions, where they lie, and which Python its frameworks are in.

A distribution is known by the name of its metadata: `NAME-VERSION.dist-info`, a folder (PEP 376, PEP 427), or
`NAME-VERSION-pyX.Y.egg-info`, a folder or a file, of which the part behind the version may lack (setuptools; Debian).
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import posixpath
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from lumiimg.image.programs import find_program, search_path
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.image import Image, RootFileSystem

MOST_DISTRIBUTIONS = 20_000
"""Of one image, or of the folders that are looked into together: more are left out."""
METADATA = (".dist-info", ".egg-info")
"""What the names of the metadata of distributions end in."""
_NAME, _VERSION = r"[A-Za-z0-9._]{1,128}", r"[A-Za-z0-9.+!_]{1,64}"
_NAMED = re.compile(rf"({_NAME})-({_VERSION})(?:-py3[\w.-]{{0,64}})?\.(?:dist|egg)-info", re.ASCII)
_PROGRAM = re.compile(r".*/python(3\.\d{1,2})")
_RECORD_LIMIT_BYTES = 16 << 20
_MOST_RECORDED = 500_000
"""Files of one distribution; torch has 15,000."""
_CHUNK_BYTES = 1 << 20
_FRAMEWORKS = frozenset(("torch", "jax"))


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
        """The folder that it is in: what its files are called begins there."""
        return self.metadata.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file of a distribution, by its RECORD."""

    path: str
    """In the image."""
    sha256: str | None
    """Its digest when it was installed, in base64 as RECORD has it; None without one, as of RECORD itself."""


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


def recorded_files(root: RootFileSystem, distribution: Distribution) -> Iterator[RecordedFile]:
    """Yield the files of a distribution, by its RECORD (packaging.python.org, "Recording installed projects").

    Raises OSError where it has none, as those of conda and Debian, and ImageError where that cannot be read.
    """
    record = f"{distribution.metadata}/RECORD"
    text = root.read_bytes(record, _RECORD_LIMIT_BYTES).decode("utf-8", "replace")
    try:
        for row in islice(csv.reader(io.StringIO(text, newline="")), _MOST_RECORDED):
            if row and row[0]:
                kind, _, digest = row[1].partition("=") if len(row) > 1 else ("", "", "")
                path = posixpath.normpath(posixpath.join("/", distribution.site, row[0]))
                yield RecordedFile(path, digest if kind == "sha256" else None)
    except csv.Error as error:
        raise ImageError(f"a RECORD that cannot be read: {error}", where=record) from error


def is_as_recorded(root: RootFileSystem, file: RecordedFile) -> bool | None:
    """Return whether a file has the digest that it was installed with; None where none is recorded.

    All of it is read. Raises OSError where it cannot be opened, and ImageError where it cannot be read.
    """
    if file.sha256 is None:
        return None
    digest = hashlib.sha256()
    with contextlib.closing(root.open(file.path)) as opened:
        for start in range(0, opened.size, _CHUNK_BYTES):
            digest.update(opened.read_at(start, _CHUNK_BYTES))
    return base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=") == file.sha256


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
