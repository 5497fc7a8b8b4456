"""Whether a lock agrees with itself and with its layers: what it leaves out or says twice, a build would not notice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lumiimg.decode import DecodeError
from lumiimg.fabric.path import Fabric
from lumiimg.resolve.arguments import is_gpu
from lumiimg.resolve.request import Request, name_of, wanted
from lumiimg.resolve.stack import OWN_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.resolve.lock import Lock, LockedLayer


def refuse_disagreement(lock: Lock, request: Request) -> None:
    """Refuse a lock from which another image would be built than it names. Raises DecodeError."""
    for fault in (*_of_layers(lock), *_of_needs(lock), *_of_wheels(lock), *_of_own(lock), *_of_request(lock, request)):
        raise DecodeError(fault)


def twice(names: Iterable[str]) -> str | None:
    """Return the first name that is there more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _of_layers(lock: Lock) -> Iterator[str]:
    for layer in lock.stack:
        there = [source.name for source in layer.sources]
        if name := twice(there):
            yield f"the source {name} of {layer.name} is listed twice"
        lacking = {source.name for source in layer.layer.sources_of(layer.release) if not source.optional} - {*there}
        if lacking:
            yield f"the source {min(lacking)} of {layer.name} is left out"


def _of_needs(lock: Lock) -> Iterator[str]:
    """Hold that what a layer requires is below it; in which version was for the rules, when the lock was made."""
    there = {"libfabric", "libcxi"} if lock.fabric is Fabric.HOST else set[str]()
    for layer in lock.stack:
        for need in layer.layer.needs_of(layer.release) if layer is not lock.base else ():
            if need.component not in there and not is_gpu(need.component):  # GPUs are of the site
                yield f"{layer.name} requires {need.component}, which is not among the layers below it"
        there |= {layer.name, *layer.layer.provides, *_has(layer)}
        if "python3" in there:  # there is one, and which it is only reading the image shows
            there.add("python")


def _of_wheels(lock: Lock) -> Iterator[str]:
    wheels = [canonicalize_name(wheel.name) for layer in lock.stack for wheel in layer.wheels]
    if name := twice(wheels):
        yield f"the Python package {name} is listed twice"
    below: set[str] = set()
    for layer in lock.stack:
        below |= {canonicalize_name(wheel.name) for wheel in layer.wheels}
        for pin in layer.release.wheels if layer.release else ():
            if canonicalize_name(Requirement(pin).name) not in below:
                yield f"the Python package {pin} of {layer.name} is left out"
        below |= {canonicalize_name(name) for name in _has(layer)}


def _of_own(lock: Lock) -> Iterator[str]:
    """Hold that the user's own packages are all there; which lines a marker leaves out was decided by the lock."""
    is_there = any(layer.name == OWN_PACKAGES for layer in lock.layers)
    if is_there != bool(lock.own):
        yield f"request.own and the layer {OWN_PACKAGES} are there without each other"
    versions: dict[str, str] = {
        canonicalize_name(wheel.name): wheel.version for layer in lock.stack for wheel in layer.wheels
    }
    # ROCm's triton has another name, and stands for it
    there = {"triton", *(canonicalize_name(name) for layer in lock.stack for name in _has(layer))}
    for one in lock.own.requirements if lock.own else ():
        wanted, version = one.requirement, versions.get(one.name)
        if version is None and one.name not in there and wanted.marker is None:
            yield f"request.own names {one.text}, which is left out"
        elif version is not None and not wanted.specifier.contains(version, prereleases=True):
            yield f"request.own names {one.text}, and {version} is there"


def _has(layer: LockedLayer) -> Iterator[str]:
    yield from layer.layer.has
    yield from layer.release.has if layer.release else ()


def _of_request(lock: Lock, request: Request) -> Iterator[str]:
    """Hold what `lumiimg lock` would settle again against what is built now."""
    if not lock.base.layer.is_foreign and request.base != lock.base.name:
        yield f"request.base is {request.base!r}, and the base is {lock.base.name}"
    layers = {layer.name: layer for layer in lock.stack}
    for text in request.add:
        layer = layers.get(name_of(text))
        version = layer.release.version if layer and layer.release else None
        if layer is None or (version is not None and not wanted(text)[1].contains(version, prereleases=True)):
            yield f"request.add names {text}, which is not among the layers"
    for (name, argument), value in request.arguments.items():
        if name not in layers or layers[name].arguments.get(argument, value) != value:
            yield f"request.arguments sets {name}.{argument}, and the layer has another value"
