"""Releases without a row: read from a package index by the layer's rule `[unlisted]` (docs/extend/layer.md), if one
answers; else derived from the nearest row, which is a doubt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from lumiimg.catalog.needs import NO_VERSION, Need, exact_version, version_of
from lumiimg.catalog.releases import FILE, METADATA, PIN, PROJECT, IndexFact, IndexRule, Release, expand, placeholders
from lumiimg.core.errors import FailedError, MissingHereError
from lumiimg.core.files import today
from lumiimg.fetch.http import Bounds
from lumiimg.fetch.mirrors import general_index
from lumiimg.fetch.package_index import IndexFile, metadata_of, project_page
from lumiimg.resolve.context import FoundReleases
from lumiimg.resolve.requirements import parsed
from lumiimg.resolve.source_archive import read_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.catalog.layers import Layer
    from lumiimg.fetch.http import Http
    from lumiimg.resolve.context import PlanContext

_NEAREST = 3
_VALUE = re.compile(r"[!-~](?:[ -~]{0,398}[!-~])?")
"""Valid value of a fact: printable, and of reasonable length."""
_CP = re.compile(r"cp3(\d{1,2})")
_GLIBC = re.compile(r"manylinux_2_(\d{1,3})_x86_64")
_OF_LINUX = re.compile(r".*-(any|.*linux.*x86_64.*)")
_ROCM = re.compile(r"rocm([0-9]+(?:\.[0-9]+){1,2})")
_MAX_TRIES = 4
"""Most versions of a companion that are tried, newest first."""
_SDIST_BOUNDS = (192 << 20, 120.0)
"""Limits in bytes and seconds; source archives of vLLM have 47 MB."""
_UNPACKED_LIMIT_BYTES = 1 << 30
_IN_MEMORY_BYTES = 8 << 20


def find_releases(layer: Layer, wanted: SpecifierSet, context: PlanContext) -> FoundReleases:
    """Return what is known of wanted versions of a layer that no row has; for a range, of the newest."""
    rule, exact = layer.unlisted, exact_version(wanted)
    why = "nothing is known about this release"
    if rule is not None:
        try:
            return _read(layer, rule, wanted, context)
        except (MissingHereError, FailedError) as error:
            why = f"what it requires could not be read ({error})"
    if exact is None or not (layer.releases if rule else _can_be_named(layer, exact)):
        return FoundReleases()
    return FoundReleases((derived_release(layer, exact, why),))


def _read(layer: Layer, rule: IndexRule, wanted: SpecifierSet, context: PlanContext) -> FoundReleases:
    """Return what the index has of the wanted versions. Raises FailedError, MissingHereError."""
    if context.web is None:
        raise MissingHereError("there is no network")
    if context.web.offline:
        raise MissingHereError("--offline forbids a request to the package index")
    index = context.mirrors.rewrite(rule.index) if rule.index else general_index(context.mirrors)
    pages = read_pages(rule, index, context.web)
    versions = pages.versions()
    if not versions:
        raise FailedError(f"the package index has no {' or '.join(rule.projects)}")
    if (version := pages.newest(wanted)) is not None:
        context.on_line(f"reading {layer.name} {version} in the package index")
        return FoundReleases(read_releases(layer, version, pages, context.web))
    exact = exact_version(wanted)
    near = sorted(versions, key=lambda one: _distance(one, exact)) if exact else versions
    return FoundReleases((), f"{layer.name} {', '.join(map(str, near[:_NEAREST]))}")


def derived_release(layer: Layer, version: Version, why: str) -> Release:
    """Return a release that could not be read, modelled on the nearest row: it expects most of what that requires."""
    default = layer.arguments["VERSION"].default
    release = Release(version=f"{version}", source=layer.source, derived=default, doubts=(why,))
    if not layer.releases:
        return release
    # a set of wheels shows nothing about a build from source
    alike = [row for row in layer.releases if bool(row.wheels) == bool(layer.unlisted and layer.unlisted.wheels)]
    rows = alike if layer.unlisted else layer.releases
    near = min(rows or layer.releases, key=lambda row: _distance(version_of(row.version) or NO_VERSION, version))
    if (rule := layer.unlisted) is not None:
        arguments = {name: near.arguments[name] for name in near.arguments if name in rule.arguments}
        # a fact is known only of the release that states it, so entries with other facts are left out
        facts = {fact: value for name, value in arguments.items() for fact in placeholders(rule.arguments[name])[:1]}
        release = row_of(rule, facts | {"VERSION": f"{version}", "FOUND": f"{version}"}, near.source)
    # a newer release needs no older Python or glibc; an older one may accept one that the row does not
    is_newer = version > (version_of(near.version) or NO_VERSION)
    rising = {"python", "glibc"} if is_newer else set[str]()
    hard = [need for need in near.requires if need.component in rising or not need.versions]
    floors = [floor for need in near.expects if (floor := _floor(need))] if is_newer else []
    return replace(
        release,
        requires=(*release.requires, *hard, *floors),
        expects=(*(need for need in near.requires if need not in hard), *near.expects),
        source=near.source,
        date=near.date,
        derived=near.version,
        doubts=(f"{why}; it is planned like {near.version}",),
    )


def _floor(need: Need) -> Need | None:
    """Return a need's minor release as its lower limit: `rocm>=7.14` for `rocm==7.14.*`; None without one."""
    lowest = [spec.version for spec in need.versions if spec.operator in {">=", "==", "~="}]
    least = version_of(lowest[0].removesuffix(".*")) if lowest else None
    return Need(need.component, SpecifierSet(f">={least.major}.{least.minor}")) if least else None


def _can_be_named(layer: Layer, version: Version) -> bool:
    """Return whether the sources of a layer can be fetched in a version that no row has."""
    argument = layer.arguments.get("VERSION")
    if argument is None or any(release.wheels for release in layer.releases):
        return False
    return argument.pattern is None or argument.pattern.fullmatch(f"{version}") is not None


def _distance(version: Version, wanted: Version) -> tuple[float, ...]:
    """Return a sort key for the distance to another version: the first number that differs; of equally distant ones,
    the earlier first, and of these the latest. Versions like b1 come last.
    """
    ours, theirs = ((*one.release, 0, 0, 0, 0)[:4] for one in (version, wanted))
    at = next((at for at in range(4) if ours[at] != theirs[at]), 4)
    apart = [float(abs(mine - other)) for mine, other in zip(ours[: at + 1], theirs, strict=False)]
    behind = [float(part if version > wanted else -part) for part in ours[at + 1 :]]
    later, unusual = float(version > wanted), float(version.is_prerelease or version.is_postrelease)
    return (*apart, later, *behind, unusual)


# -- as an index has it --


@dataclass(frozen=True, slots=True)
class ProjectPages:
    """The pages of the projects that a rule names, as an index has them at one moment."""

    rule: IndexRule
    files: Mapping[str, tuple[IndexFile, ...]]
    """Files by project, including its companions."""

    def versions(self, *, good: bool = False) -> list[Version]:
        """Return the versions, newest first, without local parts; `good`: final, and not withdrawn (PEP 592)."""
        files = [file for name in self.rule.projects for file in self.files[name]]
        if good:
            files = [file for file in files if file.yanked is None and not file.version.is_prerelease]
        return sorted({Version(file.version.public) for file in files}, reverse=True)

    def newest(self, wanted: SpecifierSet) -> Version | None:
        """Return the newest version that fits, preferably a good one."""
        good = wanted.filter(self.versions(good=True))
        return next(good, None) or next(wanted.filter(self.versions(), prereleases=True), None)


def read_pages(rule: IndexRule, index: str, web: Http) -> ProjectPages:
    """Return the pages of a rule's projects. Raises as `project_page` does."""
    names = (*rule.projects, *rule.companions)
    return ProjectPages(rule, {name: project_page(index, name, web) for name in names})


def read_releases(layer: Layer, version: Version, pages: ProjectPages, web: Http) -> tuple[Release, ...]:
    """Return the rows of a version: one for each project that has it; of wheels for ROCm, one for each ROCm.

    Raises FailedError, MissingHereError.
    """
    rule = pages.rule
    if not rule.range.contains(version, prereleases=True):
        raise FailedError(f"there is no rule for reading {version} (only for {rule.range})")
    rows = []
    for project in rule.projects:
        files = [file for file in pages.files[project] if _is_of(file, version, rule)]
        builds = sorted({file.version for file in files}, reverse=True)  # a later one may be `.postN`
        for build in builds if rule.read == "local-version" else builds[:1]:
            of_build = [file for file in files if file.version == build]
            rows.append(_release(layer, version, project, of_build, pages, web))
    if not rows:
        kind = "source archive" if rule.read == "sdist" else "wheel for Linux"
        raise FailedError(f"the index has {version}, but no {kind} of it")
    return tuple(rows)


def _is_of(file: IndexFile, wanted: Version, rule: IndexRule) -> bool:
    """Return whether a file belongs to a version and is read by the rule."""
    if rule.read == "sdist":
        return not file.tags and file.version == wanted
    if _OF_LINUX.fullmatch(file.tags) is None:
        return False
    if rule.read == "local-version":
        return Version(file.version.public) == wanted and _ROCM.fullmatch(file.version.local or "") is not None
    base = Version(file.version.base_version)
    return file.version == wanted or (base == wanted and file.version.is_postrelease and not file.version.is_prerelease)


def _release(
    layer: Layer, version: Version, project: str, files: Sequence[IndexFile], pages: ProjectPages, web: Http
) -> Release:
    rule = pages.rule
    chosen = next((file for file in files if file.yanked is None), files[0])
    texts = _texts(chosen, project, rule, web)
    companions, doubts = _companions(chosen, project, pages, web)
    facts = {fact.name: value for fact in rule.facts if (value := value_of(fact, texts)) is not None}
    facts |= {"VERSION": str(version), "FOUND": str(chosen.version)} | companions
    if texts.get(METADATA) == "":
        doubts.append("its index has no METADATA for its wheel")
    unsaid = (text for text in rule.expects if not facts.keys() >= {*placeholders(text)})
    doubts += [f"it does not say which {re.split('[=<>!~{]', text, maxsplit=1)[0]} it is made for" for text in unsaid]
    host = urlsplit(rule.index).hostname if rule.index else None
    uploaded = max((file.uploaded for file in files if file.uploaded), default=None)
    row = replace(
        row_of(rule, facts, f"{chosen.name}, as {host or 'the package index'} has it"),
        date=uploaded,
        read=today(),
    )
    for name in rule.arguments.keys() - row.arguments.keys():
        doubts.append(f"it does not say which {name} it needs: the layer's default is {layer.arguments[name].default}")
    if chosen.yanked is not None:
        reason = f": {chosen.yanked[:200]}" if chosen.yanked else ""
        doubts.insert(0, f"its project has withdrawn it (yanked){reason}")
    # its other contents are those of a row with the same facts that the rule reads (a torch's ROCm)
    read = [name for name, text in rule.has.items() if {*placeholders(text)} & {fact.name for fact in rule.facts}]
    same = (one.has for one in layer.releases if all(one.has.get(name) == row.has.get(name) for name in read))
    if read and (known := next(same, None)) is None:
        of = " and ".join(f"{name} {row.has.get(name, '(not known)')}" for name in read)
        doubts.append(f"the other contents of its wheel are not known, as no row has {of}")
    elif read and known:
        row = replace(row, has={**known, **row.has})
    return replace(row, requires=(*row.requires, *_tag_needs(files)), doubts=tuple(doubts))


def row_of(rule: IndexRule, facts: Mapping[str, str], source: str) -> Release:
    """Return the row of a release from its rule and known facts; entries that need another fact are left out."""
    has, arguments = (
        {name: text for name, template in table.items() for text in filled([template], facts)}
        for table in (rule.has, rule.arguments)
    )
    return Release(
        version=facts["VERSION"],
        requires=tuple(needs_of(filled(rule.requires, facts))),
        expects=tuple(needs_of(filled(rule.expects, facts))),
        has=has,
        arguments=arguments,
        wheels=tuple(pin for pin in filled(rule.wheels, facts) if PIN.fullmatch(pin)),
        indexes=tuple(filled(rule.indexes, facts)),
        source=source,
    )


def filled(templates: Iterable[str], facts: Mapping[str, str]) -> Iterator[str]:
    """Yield templates with their facts filled in; one whose fact is not known is left out."""
    yield from (expand(text, facts) for text in templates if facts.keys() >= {*placeholders(text)})


def needs_of(texts: Iterable[str]) -> Iterator[Need]:
    """Yield the needs in texts; invalid ones are left out."""
    yield from (Need(one.name, one.specifier) for text in texts if (one := parsed(text)) is not None)


def _texts(file: IndexFile, project: str, rule: IndexRule, web: Http) -> dict[str, str]:
    """Return the files that facts are read from, by name."""
    names = {name for fact in rule.facts for name in fact.files} - {PROJECT, FILE}
    texts = {PROJECT: project, FILE: file.name}
    if rule.read == "sdist" and names:
        with (
            web.open(file.url, Bounds(*_SDIST_BOUNDS), {}) as stream,
            SpooledTemporaryFile(_IN_MEMORY_BYTES) as archive,
        ):
            archive.writelines(stream.chunks)
            archive.seek(0)
            return texts | read_texts(archive, names.__contains__, _UNPACKED_LIMIT_BYTES, file.name)
    if METADATA in names:
        texts[METADATA] = metadata_of(file, web).partition("\n\n")[0]
    return texts


def value_of(fact: IndexFact, texts: Mapping[str, str]) -> str | None:
    """Return the value from the first of its files that has one; of several versions, the oldest."""
    for name in fact.files:
        if found := [value for value in fact.pattern.findall(texts.get(name, "")) if _VALUE.fullmatch(value)]:
            return str(min(found, key=lambda value: version_of(value) or NO_VERSION))
    return None


def _companions(file: IndexFile, project: str, pages: ProjectPages, web: Http) -> tuple[dict[str, str], list[str]]:
    """Return the versions of the companions that belong to a file, and doubts about them."""
    found, doubts = dict[str, str](), list[str]()
    for name in pages.rule.companions:
        builds = {one.version: one for one in pages.files[name] if one.version.local == file.version.local and one.tags}
        newest = sorted(builds, reverse=True)
        metadata = ((version, metadata_of(builds[version], web)) for version in newest[:_MAX_TRIES])
        belonging = (version for version, text in metadata if _requires_exactly(text, project, file.version))
        if not newest:
            doubts.append(f"its index has no {name} that matches it")
        elif (version := next(belonging, None)) is None:
            doubts.append(f"no {name} requires exactly this {project}, so the newest is used")
        if newest:
            found[name] = str(version or newest[0])
    return found, doubts


def _requires_exactly(metadata: str, project: str, version: Version) -> bool:
    lines = metadata.partition("\n\n")[0].splitlines()
    required = (parsed(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: "))
    exact = (one for one in required if one and one.name == project and str(one.specifier).startswith("=="))
    first = next(exact, None)
    return first is not None and first.specifier.contains(version, prereleases=True)


def _tag_needs(files: Sequence[IndexFile]) -> Iterator[Need]:
    """Yield the Python and glibc that files need, from Requires-Python and the tags of wheels (PEP 425, PEP 600)."""
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
