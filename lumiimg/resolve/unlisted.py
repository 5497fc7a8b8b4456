"""Releases that no row has: read in a package index, where one answers, else derived from the nearest row: a doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lumiimg.catalog.needs import NO_VERSION, exact_version, version_of
from lumiimg.catalog.releases import Release, placeholders
from lumiimg.core.errors import FailedError, MissingHereError
from lumiimg.fetch.mirrors import general_index
from lumiimg.resolve.context import FoundReleases
from lumiimg.resolve.release_reader import read_pages, read_releases, row_of

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.releases import Unlisted
    from lumiimg.resolve.context import PlanContext

_NEAREST = 3


def find_releases(layer: Layer, wanted: SpecifierSet, context: PlanContext) -> FoundReleases:
    """Return what is known of the versions that are wanted of a layer, and that no row has; of a range the newest."""
    rule, exact = layer.unlisted, exact_version(wanted)
    why = "nothing is known of this release"
    if rule is not None:
        try:
            return _read(layer, rule, wanted, context)
        except (MissingHereError, FailedError) as error:
            why = f"what it requires could not be read ({error})"
    if exact is None or not (layer.releases if rule else _can_be_named(layer, exact)):
        return FoundReleases()
    return FoundReleases((derived(layer, exact, why),))


def _read(layer: Layer, rule: Unlisted, wanted: SpecifierSet, context: PlanContext) -> FoundReleases:
    """Return what the index has of a version. Raises FailedError, MissingHereError."""
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


def derived(layer: Layer, version: Version, why: str) -> Release:
    """Return a release of which nothing could be read: as the nearest row is, and each need of that is a doubt."""
    default = layer.arguments["VERSION"].default
    release = Release(version=f"{version}", source=layer.source, derived=default, doubts=(why,))
    if not layer.releases:
        return release
    near = min(layer.releases, key=lambda row: _distance(version_of(row.version) or NO_VERSION, version))
    if (rule := layer.unlisted) is not None:
        arguments = {name: near.arguments[name] for name in near.arguments if name in rule.arguments}
        # what names a fact is known of no release but of that which says it
        facts = {fact: value for name, value in arguments.items() for fact in placeholders(rule.arguments[name])[:1]}
        release = row_of(rule, facts | {"VERSION": f"{version}", "FOUND": f"{version}"}, near.source)
    # what is newer asks for no older Python or glibc; what is older may take one that the row does not
    rising = {"python", "glibc"} if version > (version_of(near.version) or NO_VERSION) else set[str]()
    hard = [need for need in near.requires if need.component in rising or not need.versions]
    return replace(
        release,
        requires=(*release.requires, *hard),
        expects=(*(need for need in near.requires if need not in hard), *near.expects),
        source=near.source,
        date=near.date,
        derived=near.version,
        doubts=(f"{why}; it is planned like {near.version}",),
    )


def _can_be_named(layer: Layer, version: Version) -> bool:
    """Whether the sources of a layer can be had in any version that is named."""
    argument = layer.arguments.get("VERSION")
    if argument is None or any(release.wheels for release in layer.releases):
        return False
    return argument.pattern is None or argument.pattern.fullmatch(f"{version}") is not None


def _distance(version: Version, wanted: Version) -> tuple[float, ...]:
    """Return how far a version is from another: the first numbers count most, then that it is later, or like b1."""
    ours, theirs = ((*one.release, 0, 0, 0, 0)[:4] for one in (version, wanted))
    apart = (abs(mine - other) for mine, other in zip(ours, theirs, strict=True))
    return (*apart, float(version > wanted), float(version.is_prerelease or version.is_postrelease))
