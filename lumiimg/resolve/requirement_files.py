"""Requirement files, the user's and those in archives of layers: each line is taken as it is meant, or refused with its
file, its line, and what to do. Nothing of the files runs.

Sources: pip, "Requirements File Format"; PEP 508.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lumiimg.errors import BadInputError, one_line
from lumiimg.secret import hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_MOST = 2_000
"""Requirements in all."""
_MOST_LINES = 200_000
_LONGEST_LINE = 64 * 1024
"""With all its hashes."""
_MOST_FILES = 50
_OPTION_SHOWN = 40
LONGEST = 1_000
"""Characters of a requirement."""
_INCLUDE = re.compile(r"(?:-r|--requirement)(?:\s*=\s*|\s*)(\S.*)")
_OPTION = re.compile(r"--?[A-Za-z-]+")
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_SHA256 = re.compile(r"sha256:([0-9a-fA-F]{64})")
_ADDRESS = re.compile(r"(?:[a-z+]+://|(?:git|hg|svn|bzr)\+|file:)", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_NAMED_ADDRESS = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*@\s*\S")
_PATH = re.compile(r"[./~\\]|.*\.(?:whl|tar\.gz|zip)(?:\[|\s|$)", re.IGNORECASE)
_EXTRA = re.compile(r"\bextra\b")
_ELSEWHERE = "has a place of its own; wheels come from the general package index only"
_TO_INDEX = "name its requirements; what is in no index goes into a layer of your own (docs/extend/layer.md)"
_INDEX = "leave the line out: torch is the image's own, and --mirror pypi=URL names another index for all else"
_OPTIONS = {
    **dict.fromkeys(("-i", "--index-url", "--pypi-url", "--extra-index-url", "--no-index"), _INDEX),
    **dict.fromkeys(("-f", "--find-links", "--trusted-host"), _INDEX),
    **dict.fromkeys(
        ("-e", "--editable"), f"an image holds no working copy (uv export --no-emit-project leaves it out): {_TO_INDEX}"
    ),
    **dict.fromkeys(
        ("-c", "--constraint"),
        "leave the line out: what the image has is held anyway; any other bound is a requirement, as in foo<3",
    ),
    **dict.fromkeys(
        ("--no-binary", "--only-binary", "--prefer-binary"), "leave the line out: only wheels are taken, and all are"
    ),
    "--pre": "leave the line out: a pre-release is taken where a requirement names it, as in foo>=2.0rc1",
    "--require-hashes": "leave the line out: where a line has --hash, all must",
}


@dataclass(frozen=True, slots=True)
class OwnRequirement:
    """A requirement of a file, or of an option."""

    text: str
    """As in PEP 508: `datasets[audio]>=3; python_version >= "3.10"`."""
    where: str
    """`line 3 of requirements.txt`; `the option --add`."""
    hashes: tuple[str, ...] = ()
    """SHA-256 of files that will do, in hexadecimal; empty where none is named."""

    @property
    def requirement(self) -> Requirement:
        """As a value."""
        return Requirement(self.text)

    @property
    def name(self) -> str:
        """Of the distribution, as PEP 503 writes it."""
        return canonicalize_name(self.requirement.name)


class RequirementReader:
    """Reads requirement files, and those that they include, each relative to the one that names it."""

    def __init__(self, text_of: Callable[[str], str], without: Collection[str] = ()) -> None:
        """`text_of` returns the text of a file by its path; projects of `without` are left out, whatever they say."""
        self._text_of = text_of
        self._without = without
        self._found: dict[tuple[str, tuple[str, ...]], OwnRequirement] = {}
        self._files = 0

    @property
    def found(self) -> tuple[OwnRequirement, ...]:
        """What was read so far; lines that are there twice count once."""
        return tuple(self._found.values())

    def add(self, text: str, where: str, hashes: tuple[str, ...] = ()) -> None:
        """Add a requirement. Raises BadInputError."""
        if (name := _NAME.match(text)) and canonicalize_name(name[0]) in self._without:
            return
        if len(self._found) >= _MOST:
            raise BadInputError(f"more than {_MOST} requirements", where=where, hint="leave some out")
        own = OwnRequirement(str(requirement_of(text, where)), where, hashes)
        self._found.setdefault((own.text, hashes), own)

    def read(self, path: str, within: tuple[str, ...] = ()) -> None:
        """Read a file. Raises BadInputError, and what `text_of` raises."""
        self._files += 1
        path = posixpath.normpath(path)
        if path in within:
            raise BadInputError("includes itself", where=path, hint="take its line -r out")
        if self._files > _MOST_FILES:
            raise BadInputError(f"more than {_MOST_FILES} requirement files", where=path)
        for number, line in _lines(self._text_of(path), path):
            where = f"line {number} of {path}"
            if included := _INCLUDE.fullmatch(line):
                if _ADDRESS.match(included[1]):
                    raise BadInputError("-r names an address", where=where, hint="fetch the file, and name that")
                self.read(posixpath.join(posixpath.dirname(path), included[1].strip()), (*within, path))
            else:
                text, hashes = _without_hashes(line, where)
                self.add(text, where, hashes)


def _lines(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirement file that say something, with their numbers; one that goes on has that of its
    beginning. A comment ends with its line, whatever it ends with.
    """
    lines = text.removeprefix("\ufeff").split("\n")
    if len(lines) > _MOST_LINES:
        raise BadInputError(f"has more than {_MOST_LINES} lines", where=path)
    begun, parts = 0, list[str]()
    for number, raw in enumerate([*lines, ""], start=1):
        begun = begun or number
        part = _without_comment(raw.rstrip("\r"))
        if part.endswith("\\"):
            parts.append(part[:-1])
            continue
        if line := " ".join([*parts, part]).strip():
            if len(line) > _LONGEST_LINE:
                raise BadInputError(f"is longer than {_LONGEST_LINE} characters", where=f"line {begun} of {path}")
            yield begun, line
        begun, parts = 0, []


def _without_comment(line: str) -> str:
    at = line.find("#")
    while at > 0 and not line[at - 1].isspace():
        at = line.find("#", at + 1)
    return line if at < 0 else line[:at]


def _without_hashes(line: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Return a requirement without its hashes, and those that are SHA-256."""
    if line.startswith("-"):
        return line, ()
    text, named = re.split(r"\s--", line, maxsplit=1)[0], _HASH.findall(line)
    if _HASH.sub("", line).strip() != text.strip():
        what = "an option of a requirement other than --hash is not followed"
        raise BadInputError(what, where=where, hint="leave it out")
    hashes = tuple(found[1].lower() for found in map(_SHA256.fullmatch, named) if found)
    if named and not hashes:
        raise BadInputError("none of its hashes is a sha256", where=where, hint="--hash=sha256: and 64 digits")
    return text.strip(), hashes


def requirement_of(text: str, where: str) -> Requirement:
    """Return a requirement. Raises BadInputError, which repeats neither an address nor an option's value."""
    if option := _OPTION.match(text):
        hint = _OPTIONS.get(option[0]) or _OPTIONS.get(option[0][:2], "leave it out")
        raise BadInputError(f"the option {option[0][:_OPTION_SHOWN]} is not followed", where=where, hint=hint)
    if len(text) > LONGEST:
        raise BadInputError(f"a requirement of more than {LONGEST} characters", where=where)
    name = _NAMED_ADDRESS.match(text)
    if name or _ADDRESS.match(text) or _PATH.match(text):
        raise BadInputError(f"{name[1] if name else 'a package'} {_ELSEWHERE}", where=where, hint=_TO_INDEX)
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, RecursionError):  # of a marker in thousands of brackets
        what = f"{one_line(hidden(text))[:100]!r} is not a valid requirement"
        raise BadInputError(what, where=where, hint="one like datasets>=3,<4 is needed") from None
    if requirement.url:
        raise BadInputError(f"{requirement.name[:100]} {_ELSEWHERE}", where=where, hint=_TO_INDEX)
    if requirement.marker and _EXTRA.search(str(requirement.marker)):
        what = f"{requirement.name} is for an extra, and nothing has one here"
        raise BadInputError(what, where=where, hint="leave its marker out, or the line")
    return requirement
