"""What a package index has of a release, as a row of a layer, by its rule `[unlisted]` (docs/extend/layer.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from lumiimg.catalog.age import today
from lumiimg.catalog.layers import PIN, Layer, Release
from lumiimg.catalog.needs import NO_VERSION, Need, version_of
from lumiimg.catalog.templates import expand, placeholders
from lumiimg.catalog.unlisted import FILE, METADATA, PROJECT, ReadFact, Unlisted
from lumiimg.errors import FailedError
from lumiimg.fetch.deadline import Bounds
from lumiimg.fetch.http import require_tls_or_digest
from lumiimg.fetch.package_index import IndexFile, metadata_of, project_page
from lumiimg.resolve.source_archive import ChunkReader, read_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.fetch.http import Http

_VALUE = re.compile(r"[!-~](?:[ -~]{0,398}[!-~])?")
"""Of a fact: what is printed, and no more than anybody writes."""
_CP = re.compile(r"cp3(\d{1,2})")
_GLIBC = re.compile(r"manylinux_2_(\d{1,3})_x86_64")
_OF_LINUX = re.compile(r".*-(any|.*linux.*x86_64.*)")
_ROCM = re.compile(r"rocm([0-9]+(?:\.[0-9]+){1,2})")
_MOST_TRIED = 4
"""Versions of a companion, the newest first."""
_SDIST_BOUNDS = (192 << 20, 120.0)
"""Bytes and seconds: vLLM's have 47 MB."""
_UNPACKED_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ProjectPages:
    """The pages of the projects that a rule names, as an index has them at one moment."""

    rule: Unlisted
    files: Mapping[str, tuple[IndexFile, ...]]
    """By project, its companions among them."""

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

    def newest(self, wanted: SpecifierSet) -> Version | None:
        """Return the newest version that fits: a good one, where there is one."""
        good = wanted.filter(self.good_versions)
        return next(good, None) or next(wanted.filter(self.versions, prereleases=True), None)


def read_pages(rule: Unlisted, index: str, web: Http) -> ProjectPages:
    """Return the pages of a rule's projects. Raises as `project_page` does."""
    names = (*rule.projects, *rule.companions)
    return ProjectPages(rule, {name: project_page(index, name, web) for name in names})


def read_releases(layer: Layer, version: Version, pages: ProjectPages, web: Http) -> tuple[Release, ...]:
    """Return the rows of a version: of each project that has it one, of wheels for ROCm one for each ROCm.

    Raises FailedError, MissingHereError where what a file says of it cannot be had.
    """
    rule = pages.rule
    if not rule.range.contains(version, prereleases=True):
        raise FailedError(f"how {version} is read is not known (only {rule.range})")
    builds = [(project, files) for project in rule.projects for files in _builds(pages.files[project], version, rule)]
    if not builds:
        kind = "source archive" if rule.read == "sdist" else "wheel for Linux"
        raise FailedError(f"the index has {version}, and no {kind} of it")
    return tuple(_release(layer, version, project, files, pages, web) for project, files in builds)


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
    layer: Layer, version: Version, project: str, files: Sequence[IndexFile], pages: ProjectPages, web: Http
) -> Release:
    rule = pages.rule
    chosen = next((file for file in files if file.yanked is None), files[0])
    texts = _texts(chosen, project, rule, web)
    facts = {fact.name: value for fact in rule.facts if (value := value_of(fact, texts)) is not None}
    companions, doubts = _companions(chosen, project, pages, web)
    facts |= {"VERSION": str(version), "FOUND": str(chosen.version)} | companions
    has, arguments = filled(rule.has, facts), filled(rule.arguments, facts)
    uploaded = max((file.uploaded for file in files if file.uploaded), default=None)
    if texts.get(METADATA) == "":
        doubts.append("its index has no METADATA beside its wheel")
    doubts += [f"it does not say which {_component(text)} it is made for" for text in _unsaid(rule.expects, facts)]
    for name in rule.arguments.keys() - arguments.keys():
        doubts.append(f"it does not say which {name} it takes: that of the layer is {layer.arguments[name].default}")
    if chosen.yanked is not None:
        reason = f": {chosen.yanked[:200]}" if chosen.yanked else ""
        doubts.insert(0, f"its project has withdrawn it (yanked){reason}")
    said = [name for name in texts if name not in {METADATA, PROJECT, FILE}]
    where = f" ({', '.join(said)})" if said else " (METADATA)" if METADATA in texts else ""
    host = urlsplit(rule.index).hostname or rule.index if rule.index else "the package index"
    gpus = next(expanded([rule.gpus], facts), "") if rule.gpus else ""
    release = Release(
        version=str(version),
        requires=(*needs_of(rule.requires, facts), *_of_tags(files)),
        expects=tuple(needs_of(rule.expects, facts)),
        has=has,
        arguments=arguments,
        wheels=tuple(pin for pin in expanded(rule.wheels, facts) if PIN.fullmatch(pin)),
        indexes=tuple(expanded(rule.indexes, facts)),
        source=f"{chosen.name}{where}, as {host} has it",
        date=uploaded,
        without=rule.without,
        unused=rule.unused,
        gpus=tuple(gpu for gpu in gpus.split(";") if re.fullmatch(r"gfx[0-9a-z-]{2,20}", gpu)),
        # a clock that is behind would make it older than the file
        read=max(filter(None, (today(), uploaded))),
        doubts=tuple(doubts),
    )
    return _like_rows(release, layer, rule)


def _texts(file: IndexFile, project: str, rule: Unlisted, web: Http) -> dict[str, str]:
    """Return the files that facts are read from, by name."""
    names = {name for fact in rule.facts for name in fact.files} - {PROJECT, FILE}
    texts = {PROJECT: project, FILE: file.name}
    if rule.read == "sdist" and names:
        require_tls_or_digest(file.url)
        with web.open(file.url, Bounds(*_SDIST_BOUNDS), {}) as stream:
            return texts | read_texts(ChunkReader(stream.chunks), names.__contains__, _UNPACKED_LIMIT_BYTES, file.name)
    if METADATA in names:
        texts[METADATA] = metadata_of(file, web).partition("\n\n")[0]
    return texts


def value_of(fact: ReadFact, texts: Mapping[str, str]) -> str | None:
    """Return what the first of its files says; of several versions the oldest."""
    for name in fact.files:
        if found := [value for value in fact.pattern.findall(texts.get(name, "")) if _VALUE.fullmatch(value)]:
            return str(min(found, key=lambda value: version_of(value) or NO_VERSION))
    return None


def _companions(file: IndexFile, project: str, pages: ProjectPages, web: Http) -> tuple[dict[str, str], list[str]]:
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
        requirement = _requirement(text) if key == "Requires-Dist" else None
        if requirement and requirement.name == project and str(requirement.specifier).startswith("=="):
            return requirement.specifier.contains(version, prereleases=True)
    return False


def _like_rows(release: Release, layer: Layer, rule: Unlisted) -> Release:
    """Return a release with what a row has beside that agrees in the facts that the rule reads (a torch's ROCm)."""
    facts = {fact.name for fact in rule.facts}
    read = [name for name, template in rule.has.items() if facts & {*placeholders(template)}]
    if not read:
        return release
    same = (row for row in layer.releases if all(row.has.get(name) == release.has.get(name) for name in read))
    if (row := next(same, None)) is not None:
        return replace(release, has={**row.has, **release.has})
    of = " and ".join(f"{name} {release.has.get(name, '(not known)')}" for name in read)
    return replace(release, doubts=(*release.doubts, f"what else its wheel brings is not known, as no row has {of}"))


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
        if (requirement := _requirement(text)) is not None:
            yield Need(requirement.name, requirement.specifier)


def _requirement(text: str) -> Requirement | None:
    """Return a requirement; None for what is not one, as a stranger's file may say anything."""
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):  # of a marker in thousands of brackets
        return None


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
