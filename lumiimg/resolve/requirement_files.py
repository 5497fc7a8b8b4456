"""What a source archive says it requires of Python: its requirement files and pyproject.toml, read where they lie.

Sources: pip, "Requirements File Format"; PEP 518 and PEP 621. Nothing is unpacked, and nothing of the archive runs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lumiimg.errors import FailedError, one_line
from lumiimg.files import open_regular
from lumiimg.resolve.source_archive import read_texts
from lumiimg.toml import TomlError, parse_toml

_ARCHIVE_LIMIT_BYTES = 4 << 30
_DEPTH_LIMIT = 8
_LINES_LIMIT = 2_000
_INCLUDE = re.compile(r"(?:-r|--requirement)[ =]\s*(\S+)")
_PROJECT = re.compile(r"([^\[\]]+\.toml)(?:\[([^\[\]]*)\])?")
_IS_ONE = re.compile(r"(?:.*requirement.*\.(?:txt|in)|(?:.*/)?pyproject[^/]*\.toml)")


def read_requirements(archive: Path, files: Sequence[str], without: Collection[str], where: str) -> tuple[str, ...]:
    """Return the requirements of files in a `.tar.gz`, by their paths below its top folder, and of the files they name.

    Of a `pyproject.toml` they are what the project is built with, what it requires, and its extras that are named:
    `python/pyproject.toml[hip]`. A project of `without` is left out. Raises FailedError, which names file and line, for
    what no lock can hold (an option, an address, a line that is not a requirement), for a missing file, and for an
    archive that cannot be read.
    """
    texts = _texts(archive, where)
    found: dict[str, None] = {}
    for file in files:
        project = _PROJECT.fullmatch(file)
        found_in = project_in(project[1], project[2] or "", texts, where) if project else None
        for requirement in found_in or requirements_in(file, texts, where):
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
    text = _text(file, texts, where)
    if depth > _DEPTH_LIMIT:
        raise FailedError(f"{file[:200]}: files include each other more than {_DEPTH_LIMIT} deep", where=where)
    if text.count("\n") > _LINES_LIMIT:
        raise FailedError(f"{file[:200]} has more than {_LINES_LIMIT} lines", where=where)
    for number, line in lines_in(text):
        if included := _INCLUDE.fullmatch(line):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), included[1]))
            yield from requirements_in(path, texts, where, depth + 1)
        elif line.startswith("-"):
            _refuse(file, number, f"the option {line}, which a lock does not follow", where)
        else:
            yield _requirement(line, file, where, number)


def lines_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirement file that say something, with their numbers; one that goes on has that of its
    beginning. A comment ends with its line, whatever it ends with.
    """
    begun, parts = 0, list[str]()
    for number, raw in enumerate([*text.split("\n"), ""], start=1):
        begun = begun or number
        part = _without_comment(raw.rstrip("\r"))
        if part.endswith("\\"):
            parts.append(part[:-1])
            continue
        if line := " ".join([*parts, part]).strip():
            yield begun, line
        begun, parts = 0, []


def _without_comment(line: str) -> str:
    at = line.find("#")
    while at > 0 and not line[at - 1].isspace():
        at = line.find("#", at + 1)
    return line if at < 0 else line[:at]


def project_in(file: str, extras: str, texts: Mapping[str, str], where: str) -> Iterator[Requirement]:
    """Yield what a `pyproject.toml` names and is built with, and some of its extras with those that they name."""
    try:
        table = parse_toml(_text(file, texts, where))
    except TomlError as error:
        raise FailedError(f"{file[:200]} {one_line(str(error))[:200]}", where=where) from error
    project = _table_in(table, "project")
    optional = {
        str(canonicalize_name(name)): found for name, found in _table_in(project, "optional-dependencies").items()
    }
    name = canonicalize_name(str(project.get("name", "")))
    lines = _strings(_table_in(table, "build-system").get("requires"))
    lines += _strings(project.get("dependencies"))
    waiting, seen = [canonicalize_name(extra.strip()) for extra in extras.split(",") if extra.strip()], set[str]()
    while waiting or lines:
        for line in lines:
            requirement = _requirement(line, file, where)
            if canonicalize_name(requirement.name) == name:
                waiting += [canonicalize_name(extra) for extra in requirement.extras]
            else:
                yield requirement
        lines = []
        extra = waiting.pop() if waiting else ""
        if extra and extra not in seen:
            seen.add(extra)
            if extra not in optional:
                raise FailedError(f"{file[:200]} has no extra {extra[:100]}", where=where)
            lines = _strings(optional[extra])


def _table_in(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of a table; an empty one where there is none."""
    found = table.get(key)
    return found if isinstance(found, dict) else {}


def _strings(found: object) -> list[str]:
    return [str(one) for one in found] if isinstance(found, list) else []


def _requirement(text: str, file: str, where: str, line: int | None = None) -> Requirement:
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):  # of a marker in thousands of brackets
        _refuse(file, line, f"{text!r}, which is not a valid requirement", where)


def _text(file: str, texts: Mapping[str, str], where: str) -> str:
    if file not in texts:
        raise FailedError(
            f"has no file {file[:200]}", where=where, hint="layer.toml or another requirement file names it"
        )
    return texts[file]


def _refuse(file: str, line: int | None, what: str, where: str) -> NoReturn:
    at = f", line {line}," if line else ""
    raise FailedError(f"{file[:200]}{at} has {one_line(what)[:200]}", where=where)


def _texts(archive: Path, where: str) -> dict[str, str]:
    """Return the text files of an archive that may be requirement files, by their paths below its top folder."""
    try:
        with open_regular(archive) as packed:
            return read_texts(packed, lambda path: bool(_IS_ONE.fullmatch(path)), _ARCHIVE_LIMIT_BYTES, where)
    except OSError as error:
        raise FailedError(f"cannot be read: {error.strerror}", where=where) from error
