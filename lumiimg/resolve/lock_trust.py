"""What a lock takes sources that are not from the catalogue: who wrote it vouches for that, and nobody else."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from lumiimg.catalog.sites import find_site
from lumiimg.errors import BadInputError, LumiimgError, shortened
from lumiimg.fetch.mirrors import Mirrors, general_index, public_index
from lumiimg.resolve.arguments import values_of
from lumiimg.resolve.lock import Lock, LockedLayer, LockedSource, wants_python
from lumiimg.resolve.lockfile import read_lock
from lumiimg.resolve.locking import lock_source
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import LayerSource
    from lumiimg.resolve.request import Request

_SHOWN = 5
"""Of what a refusal names."""


def read_for_build(
    path: Path,
    catalogue: Catalogue,
    mirrors: Mirrors,
    environment: Mapping[str, str],
    site: str | None,
    *,
    trusted: bool,
) -> tuple[Lock, Request, list[str]]:
    """Read the lock that is to be built, and what in it is not from the catalogue, which counts where it is `trusted`.

    Raises BadInputError where it is not, or is for another than this `site`; else as `read_lock` does.
    """
    lock, request = read_lock(path, catalogue, mirrors, environment.get("PATH"))
    if site is not None and find_site(site, environment).name != lock.site:
        what = f"is for {lock.site or 'no site'}, not for {site}"
        raise BadInputError(what, where=str(path), hint="write one for it: lumiimg lock")
    found = outside_catalogue(lock, mirrors)
    if not trusted:
        refuse_untrusted_sources(found, path)
    return lock, request, found


def outside_catalogue(lock: Lock, mirrors: Mirrors) -> list[str]:
    """Return what is not from where the catalogue has it, or has another digest than it publishes; each for people."""
    found = []
    if lock.base.layer.is_foreign:
        bootstrap = lock.bootstrap
        digest = bootstrap.image.digest if bootstrap.image else bootstrap.sha256 and f"sha256:{bootstrap.sha256}"
        found.append(f"base {bootstrap.agent} {bootstrap.image or bootstrap.origin} ({digest or 'without a digest'})")
    for layer in lock.stack:
        known = {one.name: one for one in layer.layer.sources if not one.optional}
        found += [
            _shown("source", one, layer) for one in layer.sources if not _is_known(one, known.get(one.name), layer)
        ]
    return [*found, *_wheels(lock, mirrors)]


def refuse_untrusted_sources(found: Sequence[str], path: Path) -> None:
    """Raise BadInputError where a lock takes sources that are not from the catalogue."""
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise BadInputError(
            f"takes sources that are not from the catalogue: {'; '.join(found[:_SHOWN])}{more}",
            where=str(path),
            hint="if you trust who wrote it: --trust-lock",
        )


def _is_known(source: LockedSource, known: LayerSource | None, layer: LockedLayer) -> bool:
    """Whether a source is what the catalogue has there: by its digest, or by its address where none is published."""
    if known is None:
        return False
    settled = lock_source(known, layer.arguments, {})
    if settled.sha256 is None and settled == lock_source(known, values_of(layer.layer, layer.release, {}), {}):
        return source.location == settled.location
    return (source.location, source.sha256) == (settled.location, settled.sha256)


def _wheels(lock: Lock, mirrors: Mirrors) -> Iterator[str]:
    if not any(layer.wheels for layer in lock.stack):
        return
    indexes = own_table("lumiimg.fetch", "indexes.toml")["index"]
    files_of = {f"https://{index['host']}": f"https://{index['files']}" for index in indexes}
    hosts = {*public_index(), *map(_host, mirrors.table.values())}
    with suppress(LumiimgError):
        hosts.add(_host(general_index(mirrors)))
    for layer in lock.stack:
        release, takes_any = layer.release, wants_python(layer)
        # the row of a release that was read is the lock's own, and vouches for no index
        rule = layer.layer.unlisted if release and release.is_unlisted else None
        named = rule.indexes if rule else release.indexes if release else ()
        own = hosts | set(map(_host, named))
        own |= {files_of[host] for host in own & files_of.keys()}
        pins: dict[str, Requirement] = {
            canonicalize_name(pin.name): pin for pin in map(Requirement, release.wheels if release else ())
        }
        for wheel in layer.wheels:
            if _host(wheel.location) not in own or not _is_named(wheel) or not (takes_any and _fits(wheel, pins)):
                yield _shown("Python package", wheel, layer)


def _is_named(wheel: LockedSource) -> bool:
    """Whether a wheel is by its file, there and here, the package in the version that the lock names."""
    try:
        name, version, *_ = parse_wheel_filename(wheel.file)
    except ValueError:
        return False
    there = unquote(urlsplit(wheel.location).path).rpartition("/")[2]
    return (wheel.file, canonicalize_name(wheel.name), wheel.version) == (there, name, str(version))


def _fits(wheel: LockedSource, pins: Mapping[str, Requirement]) -> bool:
    pin = pins.get(canonicalize_name(wheel.name))
    return pin is None or pin.specifier.contains(wheel.version, prereleases=True)


def _host(url: str) -> str:
    """Return where an address leads, and whether over TLS: of a wheel without, the digest is its author's alone."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _shown(what: str, source: LockedSource, layer: LockedLayer) -> str:
    name = shortened(f"{source.name} {source.version}" if source.version else source.name)
    return f"{what} {name} of {layer.name} from {shortened(source.location, 2000)} (sha256:{source.sha256})"
