"""Python projects at git commits, as described by their pyproject.toml (PEP 518, 621). None of their code runs.

Values that only a build determines (a version by setuptools-scm, the requirements of a setup.py) are not known here:
the build in the image then reports what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lumiimg.core.decode import decode_toml
from lumiimg.core.errors import BadInputError, RefusedError
from lumiimg.core.files import open_regular
from lumiimg.fetch.git import git_address
from lumiimg.resolve.lock import LockedSource, locked_commit
from lumiimg.resolve.source_archive import PyProject, lines_of_project, texts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.requirements import UserRequirement

_FILE = "pyproject.toml"
_MAX_BYTES = 1 << 30
# what pip uses if no build system is named (PEP 518); `wheel` is for setuptools before 70.1
_USUAL = ("setuptools>=40.8.0", "wheel")


@dataclass(frozen=True, slots=True)
class CommitProject:
    """A Python project in a git repository, at one commit."""

    source: LockedSource
    requires: tuple[str, ...]
    """As in PEP 508: for its build, and for its use with the requested extras."""


def read_commits(own: Sequence[UserRequirement], sources: Sources) -> tuple[CommitProject, ...]:
    """Fetch and return the projects of requirements that name a commit.

    Raises FailedError if one is not available, RefusedError if it is another project or requires what cannot be locked.
    """
    return tuple(_read(one, sources) for one in own if one.requirement.url)


def _read(own: UserRequirement, sources: Sources) -> CommitProject:
    location = own.requirement.url or ""
    archive = sources.store.get(location, None, sources.on_line)
    with open_regular(archive) as packed:
        texts = texts_of(packed, lambda path: path in {_FILE, "setup.py", "setup.cfg"}, _MAX_BYTES, location)
    if not texts:
        what, hint = "has neither pyproject.toml nor setup.py", "if it is in a subfolder, add #subdirectory=FOLDER"
        raise RefusedError(what, where=location, hint=hint)
    where, text = f"{location}, {_FILE}", texts.get(_FILE, "")
    try:
        document = decode_toml(text, PyProject)
        lines = [*lines_of_project(text, ",".join(own.requirement.extras))]
    except BadInputError as error:
        raise RefusedError(error.what, where=where) from error
    project = document.project
    if project.name and canonicalize_name(project.name) != own.name:
        raise RefusedError(f"is the project {project.name[:100]}, not {own.name}", where=where, hint="use that name")
    if not document.build_system.requires:
        lines += _USUAL
    if placed := next((line for line in lines if "@" in line.partition(";")[0]), None):
        hint = "add that line to your own list, with a commit"
        raise RefusedError(f"requires a package by its address: {placed[:200]}", where=where, hint=hint)
    if not project.name or "dependencies" in project.dynamic:
        sources.on_line(f"{own.name} lists its requirements only when it is built: the build then reports missing ones")
    address = git_address(location)
    try:
        version = f"{Version(project.version)}"
    except InvalidVersion:
        version = f"0+g{address.ref[:12] if address else ''}"
    source = locked_commit(own.name, version, location, archive.name, archive.stat().st_size)
    return CommitProject(source, tuple(lines))
