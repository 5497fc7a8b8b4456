"""Python packages that a user hands in: requirement files, and words like `pip:einops==0.8.1`.

Each line is taken as it is meant, or refused with its file, its line, and what to do. Nothing of the files runs.
Sources: pip, "Requirements File Format"; PEP 508.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lumiimg.catalog.toml_table import CatalogError, read_text
from lumiimg.errors import BadInputError, one_line
from lumiimg.resolve.requirement_files import lines_in
from lumiimg.resolve.stack import PACKAGE
from lumiimg.secret import hidden
from lumiimg.wording import count

OF_OPTION = "the option --add"
"""Where a requirement is from that no file has."""
OF_TORCH = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton-rocm", "triton-rocm"})
"""Held at what the image has, so that it does not count where else a project takes them from."""
_FILE_LIMIT_BYTES = 8 << 20
"""A file of 300 packages with all their digests has 1 MB."""
_MOST = 2_000
"""Requirements in all."""
_MOST_LINES = 200_000
_LONGEST_LINE = 64 * 1024
"""With all its hashes."""
_MOST_FILES = 50
_TOLD = 200
_OPTION_SHOWN = 40
_LONGEST = 1_000
"""Characters of a requirement."""
_INCLUDE = re.compile(r"(?:-r|--requirement)(?:\s*=\s*|\s*)(\S.*)")
_OPTION = re.compile(r"--?[A-Za-z-]+")
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_SHA256 = re.compile(r"sha256:([0-9a-fA-F]{64})")
_PROJECT = re.compile(r".*\.(?:toml(?:\[.*\])?|lock)", re.DOTALL)
_ADDRESS = re.compile(r"(?:[a-z+]+://|(?:git|hg|svn|bzr)\+|file:)", re.IGNORECASE)
_NAMED_ADDRESS = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*@\s*\S")
_PATH = re.compile(r"[./~\\]|.*\.(?:whl|tar\.gz|zip)(?:\[|\s|$)", re.IGNORECASE)
_EXTRA = re.compile(r"\bextra\b")
_ELSEWHERE = "has a place of its own; wheels come from the general package index only"
_EXPORT = "uv writes one: uv export --no-emit-project --prune torch -o requirements.txt (--extra NAME, --group NAME)"
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
    """A requirement of the user's."""

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


@dataclass(frozen=True, slots=True)
class OwnPackages:
    """All that a user hands in."""

    requirements: tuple[OwnRequirement, ...] = ()
    files: tuple[str, ...] = ()
    """As they are given to -r."""
    brought: Mapping[str, str] = field(default_factory=dict)
    """Distributions that layers of the catalogue make for the image, each with its layer."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The requirements alone."""
        return tuple(one.text for one in self.requirements)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of `--add`."""
        return tuple(f"{PACKAGE}{one.text}" for one in self.requirements if one.where == OF_OPTION)

    @property
    def told(self) -> str:
        """In a few words."""
        where = ", ".join([*(file.rpartition("/")[2] for file in self.files), *self.words])[:_TOLD]
        return f"{count(len(self.requirements), 'requirement')} of yours ({where})"

    @property
    def unsettled(self) -> str:
        """The same of a plan."""
        return f"{self.told}; what they take from the index is not settled before lock"


def read_own(files: Sequence[str], words: Sequence[str], where: str = OF_OPTION) -> OwnPackages:
    """Return what files and words like `pip:einops==0.8.1` ask for; lines that are there twice count once.

    `where` says of words where they are from.

    Raises BadInputError for what cannot be read, is larger than anybody writes, or could not be settled by a lock.
    """
    reader = _Reader()
    for file in files:
        if _PROJECT.fullmatch(file):
            raise BadInputError("is not a requirements file", where=file, hint=_EXPORT)
        reader.requirements(Path(file), ())
    for word in words:
        reader.add(requirement_of(word.removeprefix(PACKAGE), where), where)
    if files and not reader.found:
        raise BadInputError("requires nothing", where=", ".join(files)[:_LONGEST], hint="leave it out")
    return OwnPackages(tuple(reader.found.values()), tuple(files))


class _Reader:
    """What was read so far."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, tuple[str, ...]], OwnRequirement] = {}
        self._files = 0

    def add(self, requirement: Requirement, where: str, hashes: tuple[str, ...] = ()) -> None:
        if len(self.found) >= _MOST:
            raise BadInputError(f"more than {_MOST} requirements", where=where, hint="leave some out")
        own = OwnRequirement(str(requirement), where, hashes)
        self.found.setdefault((own.text, hashes), own)

    def requirements(self, path: Path, within: tuple[Path, ...]) -> None:
        """Read a requirement file, and those that it includes, each relative to the one that names it."""
        self._files += 1
        try:
            here = path.resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL byte, links in a circle
            raise BadInputError("is not the name of a file", where=str(path)) from error
        if here in within:
            raise BadInputError("includes itself", where=str(path), hint="take its line -r out")
        if self._files > _MOST_FILES:
            raise BadInputError(f"more than {_MOST_FILES} requirement files", where=str(path))
        for number, line in _lines(path):
            where = f"line {number} of {path}"
            if included := _INCLUDE.fullmatch(line):
                if _ADDRESS.match(included[1]):
                    raise BadInputError("-r names an address", where=where, hint="fetch the file, and name that")
                self.requirements(path.parent / included[1].strip(), (*within, here))
            else:
                text, hashes = _without_hashes(line, where)
                self.add(requirement_of(text, where), where, hashes)


def _text(path: Path) -> str:
    try:
        text = read_text(path, _FILE_LIMIT_BYTES)
    except CatalogError as error:
        hint = "save it as UTF-8" if "UTF-8" in error.what else "-r names a file of requirements"
        raise BadInputError(error.what, where=error.where, hint=hint) from error
    return text.removeprefix("\ufeff")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    text = _text(path)
    if text.count("\n") > _MOST_LINES:
        raise BadInputError(f"has more than {_MOST_LINES} lines", where=str(path))
    for number, line in lines_in(text):
        if len(line) > _LONGEST_LINE:
            raise BadInputError(f"is longer than {_LONGEST_LINE} characters", where=f"line {number} of {path}")
        yield number, line


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
    if len(text) > _LONGEST:
        raise BadInputError(f"a requirement of more than {_LONGEST} characters", where=where)
    name = _NAMED_ADDRESS.match(text)
    if name or _ADDRESS.match(text) or _PATH.match(text):
        raise BadInputError(f"{name[1] if name else 'a package'} {_ELSEWHERE}", where=where, hint=_TO_INDEX)
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, RecursionError):
        what = f"{one_line(hidden(text))[:100]!r} is not a valid requirement"
        raise BadInputError(what, where=where, hint="one like datasets>=3,<4 is needed") from None
    return _checked(requirement, where)


def _checked(requirement: Requirement, where: str) -> Requirement:
    if requirement.url:
        raise BadInputError(f"{requirement.name[:100]} {_ELSEWHERE}", where=where, hint=_TO_INDEX)
    if requirement.marker and _EXTRA.search(str(requirement.marker)):
        what = f"{requirement.name} is for an extra, and nothing has one here"
        raise BadInputError(what, where=where, hint="leave its marker out, or the line")
    return requirement
