"""How far each base and each release of a layer was tried: `ledger.toml`, written only by the programs that try them.

An entry contains the digest of what was tried, and counts while the catalogue matches it. It says nothing after
a change, or about a user's own layer of the same name. The status was once written by hand: it remained when a script
changed, and every release of vLLM that had it failed in the package index.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

from msgspec import Meta, Struct, field

from lumiimg.catalog.layers import Layer, LayerSource, Reach, Status, own_values
from lumiimg.catalog.releases import Release, expand
from lumiimg.core.decode import Text, matching, read_toml, read_whole, refuse

LEDGER = Path(__file__).with_suffix(".toml")
REACHES: tuple[Reach, ...] = get_args(Reach)
"""All of them, in order. `documented` has no entry: it is what is known about any row."""
MEANING: Mapping[Reach, str] = {
    "documented": "from published documents",
    "resolved": "Python packages fit together",
    "rehearsed": "scripts ran, with stand-ins for what is not available",
    "built": "built into an image, and tested there without a GPU",
    "run": "ran on the machine",
}
LEGEND = "; ".join(f"{word}: {meaning}" for word, meaning in MEANING.items())
_FILE_LIMIT_BYTES = 16 << 20
"""Size limit of a layer's file: larger than any that was tried."""


_Count = Annotated[int, Meta(ge=0)]


class LedgerEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the ledger."""

    name: Text
    """Name of the base, as for `--base`, or of the layer."""
    release: str
    """Release of the layer; empty for a base, and for a layer without releases."""
    reach: Reach
    """How far it got."""
    content: Annotated[str, matching("[0-9a-f]{16}", "the first 16 hexadecimal digits of a digest")]
    """The first 16 hexadecimal digits of the digest of what was tried (`fingerprint`)."""
    date: dt.date
    """When it was tried, ISO 8601."""
    how: Text
    """How it was tried, with all stand-ins, in one line."""
    download_bytes: _Count | None = None
    """Size of the archives and wheels that were fetched for it; null: not measured."""
    size_bytes: _Count | None = None
    """Size of the result, as a squashfs; null: not measured."""
    seconds: Annotated[float, Meta(ge=0)] | None = None
    """Wall-clock time of the build, on two cores unless stated otherwise; null: not measured."""

    def __post_init__(self) -> None:
        refuse({"reach": self.reach == REACHES[0] and f"is {self.reach!r}, which needs no entry"})


class _Ledger(Struct, frozen=True, forbid_unknown_fields=True):
    trials: tuple[LedgerEntry, ...] = field(name="trial", default=())


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """Read a ledger. Raises DecodeError, which names the file and every wrong key."""
    return read_toml(path, _Ledger).trials


def fingerprint(layer: Layer, release: Release | None, reach: str) -> str:
    """Return the digest of what a trial of a base (a member of its family) or of one release of a layer covers.

    For `resolved` it covers what decides which Python packages there are. Otherwise also the scripts, the files, the
    archives, the environment and what a base starts from. Prose, what a layer is good for (`provides`, `conflicts`),
    its other releases and its known troubles do not count.

    Raises DecodeError if a file cannot be read.
    """
    values, sources = own_values(layer, release), layer.sources_of(release)
    facts: dict[str, Any] = {
        "requires": sorted(map(str, layer.needs_of(release))),
        "has": {name: expand(version, values) for name, version in layer.has_of(release).items()},
        "arguments": values,
        "packages": [expand(package, values) for package in layer.packages],
        "requirements": {one.name: one.requirements for one in sources if one.requirements},
    }
    if release is not None:
        facts |= {"wheels": release.wheels, "indexes": release.indexes, "without": release.without}
        facts |= {"date": f"{release.date}"} | ({"beside": release.beside} if release.beside else {})
    if reach != "resolved":
        files = {name: read_whole(place, _FILE_LIMIT_BYTES) for name, place in layer.staged.items()}
        facts |= {
            "post": layer.post,
            "test": layer.test,
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            "set": dict(layer.environment.set),
            "prepend": dict(layer.environment.prepend),
            "sources": {one.name: _made_from(one, values) for one in sources},
            "bootstraps": [[one.agent, one.origin, one.mirror] for one in layer.bootstraps],
            "include": layer.include,
        }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _made_from(source: LayerSource, values: Mapping[str, str]) -> list[str | bool | None]:
    url, file, key = (expand(text, values) for text in (source.url, source.file, source.key))
    return [url, file, source.sha256.get(key), source.optional]


def trials_of(layer: Layer, release: Release | None) -> Iterator[LedgerEntry]:
    """Yield the entries that count for a base (a member of its family), or for one release of a layer.

    Raises DecodeError if a file of the layer cannot be read.
    """
    for trial in _by_name(LEDGER).get(layer.name, ()):
        same = trial.release == (release.version if release else "")
        if same and trial.content == fingerprint(layer, release, trial.reach):
            yield trial


def rows_of(layer: Layer) -> Iterator[tuple[Layer, Release | None]]:
    """Yield what can be tried of a layer: each member of a family, each release, or the layer itself."""
    if layer.variants:
        yield from ((layer.member(variant.name), None) for variant in layer.variants)
    else:
        yield from ((layer, release) for release in layer.releases or (None,))


def all_trials(layer: Layer) -> tuple[LedgerEntry, ...]:
    """Return the entries that count for a layer, its releases and its members. Raises as `trials_of`."""
    return tuple(trial for row in rows_of(layer) for trial in trials_of(*row))


def status_of(layer: Layer, release: Release | None = None) -> Status:
    """Return how far a base or a layer was tried, in one release; for one without a row, how its facts were obtained.

    Raises as `trials_of`.
    """
    if release is not None and release.is_unlisted:
        return "derived" if release.derived else "read"
    return furthest_reach(trials_of(layer, release))


def furthest_reach(trials: Iterable[LedgerEntry]) -> Reach:
    """Return the furthest that any of the trials got."""
    return max((trial.reach for trial in trials), key=REACHES.index, default=REACHES[0])


@cache
def _by_name(path: Path) -> Mapping[str, list[LedgerEntry]]:
    found: dict[str, list[LedgerEntry]] = defaultdict(list)
    for trial in read_ledger(path):
        found[trial.name].append(trial)
    return dict(found)
