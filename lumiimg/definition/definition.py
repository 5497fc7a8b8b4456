"""One definition file as a value: its sections. Its text is their rendering, and nothing of ours reads that again.

A definition holds no path of this machine: it is run in its own folder, next to `files/` and to the image below it. So
what is written with `--definitions` is what `lumiimg build` runs, it works elsewhere, and its bytes can be a cache key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lumiimg.resolve.lock import LockedSource

BUILD_FOLDER = "/opt/lumiimg/build"
"""In the image while it is built; gone afterwards."""
DEBOOTSTRAP = "debootstrap"
LAYER_LABEL = "lumiimg.layer."
"""Before the number of the layer; the value is its name."""
NOTE = f"# Written by lumiimg {__version__}. Run it in its own folder: what it copies lies beside it."
"""The first line of each definition."""
OWN_ENVIRONMENT = "/.singularity.d/env/91-lumiimg.sh"
"""In an image of another builder: engines leave it there when they convert one, and source it after their own."""
OWN_TEST = "/.singularity.d/test"
"""What engines run as the test of an image."""
POST = "%post -c /bin/bash"
SCRIPT_MARK = "# lumiimg: layer "
"""Begins the line before the first of a layer's script, with the names of both: `netprobe, post.sh`."""
VERSION_LABEL = "lumiimg.version"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that must lie beside the definition when it is run."""

    path: str
    """Relative to the definition's folder."""
    origin: Path | LockedSource

    @property
    def target(self) -> str:
        """Path of the file in the image while that is built."""
        return f"{BUILD_FOLDER}/{self.path.removeprefix('files/')}"


@dataclass(frozen=True, slots=True)
class Header:
    """The image that a definition starts from, as the engine's keywords name it."""

    agent: str
    """`Bootstrap`: `docker`, `localimage`, `debootstrap`, …"""
    origin: str
    """`From`; for debootstrap `OSVersion`, the suite."""
    mirror_url: str | None = None
    """`MirrorURL`, for debootstrap only."""
    include: tuple[str, ...] = ()
    """`Include`, for debootstrap only: packages."""

    @property
    def text(self) -> str:
        """One line for each keyword."""
        if self.agent != DEBOOTSTRAP:
            return f"Bootstrap: {self.agent}\nFrom: {self.origin}\n"
        include = f"Include: {' '.join(self.include)}\n" if self.include else ""
        return f"Bootstrap: {self.agent}\nOSVersion: {self.origin}\nMirrorURL: {self.mirror_url}\n{include}"


@dataclass(frozen=True, slots=True)
class Sections:
    """What a definition file says."""

    header: Header
    files: tuple[tuple[str, str], ...] = ()
    """Path beside the definition, and path in the image."""
    environment: tuple[tuple[str, str], ...] = ()
    """Name of a variable, and its value as a word of a POSIX shell; in the order in which they are set."""
    post: str = ""
    """Script that bash runs."""
    test: str = ""
    """Script, or nothing."""
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return f"{NOTE}\n{self.body}"

    @property
    def body(self) -> str:
        """The definition file without its first comment; engines keep it so in the image."""
        sections = (
            _section("%files", _lines(f"{path} {target}" for path, target in self.files)),
            _section("%environment", _lines(map(export, self.environment))),
            _section(POST, self.post),
            _section("%test", self.test),
            _section("%labels", _lines(f"{key} {value}" for key, value in self.labels)),
        )
        return "\n".join((self.header.text, *filter(None, sections)))


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition file and what it needs beside it."""

    name: str
    """Of the file, without `.def`."""
    layers: tuple[str, ...]
    """Of the catalogue, that it makes."""
    parent: str | None
    """Name of the definition whose image it starts from; None if it bootstraps."""
    sections: Sections
    files: tuple[StagedFile, ...]
    plain_http: bool = False
    origin: Path | None = None
    """The file or folder of this machine that it starts from."""
    needs: tuple[str, ...] = ()
    """Names of the definitions below whose components its layer requires, and of those that these require."""
    gpus: tuple[str, ...] = ()
    """That its layer is to be compiled for, as compilers name them; none where it compiles for no GPU."""
    gpu_of_wheels: str | None = None
    """The GPU of the site, where its layer has wheels that are not of Python alone."""

    @property
    def text(self) -> str:
        """The file itself."""
        return self.sections.text


def export(variable: tuple[str, str]) -> str:
    """Return the command of a shell that sets a variable of `Sections.environment`."""
    name, word = variable
    return f"export {name}={word}"


def _section(name: str, body: str) -> str:
    return f"{name}\n{body}" if body else ""


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)
