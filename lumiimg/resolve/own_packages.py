"""A user's own Python packages as the last layer: what is below stays unchanged, and they are resolved beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from lumiimg.catalog.needs import NOT_PYTHON, is_version, version_of
from lumiimg.core.errors import RefusedError
from lumiimg.resolve.commits import read_commits
from lumiimg.resolve.lock import LockedLayer, LockedSource, wants_python
from lumiimg.resolve.python_project import (
    THIS_IMAGE,
    LayerRequirements,
    all_requirers,
    is_named,
    pins_by_project,
    resolve_wheels,
    version_of_pin,
    with_digests,
)
from lumiimg.resolve.python_target import (
    OF_TORCH,
    ROCM_TRITONS,
    TRITON,
    PythonTarget,
    full_version,
    instead_of,
    is_of_cuda,
)
from lumiimg.resolve.requirements import PYTHON
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.uv import NoSolutionError

if TYPE_CHECKING:
    import datetime as dt

    from packaging.version import Version

    from lumiimg.catalog.layers import Layer
    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.request import Request
    from lumiimg.resolve.requirements import UserRequirement
    from lumiimg.resolve.stack import Stack

_OF_THE_MACHINE = frozenset({"rocm", "rocm-devel", "mpi"})
"""Requirements of layers whose wheels are not those of the index."""
_SOURCE = "your own requirements; what the layers below have"
_STAYS = (
    "packages below stay unless --replace names them; only wheels and git commits are accepted; a package that is in "
    "no index needs a layer of your own"
)
_OF_ROCM = re.compile(r"(?:.*-)?rocm(?:-?[0-9].*|-.*)?")
_WITHOUT_CUDA = "{} does the same without such a GPU"
_SHOWN = 8


def brought_by_layers(layers: Iterable[Layer]) -> dict[str, str]:
    """Return the layer for each distribution that is made for ROCm or MPI; an index has others of the same name."""
    found: dict[str, str] = {}
    for layer in layers:
        needs = {need.component for release in layer.releases for need in release.requires}
        needs |= {need.component for need in layer.requires}
        is_made_here = layer.sources or needs & _OF_THE_MACHINE or any(release.indexes for release in layer.releases)
        if is_made_here and needs & {"python3", "python", "torch"}:
            pins = [name for release in layer.releases for name in pins_by_project(release.wheels)]
            if "torch" in layer.provides:
                pins += [TRITON, *ROCM_TRITONS]
            found = dict.fromkeys((*pins, layer.name), layer.name) | found
    return found


def check_own_packages(asked: Request, stack: Stack, base: Layer) -> Iterator[RuleResult]:
    """Yield what is known of own packages without asking an index; a line with a marker is left to the lock."""
    if "torch" in {*base.has, *base.provides} and not base.is_foreign:
        because = (
            f"the other Python packages of {base.name} are known only if the image is read, and replacing one "
            "ends the build of own-packages: give the image as --base, by its path or address"
        )
        yield RuleResult("layers", RuleOutcome.UNKNOWN, "the image's packages", "some of them", because, base.source)
    there = _planned(stack)
    for one in asked.own:
        version, by = there.get(one.name, (None, ""))
        if one.replaces and (why := _never_replaced(one.name, asked)):
            yield RuleResult("layers", RuleOutcome.REFUSED, one.name, one.text, f"{one.where}: {why}", _SOURCE)
        elif one.replaces:
            was = f"{one.name} {version}" if version else f"another {one.name}"
            because = f"as you asked, {one.text} replaces {was} of {by or 'the layers below'}"
            yield RuleResult("layers", RuleOutcome.UNKNOWN, was, one.text, because, _SOURCE)
    offered = stack.offers.get(PYTHON)
    for one, python in _other_python(asked, version_of(offered.version if offered else None)):
        because = f"{one.where} requires {one.text}, and the image has Python {python}, which is not replaced"
        yield RuleResult("layers", RuleOutcome.REFUSED, one.text, f"Python {python}", because, _SOURCE)
    for one in asked.own:
        version, by = there.get(one.name, (None, ""))
        if one.requirement.marker is not None or one.name == PYTHON or one.name in asked.replaced:
            continue
        if one.name not in there:
            if objection := _not_for_image(one.name, asked, there):
                because = f"{one.where} names {one.name}, which {'; '.join(objection)}"
                yield RuleResult("layers", RuleOutcome.REFUSED, "nothing", one.name, because, _SOURCE)
        elif one.requirement.url:
            because = f"{one.where} requires {one.text}, and {by} has {one.name}, which is not replaced"
            yield RuleResult("layers", RuleOutcome.REFUSED, "nothing", one.name, because, _SOURCE)
        elif version and is_version(version) and not one.requirement.specifier.contains(version, prereleases=True):
            because = f"{one.where} requires {one.text}, and {by} has {one.name} {version}, which is not replaced"
            yield RuleResult("layers", RuleOutcome.REFUSED, one.text, f"{one.name} {version}", because, _SOURCE)


def _other_python(asked: Request, python: Version | None) -> Iterator[tuple[UserRequirement, str]]:
    """Yield each requirement that the image's Python (None: not known) does not meet, with that Python's version."""
    if python is not None and len(python.release) > 1:
        late = full_version((python.major, python.minor))
        for one in asked.own:
            if one.name == PYTHON and not one.requirement.specifier.contains(late):
                yield one, f"{python.major}.{python.minor}"


def _planned(stack: Stack) -> dict[str, tuple[str | None, str]]:
    """Return the packages of a planned stack by name: the version, if it is known, and what provides it."""
    found: dict[str, tuple[str | None, str]] = {}
    layers = {chosen.name for chosen in stack.layers}
    for name, offer in stack.offers.items():
        if name not in NOT_PYTHON:
            by = f"the layer {offer.by}" if offer.by in layers else "the image"
            found[canonicalize_name(name)] = (offer.version, by)
    for chosen in stack.layers:
        for name, pin in pins_by_project(chosen.release.wheels if chosen.release else ()).items():
            found[name] = (version_of_pin(pin), f"the layer {chosen.name}")
    for name in ROCM_TRITONS:
        if name in found:  # the layers add `triton` beside it
            found.setdefault(TRITON, found[name])
    return found


def _not_for_image(name: str, asked: Request, there: Collection[str]) -> tuple[str, str] | None:
    """Return why the index's package of a name is not for this image, and what to do; None if it may be."""
    if is_of_cuda(name, of_index=True):
        other = instead_of(name)
        return "is for NVIDIA's GPUs", _WITHOUT_CUDA.format(other) if other else "leave the line out"
    if name in OF_TORCH and "torch" in there:
        return "the index has for CUDA, and the image has torch", "leave the line out"
    if name in asked.brought:
        return "the index does not have for this image", f"--add {asked.brought[name]}"
    return None


def _never_replaced(name: str, asked: Request) -> str | None:
    """Return why a package of the image is never replaced; None if it may be."""
    if name in OF_TORCH or _OF_ROCM.fullmatch(name) or is_of_cuda(name, of_index=True) or name in asked.brought:
        return f"{name} is made for the image's ROCm and RCCL, so it stays"
    return None


def resolve_own(
    below: Sequence[LayerRequirements],
    asked: Request,
    target: PythonTarget,
    sources: Sources,
    *,
    until: dt.date | None,
    preferred: Mapping[str, str] | None = None,
    beside: Sequence[str] = (),
) -> tuple[LockedSource, ...]:
    """Return what own packages add to installed layers (`installed_layer`): wheels, then projects at commits.

    `preferred` versions are used where they fit; `beside` are projects that lumiimg adds. Raises RefusedError for
    packages that are CUDA's or a layer's; FailedError for packages that are not available or conflict.
    """
    for one, python in _other_python(asked, version_of(target.python)):
        raise RefusedError(f"{one.where} requires {one.text}, and the image has Python {python}, which is not replaced")
    there = {canonicalize_name(name) for layer in below for name in (*layer.has, *pins_by_project(layer.requires))}
    if not there.isdisjoint(ROCM_TRITONS):
        there.add(canonicalize_name(TRITON))
    for one in asked.own:
        if one.replaces and (objection := _never_replaced(one.name, asked)):
            raise RefusedError(objection, where=one.where, hint="leave it out")
        if one.replaces and one.name not in there:
            what = f"{one.name} is not known to be in the image"
            raise RefusedError(what, where=one.where, hint=f"add it: pip:{one.text}")
    there -= asked.replaced
    if known := next((one for one in asked.own if one.requirement.url and one.name in there), None):
        what = f"{known.where} requires {known.text}, and the image has {known.name}, which is not replaced"
        raise RefusedError(what, hint="leave the line out")
    commits = read_commits(asked.own, sources)
    below = [_less(layer, asked.replaced) for layer in below]
    named = {one.name for one in asked.own}
    below = [replace(layer, without=tuple(name for name in layer.without if name not in named)) for layer in below]
    built = {commit.source.name: commit.source.version for commit in commits}
    for commit in commits:
        name, version = commit.source.name, commit.source.version
        below.append(LayerRequirements(name, version, requires=commit.requires, has={name: version}))
    wanted = [
        f"{one.name}=={built[one.name]}" if one.name in built else one.text for one in asked.own if one.name != PYTHON
    ]
    wanted += beside
    try:
        found = resolve_wheels(below, target, sources, until=until, preferred=preferred or {}, requirements=wanted)
    except NoSolutionError as error:
        error.hint = error.hint or _hint(error.what, asked, there)
        raise
    _refuse_brought(asked, there, found.requirers)
    # to the resolver, a layer below requires the extra of an installed package
    wheels = tuple(wheel for several in found.by_layer.values() for wheel in several if wheel.name not in there)
    wants_torch = (one for one in wheels if one.name in found.requirers.get("torch", ()))
    if compiled := [f"{one.name} {one.version}" for one in wants_torch if not one.file.endswith("-any.whl")]:
        sources.on_line(
            "compiled for a torch from the index; only an import shows whether it loads with the image's torch: "
            f"{', '.join(compiled[:_SHOWN])}"
        )
    locked = (*with_digests(wheels, sources), *(commit.source for commit in commits))
    _refuse_other_files(asked, [wheel for wheel in locked if wheel.name not in beside])
    return locked


def _less(layer: LayerRequirements, replaced: Collection[str]) -> LayerRequirements:
    """Return a layer without its packages that are replaced."""
    return replace(
        layer,
        requires=tuple(text for name, text in pins_by_project(layer.requires).items() if name not in replaced),
        has={name: version for name, version in layer.has.items() if canonicalize_name(name) not in replaced},
    )


def _hint(refusal: str, asked: Request, there: Collection[str]) -> str:
    """Return what to do about a conflict: change the lines that uv names, or add the layer for what they require."""
    for name, layer in asked.brought.items():
        if name not in there and is_named(name, refusal):
            return f"the index does not have {name} for this image: --add {layer}"
    named = [one for one in asked.own if is_named(_project_of(one), refusal)]
    for one in named:
        if one.name in there and (stays := _never_replaced(one.name, asked)):
            return f"{stays}: leave out {one.where} ({one.text})"
    lines = [f"{one.where} ({one.text})" for one in named]
    if asked.replaced:
        return f"change {'; '.join(lines[:_SHOWN])}, or also replace the others: --replace NAME==VERSION"
    return f"change {'; '.join(lines[:_SHOWN])}: {_STAYS}" if lines else _STAYS


def installed_layer(layer: LockedLayer, *, is_base: bool) -> LayerRequirements:
    """Return a locked layer as an installed part of the image, with all its distributions.

    Distributions of the general index stay requirements, each in its one version, so that their extras are known.
    """
    release = layer.release
    elsewhere = pins_by_project(layer.pins) if release and release.indexes else {}
    of_index = {wheel.name: wheel.version for wheel in layer.wheels if wheel.name not in elsewhere}
    has = {name: version_of_pin(pin) for name, pin in elsewhere.items()}  # its wheel may belong to a layer below
    has |= {wheel.name: wheel.version for wheel in layer.wheels if wheel.name in elsewhere}
    if is_base or wants_python(layer):
        has |= {name: version for name, version in layer.versions.items() if name not in NOT_PYTHON}
    return LayerRequirements(
        layer.name,
        release.version if release else "",
        requires=tuple(f"{name}=={version}" for name, version in of_index.items()),
        has={name: version for name, version in has.items() if canonicalize_name(name) not in of_index},
        without=layer.without,
    )


def _refuse_brought(asked: Request, there: Collection[str], requirers: Mapping[str, frozenset[str]]) -> None:
    """Raise RefusedError if a package that is not for this image would be added, and name the line that requires it."""
    for name in sorted(requirers.keys() - {*there}):
        way = [name, *all_requirers(name, requirers)]
        of_lines = [one for one in way if THIS_IMAGE in requirers.get(one, ())]
        line = next((line for one in of_lines for line in asked.own if _project_of(line) == one), None)
        objection = _not_for_image(name, asked, there)
        if objection and line:
            why, hint = objection
            project = _project_of(line)
            between = (one for one in sorted(requirers[name]) if project in {one, *all_requirers(one, requirers)})
            by = next((line.name if one == project else one for one in between), None)
            if by and (other := instead_of(by)):
                hint = _WITHOUT_CUDA.format(other)
            required = f", for which {by} requires {name}" if by else ""
            raise RefusedError(f"{line.where} requires {line.text}{required}, which {why}", hint=hint)


def _project_of(own: UserRequirement) -> str:
    """Return uv's name for the project of a line: to uv, a project at a commit is a layer."""
    return f"layer-{own.name}" if own.requirement.url else own.name


def _refuse_other_files(asked: Request, wheels: Sequence[LockedSource]) -> None:
    """Raise RefusedError if lines have hashes, and a wheel has none of its own: as in pip, one hash requires all."""
    named: dict[str, set[str]] = {}
    for one in asked.own:
        named.setdefault(one.name, set()).update(one.hashes)
    other = next((wheel for wheel in wheels if wheel.sha256 not in named.get(wheel.name, ())), None)
    if other is not None and any(named.values()):
        raise RefusedError(
            f"{other.file} has the sha256 {other.sha256}, which no line for it names, although lines have hashes",
            hint="write the file again (uv export, pip-compile --generate-hashes), or remove all hashes",
        )
