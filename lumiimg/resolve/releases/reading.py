"""What a package index has of a release, as a row of a layer: by the rule of its `[unlisted]`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from lumiimg.catalog.layers import PIN, Layer, Release
from lumiimg.catalog.needs import Need, version_of
from lumiimg.catalog.templates import expand, placeholders
from lumiimg.catalog.unlisted import FILE, FOLDER, METADATA, PROJECT, ReadFact, Unlisted
from lumiimg.errors import FailedError
from lumiimg.resolve.network.distribution import files_of, metadata_of
from lumiimg.resolve.network.index import IndexFile, folders_in, project_page

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.resolve.network.web import Web

_VALUE = re.compile(r"[!-~](?:[ -~]{0,398}[!-~])?")
"""Of a fact: what is printed, and no more than anybody writes."""
_CP = re.compile(r"cp3(\d{1,2})")
_GLIBC = re.compile(r"manylinux_2_(\d{1,3})_x86_64")
_OF_LINUX = re.compile(r".*-(any|.*linux.*x86_64.*)")
_MOST_PYTHONS = 3
_MOST_TRIED = 4
"""Versions of a companion, the newest first."""
_MOST_FOLDERS = 8
_ROCM = re.compile(r"rocm([0-9]+(?:\.[0-9]+){1,2})")


@dataclass(frozen=True, slots=True)
class ProjectPages:
    """The pages of the projects that a rule names, as an index has them at one moment."""

    rule: Unlisted
    files: Mapping[str, tuple[IndexFile, ...]]
    """By project, its companions among them."""
    folder: str = ""
    """Of an index that has several."""

    @property
    def versions(self) -> list[Version]:
        """All versions that the index has, the newest first, without local parts."""
        return self._sorted(with_yanked=True)

    @property
    def good_versions(self) -> list[Version]:
        """Those of them that are final, and not withdrawn (PEP 592)."""
        return [version for version in self._sorted(with_yanked=False) if not version.is_prerelease]

    def _sorted(self, *, with_yanked: bool) -> list[Version]:
        files = (file for name in self.rule.projects for file in self.files[name])
        found = {Version(file.version.public) for file in files if with_yanked or file.yanked is None}
        return sorted(found, reverse=True)

    def newest(self, wanted: SpecifierSet) -> list[Version]:
        """Return the newest that fits, and the newest for each other Python; of none that is good, another."""
        found = [*wanted.filter(self.good_versions)] or [*wanted.filter(self.versions, prereleases=True)][:1]
        pythons: dict[Version, set[tuple[str, str]]] = {version: set() for version in found}
        for name in self.rule.projects if len(found) > 1 else ():
            for file in self.files[name]:
                pythons.get(Version(file.version.public), set()).add(
                    (file.requires_python, file.tags.partition("-")[0])
                )
        newest: dict[frozenset[tuple[str, str]], Version] = {}
        for version in found:
            newest.setdefault(frozenset(pythons[version]), version)
        return [*newest.values()][:_MOST_PYTHONS]


def read_pages(rule: Unlisted, index: str, web: Web) -> ProjectPages:
    """Return the pages of a rule's projects. Raises as `project_page` does."""
    names = (*rule.projects, *rule.companions)
    return ProjectPages(rule, {name: project_page(index, name, web) for name in names})


def read_elsewhere(
    layer: Layer, version: Version, rule: Unlisted, index: str, web: Web, today: dt.date
) -> tuple[Release, ...]:
    """Return the rows that another place has of a version; none where it has none. Raises as `read_releases`."""
    folders = folders_in(index, web) if rule.folders else ("",)
    wanted = [name for name in folders if not rule.folders or rule.folders.fullmatch(name)]
    found: list[Release] = []
    for folder in wanted[:_MOST_FOLDERS]:
        at = f"{index.rstrip('/')}/{folder}" if folder else index
        files = {name: project_page(at, name, web) for name in rule.projects}
        if any(_is_build_of(file, version, rule) for page in files.values() for file in page):
            files |= {name: project_page(at, name, web) for name in rule.companions}
            found += read_releases(layer, version, ProjectPages(rule, files, folder), web, today)
    return tuple(found)


def read_releases(layer: Layer, version: Version, pages: ProjectPages, web: Web, today: dt.date) -> tuple[Release, ...]:
    """Return the rows of a version: of each project that has it one, of local versions each.

    Raises FailedError, MissingHereError where what a file says of it cannot be had.
    """
    return tuple(
        _as_alike(_release(version, project, files, pages, web, today), layer, pages.rule)
        for project in pages.rule.projects
        for files in _builds(pages.files[project], version, pages.rule)
    )


def _builds(files: Sequence[IndexFile], wanted: Version, rule: Unlisted) -> Iterator[tuple[IndexFile, ...]]:
    """Yield the files of each build of a version: the newest, which may be a later one (`.postN`); of wheels for ROCm
    in local versions, each ROCm.
    """
    fits = [file for file in files if _is_build_of(file, wanted, rule) and bool(file.tags) == (rule.read != "sdist")]
    for kind in sorted({file.version for file in fits}, reverse=True):
        yield tuple(file for file in fits if file.version == kind)
        if rule.read != "local-version":
            return


def _is_build_of(file: IndexFile, wanted: Version, rule: Unlisted) -> bool:
    if file.tags and _OF_LINUX.fullmatch(file.tags) is None:
        return False
    if rule.read == "local-version":
        return Version(file.version.public) == wanted and _ROCM.fullmatch(file.version.local or "") is not None
    same = file.version.release == wanted.release and file.version.epoch == wanted.epoch
    is_later = rule.read == "metadata" and wanted.post is None and file.version.pre == wanted.pre is None
    return file.version == wanted or (same and is_later and file.version.dev is None)


def _release(
    version: Version, project: str, files: Sequence[IndexFile], pages: ProjectPages, web: Web, today: dt.date
) -> Release:
    rule = pages.rule
    chosen = next((file for file in files if file.yanked is None), files[0])
    texts = _texts(chosen, project, rule, web)
    facts = {fact.name: value for fact in rule.facts if (value := value_of(fact, texts)) is not None}
    companions, doubts = _companions(chosen, project, pages, web)
    facts |= {"VERSION": str(version), "FOUND": str(chosen.version), FOLDER: pages.folder} | companions
    uploaded = max((file.uploaded for file in files if file.uploaded), default=None)
    doubts += [f"it does not say which {_component(text)} it is made for" for text in _unsaid(rule.expects, facts)]
    if chosen.yanked is not None:
        doubts.insert(0, f"its project has withdrawn it (yanked){_reason(chosen.yanked)}")
    said = [name for name in texts if name not in {METADATA, PROJECT, FILE}]
    where = f" ({', '.join(said)})" if said else " (METADATA)" if METADATA in texts else ""
    return Release(
        version=str(version),
        requires=(*needs_of(rule.requires, facts), *_of_tags(files)),
        expects=tuple(needs_of(rule.expects, facts)),
        has=filled(rule.has, facts),
        arguments=filled(rule.arguments, facts),
        wheels=tuple(pin for pin in expanded(rule.wheels, facts) if PIN.fullmatch(pin)),
        indexes=tuple(expanded(rule.indexes, facts)),
        source=f"{chosen.name}{where}, as {_named(rule)} has it",
        date=uploaded,
        without=rule.without,
        unused=rule.unused,
        gpus=_gpus(rule, facts),
        # a clock that is behind would make it older than the file
        read=max(filter(None, (today, uploaded))),
        doubts=tuple(doubts),
        status="read",
    )


def _companions(file: IndexFile, project: str, pages: ProjectPages, web: Web) -> tuple[dict[str, str], list[str]]:
    """Return the versions of the companions that belong to a file, and what is in doubt about them."""
    found, doubts = dict[str, str](), list[str]()
    for name in pages.rule.companions:
        builds = {one.version: one for one in pages.files[name] if one.version.local == file.version.local and one.tags}
        newest = sorted(builds, reverse=True)
        belonging = (
            one
            for one in newest[:_MOST_TRIED]
            if _requires_exactly(metadata_of(builds[one], web), project, file.version)
        )
        if (version := next(belonging, None)) is not None:
            found[name] = str(version)
        elif newest:
            found[name] = str(newest[0])
            doubts.append(f"no {name} names this {project}, so its newest is taken")
        else:
            doubts.append(f"its index has no {name} that goes with it")
    return found, doubts


def _requires_exactly(metadata: str, project: str, version: Version) -> bool:
    for line in metadata.partition("\n\n")[0].splitlines():
        key, _, text = line.partition(": ")
        try:
            requirement = Requirement(text) if key == "Requires-Dist" else None
        except (InvalidRequirement, RecursionError):  # of a marker in thousands of brackets
            continue
        if requirement and requirement.name == project and str(requirement.specifier).startswith("=="):
            return requirement.specifier.contains(version, prereleases=True)
    return False


def _as_alike(release: Release, layer: Layer, rule: Unlisted) -> Release:
    """Return a release with what a row has that is alike, where it does not say that itself."""
    if rule.alike is None:
        return release
    same = release.has.get(rule.alike)
    row = next((row for row in layer.releases if row.has.get(rule.alike) == same), None)
    if row is None:
        doubt = f"what else its wheel brings is not known, as no row has {rule.alike} {same or '(not known)'}"
        return replace(release, doubts=(*release.doubts, doubt))
    return replace(release, has={**row.has, **release.has})


def _texts(file: IndexFile, project: str, rule: Unlisted, web: Web) -> dict[str, str]:
    """Return the files that facts are read from, by name."""
    names = {name for fact in rule.facts for name in fact.files} - {PROJECT, FILE}
    texts = {PROJECT: project, FILE: file.name}
    if rule.read == "sdist":
        return texts | (files_of(file, names, web) if names else {})
    if names & {METADATA}:
        texts[METADATA] = metadata_of(file, web).partition("\n\n")[0]
    return texts


def value_of(fact: ReadFact, texts: Mapping[str, str]) -> str | None:
    """Return what the first of its files says; of several versions the oldest."""
    for name in fact.files:
        found = [value for value in fact.pattern.findall(texts.get(name, "")) if _VALUE.fullmatch(value)]
        if fact.packed:
            found = [rocm for value in found if (rocm := unpacked_rocm(value)) is not None]
        if found:
            return str(min(found, key=_order))
    return None


def _named(rule: Unlisted) -> str:
    return urlsplit(rule.index).hostname or rule.index if rule.index else "the package index"


def unpacked_rocm(digits: str) -> str | None:
    """Return the release of ROCm that digits alone stand for: 721 is 7.2, 100 is 10.0.

    None where it may be either of two: 714 is 7.14, which there is, or the fourth patch of 7.1.
    """
    if digits.startswith("1"):
        return f"{digits[:2]}.{digits[2]}" if len(digits) in {3, 4} else None
    if len(digits) not in {2, 3} or (digits[1] == "1" and digits[2:] > "1"):
        return None
    return f"{digits[0]}.{digits[1]}"


def _order(value: str) -> Version:
    return version_of(value) or Version("0")


def expanded(templates: Iterable[str], facts: Mapping[str, str]) -> Iterator[str]:
    """Yield templates with their facts; one whose fact is not known is left out."""
    for text in templates:
        if all(name in facts for name in placeholders(text)):
            yield expand(text, facts)


def _unsaid(templates: Iterable[str], facts: Mapping[str, str]) -> Iterator[str]:
    yield from (text for text in templates if not all(name in facts for name in placeholders(text)))


def _component(template: str) -> str:
    return re.split(r"[=<>!~{]", template, maxsplit=1)[0]


def filled(templates: Mapping[str, str], facts: Mapping[str, str]) -> dict[str, str]:
    """Return values, as `expanded` yields them."""
    return {name: text for name, template in templates.items() for text in expanded([template], facts)}


def needs_of(templates: Iterable[str], facts: Mapping[str, str]) -> Iterator[Need]:
    """Yield needs, with facts in their places; one whose fact is not known is left out."""
    for text in expanded(templates, facts):
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):
            continue  # what a stranger's file says is not a version
        yield Need(requirement.name, requirement.specifier)


def _gpus(rule: Unlisted, facts: Mapping[str, str]) -> tuple[str, ...]:
    found = next(expanded([rule.gpus], facts), "") if rule.gpus else ""
    return tuple(gpu for gpu in found.split(";") if re.fullmatch(r"gfx[0-9a-z-]{2,20}", gpu))


def _of_tags(files: Sequence[IndexFile]) -> Iterator[Need]:
    """Yield the Python and the glibc that files are for: Requires-Python, and the tags of wheels (PEP 425, PEP 600)."""
    try:
        python = SpecifierSet(files[0].requires_python)
    except InvalidSpecifier:
        python = SpecifierSet()
    tags = [file.tags for file in files if file.tags]
    pythons = [int(found[1]) for tag in tags if (found := _CP.match(tag)) and "abi3" not in tag]
    if pythons and len(pythons) == len(tags):
        able = [minor for minor in pythons if python.contains(f"3.{minor}")] or pythons
        others = [str(spec) for spec in python if spec.operator != ">="]
        python = SpecifierSet(",".join([f">=3.{min(able)},<3.{max(able) + 1}", *others]))
    if python:
        yield Need("python", python)
    glibcs = [min(map(int, floors)) for tag in tags if (floors := _GLIBC.findall(tag))]
    if glibcs and len(glibcs) == len(tags):
        yield Need("glibc", SpecifierSet(f">=2.{max(glibcs)}"))


def _reason(yanked: str) -> str:
    return f": {yanked[:200]}" if yanked else ""


def no_files(version: Version, rule: Unlisted) -> FailedError:
    """Return why a version that the index has cannot be read."""
    kind = "source archive" if rule.read == "sdist" else "wheel for Linux"
    return FailedError(f"the index has {version}, and no {kind} of it")
