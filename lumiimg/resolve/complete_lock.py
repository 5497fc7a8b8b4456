"""What only the network can tell a lock: the digest of the base, digests that nobody has published, the wheels."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from lumiimg.catalog.releases import expand
from lumiimg.errors import FailedError, MissingHereError
from lumiimg.fetch.http import ReplacedError
from lumiimg.fetch.registry import resolve_image
from lumiimg.resolve.archive_requirements import read_requirements
from lumiimg.resolve.base_digest import digest_of_file, known_digest, note_digest
from lumiimg.resolve.context import NO_PREFERENCES, Preferences
from lumiimg.resolve.lock import Lock, LockedLayer, LockedSource, wants_python
from lumiimg.resolve.python_project import LayerRequirements, resolve_wheels, with_digests
from lumiimg.resolve.stack import OWN_PACKAGES
from lumiimg.wording import count

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.lock_file import LockFile
    from lumiimg.resolve.own_requirements import OwnPackages
    from lumiimg.resolve.python_target import PythonTarget


BaseDigest = Literal["asked", "noted", "open"]
"""Whether the digest of a base is asked for, taken as it was noted the last time where it was, or left open."""


def complete_lock(
    lock: Lock,
    sources: Sources,
    *,
    base: BaseDigest,
    preferred: Preferences = NO_PREFERENCES,
    until: dt.date | None = None,
) -> Lock:
    """Return the lock with nothing left open, but for the digest of the base where that is to stay so.

    What is `preferred` is kept where it still fits; digests once registry and files were compared with them: whoever
    wrote them may be a stranger. `until` is the day after which nothing is taken from a package index, in the place of
    that of the releases.

    Raises FailedError for what cannot be had or does not go together.
    """
    bootstrap = lock.bootstrap if base == "open" else _with_base_digest(lock, sources, base, preferred.before)
    if bootstrap.image is not None:
        bootstrap.image.require_tls_or_digest()
    kept = [*_as_before(lock, preferred.before)]
    with _as_held(preferred.before):
        sources.store.sources(kept, sources.on_line)
    known = {source.location: source.sha256 for source in kept if source.sha256}
    unknown = {source.location for layer in lock.stack for source in layer.sources if not source.sha256}
    with _without_network("its sha256 is not in the catalogue", "; or name the file: --source NAME=FILE"):
        known |= sources.store.digests(sorted(unknown - known.keys()), sources.on_line)
    stack = [_with_known(layer, known) for layer in lock.stack]
    if not lock.resolved:
        wheels, below = _Wheels(lock, sources, preferred.wheels, until), stack[:-1] if lock.own else stack
        if any(wants_python(layer) for layer in below):
            below = wheels.of_layers(below)
        stack = [*below, wheels.of_own(lock.own, below, stack[-1])] if lock.own else below
    return replace(lock, bootstrap=bootstrap, base=stack[0], layers=tuple(stack[1:]), resolved=True)


def _with_base_digest(lock: Lock, sources: Sources, base: BaseDigest, before: LockFile | None) -> LockedBootstrap:
    """Return where the base comes from, with its digest; a folder has none, nor has what debootstrap makes."""
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
        is_same = before is not None and before.base.origin == bootstrap.origin
        asked = replace(image, digest=before.base.digest or None) if before and is_same else image
        asked.require_tls_or_digest()
        sources.on_line(f"looking up {asked}")
        with _as_held(before), _without_network("the digest of the base is not known"):
            found = resolve_image(asked, sources.web)
        digest = found.index_digest or found.manifest.digest
        note_digest(image, digest, sources.cache)
    return replace(bootstrap, image=replace(image, digest=digest))


def _as_before(lock: Lock, before: LockFile | None) -> Iterator[LockedSource]:
    """Yield the sources that an earlier lock has the digests of, and nobody else."""
    entries = {entry.name: entry for entry in before.stack} if before else {}
    for layer in lock.stack:
        entry = entries.get(layer.name)
        if before is None or entry is None or not entry.is_of(layer):
            continue
        for source in layer.sources:
            is_same = lock.request.sources.get(source.name) == before.request.sources.get(source.name)
            if source.sha256 is None and is_same and (digest := entry.first_download.get(source.name)) is not None:
                yield replace(source, sha256=digest)


@contextlib.contextmanager
def _as_held(before: LockFile | None) -> Iterator[None]:
    """Say how what is there now is taken, where it is not what the lock before has."""
    try:
        yield
    except ReplacedError as error:
        if before is None:
            raise
        hint = "the existing lock names it; lumiimg lock --upgrade all takes the current one"
        raise FailedError(error.what, where=error.where, hint=hint) from error


@contextlib.contextmanager
def _without_network(unknown: str, otherwise: str = "") -> Iterator[None]:
    """Say what is not known, and what a machine with a network can do about it, where an address is not reached."""
    try:
        yield
    except MissingHereError as error:
        if error.where is None or not error.where.startswith(("http://", "https://")):
            raise
        hint = f"run `lumiimg lock` on a machine with a network, and `build --locked` here{otherwise}"
        raise MissingHereError(f"{unknown}, and it {error.what}", where=error.where, hint=hint) from error


def _with_known(layer: LockedLayer, known: Mapping[str, str]) -> LockedLayer:
    """Return the layer with the digests that its sources had: one that was replaced at its address stops the build."""
    kept = (s if s.sha256 else replace(s, sha256=known.get(s.location)) for s in layer.sources)
    return replace(layer, sources=tuple(kept))


@dataclass(frozen=True, slots=True)
class _Wheels:
    """Which Python distributions a lock gets."""

    lock: Lock
    sources: Sources
    preferred: Mapping[str, str]
    until: dt.date | None

    def of_layers(self, stack: Sequence[LockedLayer]) -> list[LockedLayer]:
        """Return the layers with all Python distributions that the image gets."""
        names = ", ".join(layer.name for layer in stack if wants_python(layer))
        python = self._python(names.partition(",")[0])
        wanted = [_requirements_of(layer, self.sources) for layer in stack]
        if self.until is not None:  # one day for all
            wanted = [replace(wants, date=None) for wants in wanted]
        until = self.until or _newest_date(stack)
        days = {wants.date for wants in wanted if wants.date}
        dated = f", as of {', '.join(map(str, sorted(days | {until})))}" if until else ""
        self.sources.on_line(f"resolving the requirements of {names} for {python}{dated}")
        with _without_network(f"the catalogue does not have the wheels for {names}"):
            found = resolve_wheels(wanted, python, self.sources, until=until, preferred=self.preferred).by_layer
        self.sources.on_line(f"resolved: {count(sum(map(len, found.values())), 'Python distribution')}")
        wheels = {one.name: one for one in with_digests([*itertools.chain(*found.values())], self.sources)}
        return [replace(layer, wheels=tuple(wheels[one.name] for one in found[layer.name])) for layer in stack]

    def of_own(self, own: OwnPackages, below: Sequence[LockedLayer], layer: LockedLayer) -> LockedLayer:
        """Return the layer of the user's own packages with what it brings to the layers below, which stay as they are.

        Raises FailedError for what cannot be had or does not go together, MissingHereError without an index.
        """
        from lumiimg.resolve.own_packages import installed_layer, resolve_own

        python = self._python(OWN_PACKAGES)
        self.sources.on_line(f"resolving {own.summary} on top of the layers below, for {python}")
        there = [installed_layer(one, is_base=at == 0) for at, one in enumerate(below)]
        with _without_network("the catalogue does not have the wheels of your own packages"):
            wheels = resolve_own(there, own, python, self.sources, until=self.until, preferred=self.preferred)
        self.sources.on_line(f"resolved: {count(len(wheels), 'Python distribution')} for {layer.name}")
        return replace(layer, wheels=wheels)

    def _python(self, layer: str) -> PythonTarget:
        if self.lock.python is None:
            raise FailedError(
                f"no wheels can be chosen for {layer}: the Python of {self.lock.base.layer.name} is not known",
                hint="read the base first: lumiimg adapt",
            )
        return self.lock.python


def _newest_date(stack: Sequence[LockedLayer]) -> dt.date | None:
    """Return the day of the newest release that wants Python distributions: what was there then is what is taken.

    Where no release says when it came out, it is the day on which the facts of the newest layer were looked at.
    """
    wanting = [layer for layer in stack if wants_python(layer)]
    dates = [layer.release.date for layer in wanting if layer.release and layer.release.date]
    return max(dates or [layer.layer.date for layer in wanting], default=None)


def _requirements_of(layer: LockedLayer, sources: Sources) -> LayerRequirements:
    """Return what a layer wants of Python; for its requirement files its archives are fetched."""
    release = layer.release
    without = tuple(canonicalize_name(name) for name in (release.without if release else ()))
    requires = [expand(text, layer.arguments) for text in layer.layer.packages] if not _is_of_wheels(layer) else []
    for source in layer.sources:
        known = next((one for one in layer.layer.sources if one.name == source.name), None)
        if known is not None and known.requirements and not _is_of_wheels(layer):
            archive = sources.store.sources([source], sources.on_line)[source]
            where = f"the layer {layer.name}, {source.location}"
            requires += read_requirements(archive, known.requirements, without, where)
    return LayerRequirements(
        name=layer.name,
        version=release.version if release else "",
        pins=release.wheels if release else (),
        indexes=tuple(sources.mirrors.rewrite(index) for index in release.indexes) if release else (),
        requires=tuple(requires),
        without=without,
        has=layer.versions,
        date=release.date if release and wants_python(layer) else None,
    )


def _is_of_wheels(layer: LockedLayer) -> bool:
    """Whether the release comes as wheels, so that nothing of it is built."""
    return bool(layer.release and layer.release.wheels)
