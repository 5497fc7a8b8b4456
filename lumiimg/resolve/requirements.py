"""Python requirements: from a user's files and words (`pip:einops==0.8.1`), and from files in archives of layers.

A file may be a conda environment, whose pip part has such lines.

Each line is read as it is meant, or refused with its file, its line number and a remedy. No code in the files runs.
Sources: pip, "Requirements File Format"; PEP 508.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lumiimg.core.decode import read_text
from lumiimg.core.errors import BadInputError, one_line
from lumiimg.core.redact import redact
from lumiimg.fetch.git import SCHEME, GitAddress, git_address
from lumiimg.resolve.stack import PACKAGE

if TYPE_CHECKING:
    from lumiimg.resolve.conda_environment import HasProject

OF_OPTION = "the option --add"
"""Origin of a requirement that is in no file."""
OF_REPLACE = "the option --replace"
"""Origin of a requirement that replaces a package of the image."""
PYTHON = "python"
"""Name in a requirement that only the image's Python meets: no index has it."""
_FILE_LIMIT_BYTES = 8 << 20
"""A file of 300 packages with all their digests has 1 MB."""
_OF_CONDA = (".yml", ".yaml")
"""File name endings of a conda environment."""
_SHOWN = 200
_MAX_REQUIREMENTS, _MAX_FILES = 2_000, 50
"""Most requirements, and most files, in total."""
_MAX_CHARS = 1_000
"""Most characters of a requirement."""
_INCLUDE = re.compile(r"(?:-r|--requirement)(?:\s*=\s*|\s*)(\S.*)")
_OPTION = re.compile(r"(?:^|\s)(--?[A-Za-z][A-Za-z-]{0,40})")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_SHA256 = re.compile(r"sha256:([0-9a-fA-F]{64})")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
"""Endings of file names: pip would look for the file in the folder, an index for a project of that name."""
_EGG = re.compile(r"(?:(\S+)\s*@\s*)?(git\+[^\s#]+)#(\S*\begg=[A-Za-z0-9]\S*)")
_EXTRA = re.compile(r"\bextra\b")
_AT_COMMIT = f"{{}} @ {SCHEME}HOST/REPOSITORY@COMMIT, plus #subdirectory=FOLDER if it is in a subfolder"
_TO_INDEX = "name a package from an index; one that is in no index needs a layer of your own (docs/extend/layer.md)"
_EXPORT = "for a uv project: uv export --no-emit-project --prune torch -o requirements.txt (--extra NAME, --group NAME)"
_HINTS = {
    ("-i", "--index-url", "--extra-index-url", "-f", "--find-links"): (
        "leave the line out: the image's torch is used, and --mirror pypi=URL names another index for everything else"
    ),
    (
        "-e",
        "--editable",
    ): f"an image cannot contain a working copy (uv export --no-emit-project leaves it out): {_TO_INDEX}",
    (
        "-c",
        "--constraint",
    ): "leave it out: the image's packages are pinned; write other limits as requirements: foo<3",
}


@dataclass(frozen=True, slots=True)
class UserRequirement:
    """A requirement from a file or an option."""

    text: str
    """As in PEP 508: `datasets[audio]>=3; python_version >= "3.10"`."""
    where: str
    """`line 3 of requirements.txt`; `the option --add`."""
    hashes: tuple[str, ...] = ()
    """SHA-256 of acceptable files, in hexadecimal; empty if none is named."""

    @property
    def requirement(self) -> Requirement:
        """The parsed requirement."""
        return Requirement(self.text)

    @property
    def replaces(self) -> bool:
        """Whether it replaces a package of the image."""
        return self.where == OF_REPLACE

    @property
    def name(self) -> str:
        """Normalized name of the distribution (PEP 503)."""
        return canonicalize_name(self.requirement.name)


def read_own(
    files: Sequence[str],
    words: Sequence[str],
    where: str = OF_OPTION,
    *,
    replaced: Sequence[str] = (),
    has_project: HasProject | None = None,
) -> tuple[UserRequirement, ...]:
    """Return the requirements in files and in words like `pip:einops==0.8.1` (from `where`), each once.

    Those in `replaced` replace packages of the image: `numpy==2.1.0`. `has_project` asks the package index, for the
    error that refuses conda packages.

    Raises BadInputError for a file that cannot be read or is too large, and for a requirement that cannot be locked.
    """
    reader = RequirementReader(lambda path: read_text(Path(path), _FILE_LIMIT_BYTES), has_project=has_project)
    for word in replaced:  # first, so that the same requirement in a file is a duplicate
        reader.add(_in_one_version(word), OF_REPLACE)
    for file in files:
        reader.read(file)
    for word in words:
        reader.add(word.removeprefix(PACKAGE), where)
    if files and not reader.found:
        raise BadInputError("requires nothing", where=", ".join(files)[:_SHOWN], hint="leave it out")
    _require_one_of_each(reader.found)
    return reader.found


def _require_one_of_each(found: Sequence[UserRequirement]) -> None:
    """Raise BadInputError if a project is required at a commit or as a replacement, and also in a conflicting way."""
    explicit = {one.name: one for one in reversed(found) if one.replaces or one.requirement.url}
    for other in found:
        one = explicit.get(other.name, other)
        versions = [spec.version for spec in one.requirement.specifier]
        if one is other or (versions and other.requirement.specifier.contains(versions[0], prereleases=True)):
            continue
        what = f"{other.text}, but {one.where} requires {one.text}"
        raise BadInputError(what, where=other.where, hint="use only one of them")


class RequirementReader:
    """Reads requirement files, and files that they include by a path relative to the including file, each once."""

    def __init__(
        self,
        text_of: Callable[[str], str],
        without: Collection[str] = (),
        has_project: HasProject | None = None,
        *,
        takes_commits: bool = True,
    ) -> None:
        """`text_of` returns the text of a file by path; lines of projects in `without` are skipped, even if invalid."""
        self._text_of = text_of
        self._without = without
        self._has_project = has_project
        self._takes_commits = takes_commits
        self._found: dict[tuple[str, tuple[str, ...]], UserRequirement] = {}
        self._files = set[str]()

    @property
    def found(self) -> tuple[UserRequirement, ...]:
        """The requirements read until now; duplicate lines count once."""
        return tuple(self._found.values())

    def add(self, text: str, where: str, hashes: tuple[str, ...] = ()) -> None:
        """Add a requirement. Raises BadInputError."""
        if (name := _NAME.match(text)) and canonicalize_name(name[0]) in self._without:
            return
        if len(self._found) >= _MAX_REQUIREMENTS:
            raise BadInputError(f"more than {_MAX_REQUIREMENTS} requirements", where=where, hint="leave some out")
        requirement = requirement_of(text, where, takes_commits=self._takes_commits)
        own = UserRequirement(str(requirement), where, hashes)
        self._found.setdefault((own.text, hashes), own)

    def read(self, path: str) -> None:
        """Read a file. Raises BadInputError, and what `text_of` raises."""
        path = posixpath.normpath(path)
        if path in self._files:
            return
        self._files.add(path)
        if len(self._files) > _MAX_FILES:
            raise BadInputError(f"more than {_MAX_FILES} requirement files", where=path)
        for number, line in self._lines(path):
            where = f"line {number} of {path}"
            if (included := _INCLUDE.fullmatch(line)) is None:
                self.add(_HASH.sub("", line), where, _hashes(line, where))
            elif "://" in included[1]:
                raise BadInputError("-r names an address", where=where, hint="fetch the file, and name its path")
            else:
                self.read(posixpath.join(posixpath.dirname(path), included[1]))

    def _lines(self, path: str) -> Iterator[tuple[int, str]]:
        """Return the lines of a file with their numbers. Raises BadInputError."""
        text = self._text_of(path)
        if not path.endswith(_OF_CONDA):
            return _lines(text)
        from lumiimg.resolve.conda_environment import pip_lines  # loads YAML, only when needed

        lines = pip_lines(text, path, self._has_project)
        return ((number, part) for number, line in lines for _, part in _lines(line))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines of a requirement file with their numbers; a continued line has the number of its first
    part. A comment ends with its line, even if the line ends with a backslash.
    """
    begun, parts = 1, list[str]()
    for number, line in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], start=1):
        part = _COMMENT.sub("", line)
        parts.append(part.removesuffix("\\"))
        if not part.endswith("\\"):
            if whole := " ".join(parts).strip():
                yield begun, whole
            begun, parts = number + 1, []


def _hashes(line: str, where: str) -> tuple[str, ...]:
    """Return the SHA-256 hashes in a line. Raises BadInputError if it has only others."""
    named = _HASH.findall(line)
    found = tuple(one[1].lower() for one in map(_SHA256.fullmatch, named) if one)
    if named and not found:
        raise BadInputError("none of its hashes is a sha256", where=where, hint="--hash=sha256: and 64 digits")
    return found


def parsed(text: str) -> Requirement | None:
    """Return the parsed requirement; None if it is not valid, as a stranger's file may contain anything."""
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):  # from a marker in thousands of brackets
        return None


def _in_one_version(text: str) -> str:
    """Return a word of --replace. Raises BadInputError unless it names exactly one version."""
    requirement = requirement_of(text, OF_REPLACE)
    versions = [one for one in requirement.specifier if one.operator == "==" and not one.version.endswith(".*")]
    if len(versions) != 1 or f"{requirement}" != f"{requirement.name}{versions[0]}":
        raise BadInputError(f"{requirement.name} must have exactly one version", where=OF_REPLACE, hint="NAME==VERSION")
    return text


def requirement_of(text: str, where: str, *, takes_commits: bool = True) -> Requirement:
    """Return the parsed requirement. Raises BadInputError, which repeats neither an address nor an option's value."""
    if option := _OPTION.search(text):
        hint = next((hint for words, hint in _HINTS.items() if text.startswith(words)), None)
        hint = hint or f"leave the {'option' if option.start() else 'line'} out"
        raise BadInputError(f"the option {option[1]} is not supported", where=where, hint=hint)
    if len(text) > _MAX_CHARS:
        raise BadInputError(f"a requirement of more than {_MAX_CHARS} characters", where=where)
    requirement = parsed(_EGG.sub(_named, text))
    if takes_commits and requirement is not None and (requirement.url or "").startswith("git+"):
        return _at_commit(requirement, where)
    if requirement is None and "/" in text:
        hint = f"name it: {_AT_COMMIT.format('NAME')}" if text.startswith("git+") else _TO_INDEX
        raise BadInputError("a path or an address is not a valid requirement", where=where, hint=hint)
    if requirement is None:
        what = f"{one_line(redact(text))[:100]!r} is not a valid requirement"
        raise BadInputError(what, where=where, hint=f"for example datasets>=3,<4; {_EXPORT}")
    if requirement.url or requirement.name.lower().endswith(_ARCHIVES):
        what = f"{requirement.name[:100]} has an address of its own"
        raise BadInputError(what, where=where, hint=_TO_INDEX)
    if requirement.marker and _EXTRA.search(str(requirement.marker)):
        what = f"{requirement.name} is for an extra, and there are no extras here"
        raise BadInputError(what, where=where, hint="leave out its marker, or the line")
    return requirement


def _named(found: re.Match[str]) -> str:
    """Return the PEP 508 form of pip's older `git+https://…@COMMIT#egg=NAME&subdirectory=FOLDER`."""
    others = [part for part in found[3].split("&") if part and not part.startswith("egg=")]
    egg = next((part[4:] for part in found[3].split("&") if part.startswith("egg=")), "")
    return f"{found[1] or egg} @ {found[2]}{'#' if others else ''}{'&'.join(others)}"


def _at_commit(requirement: Requirement, where: str) -> Requirement:
    """Return a requirement at a git commit. Raises BadInputError for another address, NoCommitError for no commit."""
    if (address := git_address(requirement.url or "")) is None:
        what = f"{requirement.name[:100]} has an unsupported address"
        raise BadInputError(what, where=where, hint=f"the form is {_AT_COMMIT.format(requirement.name[:100])}")
    if requirement.marker:
        what = f"{requirement.name[:100]} has both a commit and a marker"
        raise BadInputError(what, where=where, hint="leave out the marker, or the line")
    if not address.is_pinned:
        raise NoCommitError(requirement.name, address, where)
    requirement.name, requirement.url = canonicalize_name(requirement.name), f"{address}"
    return requirement


class NoCommitError(BadInputError):
    """A git requirement without a commit, which could mean different code tomorrow."""

    def __init__(self, name: str, address: GitAddress, where: str) -> None:
        what = f"{name[:100]} is not pinned to a commit (40 hexadecimal digits), so it may change tomorrow"
        super().__init__(what, where=where)
        self.name, self.address = name, address
        self.propose("COMMIT")

    def propose(self, commit: str) -> None:
        """Set the hint to the requirement with this commit."""
        self.hint = f"write {self.name} @ {replace(self.address, ref=commit)}"
