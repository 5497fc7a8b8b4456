"""A lock compared with the catalogue: its layers are from there; for parts from elsewhere its author vouches.

A stranger may have written a lock, or an image that carries one. A lock that would build another image than it names
is refused; parts that are not from the catalogue's sources are listed, and need `--trust-lock`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import structs
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lumiimg.catalog.catalogue import UnknownNameError
from lumiimg.catalog.layers import Layer
from lumiimg.catalog.needs import NOT_PYTHON, is_version
from lumiimg.catalog.releases import expand
from lumiimg.core.decode import LONG_FAULT
from lumiimg.core.errors import BadInputError, LumiimgError, RefusedError, shortened
from lumiimg.core.toml import package_toml
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.mirrors import Mirrors, general_index, public_index
from lumiimg.resolve.bootstrap import choose_bootstrap
from lumiimg.resolve.image_base import LOCAL_AGENTS, foreign_layer
from lumiimg.resolve.lock import MADE_HERE, Lock, LockedLayer, LockedSource, layer_digest, wants_python
from lumiimg.resolve.lock_file import AGAIN, LockedBase, LockedEntry, LockFile, request_of
from lumiimg.resolve.make_lock import Released, check_used, lock_layer
from lumiimg.resolve.python_target import OF_TORCH, is_of_cuda
from lumiimg.resolve.request import name_of, wanted
from lumiimg.resolve.requirements import parsed
from lumiimg.resolve.stack import OWN_PACKAGES, for_gpu, is_gpu, values_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.releases import Release
    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.request import Request

_SHOWN = 5
"""Most parts that a refusal names."""


def lock_of(
    document: LockFile,
    catalogues: Sequence[Catalogue],
    mirrors: Mirrors,
    search_path: str | None,
    where: Path,
) -> Lock:
    """Return the lock in a document, each layer from the first of the catalogues that has it with the same digest.

    Raises BadInputError for a faulty lock, or one that would build another image than it names; RefusedError if no
    layer is the one that was locked; MissingHereError if the base is not available on this machine as it was locked.
    """
    try:
        return _lock(document, catalogues, mirrors, search_path)
    except BadInputError as error:
        what = shortened(f"{error.where}: {error.what}" if error.where else error.what, LONG_FAULT)
        raise BadInputError(what, where=str(where), hint=error.hint or AGAIN) from error


def _lock(document: LockFile, catalogues: Sequence[Catalogue], mirrors: Mirrors, search_path: str | None) -> Lock:
    request, known, gpu = request_of(document), document.first_download, document.gpu or None
    released: list[Released] = []
    for entry in document.stack:
        layer = _layer(entry, catalogues)
        if entry is not document.base:
            layer = for_gpu(layer, gpu)
            if entry.name == OWN_PACKAGES:
                layer = structs.replace(layer, packages=request.own_texts)
        released.append((layer, _release(entry, layer)))
    check_used(request, released)
    stack = [
        replace(lock_layer(layer, release, request), wheels=entry.locked_wheels, wheel_bytes=entry.wheel_bytes)
        for entry, (layer, release) in zip(document.stack, released, strict=True)
    ]
    unknown = {source.location for layer in stack for source in layer.sources if source.sha256 is None}
    if wrong := unknown ^ known.keys():
        raise BadInputError(f"the digest of {shortened(min(wrong))} is missing, or does not belong in the lock")
    base, *layers = (layer.with_digests(known) for layer in stack)
    lock = Lock(
        request=request,
        bootstrap=_bootstrap(document.base, base.layer, mirrors, search_path),
        base=base,
        layers=tuple(layers),
        fabric=document.fabric,
        site=document.site or None,
        gpu=gpu,
        rules=document.rule,
        resolved=True,
    )
    if fault := next(chain(_faults(lock), _not_as_asked(lock)), None):
        raise BadInputError(fault)
    return lock


def _layer(entry: LockedEntry, catalogues: Sequence[Catalogue]) -> Layer:
    """Return the layer that was locked. Raises RefusedError if there are only others with its name."""
    if isinstance(entry, LockedBase) and entry.image is not None:
        if entry.agent != "docker" and not (entry.agent in LOCAL_AGENTS and entry.origin.startswith("/")):
            raise BadInputError(f"key 'base.from' is not the absolute path of an image: {shortened(entry.origin)!r}")
        found = foreign_layer(entry.agent, entry.origin, entry.image.has, entry.image.provides)
        return structs.replace(found, name=entry.name)
    others, missing = list[Layer](), list[BadInputError]()
    for catalogue in catalogues:
        try:
            is_base = isinstance(entry, LockedBase)
            layer = catalogue.base(entry.name) if is_base else catalogue.layer(entry.name)
        except BadInputError as error:
            missing.append(error)
            continue
        if layer_digest(layer) == entry.layer:
            return layer
        others.append(layer)
    if not others:
        if isinstance(unknown := missing[0], UnknownNameError):
            raise BadInputError(unknown.what, hint="--layers DIR, with the folder that the lock was written with")
        raise unknown
    here, wanted = layer_digest(others[0])[:19], f"{entry.layer}"[:19]
    raise RefusedError(
        f"the layer {entry.name} is not the one that was locked: its digest is {here}…, not {wanted}…",
        hint=f"use the same lumiimg and --layers as before, or write the lock again; {others[0].folder}",
    )


def _bootstrap(entry: LockedBase, base: Layer, mirrors: Mirrors, search_path: str | None) -> LockedBootstrap:
    ways = tuple(one for one in base.bootstraps if (one.agent, one.origin) == (entry.agent, entry.origin))
    if not ways:
        raise BadInputError(f"key 'base.from' is not the catalogue's source of {base.name}")
    bootstrap = choose_bootstrap(structs.replace(base, bootstraps=ways), mirrors, search_path)
    image, sha256 = bootstrap.image, entry.image.sha256 if entry.image else None
    if image is None:
        return replace(bootstrap, sha256=sha256)
    if not entry.digest or image.digest not in {None, entry.digest}:
        raise BadInputError(f"key 'base.digest' is {'not that of base.from' if entry.digest else 'missing'}")
    return replace(bootstrap, image=replace(image, digest=entry.digest))


def _release(entry: LockedEntry, layer: Layer) -> Release | None:
    """Return the release that was locked; of several rows for one version, the row whose pins are locked."""
    rows = [release for release in layer.releases if release.version == entry.release]
    if (row := entry.row) is not None:
        faults = [f"{key} {what}" for key, what in row.faults(layer.arguments).items() if what]
        if not row.is_unlisted or layer.is_base or row.version != entry.release:
            faults.append(f"it is not of a release {entry.release!r} that was read from a package index")
        faults += [f"a pin is not valid: {pin}" for pin in row.wheels if parsed(pin) is None]
        if faults:
            raise BadInputError(f"the row of {layer.name}: {shortened(faults[0])}")
        rows.append(row)
    if not rows and (entry.release or layer.releases):
        raise BadInputError(f"{shortened(entry.release)!r} is not a release of {layer.name}")
    locked = {f"{wheel.name}=={wheel.version}" for wheel in entry.locked_wheels}
    return min(rows, key=lambda row: not locked.issuperset(row.wheels), default=None)


def _faults(lock: Lock) -> Iterator[str]:
    """Yield parts that are missing or duplicate, which a build would not notice; the rules have judged versions."""
    wheels = [wheel for layer in lock.stack for wheel in layer.wheels]
    once = [one.name for layer in lock.stack for one in layer.wheels if not _replaces(one, layer, lock)]
    for what, names in (("layer", [one.name for one in lock.stack]), ("Python package", once)):
        yield from (f"the {what} {name} is listed twice" for name, count in Counter(names).items() if count > 1)
    there = {"libfabric", "libcxi"} if lock.fabric is Fabric.HOST else set[str]()
    packages = set[str]()  # a wheel that calls itself torch is not the component
    for layer in lock.stack:
        for need in layer.layer.needs_of(layer.release) if layer is not lock.base else ():
            if need.component not in there and not is_gpu(need.component):  # GPUs belong to the site
                yield f"{layer.name} requires {need.component}, which is not among the layers below it"
        packages |= {wheel.name for wheel in layer.wheels}
        for pin in layer.pins:
            if canonicalize_name(Requirement(pin).name) not in packages:
                yield f"the Python package {pin} of {layer.name} is missing"
        there |= {layer.name, *layer.layer.provides, *layer.versions}
        packages |= set(map(canonicalize_name, layer.versions))
        if "python3" in there:  # its version is known only after reading the image
            there.add("python")
    if lock.base.wheels and not wants_python(lock.base):
        yield f"the base {lock.base.name} has Python packages, but needs none"
    versions = {wheel.name: wheel.version for wheel in wheels}
    commits = {wheel.name: wheel.location for wheel in wheels if wheel.is_commit}
    for one in lock.request.own:
        wish, version = one.requirement, versions.get(one.name)
        # the lock decided which lines a marker leaves out; ROCm's triton has another name, and stands in for triton
        if version is None and one.name not in {*there, *packages, "triton"} and wish.marker is None:
            yield f"request.own names {one.text}, which is missing"
        elif version is not None and not wish.specifier.contains(version, prereleases=True):
            yield f"request.own names {one.text}, but the lock has {version}"
        if wish.url != commits.pop(one.name, None):
            yield f"request.own names {one.text}, but the lock has another commit of it, or none"
    yield from (f"{address} is in the lock, but request.own does not name it" for address in commits.values())


def _replaces(wheel: LockedSource, layer: LockedLayer, lock: Lock) -> bool:
    """Return whether a wheel replaces another one, as the user asked."""
    return layer.name == OWN_PACKAGES and wheel.name in lock.request.replaced


def _not_as_asked(lock: Lock) -> Iterator[str]:
    """Yield where the lock differs from its request."""
    request, layers = lock.request, {layer.name: layer for layer in lock.stack}
    if (OWN_PACKAGES in layers) != bool(request.own or request.own_files):
        yield f"request.own and the layer {OWN_PACKAGES} need each other"
    if not lock.base.layer.is_foreign and request.base != lock.base.name:
        yield f"request.base is {request.base!r}, and the base is {lock.base.name}"
    for text in request.add:
        asked = layers.get(name_of(text))
        if asked is None or (asked.version and not wanted(text).versions.contains(asked.version, prereleases=True)):
            yield f"request.add names {text}, which is not among the layers"


# -- parts that are not from the catalogue --


def outside_catalogue(
    lock: Lock, mirrors: Mirrors, *, carried: Path | None = None, given: Path | None = None
) -> list[str]:
    """Return a description of each part whose source or digest is not the catalogue's.

    `carried` is the folder of layers that an image carries, whose scripts were written by its author; `given` is the
    base that the user named beside the lock.
    """
    found, bootstrap = list[str](), lock.bootstrap
    if lock.base.layer.is_foreign and given is None:
        digest = bootstrap.image.digest if bootstrap.image else bootstrap.sha256 and f"sha256:{bootstrap.sha256}"
        found.append(f"base {bootstrap.agent} {bootstrap.image or bootstrap.origin} ({digest or 'without a digest'})")
    for layer in lock.stack:
        if carried is not None and layer.layer.folder.is_relative_to(carried):
            found.append(f"the layer {layer.name}, as the image carries it ({layer_digest(layer.layer)})")
        if layer.is_unlisted:
            found.append(f"the release {layer.title}, which is not in the catalogue")
        found += [_shown("source", one, layer) for one in layer.sources if not _is_known(one, layer, lock.request)]
    return [*found, *_wheels(lock, mirrors)]


def _is_known(source: LockedSource, layer: LockedLayer, request: Request) -> bool:
    """Return whether a source is the catalogue's: by its digest, or by its address if no digest is published."""
    if source.name in request.sources:
        return False
    if source.note != MADE_HERE:
        return True
    usual = values_of(layer.layer, layer.release, {})
    urls = {expand(one.url, usual) for one in layer.layer.sources_of(layer.release)}
    return not layer.is_unlisted and source.location in urls


def refuse_untrusted(found: Sequence[str], path: Path) -> None:
    """Raise BadInputError if a lock, or an image, uses parts that are not from the catalogue."""
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise BadInputError(
            f"uses parts that are not from the catalogue: {'; '.join(found[:_SHOWN])}{more}",
            where=str(path),
            hint="if you trust its author: --trust-lock",
        )


def _wheels(lock: Lock, mirrors: Mirrors) -> Iterator[str]:
    """Yield each wheel that resolving the layers could not have selected, or not from that index."""
    if not any(layer.wheels for layer in lock.stack):
        return
    general = {*public_index()}
    with suppress(LumiimgError):
        general.add(general_index(mirrors))
    elsewhere = package_toml("lumiimg.fetch", "indexes.toml")["index"]
    files = {f"https://{one['host']}": f"https://{one['files']}" for one in elsewhere}
    pins: dict[str, tuple[Requirement, Sequence[str]]] = {}  # with the indexes that the catalogue names
    for layer in lock.stack:
        rule = layer.layer.unlisted if layer.is_unlisted else layer.release
        for pin in map(Requirement, layer.pins):
            pins.setdefault(canonicalize_name(pin.name), (pin, rule.indexes if rule else ()))
        for name in layer.release.beside if layer.release else ():
            pins.setdefault(canonicalize_name(name), (Requirement(name), rule.indexes if rule else ()))
    in_no_index = _in_no_index(lock, pins)
    for layer in lock.stack:
        for wheel in layer.wheels:
            pinned, indexes = pins.get(wheel.name, (None, ()))
            if pinned is not None and not indexes and _replaces(wheel, layer, lock):
                is_wanted = wheel.name not in OF_TORCH
            elif pinned is None:
                is_wanted = wheel.name not in {*in_no_index, *OF_TORCH} and not is_of_cuda(wheel.name)
            else:
                is_wanted = pinned.specifier.contains(wheel.version, prereleases=True)
            hosts = {_host(url) for index in indexes or general for url in (index, mirrors.rewrite(index))}
            is_there = _host(wheel.location) in {*hosts, *(files[host] for host in hosts & files.keys())}
            if not (wants_python(layer) and is_wanted and is_there):
                yield _shown("Python package", wheel, layer)


def _in_no_index(lock: Lock, pinned: Collection[str]) -> set[str]:
    """Return projects for which no index is asked: the image has them in another way, or a release leaves them out."""
    found = {one for layer in lock.stack for one in layer.without} - {one.name for one in lock.request.own}
    for layer in lock.stack:
        if layer is lock.base or wants_python(layer):
            has = {name for name, version in layer.versions.items() if name not in NOT_PYTHON and is_version(version)}
            found |= set(map(canonicalize_name, has)) - (lock.request.replaced if layer is lock.base else set())
    return found | {"triton"} if "torch" in {*found, *pinned} else found


def _host(url: str) -> str:
    """Return scheme and host of an address: without TLS, only the author of a lock vouches for a wheel's digest."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _shown(what: str, source: LockedSource, layer: LockedLayer) -> str:
    name = shortened(f"{source.name} {source.version}" if source.version else source.name)
    return f"{what} {name} of {layer.name} from {shortened(source.location, 2000)} (sha256:{source.sha256})"
