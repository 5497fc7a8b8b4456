"""A definition file as its sections. Its text is rendered from them, and lumiimg never parses that text.

A definition contains no path of this machine: it is run in its own folder, next to `files/` and the image below it. So
`--definitions` writes exactly what `lumiimg build` runs, it is portable, and its bytes can be a cache key.
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
"""The folder in the image that exists only during the build."""
DEBOOTSTRAP = "debootstrap"
LAYER_LABEL = "lumiimg.layer."
"""Prefix of a label, followed by the number of the layer; its value is the layer's name."""
NOTE = f"# Written by lumiimg {__version__}. Run it in its own folder: what it copies lies beside it."
"""The first line of each definition."""
OWN_ENVIRONMENT = "/.singularity.d/env/91-lumiimg.sh"
"""For images of other builders: engines leave the file there when they convert one, and source it after their own."""
OWN_TEST = "/.singularity.d/test"
"""The file that engines run as the test of an image."""
POST = "%post -c /bin/bash"
SCRIPT_MARK = "# lumiimg: layer "
"""Start of the line that precedes a layer's script and names layer and script: `netprobe, post.sh`."""
VERSION_LABEL = "lumiimg.version"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that must be beside the definition when it is run."""

    path: str
    """Path relative to the definition's folder."""
    origin: Path | LockedSource

    @property
    def target(self) -> str:
        """Path of the file in the image during the build."""
        return f"{BUILD_FOLDER}/{self.path.removeprefix('files/')}"


@dataclass(frozen=True, slots=True)
class Header:
    """The image that a definition starts from, in the engine's keywords."""

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
        """The header with one line per keyword."""
        if self.agent != DEBOOTSTRAP:
            return f"Bootstrap: {self.agent}\nFrom: {self.origin}\n"
        include = f"Include: {' '.join(self.include)}\n" if self.include else ""
        return f"Bootstrap: {self.agent}\nOSVersion: {self.origin}\nMirrorURL: {self.mirror_url}\n{include}"


@dataclass(frozen=True, slots=True)
class Sections:
    """The content of a definition file."""

    header: Header
    files: tuple[tuple[str, str], ...] = ()
    """Paths beside the definition, with their paths in the image."""
    environment: tuple[tuple[str, str], ...] = ()
    """Names of variables, with their values as words of a POSIX shell, in the order in which they are set."""
    post: str = ""
    """Script that bash runs."""
    test: str = ""
    """Script, or empty."""
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return f"{NOTE}\n{self.body}"

    @property
    def body(self) -> str:
        """The definition file without its first comment, as engines store it in the image."""
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
    """A definition file and the files that it needs beside it."""

    name: str
    """File name without `.def`."""
    layers: tuple[str, ...]
    """The catalogue layers that it makes."""
    parent: str | None
    """Name of the definition whose image it starts from; None if it bootstraps."""
    sections: Sections
    files: tuple[StagedFile, ...]
    plain_http: bool = False
    origin: Path | None = None
    """The local file or folder that it starts from."""
    needs: tuple[str, ...] = ()
    """Names of the definitions below that provide components its layer requires, directly or indirectly."""
    gpus: tuple[str, ...] = ()
    """GPUs that its layer is compiled for, as compilers name them; empty if it compiles for none."""
    gpu_of_wheels: str | None = None
    """The GPU of the site, if its layer has wheels that are not pure Python."""

    @property
    def text(self) -> str:
        """The text of the file."""
        return self.sections.text


def export(variable: tuple[str, str]) -> str:
    """Return the shell command that sets a variable of `Sections.environment`."""
    name, word = variable
    return f"export {name}={word}"


def _section(name: str, body: str) -> str:
    return f"{name}\n{body}" if body else ""


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)
