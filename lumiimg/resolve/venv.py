"""A Python environment on top of an image, in its own file or folder: what it was made for, and what it has.

As in LUMI's guide, its scripts contain the one path where it is bound (LUMI-AI-Guide, chapter 2).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from lumiimg.core.decode import decode_json
from lumiimg.core.errors import BadInputError, RefusedError, one_line
from lumiimg.core.files import open_regular
from lumiimg.core.findings import Remedy
from lumiimg.core.text import as_operand, shell_join
from lumiimg.host.manifest import Bind
from lumiimg.host.root_queries import names_in, read_text
from lumiimg.image import Image, ImageError, ImageKind, open_image
from lumiimg.image.sif import squashfs_ranges
from lumiimg.inventory.components import versions_in
from lumiimg.resolve.python_target import OF_TORCH

MOUNT = "/user-software"
"""Its path in the container."""
BIN = f"{MOUNT}/bin"
RECORD = "lumiimg-venv.json"
"""File in the environment that records what it was made for."""
_EDGE_BYTES = 1 << 20
_MAX_NAMED = 6
_OF_TORCH = re.compile(rf"(?:{'|'.join(sorted(OF_TORCH))})(?![\w.-])", re.IGNORECASE)
"""A requirement that the image meets and no environment installs."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][ -~]{0,100}")
_LIBRARY = re.compile(r"python(3\.[0-9]{1,2})")


class VenvFault(StrEnum):
    """A fault of an environment on top of an image."""

    OWN_TORCH = "own torch"
    OWN_PART = "own part of torch"
    OTHER_PYTHON = "other Python"
    OTHER_IMAGE = "other image"
    NOT_KNOWN = "not known"


_Word = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9.+!_-]{1,64}\Z", description="a name or a version")]
_Line = Annotated[str, Meta(max_length=4096, pattern=r"\A[^\x00-\x1f\x7f]*\Z", description="a text of one line")]


@dataclass(frozen=True, slots=True)
class VenvRecord:
    """The record in an environment of what it was made for."""

    image: _Line
    """Path of the image at that time."""
    image_mark: _Word | None
    """Fingerprint of the image's content; null for a folder."""
    python: _Word
    """Python version of the image: `3.12`."""
    torch: _Word | None
    """torch version of the image, which is not replaced; null if it has none."""
    requirements: tuple[_Line, ...] = ()
    """The requested packages, as in PEP 508."""
    packages: Mapping[_Word, _Word] = field(default_factory=dict)
    """Versions of the installed packages, by name."""
    replaces: Mapping[_Word, _Word] = field(default_factory=dict)
    """Versions of the image's packages that some of these replace, as requested."""
    made_by: _Line = ""
    """Release of lumiimg that made it."""


@dataclass(frozen=True, slots=True)
class Venv:
    """An environment on disk."""

    path: Path
    """Absolute."""
    is_file: bool
    """Whether it is a squashfs file; else a folder."""
    python: str | None
    """`3.12`, from its folder of packages; None without one."""
    packages: Mapping[str, str]
    """Versions of its own packages, by name."""
    record: VenvRecord | None
    """None if lumiimg did not make it."""

    def bind(self, *, read_only: bool) -> Bind:
        """Return its bind. Raises BadInputError for a path that no engine accepts together with bind options."""
        if not str(self.path).isprintable() or set(str(self.path)) & set(",:\\"):
            raise BadInputError("a path with such characters cannot be bound", where=str(self.path), hint="rename it")
        why = "the Python environment, at the place that it was made for (LUMI-AI-Guide chapter 2)"
        return Bind(str(self.path), MOUNT, why, read_only=read_only, of_image=self.is_file)


def open_venv(path: Path) -> Venv:
    """Return the environment at a path. Raises BadInputError if it is not one, or its record is not valid."""
    try:
        image = open_image(path)
    except ImageError as error:
        raise _no_venv(path, error.what) from error
    with image:
        if image.kind not in (ImageKind.SQUASHFS, ImageKind.FOLDER):
            raise _no_venv(path, f"it is a {image.kind.value}")
        root = image.root
        has_python = any(name.startswith("python") for name in names_in(root, "/bin"))
        if not has_python or read_text(root, "/pyvenv.cfg") is None:
            raise _no_venv(path, "it has no pyvenv.cfg or no bin/python")
        library = next(filter(None, map(_LIBRARY.fullmatch, names_in(root, "/lib"))), None)
        record = read_text(root, f"/{RECORD}")
        where, hint = f"{path}, {RECORD} in it", "make the environment again: lumiimg venv"
        return Venv(
            path=path.absolute(),
            is_file=image.kind is ImageKind.SQUASHFS,
            python=library[1] if library else None,
            packages=versions_in(root, [f"/lib/{library[0]}/site-packages"] if library else []),
            record=None if record is None else decode_json(record.encode(), VenvRecord, where=where, hint=hint),
        )


def _no_venv(path: Path, why: str) -> BadInputError:
    what = f"is not a Python environment in a squashfs file or a folder: {why}"
    return BadInputError(what, where=str(path), hint="`lumiimg venv` makes one")


def image_fingerprint(path: Path) -> str | None:
    """Return a short fingerprint that identifies the content of an image; None for a folder.

    It is made from the size, beginning and end of its file systems, where squashfs has the times and sizes of all
    files. So it takes milliseconds, and a signature does not change it. It does not prove the origin.
    """
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    parts = squashfs_ranges(path)
    with open_regular(path) as file:
        for start, size in parts:
            digest.update(f"{size}\n".encode())
            for edge in (start, start + max(0, size - _EDGE_BYTES)):
                file.seek(edge)
                digest.update(file.read(min(size, _EDGE_BYTES)))
    return digest.hexdigest()[:32]


def faults_of(venv: Venv, path: Path, has: Mapping[str, str]) -> Iterator[tuple[VenvFault, str]]:
    """Yield the faults of an environment on top of an image that has these versions, worst first."""
    name, torch, record = venv.path.name, has.get("torch"), venv.record
    python = record.python if record else venv.python
    if python is not None and has.get("python") not in (None, python):
        yield VenvFault.OTHER_PYTHON, f"{name} was made for Python {python}, and the image has Python {has['python']}"
    own = ", ".join(f"{one} {venv.packages[one]}" for one in sorted(OF_TORCH & venv.packages.keys()))
    if "torch" in venv.packages:
        instead = f"the image's torch {torch}" if torch else "any of the image"
        yield VenvFault.OWN_TORCH, f"{name} carries {own}, which is imported instead of {instead}"
    elif own:
        yield VenvFault.OWN_PART, f"{name} carries {own}; the index has that for CUDA, not for the image's torch"
    if record is None:
        yield VenvFault.NOT_KNOWN, f"{name} does not say which image it was made for"
        return
    made, this = (record.image, record.image_mark, record.torch), (str(path.absolute()), image_fingerprint(path), torch)
    if (made[1] or made[0], made[2]) != (this[1] or this[0], this[2]):
        for_image, over = (
            f"{one_line(image)} ({mark[:12] if mark else 'a folder'}, {f'torch {version}' if version else 'no torch'})"
            for image, mark, version in (made, this)
        )
        yield VenvFault.OTHER_IMAGE, f"{name} was made for another image, {for_image}; this is {over}"


def notes_of_venv(venv: Venv, path: Path, has: Mapping[str, str]) -> Iterator[str]:
    """Yield notes on an environment on top of an image. Raises RefusedError if no job would use it."""
    for fault, sentence in faults_of(venv, path, has):
        if fault is VenvFault.OTHER_PYTHON:
            again = made_again(venv, path)
            hint = f"make it for this image: {again}" if again.command else f"{again}"
            raise RefusedError(sentence, where=str(venv.path), hint=hint)
        yield sentence


def made_again(venv: Venv, image: Path) -> Remedy:
    """Return the command that makes an environment again for an image; a sentence if its packages are not known."""
    known = [text for text in venv.record.requirements if not _OF_TORCH.match(text)] if venv.record else []
    named = known if 0 < len(known) <= _MAX_NAMED and all(map(_REQUIREMENT.fullmatch, known)) else ()
    output = (str(venv.path), "--force") if venv.is_file else (f"{venv.path}-new/",)
    if not named:
        return Remedy("`lumiimg venv` makes one for this image, with the packages that you name")
    return Remedy(command=shell_join(["lumiimg", "venv", as_operand(str(image)), *named, "-o", *output]))


@contextmanager
def with_venv(image: Image, venv: Venv | None) -> Iterator[Image]:
    """Yield an image as a job sees it that binds an environment, whose programs come first; without one, unchanged."""
    if venv is None:
        yield image
        return
    with open_image(venv.path) as inside:
        yield image.mounted([inside.root.mount("/", MOUNT)], first=BIN)
