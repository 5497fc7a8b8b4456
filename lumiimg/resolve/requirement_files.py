"""What a source archive says it requires of Python: its requirement files, read where they lie, in the archive.

Source: pip, "Requirements File Format". Nothing is unpacked, and nothing of the archive runs.
"""

from __future__ import annotations

import gzip
import posixpath
import re
import zlib
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lumiimg.errors import FailedError, one_line
from lumiimg.image.oci.tar import read_members
from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

_FILE_LIMIT_BYTES = 256 * 1024
_ARCHIVE_LIMIT_BYTES = 4 << 30
_MEMBERS_LIMIT = 500_000
_KEPT_LIMIT = 200
_DEPTH_LIMIT = 8
_LINES_LIMIT = 2_000
_PIECE = 1 << 20
_INCLUDE = re.compile(r"(?:-r|--requirement)[ =]\s*(\S+)")
_COMMENT = re.compile(r"(^|\s+)#.*$")


def read_requirements(archive: Path, files: Sequence[str], without: Collection[str], where: str) -> tuple[str, ...]:
    """Return the requirements of files in a `.tar.gz`, by their paths below its top folder, and of the files they name.

    A project of `without` is left out. Raises FailedError, which names file and line, for what no lock can hold: an
    option, an address, what is no requirement; for a file that is not there, and for an archive that cannot be read.
    """
    texts = _texts(archive, where)
    found: dict[str, None] = {}
    for file in files:
        for requirement in requirements_in(file, texts, where):
            if canonicalize_name(requirement.name) in without:
                continue
            if requirement.url:
                raise FailedError(
                    f"{file} requires {requirement.name} from an address of its own, {requirement.url[:200]}",
                    where=where,
                    hint="wheels come from package indexes only: `without` of the release leaves it out",
                )
            found[str(requirement)] = None
    return tuple(found)


def requirements_in(file: str, texts: Mapping[str, str], where: str, depth: int = 0) -> Iterator[Requirement]:
    """Yield the requirements of a file and of those that it includes; `texts` are files by path. Raises FailedError."""
    text = texts.get(file)
    if text is None:
        raise FailedError(f"has no file {file[:200]}", where=where, hint="the layer names requirement files of it")
    if depth > _DEPTH_LIMIT:
        raise FailedError(f"{file[:200]}: files include each other more than {_DEPTH_LIMIT} deep", where=where)
    lines = text.replace("\\\n", " ").splitlines()
    if len(lines) > _LINES_LIMIT:
        raise FailedError(f"{file[:200]} has more than {_LINES_LIMIT} lines", where=where)
    for number, raw in enumerate(lines, start=1):
        line = _COMMENT.sub("", raw).strip()
        if included := _INCLUDE.fullmatch(line):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), included[1]))
            yield from requirements_in(path, texts, where, depth + 1)
        elif line.startswith("-"):
            _refuse(file, number, f"the option {line}, which a lock does not follow", where)
        elif line:
            try:
                yield Requirement(line)
            except (InvalidRequirement, RecursionError):  # of a marker in thousands of brackets
                _refuse(file, number, f"{line!r}, which is not a valid requirement", where)


def _refuse(file: str, number: int, what: str, where: str) -> NoReturn:
    raise FailedError(f"{file[:200]}, line {number}, has {one_line(what)[:200]}", where=where)


class _Unpacked:
    """A gzip file from the front to the back, as far as archives go."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self.position = 0

    def take(self, size: int) -> bytes:
        self.position += size
        if self.position > _ARCHIVE_LIMIT_BYTES:
            raise ImageError(f"unpacks to more than {_ARCHIVE_LIMIT_BYTES} bytes")
        return self._stream.read(size)

    def skip(self, size: int) -> None:
        while size > 0:
            piece = self.take(min(size, _PIECE))
            if not piece:
                raise ImageError("ends early")
            size -= len(piece)


def _texts(archive: Path, where: str) -> dict[str, str]:
    """Return the text files of an archive that may be requirement files, by their paths below its top folder."""
    found: dict[str, str] = {}
    try:
        with gzip.open(archive) as stream:
            reader = _Unpacked(stream)
            for member in islice(read_members(reader, where), _MEMBERS_LIMIT):
                path = posixpath.normpath(member.name).partition("/")[2]
                is_one = member.kind is FileKind.FILE and "requirement" in path and path.endswith((".txt", ".in"))
                if is_one and member.size_bytes <= _FILE_LIMIT_BYTES and len(found) < _KEPT_LIMIT:
                    found[path] = reader.take(member.size_bytes).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error, ImageError) as error:
        raise FailedError(f"is not an archive that can be read: {one_line(str(error))[:200]}", where=where) from error
    return found
