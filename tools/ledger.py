"""Write lumiimg/catalog/ledger.toml: how far each row of the catalogue was tested.

python -m tools.ledger             lists stale entries, whose row was changed or removed since
python -m tools.ledger --prune     removes the stale entries
python -m tools.ledger IMAGE       records the parts of an image of lumiimg as built, on the machine that built it
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from msgspec import structs

from lumiimg import __version__
from lumiimg.build.cost import measured
from lumiimg.build.provenance import read_plan
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.layers import own_values
from lumiimg.catalog.ledger import LEDGER, REACHES, LedgerEntry, fingerprint, read_ledger, rows_of
from lumiimg.catalog.settings import read_settings
from lumiimg.core.errors import BadInputError, LumiimgError
from lumiimg.core.files import write_text
from lumiimg.definition.writer import write_chain
from lumiimg.engine.engine import find_engine
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve.lock import layer_digest
from lumiimg.resolve.lock_check import lock_of
from lumiimg.resolve.lock_file import LockedBase, request_of
from lumiimg.resolve.make_lock import lock_layer
from lumiimg.resolve.stack import for_gpu
from tools.compatibility import HOME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from lumiimg.catalog.layers import Layer, Reach
    from lumiimg.catalog.releases import Release
    from lumiimg.resolve.lock import LockedLayer
    from lumiimg.resolve.lock_file import LockedEntry, LockFile

REHEARSALS = REACHES[1:3]
"""The stages that `make rehearse` reports for a row."""
COST = ("download_bytes", "size_bytes", "seconds")
HEAD = "# How far each base and release was tried. Written by `make rehearse` and `python -m tools.ledger`, never by hand.\n"


def main(words: list[str]) -> int:
    match words:
        case []:
            return show()
        case ["--prune"]:
            known = contents()
            write([trial for trial in read_ledger(LEDGER) if counts(trial, known)], LEDGER)
            return show()
        case [image] if not image.startswith("-"):
            return record_image(Path(image))
    print(__doc__, file=sys.stderr)
    return 2


def record(trials: Iterable[LedgerEntry], path: Path = LEDGER, failed: Iterable[tuple[Reach, str]] = ()) -> None:
    """Write entries into the ledger; each replaces an older one for the same row and reach.

    Entries whose reach and content are in `failed` are removed.

    Raises ValueError for a row that the catalogue lacks in its tested form, DecodeError for text of several lines.
    """
    new, known, gone = list(trials), contents(), set(failed)
    for trial in new:
        if not counts(trial, known):
            raise ValueError(f"no row of the catalogue is what was tried: {trial}")
    recorded = {(trial.name, trial.release, trial.reach, trial.content) for trial in new}
    about = {key[:3] for key in recorded}
    # Two rows can have one version, for two releases of ROCm: the other row's entry stays as long as it is valid.
    kept = (
        old
        for old in read_ledger(path)
        if (key := (old.name, old.release, old.reach, old.content)) not in recorded
        and (old.reach, old.content) not in gone
        and (key[:3] not in about or counts(old, known))
    )
    write([*kept, *new], path)


def contents() -> dict[tuple[str, str, str], set[str]]:
    """Return digests of the shipped catalogue's rows by name, release and reach; two rows of one version give two."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for layer, release in rows():
        for reach in REACHES[1:]:
            key = (layer.name, release.version if release else "", reach)
            found.setdefault(key, set()).add(fingerprint(layer, release, reach))
    return found


def rows() -> Iterator[tuple[Layer, Release | None]]:
    """Yield the testable rows of the shipped catalogue: each base, each release, each layer without releases."""
    catalogue = open_catalogue(HOME)
    for name in catalogue.layer_names():
        yield from rows_of(catalogue.entry(name))


def counts(trial: LedgerEntry, known: Mapping[tuple[str, str, str], Collection[str]]) -> bool:
    """Return whether an entry is about a row of the catalogue in its current form."""
    return trial.content in known.get((trial.name, trial.release, trial.reach), ())


def show() -> int:
    """Print stale entries; return 1 if there is one."""
    known, trials = contents(), read_ledger(LEDGER)
    stale = [trial for trial in trials if not counts(trial, known)]
    for trial in stale:
        print(f"stale: {trial.name} {trial.release} {trial.reach} {trial.date} {trial.content}")
    print(f"{len(trials)} entries, {len(stale)} of them stale")
    return 1 if stale else 0


def record_image(image: Path) -> int:
    """Record the base and layers of an image; print a line for each, and return 1 if one is refused.

    Raises BadInputError if the image has no record of what it was built from.
    """
    plan = read_plan(image)
    if plan is None:
        raise BadInputError("does not say what it was built of", where=str(image))
    trials, refused, took = [], False, took_here(plan, image)
    for entry in plan.stack:
        try:
            trials.append(structs.replace(trial_of(entry, plan, image), **took.get(entry.name, {})))
            print(f"{_title(entry)}: built, {trials[-1].how}")
        except LumiimgError as error:
            refused = True
            print(f"{_title(entry)}: {error}", file=sys.stderr)
    record(trials, LEDGER)
    return 1 if refused else 0


def took_here(plan: LockFile, image: Path) -> dict[str, dict[str, Any]]:
    """Return the build costs of an image's base and layers by name, if their results are in this machine's cache."""
    with suppress(LumiimgError):  # `trial_of` reports the row concerned
        lock = lock_of(plan, [open_catalogue(HOME)], Mirrors({}), os.environ.get("PATH"), image)
        cache = read_settings(os.environ).cache
        found = zip(lock.stack, measured(lock, write_chain(lock), cache), strict=False)
        return {layer.name: dict(zip(COST, cost, strict=True)) for layer, cost in found}
    return {}


def trial_of(entry: LockedEntry, plan: LockFile, image: Path) -> LedgerEntry:
    """Return the ledger entry for a lock entry. Raises LumiimgError if it is not a row of the current catalogue."""
    layer = open_catalogue(HOME).entry(entry.name)
    if entry.layer != layer_digest(layer):
        raise BadInputError("was changed since the image was built", hint="build it again; unchanged steps are kept")
    pins = {f"{one.name}=={one.version}" for one in entry.locked_wheels}
    same = [one for one in layer.releases if one.version == entry.release and pins.issuperset(one.wheels)]
    if entry.release and not same:
        raise BadInputError("is not a release of the catalogue")
    release = same[0] if same else None
    locked = lock_layer(for_gpu(layer, plan.gpu or None), release, request_of(plan))
    if locked.others:
        raise BadInputError(f"was built from other sources, named by {' and '.join(locked.others)}")
    return LedgerEntry(
        name=layer.name,
        release=entry.release,
        reach="built",
        content=fingerprint(layer, release, "built"),
        date=dt.datetime.fromtimestamp(image.stat().st_mtime, tz=dt.UTC).date(),
        how="; ".join(_how(entry, locked, own_values(layer, release), plan)),
    )


def _title(entry: LockedEntry) -> str:
    return f"{entry.name} {entry.release}".rstrip()


def _how(entry: LockedEntry, locked: LockedLayer, usual: Mapping[str, str], plan: LockFile) -> Iterator[str]:
    given = plan.request.sources
    yield f"lumiimg {__version__} with {find_engine(os.environ).name}"
    if isinstance(entry, LockedBase):
        yield f"from {entry.agent} {entry.origin}"
    if entry.wheels:
        yield f"{len(entry.wheels)} wheels"
    if changed := [f"{name}={value}" for name, value in locked.arguments.items() if value != usual.get(name)]:
        yield ", ".join(changed)
    if names := [source.name for source in locked.sources if source.name in given]:
        yield f"given by hand: {', '.join(names)}"
    fetched = [source.name for source in locked.sources if source.location in plan.first_download]
    if names := [name for name in fetched if name not in given]:
        yield f"fetched, without a published digest: {', '.join(names)}"


def write(trials: Iterable[LedgerEntry], path: Path) -> None:
    """Write a ledger in its canonical order."""
    ordered = sorted(trials, key=lambda one: (one.name, one.release, REACHES.index(one.reach), one.content))
    whole = [structs.asdict(trial) for trial in ordered]
    fields = [{name: value for name, value in trial.items() if value is not None} for trial in whole]
    body = tomli_w.dumps({"trial": fields}) if fields else ""
    write_text(path, f"{HEAD}\n{body}" if body else HEAD)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
