"""Python requirements of a source archive (`.tar.gz`): its requirement files and pyproject.toml (PEP 518, 621).

It is read once, from beginning to end: nothing is unpacked to disk, and none of its code runs.
"""

from __future__ import annotations

import gzip
import posixpath
import re
import zlib
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from packaging.utils import NormalizedName, canonicalize_name

from lumiimg.core.decode import decode_toml
from lumiimg.core.errors import BadInputError, FailedError, one_line
from lumiimg.core.files import open_regular
from lumiimg.image import FileKind, ImageError
from lumiimg.image.oci.tar import read_members
from lumiimg.resolve.requirements import RequirementReader, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from io import BufferedIOBase
    from pathlib import Path
    from typing import IO

_ARCHIVE_LIMIT_BYTES = 4 << 30
_TEXT_LIMIT_BYTES = 512 * 1024
_MAX_TEXTS = 200
_MAX_MEMBERS = 500_000
_PROJECT = re.compile(r"([^\[\]]+\.toml)(?:\[([^\[\]]*)\])?")
_WANTED_FILE = re.compile(r"(?:.*requirement.*\.(?:txt|in)|(?:.*/)?pyproject[^/]*\.toml)")


class _Build(Struct, frozen=True):
    requires: tuple[str, ...] = ()


class _Project(Struct, frozen=True, rename="kebab"):
    name: str = ""
    version: str = ""
    dynamic: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    optional_dependencies: Mapping[str, tuple[str, ...]] = {}


class PyProject(Struct, frozen=True, rename="kebab"):
    """The parts of a `pyproject.toml` that are read."""

    build_system: _Build = _Build()
    project: _Project = _Project()


def read_requirements(archive: Path, files: Sequence[str], without: Collection[str], where: str) -> tuple[str, ...]:
    """Return the requirements of files in an archive, by their paths below its top folder. Raises FailedError."""
    try:
        with open_regular(archive) as packed:
            texts = read_texts(packed, lambda path: bool(_WANTED_FILE.fullmatch(path)), _ARCHIVE_LIMIT_BYTES, where)
    except OSError as error:
        raise FailedError(f"cannot be read: {error.strerror}", where=where) from error
    return requirements_in(texts, files, without, where)


def read_texts(archive: IO[bytes], is_wanted: Callable[[str], bool], limit_bytes: int, where: str) -> dict[str, str]:
    """Return text files by path below the top folder, reading `limit_bytes` at most. Raises FailedError."""
    with gzip.open(archive) as unpacked:
        return texts_of(unpacked, is_wanted, limit_bytes, where)


def texts_of(
    unpacked: BufferedIOBase, is_wanted: Callable[[str], bool], limit_bytes: int, where: str
) -> dict[str, str]:
    """Return text files as `read_texts` does, from a tar that is not compressed."""
    found: dict[str, str] = {}
    try:
        for member in islice(read_members(unpacked, limit_bytes, where), _MAX_MEMBERS):
            path = posixpath.normpath(member.name).partition("/")[2]
            is_text = member.kind is FileKind.FILE and member.stat.size_bytes <= _TEXT_LIMIT_BYTES
            if is_text and len(found) < _MAX_TEXTS and is_wanted(path):
                found[path] = unpacked.read(member.stat.size_bytes).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error, ImageError) as error:
        raise FailedError(f"is not a readable archive: {one_line(str(error))[:200]}", where=where) from error
    return found


def requirements_in(
    texts: Mapping[str, str], files: Sequence[str], without: Collection[str], where: str
) -> tuple[str, ...]:
    """Return the requirements of files; `texts` are all files that there are, by path.

    A `pyproject.toml` has build requirements, requirements, and those of the named extras:
    `python/pyproject.toml[hip]`. Projects in `without` are left out. Raises FailedError with file and line for a line
    that cannot be locked (an option, an address, something that is not a requirement), and for a missing file.
    """

    def text_of(path: str) -> str:
        if path not in texts:
            hint = "layer.toml or another requirement file names it"
            raise FailedError(f"has no file {path[:200]}", where=where, hint=hint)
        return texts[path]

    reader = RequirementReader(text_of, without, takes_commits=False)
    try:
        for file in files:
            if (project := _PROJECT.fullmatch(file)) is None:
                reader.read(file)
                continue
            for line in lines_of_project(text_of(project[1]), project[2] or ""):
                reader.add(line, project[1][:200])
    except BadInputError as error:
        hint = "`without` of the release leaves a project out"
        raise FailedError(error.what, where=f"{where}, {error.where or file[:200]}", hint=hint) from error
    if hashed := next((one for one in reader.found if one.hashes), None):
        raise FailedError("a hash is not supported", where=f"{where}, {hashed.where}")
    return tuple(one.text for one in reader.found)


def lines_of_project(text: str, extras: str) -> Iterator[str]:
    """Yield the requirements of a `pyproject.toml`: for the build, for use, and of extras. Raises BadInputError."""
    document = decode_toml(text, PyProject)
    project = document.project
    optional = {canonicalize_name(name): lines for name, lines in project.optional_dependencies.items()}
    waiting = [canonicalize_name(extra.strip()) for extra in extras.split(",") if extra.strip()]
    lines, seen = (*document.build_system.requires, *project.dependencies), set[str]()
    while lines or waiting:
        for line in lines:
            if (own := _extras_of(line, project.name)) is None:
                yield line
            else:
                waiting += own
        lines = ()
        if waiting and (extra := waiting.pop()) not in seen:
            seen.add(extra)
            if extra not in optional:
                raise BadInputError(f"there is no extra {extra[:100]}")
            lines = optional[extra]


def _extras_of(line: str, project: str) -> list[NormalizedName] | None:
    """Return the extras of the project itself that a line requires; None for another project, or an invalid line."""
    requirement = parsed(line)
    if requirement is None or canonicalize_name(requirement.name) != canonicalize_name(project):
        return None
    return [*map(canonicalize_name, requirement.extras)]
