"""Which wheel of a package index serves the Python of the image, which is not the Python that runs this."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import BuildTag, NormalizedName, parse_wheel_filename

from lumiimg.errors import BadInputError, FailedError, one_line
from lumiimg.resolve.network.wheel_index import IndexFile, NotInIndexError, absent_statuses, normalised, read_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packaging.requirements import Requirement
    from packaging.version import Version

    from lumiimg.resolve.network.web import Web

METADATA_LIMIT_BYTES = 8 * 1024 * 1024
_REQUIREMENT_LIMIT = 4000  # fewer than the digits that Python makes a number of: 4300
_SHOWN = 8
_MACHINE = re.compile(r"[a-z0-9_]+")

# PEP 600; before it PEP 513, 571 and 599 gave these glibc versions names of their own.
_OLDEST_GLIBC_MINOR = {"x86_64": 5, "i686": 5}
_OLDEST_GLIBC_MINOR_ELSEWHERE = 17
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

# Only major.minor is known of the image's Python. Its patch release is a late one more often than the first:
# `>=3.9.1` is meant to let 3.9 in, and `<=3.11` does keep 3.11.7 out.
_PATCH = 99


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """The image's Python: CPython 3 with the GIL, on glibc 2.

    Raises BadInputError for any other.
    """

    version: tuple[int, int]
    glibc: tuple[int, int]
    machine: str = "x86_64"

    def __post_init__(self) -> None:
        if self.version[0] != 3 or self.glibc[0] != 2 or not _MACHINE.fullmatch(self.machine):
            raise BadInputError(f"wheels are chosen for CPython 3 and glibc 2 only, not for {self}")

    def __str__(self) -> str:
        """Return it for messages: `Python 3.12 with glibc 2.39`."""
        machine = "" if self.machine == "x86_64" else f" on {self.machine}"
        return f"Python {_dotted(self.version)} with glibc {_dotted(self.glibc)}{machine}"

    @property
    def full_version(self) -> str:
        """With a patch release: see `_PATCH`."""
        return f"{_dotted(self.version)}.{_PATCH}"

    def tags(self) -> tuple[Tag, ...]:
        """Return the tags of wheels that it can install, the most specific first.

        As `packaging.tags.sys_tags()` in the image would, with one difference: `linux_x86_64` comes after the manylinux
        tags, not before them, as it promises nothing of the glibc that it needs. Source: PEP 425, 600.
        """
        interpreter = f"cp{self.version[0]}{self.version[1]}"
        # `m`: built with pymalloc, which is no longer told apart from 3.8 on (bpo-36707)
        abi = f"{interpreter}m" if self.version < (3, 8) else interpreter
        platforms = tuple(self._platforms())
        return (
            *cpython_tags(self.version, [abi], platforms),
            *compatible_tags(self.version, interpreter, platforms),
        )

    def environment(self) -> dict[str, str]:
        """Return what markers are evaluated in (PEP 508): each variable, so that none is taken from this machine."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.full_version,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.full_version,
            "python_version": _dotted(self.version),
            "sys_platform": "linux",
        }

    def accepts(self, requires_python: str | None) -> bool:
        """Return whether a Requires-Python lets it in. One that cannot be read does, as with pip."""
        try:
            return SpecifierSet(requires_python or "").contains(self.full_version, prereleases=True)
        except ValueError:
            return True

    def _platforms(self) -> Iterator[str]:
        oldest = _OLDEST_GLIBC_MINOR.get(self.machine, _OLDEST_GLIBC_MINOR_ELSEWHERE)
        for minor in range(self.glibc[1], oldest - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.machine}"
        yield f"linux_{self.machine}"


class _Usable(NamedTuple):
    """A wheel that the target can install; the greatest is the best, as with pip (CandidateEvaluator._sort_key)."""

    is_offered: bool
    """Not yanked."""
    version: Version
    minus_rank: int
    build: BuildTag
    file: IndexFile


def offered_wheels(
    project: str, indexes: Sequence[str], target: PythonTarget, web: Web, *, every: bool = False
) -> Iterator[IndexFile]:
    """Yield the best wheel of each release that the target can install, the newest release first.

    Only the first index that has the project is asked: versions of two indexes are never mixed, so a CUDA torch of a
    general index cannot win over a ROCm one, nor a stranger's project over one of the same name. Pre-releases and
    withdrawn files are left out unless there is nothing else, or `every` one is asked for, because one is pinned.

    Raises FailedError if there is no such wheel: it says what there is. Source: PEP 425 (tags), 592 (yanked), 503
    (Requires-Python).
    """
    name = normalised(project)
    index, files = _first_with(name, indexes, web)
    ranks = {tag: rank for rank, tag in enumerate(target.tags())}
    usable = [found for file in files if (found := _usable(file, ranks)) and target.accepts(file.requires_python)]
    if not usable:
        raise FailedError(_why_none_is_usable(files, ranks, target), where=index)
    usual = [] if every else [found for found in usable if found.is_offered and not found.version.is_prerelease]
    done: set[Version] = set()
    for found in sorted(usual or usable, key=lambda found: found[:-1], reverse=True):
        if found.version not in done:
            done.add(found.version)
            yield found.file


def read_metadata(file: IndexFile, web: Web) -> tuple[Requirement, ...] | None:
    """Return what a wheel requires, from the metadata file that its index offers beside it (PEP 658).

    None if the index offers none, or names one that is not there. Raises FailedError if it has another digest than the
    index says, cannot be read, or is of another project or version.
    """
    if file.metadata_sha256 is None:
        return None
    url = f"{file.url}.metadata"
    absent = absent_statuses(url)
    answer = web.ask(url, limit_bytes=METADATA_LIMIT_BYTES, allow=absent)
    if answer.status in absent:
        return None
    if file.metadata_sha256 not in {True, hashlib.sha256(answer.body).hexdigest()}:
        raise FailedError("has another digest than the index says", where=url)
    try:
        # Not validated as a whole: many a wheel has a wrong field that is of no interest here.
        metadata = Metadata.from_email(answer.body, validate=False)
        name, version = normalised(metadata.name), metadata.version
        found = requirements_of(metadata)
    # AttributeError: packaging before 24.1, of a body that calls itself multipart
    except (ValueError, RecursionError, AttributeError, BadInputError) as error:
        raise FailedError(f"is no metadata of a wheel: {one_line(str(error))[:200]}", where=url) from error
    if (name, version) != (file.name, file.version):
        raise FailedError(f"is of {name} {version}, not of {file.name} {file.version}", where=url)
    return found


def requirements_of(metadata: Metadata) -> tuple[Requirement, ...]:
    """Return what a wheel requires. Raises ValueError for metadata that cannot be read, or has no bound."""
    found = tuple(metadata.requires_dist or ())
    if max(map(len, map(str, (*found, metadata.requires_python)))) > _REQUIREMENT_LIMIT:
        raise ValueError(f"a requirement has over {_REQUIREMENT_LIMIT} characters")
    return found


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _first_with(name: NormalizedName, indexes: Sequence[str], web: Web) -> tuple[str, tuple[IndexFile, ...]]:
    """Return the first index that has the project. One that cannot answer is an error, never a reason to go on."""
    for index in indexes:
        try:
            return index, read_index(name, index, web)
        except NotInIndexError:
            continue
    raise FailedError(f"no package index has {name}: {_some(indexes) or 'none is named'}")


def _usable(file: IndexFile, ranks: dict[Tag, int]) -> _Usable | None:
    """Return the file with its place among others, or None if no tag of it is one of the target's."""
    if not file.is_wheel:
        return None
    _, version, build, tags = parse_wheel_filename(file.filename)
    rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
    return None if rank is None else _Usable(file.yanked is None, version, -rank, build, file)


def _why_none_is_usable(files: Sequence[IndexFile], ranks: dict[Tag, int], target: PythonTarget) -> str:
    """Say for what else the newest version is there."""
    newest = max(file.version for file in files)
    wheels = [file for file in files if file.version == newest and file.is_wheel]
    none = f"no wheel of {files[0].name} {newest} for {target}"
    if not wheels:
        return f"{none}: the index has only its source archive"
    if shut_out := [file for file in wheels if _usable(file, ranks)]:
        return f"{none}: it requires Python {_some({one_line(file.requires_python or '')[:80] for file in shut_out})}"
    every = {tag for file in wheels for tag in parse_wheel_filename(file.filename)[3]}
    tags = {tag for tag in every if "linux" in tag.platform and tag.platform.endswith(f"_{target.machine}")} or every
    pythons = sorted({_python_of(tag) for tag in tags}, key=lambda word: (len(word), word))
    platforms = sorted({tag.platform.removesuffix(f"_{target.machine}") for tag in tags})
    return f"{none}: the index has {_some(pythons)} ({_some(platforms)})"


def _python_of(tag: Tag) -> str:
    """Return a tag's Python in one word: cp312, cp313t, cp38-abi3, py3."""
    if tag.abi == "none":
        return tag.interpreter
    return tag.abi if tag.abi.startswith(tag.interpreter) else f"{tag.interpreter}-{tag.abi}"


def _some(words: Iterable[str]) -> str:
    every = list(words)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{', '.join(every[:_SHOWN])}{more}"
