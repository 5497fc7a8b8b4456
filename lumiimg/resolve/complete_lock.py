"""The parts of a lock that only the network has: the digest of the base, unpublished digests, the wheels."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from lumiimg.catalog.releases import expand
from lumiimg.core.errors import BadInputError, FailedError, MissingHereError
from lumiimg.core.text import count
from lumiimg.fetch.http import ReplacedError
from lumiimg.fetch.mirrors import is_address
from lumiimg.fetch.registry import resolve_image
from lumiimg.resolve.bootstrap import digest_of_file, known_digest, note_digest
from lumiimg.resolve.lock import Lock, LockedLayer, LockedSource, wants_python
from lumiimg.resolve.python_project import LayerRequirements, resolve_wheels, with_digests
from lumiimg.resolve.python_target import PythonTarget
from lumiimg.resolve.source_archive import read_requirements

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.lock_file import LockFile


BaseDigest = Literal["asked", "noted", "open"]
"""Whether the digest of a base is looked up, taken from the last lookup if there was one, or left open."""


class Preferences(NamedTuple):
    """Versions and digests in a lock, which the next one is to reuse if they still fit."""

    layers: Mapping[str, str]
    """Releases by layer."""
    wheels: Mapping[str, str]
    """Versions by Python distribution."""
    before: LockFile | None
    """Lock whose base and sources retain their digests; None if everything is looked up again."""


NO_PREFERENCES = Preferences({}, {}, None)


def preferences_of(before: LockFile, upgraded: Collection[str]) -> Preferences:
    """Return the contents of a lock, except those to upgrade. Raises BadInputError for a name that is not in it."""
    layers = {entry.name: entry.release for entry in before.layer if entry.release}
    wheels = {wheel.name: wheel.version for entry in before.stack for wheel in entry.locked_wheels}
    for name in upgraded:
        if name not in {*layers, *wheels, "all"}:
            known = ", ".join(sorted({*layers, *wheels}))
            raise BadInputError(f"the lock has no {name!r}", where="--upgrade", hint=f"it has: {known or 'nothing'}")
    if "all" in upgraded:
        return NO_PREFERENCES
    layers, wheels = (
        {name: version for name, version in part.items() if name not in upgraded} for part in (layers, wheels)
    )
    return Preferences(layers, wheels, before)


def complete_lock(
    lock: Lock,
    sources: Sources,
    *,
    base: BaseDigest,
    preferred: Preferences = NO_PREFERENCES,
    until: dt.date | None = None,
) -> Lock:
    """Return the lock with nothing left open, except the digest of the base if that is to stay open.

    `preferred` versions are used if they still fit, and digests after registry and files were compared with them: a
    stranger may have written them. `until` is the last day of uploads to a package index that are used, in place of the
    releases' own. Raises FailedError for parts that are not available or conflict.
    """
    bootstrap = lock.bootstrap if base == "open" else _with_base_digest(lock, sources, base, preferred.before)
    if bootstrap.image is not None:
        bootstrap.image.require_tls_or_digest()
    lock = replace(lock, bootstrap=bootstrap)
    return _with_wheels(_with_digests(lock, sources, preferred.before), sources, preferred.wheels, until)


def _with_base_digest(lock: Lock, sources: Sources, base: BaseDigest, before: LockFile | None) -> LockedBootstrap:
    """Return where the base comes from, with its digest; a folder, or a base made by debootstrap, has none."""
    bootstrap, image = lock.bootstrap, lock.bootstrap.image
    if image is None:
        if not lock.base.layer.is_foreign or bootstrap.sha256:
            return bootstrap
        digest = digest_of_file(Path(bootstrap.origin), sources.cache, sources.on_line)
        return replace(bootstrap, sha256=digest)
    if image.digest is not None:
        return bootstrap
    digest = known_digest(image, sources.cache) if base == "noted" else None
    if digest is None:
        asked = image
        if before is not None and before.base.origin == bootstrap.origin:
            asked = replace(image, digest=before.base.digest)
        asked.require_tls_or_digest()
        sources.on_line(f"looking up {asked}")
        with _explained_errors("the digest of the base is not known", before):
            found = resolve_image(asked, sources.web)
        digest = found.index_digest or found.digest
        note_digest(image, digest, sources.cache, sum(layer.size for layer in found.layers))
    return replace(bootstrap, image=replace(image, digest=digest))


def _with_digests(lock: Lock, sources: Sources, before: LockFile | None) -> Lock:
    """Return the lock with unpublished digests filled in: those of the first download, which may be an earlier one."""
    unknown = {source.location: source for layer in lock.stack for source in layer.sources if not source.sha256}
    known = {place: sha256 for place, sha256 in (before.first_download if before else {}).items() if place in unknown}
    with _explained_errors("its sha256 is not in the catalogue", before, "; or name the file: --source NAME=FILE"):
        sources.store.sources([replace(unknown[place], sha256=known[place]) for place in known], sources.on_line)
        known |= sources.store.digests(sorted(unknown.keys() - known.keys()), sources.on_line)
    base, *layers = (layer.with_digests(known) for layer in lock.stack)
    return replace(lock, base=base, layers=tuple(layers))


@contextlib.contextmanager
def _explained_errors(unknown: str, before: LockFile | None = None, otherwise: str = "") -> Iterator[None]:
    """Add what is not known, and what to do, to errors for addresses not reached or changed since the last lock."""
    try:
        yield
    except ReplacedError as error:
        if before is None:
            raise
        hint = "the existing lock names it; lumiimg lock --upgrade all takes the current one"
        raise FailedError(error.what, where=error.where, hint=hint) from error
    except MissingHereError as error:
        if error.where is None or not is_address(error.where):
            raise
        hint = f"`lumiimg lock` with the same options, where there is a network; then `build --locked` here{otherwise}"
        raise MissingHereError(f"{unknown}, and it {error.what}", where=error.where, hint=hint) from error


# -- wheels --


def _with_wheels(lock: Lock, sources: Sources, preferred: Mapping[str, str], until: dt.date | None) -> Lock:
    """Return the lock with all Python distributions of the image, the user's own on top of those below."""
    wanting = [layer for layer in lock.stack if wants_python(layer)]
    if lock.resolved or not wanting:
        return replace(lock, resolved=True)
    if (python := PythonTarget.from_versions(lock.versions)) is None:
        raise FailedError(
            f"no wheels can be chosen for {wanting[0].name}: the Python of {lock.base.layer.name} is not known",
            hint="`lumiimg adapt` reads the file of a base first",
        )
    own = lock.request.own
    stack = list(lock.stack[:-1] if own else lock.stack)
    if any(map(wants_python, stack)):
        found = _layer_wheels(stack, python, sources, preferred, until)
        stack = [layer.with_wheels(found[layer.name]) for layer in stack]
    if own:
        from lumiimg.resolve.own_packages import installed_layer, resolve_own

        sources.on_line(f"resolving {lock.request.own_summary} on top of the layers below, for {python}")
        there = [installed_layer(one, is_base=at == 0) for at, one in enumerate(stack)]
        with _explained_errors("the wheels of your own packages are not in the catalogue"):
            wheels = resolve_own(there, lock.request, python, sources, until=until, preferred=preferred)
        sources.on_line(f"resolved: {count(len(wheels), 'Python distribution')} for {lock.layers[-1].name}")
        stack.append(lock.layers[-1].with_wheels(wheels))
    return replace(lock, base=stack[0], layers=tuple(stack[1:]), resolved=True)


def _layer_wheels(
    stack: Sequence[LockedLayer],
    python: PythonTarget,
    sources: Sources,
    preferred: Mapping[str, str],
    until: dt.date | None,
) -> dict[str, tuple[LockedSource, ...]]:
    """Return the wheels of each layer, as of the day of the newest release, else of the layers' facts."""
    wanting = [layer for layer in stack if wants_python(layer)]
    names = ", ".join(layer.name for layer in wanting)
    wanted = [_requirements_of(layer, sources) for layer in stack]
    if until is None:
        dates = [layer.release.date for layer in wanting if layer.release and layer.release.date]
        until = max(dates or [layer.layer.date for layer in wanting])
    else:  # one day for all
        wanted = [replace(wants, date=None) for wants in wanted]
    days = sorted({until, *(wants.date for wants in wanted if wants.date)})
    sources.on_line(f"resolving the requirements of {names} for {python}, as of {', '.join(map(str, days))}")
    with _explained_errors(f"the wheels for {names} are not in the catalogue"):
        found = resolve_wheels(wanted, python, sources, until=until, preferred=preferred).by_layer
    sources.on_line(f"resolved: {count(sum(map(len, found.values())), 'Python distribution')}")
    wheels = {one.name: one for one in with_digests([*itertools.chain(*found.values())], sources)}
    return {name: tuple(wheels[one.name] for one in several) for name, several in found.items()}


def _requirements_of(layer: LockedLayer, sources: Sources) -> LayerRequirements:
    """Return the Python requirements of a layer; archives with its requirement files are fetched."""
    release = layer.release
    requires = list[str]()
    if not layer.pins:  # a layer with pins is not built
        requires += (expand(text, layer.arguments) for text in layer.layer.packages)
        files = {one.name: one.requirements for one in layer.layer.sources if one.requirements}
        for source in (one for one in layer.sources if one.name in files):
            archive = sources.store.sources([source], sources.on_line)[source]
            where = f"the layer {layer.name}, {source.location}"
            requires += read_requirements(archive, files[source.name], layer.without, where)
    return LayerRequirements(
        name=layer.name,
        version=release.version if release else "",
        pins=layer.pins,
        indexes=tuple(sources.mirrors.rewrite(index) for index in release.indexes) if release else (),
        beside=release.beside if release else (),
        requires=tuple(requires),
        without=layer.without,
        has=layer.versions,
        date=release.date if release and wants_python(layer) else None,
    )
