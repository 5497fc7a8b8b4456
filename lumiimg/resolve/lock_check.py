"""A lock beside the catalogue: its layers from there, and what in it is from elsewhere, for which its author vouches.

Who wrote a lock, or an image that carries one, may be a stranger. What would build another image than it names is
refused; what it takes from elsewhere than the catalogue has it is listed, and needs `--trust-lock`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import structs
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from lumiimg.catalog.layers import Bootstrap, Layer
from lumiimg.catalog.needs import version_of
from lumiimg.decode import LONG_FAULT
from lumiimg.errors import BadInputError, LumiimgError, RefusedError, shortened
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.mirrors import Mirrors, general_index, public_index, validated_url
from lumiimg.resolve.bootstrap import LockedBootstrap, choose_bootstrap
from lumiimg.resolve.image_base import LOCAL_AGENTS, foreign_layer
from lumiimg.resolve.lock import Lock, LockedLayer, LockedSource, layer_digest, wants_python
from lumiimg.resolve.lock_file import AGAIN, LockedBase, LockedEntry, LockFile, request_of
from lumiimg.resolve.make_lock import check_used, lock_sources, split_digest
from lumiimg.resolve.python_target import PythonTarget
from lumiimg.resolve.request import name_of, wanted
from lumiimg.resolve.stack import LONGEST, OWN_PACKAGES, is_gpu, values_of
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.releases import Release
    from lumiimg.resolve.request import Request

_SHOWN = 5
"""Of what a refusal names."""


def lock_of(
    document: LockFile,
    catalogues: Sequence[Catalogue],
    mirrors: Mirrors,
    search_path: str | None,
    where: Path,
) -> Lock:
    """Return what a lock holds, each layer from the first of the catalogues that has it by its digest.

    Raises BadInputError for what is wrong in it, or would build another image than it names; RefusedError where no
    layer is the one that was locked; MissingHereError where the base cannot be had on this machine as it was.
    """
    try:
        lock = _lock(document, catalogues, mirrors, search_path)
        _refuse_faults(lock)
    except BadInputError as error:
        what, hint = shortened(error.what, LONG_FAULT), error.hint or AGAIN
        raise BadInputError(what, where=error.where or str(where), hint=hint) from error
    return lock


def _lock(document: LockFile, catalogues: Sequence[Catalogue], mirrors: Mirrors, search_path: str | None) -> Lock:
    request, wheels = request_of(document), _wheels_of(document)
    for name, given in request.sources.items():
        location, digest = split_digest(name, given)
        if not (digest and Path(location).is_absolute()):
            _address(location, f"the source {name}")
    base = _base(document.base, catalogues, request)
    layers = []
    for entry in document.layer:
        layer = _found(entry, catalogues)
        if entry.name == OWN_PACKAGES and request.own:
            layer = structs.replace(layer, packages=request.own.texts)
        layers.append(_locked(entry, layer, request, wheels.pop(entry.name, ())))
    if wheels:
        raise BadInputError(f"Python packages are of {min(wheels)!r}, which is not among the layers")
    check_used(request, [base.layer, *(one.layer for one in layers)], {one.name: one.release for one in layers})
    return Lock(
        request=request,
        bootstrap=_bootstrap(document.base, base.layer, mirrors, search_path),
        base=base,
        layers=tuple(layers),
        fabric=document.fabric,
        site=document.site or None,
        python=_python_of(document),
        rules=document.rule,
        resolved=True,
    )


def _found(entry: LockedEntry, catalogues: Sequence[Catalogue], *, is_base: bool = False) -> Layer:
    """Return the layer that was locked. Raises RefusedError where there are only others of its name."""
    others, missing = list[Layer](), list[BadInputError]()
    for catalogue in catalogues:
        try:
            layer = catalogue.base(entry.name) if is_base else catalogue.layer(entry.name)
        except BadInputError as error:
            missing.append(error)
            continue
        if layer_digest(layer) == entry.layer:
            return layer
        others.append(layer)
    if not others:
        raise missing[0]
    here, wanted = layer_digest(others[0])[:19], f"{entry.layer}"[:19]
    raise RefusedError(
        f"the layer {entry.name} is not the one that was locked: its digest is {here}…, not {wanted}…",
        hint=f"use the same lumiimg and --layers as before, or write the lock again; {others[0].folder}",
    )


def _base(entry: LockedBase, catalogues: Sequence[Catalogue], request: Request) -> LockedLayer:
    if entry.image is None:
        layer = _found(entry, catalogues, is_base=True)
    elif entry.agent not in {"docker", "oras"} and not (entry.agent in LOCAL_AGENTS and entry.origin.startswith("/")):
        raise BadInputError(f"key 'base.from' is not the whole path of an image: {shortened(entry.origin)!r}")
    else:
        layer = foreign_layer(entry.agent, entry.origin, entry.image.has, entry.image.provides)
        layer = structs.replace(layer, name=entry.name)
    if (entry.agent, entry.origin) not in {(one.agent, one.origin) for one in layer.bootstraps}:
        raise BadInputError(f"key 'base.from' is not where the catalogue has {layer.name} from")
    return _locked(entry, layer, request, ())


def _bootstrap(entry: LockedBase, base: Layer, mirrors: Mirrors, search_path: str | None) -> LockedBootstrap:
    bootstrap = choose_bootstrap(base, mirrors, search_path, locked=Bootstrap(entry.agent, entry.origin))
    if bootstrap.image is not None and not entry.digest:
        raise BadInputError("key 'base.digest' is missing")
    image = bootstrap.image and replace(bootstrap.image, digest=entry.digest)
    return replace(bootstrap, image=image, sha256=entry.image.sha256 if entry.image else None)


def _locked(entry: LockedEntry, layer: Layer, request: Request, wheels: tuple[LockedSource, ...]) -> LockedLayer:
    """Return a layer with what is locked of it. Raises BadInputError for what is wrong, missing, or not its own."""
    name, arguments = layer.name, entry.arguments
    if unknown := sorted(arguments.keys() ^ layer.arguments.keys()):
        raise BadInputError(f"the argument {name}.{shortened(unknown[0])} is left out, or is not one of the layer")
    for key, value in arguments.items():
        pattern = layer.arguments[key].pattern
        if len(value) > LONGEST:
            raise BadInputError(f"argument {name}.{key} has {len(value)} characters; at most {LONGEST} are allowed")
        if pattern is not None and not pattern.fullmatch(value):
            raise BadInputError(f"argument {name}.{key} does not match {pattern.pattern}")
    release = None if layer.is_base else _release(entry, layer, wheels)
    sources = lock_sources(layer, release, arguments, request.sources)
    if wrong := {one.name for one in sources if one.sha256 is None} ^ entry.first_download.keys():
        raise BadInputError(
            f"the digest of {shortened(min(wrong))} of {name} is left out, or is not for the lock to say"
        )
    sources = tuple(replace(one, sha256=one.sha256 or entry.first_download[one.name]) for one in sources)
    return LockedLayer(layer, release, arguments, sources, wheels)


def _release(entry: LockedEntry, layer: Layer, wheels: Sequence[LockedSource]) -> Release | None:
    """Return the release that was locked; of several rows for one version, that whose pins are locked."""
    rows = [release for release in layer.releases if release.version == entry.release]
    if entry.row is not None:
        for fault in _row_faults(entry.row, layer):
            raise BadInputError(f"the row of {layer.name}: {fault}")
        if entry.row.version != entry.release:
            raise BadInputError(f"the row of {layer.name} is of another release than {entry.release!r}")
        rows.append(entry.row)
    if not rows and (entry.release or layer.releases):
        raise BadInputError(f"{shortened(entry.release)!r} is not a release of {layer.name}")
    locked = {f"{wheel.name}=={wheel.version}" for wheel in wheels}
    return min(rows, key=lambda row: not locked.issuperset(row.wheels), default=None)


def _row_faults(row: Release, layer: Layer) -> Iterator[str]:
    """Yield why a row is not one that reading a package index, or the nearest row, could have made (unlisted.py)."""
    rule = layer.unlisted
    if not row.is_unlisted:
        yield "it is not of a release that was read from a package index"
    if version_of(row.version) is None:
        yield f"{shortened(row.version)!r} is not a version"
    for name in sorted(row.arguments.keys() - (rule.arguments.keys() if rule else set())):
        yield f"arguments.{name} is not for a package index to say"
    for key in ("unused", "without"):
        if getattr(row, key) != (getattr(rule, key) if rule else ()):
            yield f"{key} is not what the layer says"
    for key in ("wheels", "indexes", "has", "gpus"):
        if rule is None and getattr(row, key):
            yield f"{key} is there, and the layer has none"
    for index in row.indexes:
        _address(index, "an index")
    for pin in row.wheels:
        try:
            Requirement(pin)
        except InvalidRequirement:
            yield f"{shortened(pin)!r} is not a pin"
    yield from (f"{shortened(key)} {what}" for key, what in row.faults(layer.arguments).items() if what)


def _wheels_of(document: LockFile) -> dict[str, tuple[LockedSource, ...]]:
    """Return the wheels by layer."""
    found: dict[str, tuple[LockedSource, ...]] = {}
    for one in document.python.packages if document.python else ():
        (file,), layer = one.wheels, one.tool.lumiimg.layer
        url = _address(file.url, f"the wheel of {one.name}")
        wheel = LockedSource(one.name, "", file.name, file.hashes.sha256, url, "", one.version)
        found[layer] = (*found.get(layer, ()), wheel)
    return found


def _address(url: str, whose: str) -> str:
    """Return an address. Raises BadInputError, which leaves it to the caller to say in which file."""
    try:
        return validated_url(url, whose)
    except BadInputError as error:
        raise BadInputError(f"the address of {whose}: {error.what}") from error


def _python_of(document: LockFile) -> PythonTarget | None:
    if document.python is None:
        return None
    _, minor, *_ = document.python.requires_python.split(".")
    _, glibc = document.python.tool.lumiimg.glibc.split(".")
    return PythonTarget((3, int(minor)), (2, int(glibc)))


# -- whether it is of one mind: what it leaves out or says twice, a build would not notice --


def _refuse_faults(lock: Lock) -> None:
    """Raise BadInputError for the first fault."""
    names = [layer.name for layer in lock.layers]
    wheels = [canonicalize_name(wheel.name) for layer in lock.stack for wheel in layer.wheels]
    for what, several in (("layer", names), ("Python package", wheels)):
        if name := next((name for name, count in Counter(several).items() if count > 1), None):
            raise BadInputError(f"the {what} {name} is listed twice")
    for fault in (*_of_needs(lock), *_of_pins(lock), *_of_own(lock), *_of_request(lock)):
        raise BadInputError(fault)


def _of_needs(lock: Lock) -> Iterator[str]:
    """Hold that what a layer requires is below it; in which version was for the rules, when the lock was made."""
    there = {"libfabric", "libcxi"} if lock.fabric is Fabric.HOST else set[str]()
    for layer in lock.stack:
        for need in layer.layer.needs_of(layer.release) if layer is not lock.base else ():
            if need.component not in there and not is_gpu(need.component):  # GPUs are of the site
                yield f"{layer.name} requires {need.component}, which is not among the layers below it"
        there |= {layer.name, *layer.layer.provides, *layer.versions}
        if "python3" in there:  # there is one, and which it is only reading the image shows
            there.add("python")


def _of_pins(lock: Lock) -> Iterator[str]:
    below: set[str] = set()
    for layer in lock.stack:
        below |= {canonicalize_name(wheel.name) for wheel in layer.wheels}
        for pin in layer.release.wheels if layer.release else ():
            if canonicalize_name(Requirement(pin).name) not in below:
                yield f"the Python package {pin} of {layer.name} is left out"
        below |= {canonicalize_name(name) for name in layer.versions}


def _of_own(lock: Lock) -> Iterator[str]:
    """Hold that the user's own packages are all there; which lines a marker leaves out was decided by the lock."""
    is_there = any(layer.name == OWN_PACKAGES for layer in lock.layers)
    if is_there != bool(lock.own):
        yield f"request.own and the layer {OWN_PACKAGES} are there without each other"
    versions: dict[str, str] = {
        canonicalize_name(wheel.name): wheel.version for layer in lock.stack for wheel in layer.wheels
    }
    # ROCm's triton has another name, and stands for it
    there = {"triton", *(canonicalize_name(name) for layer in lock.stack for name in layer.versions)}
    for one in lock.own.requirements if lock.own else ():
        wanted, version = one.requirement, versions.get(one.name)
        if version is None and one.name not in there and wanted.marker is None:
            yield f"request.own names {one.text}, which is left out"
        elif version is not None and not wanted.specifier.contains(version, prereleases=True):
            yield f"request.own names {one.text}, and {version} is there"


def _of_request(lock: Lock) -> Iterator[str]:
    """Hold what `lumiimg lock` would settle again beside what is built now."""
    request, layers = lock.request, {layer.name: layer for layer in lock.stack}
    if not lock.base.layer.is_foreign and request.base != lock.base.name:
        yield f"request.base is {request.base!r}, and the base is {lock.base.name}"
    for text in request.add:
        layer = layers.get(name_of(text))
        version = layer.release.version if layer and layer.release else None
        if layer is None or (version is not None and not wanted(text)[1].contains(version, prereleases=True)):
            yield f"request.add names {text}, which is not among the layers"
    for (name, argument), value in request.arguments.items():
        if layers[name].arguments.get(argument, value) != value:
            yield f"request.arguments sets {name}.{argument}, and the layer has another value"


# -- what it takes from elsewhere than the catalogue has it --


def outside_catalogue(
    lock: Lock, mirrors: Mirrors, *, carried: Path | None = None, given: Path | None = None
) -> list[str]:
    """Return what is not from where the catalogue has it, or has another digest than it publishes; each for people.

    `carried` is the folder of the layers that an image brought along, whose scripts are code of whoever made it;
    `given` the base that a person named beside it.
    """
    found = []
    if lock.base.layer.is_foreign and given is None:
        bootstrap = lock.bootstrap
        digest = bootstrap.image.digest if bootstrap.image else bootstrap.sha256 and f"sha256:{bootstrap.sha256}"
        found.append(f"base {bootstrap.agent} {bootstrap.image or bootstrap.origin} ({digest or 'without a digest'})")
    for layer in lock.stack:
        if carried is not None and layer.layer.folder.is_relative_to(carried):
            found.append(f"the layer {layer.name}, as the image carries it ({layer_digest(layer.layer)})")
        found += [_shown("source", one, layer) for one in layer.sources if not _is_known(one, layer)]
    return [*found, *_wheels(lock, mirrors)]


def _is_known(source: LockedSource, layer: LockedLayer) -> bool:
    """Whether a source is what the catalogue has there: by its digest, or by its address where none is published."""
    by_name = {one.name: one for one in lock_sources(layer.layer, layer.release, layer.arguments, {})}
    settled = by_name.get(source.name)
    if settled is None or source.location != settled.location:
        return False
    usual = values_of(layer.layer, layer.release, {})
    is_usual = settled.sha256 is None and settled in lock_sources(layer.layer, layer.release, usual, {})
    return is_usual or source.sha256 == settled.sha256


def refuse_untrusted(found: Sequence[str], path: Path) -> None:
    """Raise BadInputError where a lock, or an image, takes something that is not from the catalogue."""
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise BadInputError(
            f"takes what is not from the catalogue: {'; '.join(found[:_SHOWN])}{more}",
            where=str(path),
            hint="if you trust who wrote it: --trust-lock",
        )


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
        named = release.indexes if release else ()
        if release is not None and release.is_unlisted:
            named = layer.layer.unlisted.indexes if layer.layer.unlisted else ()
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
