"""The newest releases of layers, read from the package index all at once, as rows in the user's cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from lumiimg.errors import FailedError, LumiimgError
from lumiimg.resolve.releases.kept import keep_rows, kept_rows
from lumiimg.resolve.releases.lookup import elsewhere
from lumiimg.resolve.releases.reading import read_pages, read_releases

if TYPE_CHECKING:
    from lumiimg.catalog.layers import Layer, Release
    from lumiimg.resolve.releases.indexes import ReleaseIndexes

MOST = 8
"""Releases that are read of a layer, the newest first, beside those that are kept already."""
_MOST_FAULTS = 3


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What was read of one layer."""

    layer: Layer
    newest: str
    """In the index, of the versions that can be read."""
    rows: tuple[Release, ...]
    """The newest first; a version may have several."""
    faults: tuple[LumiimgError, ...] = ()
    """Why a version could not be read."""
    lost: str | None = None
    """Why what was read could not be kept."""


def refresh(layer: Layer, indexes: ReleaseIndexes) -> Refreshed:
    """Read the newest releases of a layer that it has no row for, and those that are kept, and keep them.

    Raises FailedError, MissingHereError where the index cannot be read.
    """
    rule = layer.unlisted
    if rule is None:
        raise ValueError(layer.name)
    pages = read_pages(rule, indexes.index_of(rule), indexes.web)
    known = [version for version in rule.range.filter(pages.good_versions) if version.post is None]
    if not known:
        raise FailedError(f"the package index has no release of {' or '.join(rule.projects)} that can be read")
    listed = {Version(row.version) for row in layer.releases}
    kept = {Version(row.version) for row in kept_rows(indexes.cache, layer, indexes.today)[0]}
    after = [version for version in known if version > min(listed, default=Version("0"))]
    wanted = [*[version for version in after if version not in listed][:MOST], *kept]
    rows: list[Release] = []
    faults: list[LumiimgError] = []
    for version in sorted(set(wanted) & set(pages.versions), reverse=True):
        try:
            rows += read_releases(layer, version, pages, indexes.web, indexes.today)
            rows += elsewhere(layer, rule, version, indexes)
        except FailedError as error:
            faults.append(error)
            if len(faults) == _MOST_FAULTS:
                break
    lost = keep_rows(indexes.cache, layer, rows, indexes.today)
    return Refreshed(layer, str(known[0]), tuple(rows), tuple(faults), lost)
