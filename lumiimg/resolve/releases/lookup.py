"""What is known of a version that no row has: kept, read now, derived from the nearest row, or that there is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.catalog.age import OLD_AFTER_DAYS
from lumiimg.catalog.layers import PIN, Layer, Release
from lumiimg.catalog.needs import NO_VERSION, exact_version, version_of
from lumiimg.catalog.templates import placeholders
from lumiimg.errors import FailedError, MissingHereError
from lumiimg.resolve.releases import reading
from lumiimg.resolve.releases.indexes import FoundReleases, ReleaseIndexes
from lumiimg.resolve.releases.kept import keep_rows, kept_rows

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from lumiimg.catalog.unlisted import Unlisted
    from lumiimg.resolve.releases.reading import ProjectPages

_NEAREST = 3


def find_releases(layer: Layer, wanted: SpecifierSet, indexes: ReleaseIndexes | None) -> FoundReleases:
    """Return what is known of the versions that are wanted of a layer, and that no row has."""
    rule, exact = layer.unlisted, exact_version(wanted)
    if rule is None:
        if exact is None or not _can_be_named(layer, exact):
            return FoundReleases()
        return FoundReleases((derived(layer, exact, "nothing is known of this release"),))
    kept, note = kept_rows(indexes.cache, layer, indexes.today) if indexes else ((), None)
    if indexes and note:
        indexes.on_line(note)
    fitting = [row for row in kept if wanted.contains(row.version, prereleases=True)]
    fresh = [row for row in fitting if indexes and _age(row, indexes.today) < indexes.kept_days]
    # of a range without an end, what is kept does not say which is the newest in the index
    if fresh and indexes and len(fresh) == len(fitting) and exact is not None:
        return FoundReleases(with_age(fresh, indexes.today))
    why = "there is no network" if indexes is None else ""
    if indexes is not None:
        try:
            return _read(layer, rule, wanted, indexes, fresh)
        except (MissingHereError, FailedError) as error:
            why = str(error)
    if fitting and indexes:
        return FoundReleases(with_age(fitting, indexes.today))
    why = f"what it requires could not be read ({why})"
    return FoundReleases((derived(layer, exact, why),) if exact is not None and layer.releases else ())


def _read(
    layer: Layer, rule: Unlisted, wanted: SpecifierSet, indexes: ReleaseIndexes, fresh: Sequence[Release]
) -> FoundReleases:
    """Return what the index and other places have of the newest versions that are wanted; of none, of the nearest.

    A version that is named exactly may be in another place alone. `fresh` are rows that need not be read again. Raises
    FailedError, MissingHereError.
    """
    exact = exact_version(wanted)
    against: FailedError | MissingHereError | None = None
    pages: ProjectPages | None = None
    versions: list[Version] = []
    try:
        pages = reading.read_pages(rule, indexes.index_of(rule), indexes.web)
        versions = pages.newest(wanted)
    except (FailedError, MissingHereError) as error:
        against = error
    named = versions or ([exact] if exact is not None else [])
    if rows := [row for version in named for row in _rows(layer, rule, version, pages, indexes, fresh)]:
        return FoundReleases(tuple(rows))
    if pages is None or against is not None:
        raise against or FailedError("the package index has no page")
    for version in versions:
        if not rule.range.contains(version, prereleases=True):
            raise FailedError(f"how {version} is read is not known (only {rule.range})")
        raise reading.no_files(version, rule)
    if not pages.versions:
        raise FailedError(f"the package index has no {' or '.join(rule.projects)}")
    near = nearest_versions(pages.versions, exact)
    of_nearest: tuple[Release, ...] = ()
    with suppress(FailedError, MissingHereError):
        of_nearest = _rows(layer, rule, near[0], pages, indexes, ())
    return FoundReleases(of_nearest, f"{layer.name} {', '.join(map(str, near))}")


def _rows(
    layer: Layer,
    rule: Unlisted,
    version: Version,
    pages: ProjectPages | None,
    indexes: ReleaseIndexes,
    fresh: Sequence[Release],
) -> tuple[Release, ...]:
    """Return the rows of a version, kept from now on; none where no place has it, or how it is read is not known."""
    if known := [row for row in fresh if row.version == str(version)]:
        return with_age(known, indexes.today)
    rows: tuple[Release, ...] = ()
    if pages is not None and version in pages.versions and rule.range.contains(version, prereleases=True):
        indexes.on_line(f"reading {layer.name} {version} in the package index")
        rows = reading.read_releases(layer, version, pages, indexes.web, indexes.today)
    rows += elsewhere(layer, rule, version, indexes)
    if rows:
        keep_rows(indexes.cache, layer, rows, indexes.today)
    return rows


def elsewhere(layer: Layer, rule: Unlisted, version: Version, indexes: ReleaseIndexes) -> tuple[Release, ...]:
    """Return what other places have of a version; one that cannot be read is said, and stops nothing."""
    found: list[Release] = []
    for place in rule.more:
        if not place.range.contains(version, prereleases=True):
            continue
        try:
            index = indexes.index_of(place, str(version))
            found += reading.read_elsewhere(layer, version, place, index, indexes.web, indexes.today)
        except FailedError as error:
            indexes.on_line(f"not read of {layer.name} {version}: {error}")
        except MissingHereError:
            continue  # without a network
    return tuple(found)


def derived(layer: Layer, version: Version, why: str) -> Release:
    """Return a release of which nothing could be read: as the nearest row is, and each need of that is a doubt."""
    rule = layer.unlisted
    values = {"VERSION": f"{version}", "FOUND": f"{version}"}
    release = Release(
        version=f"{version}",
        requires=(),
        has={},
        arguments={},
        wheels=(),
        indexes=rule.indexes if rule else (),
        source=layer.source,
        without=rule.without if rule else (),
        unused=rule.unused if rule else (),
        derived=layer.arguments["VERSION"].default,
        doubts=(why,),
        status="derived",
    )
    if not layer.releases:
        return release
    near = min(layer.releases, key=lambda row: _distance(version_of(row.version) or NO_VERSION, version))
    # what is newer asks for no older Python or glibc; what is older may take one that the row does not
    rising = {"python", "glibc"} if version > (version_of(near.version) or NO_VERSION) else set[str]()
    hard = [need for need in near.requires if need.component in rising or not need.versions]
    release = replace(
        release,
        requires=tuple(hard),
        expects=(*(need for need in near.requires if need not in hard), *near.expects),
        source=near.source,
        date=near.date,
        derived=near.version,
        doubts=(f"{why}; it is planned like {near.version}",),
    )
    if rule is None:
        return release
    own = {name: near.arguments.get(name, "") for name in layer.arguments}
    values = {name: value for name, value in own.items() if value} | values
    # what names a fact is known of no release but of that which says it
    named = {name for name, text in rule.arguments.items() if name in values for _ in placeholders(text)}
    values |= {placeholders(rule.arguments[name])[0]: values[name] for name in named}
    return replace(
        release,
        requires=(*reading.needs_of(rule.requires, values), *hard),
        has=reading.filled(rule.has, values),
        arguments={name: values[name] for name in near.arguments if name in rule.arguments},
        wheels=tuple(pin for pin in reading.expanded(rule.wheels, values) if PIN.fullmatch(pin)),
    )


def _can_be_named(layer: Layer, version: Version) -> bool:
    """Whether the sources of a layer can be had in any version that is named."""
    argument = layer.arguments.get("VERSION")
    if argument is None or any(release.wheels for release in layer.releases):
        return False
    return argument.pattern is None or argument.pattern.fullmatch(f"{version}") is not None


def nearest_versions(versions: Sequence[Version], wanted: Version | None) -> list[Version]:
    """Return the versions of an index that come nearest to one that it does not have; of none the newest."""
    near = versions if wanted is None else sorted(versions, key=lambda version: _distance(version, wanted))
    return [*near[:_NEAREST]]


def _distance(version: Version, wanted: Version) -> tuple[float, ...]:
    """Return how far a version is from another: the first numbers count most, then that it is later, or like b1."""
    ours, theirs = ((*one.release, 0, 0, 0, 0)[:4] for one in (version, wanted))
    apart = (abs(mine - other) for mine, other in zip(ours, theirs, strict=True))
    return (*apart, float(version > wanted), float(version.is_prerelease or version.is_postrelease))


def with_age(rows: Iterable[Release], today: dt.date) -> tuple[Release, ...]:
    """Return rows, each that is old with a doubt that says so."""
    found = []
    for row in rows:
        days = _age(row, today)
        old = f"that is {days} days old, and is read again where the package index answers"
        found.append(replace(row, doubts=(*row.doubts, old)) if days > OLD_AFTER_DAYS else row)
    return tuple(found)


def _age(row: Release, today: dt.date) -> int:
    return (today - row.read).days if row.read else 0
