"""Which wheel of a package index serves the Python of the image, which is not the Python that runs this."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import BuildTag, NormalizedName, parse_wheel_filename
from packaging.version import Version

from lumiimg.errors import BadInputError, FailedError, one_line
from lumiimg.resolve.network.wheel_index import IndexFile, NotInIndexError, absent_statuses, normalised, read_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.resolve.network.web import Web

_METADATA_LIMIT_BYTES = 8 * 1024 * 1024
_REQUIREMENT_LIMIT = 4000  # fewer than the digits that Python makes a number of: 4300
_SHOWN = 8
_NEIGHBOURS = 3
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


@dataclass(frozen=True, slots=True)
class Wheel:
    """The wheel that was chosen."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str | None
    metadata_sha256: str | Literal[True] | None
    """As of IndexFile."""
    index: str
    because: str
    """Why this file: tag and index, in one line."""


@dataclass(frozen=True, slots=True)
class WheelMetadata:
    """What a wheel says of itself, as far as it matters for choosing others."""

    requires_dist: tuple[Requirement, ...]
    requires_python: SpecifierSet | None


class _Usable(NamedTuple):
    """A wheel that the target can install; the greatest is the best, as with pip (CandidateEvaluator._sort_key)."""

    is_offered: bool
    """Not yanked."""
    version: Version
    minus_rank: int
    build: BuildTag
    file: IndexFile


def choose_wheel(requirement: Requirement | str, indexes: Sequence[str], target: PythonTarget, web: Web) -> Wheel:
    """Return the newest wheel that fits the requirement and the target, of the first index that has the project.

    Only that index is asked: versions of two indexes are never mixed, so a CUDA torch of a general index cannot win
    over a ROCm one, nor a stranger's project over one of the same name. A local version is matched if it is asked for
    (`==2.9.1+rocm6.4`) and allowed if it is not (`==2.9.1`). Pre-releases and withdrawn files are taken only if the
    requirement names them. Extras, and whether the marker holds, are the caller's to decide.

    Raises BadInputError if the requirement is none or brings its own address, FailedError if there is no such wheel:
    it says what there is. Source: PEP 440 (versions), 425 (tags), 592 (yanked), 503 (Requires-Python).
    """
    wanted = _requirement(requirement)
    name = normalised(wanted.name)
    index, files = _first_with(name, indexes, web)
    fitting = _fitting(files, wanted.specifier)
    if not fitting:
        raise FailedError(_why_nothing_fits(files, name, wanted.specifier), where=index)
    ranks = {tag: rank for rank, tag in enumerate(target.tags())}
    usable = [found for file in fitting if (found := _usable(file, ranks)) and target.accepts(file.requires_python)]
    if not usable:
        raise FailedError(_why_none_is_usable(fitting, ranks, target), where=index)
    return _chosen(max(usable, key=lambda found: found[:-1]), index, target)


def offered_wheels(
    project: str, indexes: Sequence[str], target: PythonTarget, web: Web, *, every: bool = False
) -> Iterator[Wheel]:
    """Yield the best wheel of each release that the target can install, the newest release first.

    Of the first index that has the project; pre-releases and withdrawn files are left out unless there is nothing else,
    or `every` one is asked for, because one is pinned.
    Raises as `choose_wheel` does.
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
            yield _chosen(found, index, target)


def _chosen(best: _Usable, index: str, target: PythonTarget) -> Wheel:
    file, name = best.file, best.file.name
    tags = target.tags()
    because = f"tag {tags[-best.minus_rank]} serves {target}; {index} is the first index that has {name}"
    if file.yanked is not None:
        because += f"; it was withdrawn ({one_line(file.yanked) or 'no reason given'}), but is pinned"
    return Wheel(
        name=name,
        version=str(file.version),
        filename=file.filename,
        url=file.url,
        sha256=file.sha256,
        metadata_sha256=file.metadata_sha256,
        index=index,
        because=because,
    )


def read_metadata(file: IndexFile | Wheel, web: Web) -> WheelMetadata | None:
    """Return what a wheel requires, from the metadata file that its index offers beside it (PEP 658).

    None if the index offers none, or names one that is not there. Raises FailedError if it has another digest than the
    index says, cannot be read, or is of another project or version.
    """
    if file.metadata_sha256 is None:
        return None
    url = f"{file.url}.metadata"
    absent = absent_statuses(url)
    answer = web.ask(url, limit_bytes=_METADATA_LIMIT_BYTES, allow=absent)
    if answer.status in absent:
        return None
    if file.metadata_sha256 not in {True, hashlib.sha256(answer.body).hexdigest()}:
        raise FailedError("has another digest than the index says", where=url)
    try:
        # Not validated as a whole: many a wheel has a wrong field that is of no interest here.
        metadata = Metadata.from_email(answer.body, validate=False)
        name, version = normalised(metadata.name), metadata.version
        found = WheelMetadata(tuple(metadata.requires_dist or ()), metadata.requires_python)
        too_long = max(map(len, map(str, (*found.requires_dist, found.requires_python)))) > _REQUIREMENT_LIMIT
    # AttributeError: packaging before 24.1, of a body that calls itself multipart
    except (ValueError, RecursionError, AttributeError, BadInputError) as error:
        raise FailedError(f"is no metadata of a wheel: {one_line(str(error))[:200]}", where=url) from error
    if too_long:
        raise FailedError(
            f"is no metadata of a wheel: a requirement has over {_REQUIREMENT_LIMIT} characters", where=url
        )
    if (name, str(version)) != (file.name, str(file.version)):
        raise FailedError(f"is of {name} {version}, not of {file.name} {file.version}", where=url)
    return found


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _requirement(requirement: Requirement | str) -> Requirement:
    text = str(requirement)
    if len(text) > _REQUIREMENT_LIMIT:
        raise BadInputError(f"a requirement is longer than {_REQUIREMENT_LIMIT} characters: {text[:80]!r}…")
    try:
        wanted = Requirement(text)
        for part in wanted.specifier:
            Version(part.version.removesuffix(".*"))  # `===` takes any text, which no wheel can have for a version
    except (ValueError, RecursionError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise BadInputError(f"{text!r} is no requirement: {why}", hint="for example torch==2.9.1+rocm6.4") from error
    if wanted.url is not None:
        raise BadInputError(f"{text!r} brings its own address, so no index is asked", hint="name a version")
    return wanted


def _first_with(name: NormalizedName, indexes: Sequence[str], web: Web) -> tuple[str, tuple[IndexFile, ...]]:
    """Return the first index that has the project. One that cannot answer is an error, never a reason to go on."""
    for index in indexes:
        try:
            return index, read_index(name, index, web)
        except NotInIndexError:
            continue
    raise FailedError(f"no package index has {name}: {_some(indexes) or 'none is named'}")


def _fitting(files: Sequence[IndexFile], specifier: SpecifierSet) -> list[IndexFile]:
    asked_for_prereleases = bool(specifier.prereleases)
    versions = {file.version for file in files}
    fitting = {version for version in versions if specifier.contains(version, prereleases=asked_for_prereleases)}
    pinned = any(part.operator in {"==", "==="} and not part.version.endswith(".*") for part in specifier)
    return [file for file in files if file.version in fitting and (file.yanked is None or pinned)]


def _usable(file: IndexFile, ranks: dict[Tag, int]) -> _Usable | None:
    """Return the file with its place among others, or None if no tag of it is one of the target's."""
    if not file.is_wheel:
        return None
    _, version, build, tags = parse_wheel_filename(file.filename)
    rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
    return None if rank is None else _Usable(file.yanked is None, version, -rank, build, file)


def _why_nothing_fits(files: Sequence[IndexFile], name: str, specifier: SpecifierSet) -> str:
    """Say which versions there are instead."""
    asked = f"no {name} {specifier}" if len(specifier) else f"no release of {name}"
    held_back = sorted({file.version for file in files if specifier.contains(file.version, prereleases=True)})
    if held_back:
        kinds = {file.version: "withdrawn" if file.yanked is not None else "a pre-release" for file in files}
        words = [f"{version} ({kinds[version]})" for version in held_back[-_SHOWN:]]
        return f"{asked} but {_some(words)}, taken only if named: {name}=={held_back[-1]}"
    versions = sorted({file.version for file in files})
    named = [Version(part.version.removesuffix(".*")) for part in specifier]
    place = min((bisect_left(versions, version) for version in named), default=len(versions))
    nearest = versions[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]
    return f"{asked}: the nearest versions that the index has are {_some(map(str, nearest))}"


def _why_none_is_usable(fitting: Sequence[IndexFile], ranks: dict[Tag, int], target: PythonTarget) -> str:
    """Say for what else the newest version that fits is there."""
    newest = max(file.version for file in fitting)
    wheels = [file for file in fitting if file.version == newest and file.is_wheel]
    none = f"no wheel of {fitting[0].name} {newest} for {target}"
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
