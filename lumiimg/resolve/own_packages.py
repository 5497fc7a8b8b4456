"""A user's own Python packages as the last layer: what is below stays as it is, and theirs is resolved beside it.

What the layers below have is held, torch and triton with it. A refusal names the file and the line of each requirement
that it is about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lumiimg.catalog.needs import NOT_PYTHON, is_version
from lumiimg.errors import RefusedError
from lumiimg.gpu.cuda import instead_of, is_of_cuda
from lumiimg.resolve.lock import LockedLayer, LockedSource, wants_python
from lumiimg.resolve.own_requirements import OF_TORCH, OwnPackages
from lumiimg.resolve.python_project import (
    ROCM_TRITONS,
    THIS_IMAGE,
    TRITON,
    LayerRequirements,
    is_named,
    resolve_wheels,
    with_digests,
)
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.uv import NoSolutionError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.catalog.layers import Layer
    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.python_target import PythonTarget
    from lumiimg.resolve.requirement_files import OwnRequirement
    from lumiimg.resolve.stack import Stack

_OF_THE_MACHINE = frozenset({"rocm", "rocm-devel", "mpi"})
"""What a layer whose wheels are not those of the index requires."""
_SOURCE = "your own requirements; what the layers below have"
_STAYS = "what is below stays as it is, only wheels are taken, and what is in no index goes into a layer of your own"
_SHOWN = 8
_TAKEN = 60


def brought_by_layers(layers: Iterable[Layer]) -> dict[str, str]:
    """Return the layer for each distribution that is made for ROCm, or for the image's MPI, by a layer.

    The index has others of the same names: CUDA's, or for no GPU.
    """
    found: dict[str, str] = {}
    for layer in layers:
        needs = {need.component for release in layer.releases for need in release.requires}
        needs |= {need.component for need in layer.requires}
        is_made_here = layer.sources or needs & _OF_THE_MACHINE or any(release.indexes for release in layer.releases)
        if is_made_here and needs & {"python3", "python", "torch"}:
            pins = [canonicalize_name(Requirement(pin).name) for release in layer.releases for pin in release.wheels]
            found |= dict.fromkeys(pins, layer.name)
            found[layer.name] = layer.name
            if "torch" in pins:
                found |= dict.fromkeys((TRITON, *ROCM_TRITONS), layer.name)
    return found


def check_own_packages(own: OwnPackages, stack: Stack, base: Layer) -> Iterator[RuleResult]:
    """Yield what is known of own packages without an index; a line with a marker is left to the lock."""
    there = _planned_in(stack)
    if "torch" in {*base.has, *base.provides} and not base.is_foreign:
        because = (
            f"which other Python packages {base.name} has is known only where the image is read; to replace one "
            "would end the build of own-packages: name the image as --base, by its path or address"
        )
        yield RuleResult("layers", RuleOutcome.UNKNOWN, "the image's packages", "some of them", because, base.source)
    for one in own.requirements:
        if one.requirement.marker is None and (objection := _objection(one, own, there)) is not None:
            need, have, because = objection
            yield _refused(need, have, f"{because}, which stays" if one.name in there else because)


def _objection(
    one: OwnRequirement, own: OwnPackages, there: Mapping[str, tuple[str | None, str]]
) -> tuple[str, str, str] | None:
    """Return what stands against one requirement that counts: what is needed, what is there, and why."""
    if one.name in there:
        version, by = there[one.name]
        if not version or not is_version(version) or one.requirement.specifier.contains(version, prereleases=True):
            return None
        return one.text, f"{one.name} {version}", f"{one.where} requires {one.text}, and {by} has {one.name} {version}"
    if is_of_cuda(one.name, of_index=True):
        because = f"{one.where} names {one.name}, which is for NVIDIA's GPUs: {_without(one.name)}"
        return "nothing", one.name, because
    if "torch" in there and one.name in OF_TORCH:
        because = f"{one.where} names {one.name}; that of the index is CUDA's, and torch is there: leave the line out"
        return "nothing", one.name, because
    if (layer := own.brought.get(one.name)) is not None:
        because = f"{one.where} names {one.name}, and that of the index is not made for this image: --add {layer}"
        return f"the layer {layer}", "none", because
    return None


def _without(name: str) -> str:
    """Return what to do about a line that names, or brings, what is for NVIDIA's GPUs."""
    other = instead_of(name)
    return f"{other} does the same without" if other else "leave the line out"


def _refused(need: str, have: str, because: str) -> RuleResult:
    return RuleResult("layers", RuleOutcome.REFUSED, need, have, because, _SOURCE)


def _planned_in(stack: Stack) -> dict[str, tuple[str | None, str]]:
    """Return what a stack has of Python distributions as far as it is planned: version, and who brings it."""
    layers = {chosen.name for chosen in stack.layers}
    found: dict[str, tuple[str | None, str]] = {
        canonicalize_name(name): (offer.version, f"the layer {offer.by}" if offer.by in layers else "the image")
        for name, offer in stack.offers.items()
        if name not in NOT_PYTHON
    }
    for chosen in stack.layers:
        by = f"the layer {chosen.name}"
        for pin in map(Requirement, chosen.release.wheels if chosen.release else ()):
            found[canonicalize_name(pin.name)] = (next(spec.version for spec in pin.specifier), by)
    _add_triton(found)
    return found


def _add_triton(there: dict[str, Any]) -> None:
    """Add the distribution `triton`, which stands beside ROCm's."""
    for name in there.keys() & {*ROCM_TRITONS}:
        there.setdefault(TRITON, there[name])


def resolve_own(
    below: Sequence[LayerRequirements],
    own: OwnPackages,
    target: PythonTarget,
    sources: Sources,
    *,
    until: dt.date | None,
    preferred: Mapping[str, str] | None = None,
    beside: Sequence[str] = (),
) -> tuple[LockedSource, ...]:
    """Return the wheels that own packages bring to what is there (`installed_layer`), each with its digest.

    `preferred` are versions to keep where they fit; `beside` are projects that lumiimg adds.

    Raises RefusedError for what is CUDA's, or a layer's; FailedError for what cannot be had, or does not go together.
    """
    named = {one.name for one in own.requirements}
    below = [replace(layer, without=tuple(name for name in layer.without if name not in named)) for layer in below]
    there = _versions(below)
    _refuse_conflicts(own, there, target)
    of_torch = set[str]()

    def refuse(parents: Mapping[str, frozenset[str]]) -> None:
        of_torch.update(parents.get("torch", ()))
        _refuse(own, {*there}, parents)

    try:
        found = resolve_wheels(
            below,
            target,
            sources,
            until=until,
            preferred=preferred or {},
            requirements=(*own.texts, *beside),
            refuse=refuse,
        )
    except NoSolutionError as error:
        error.hint = error.hint or _hint(error.what, own, there)
        raise
    # an extra of what is there is required by a layer below, to the resolver
    wheels = tuple(wheel for several in found.values() for wheel in several if wheel.name not in there)
    wants_torch = (one for one in wheels if one.name in of_torch)
    compiled = [f"{one.name} {one.version}" for one in wants_torch if not one.file.endswith("-any.whl")]
    if compiled:
        sources.on_line(
            "compiled for a torch of the index, so that only an import shows whether it loads with that of the image: "
            f"{', '.join(compiled[:_SHOWN])}"
        )
    locked = with_digests(wheels, sources)
    _refuse_other_files(own, [wheel for wheel in locked if wheel.name not in beside])
    return locked


def _hint(said: str, own: OwnPackages, there: Mapping[str, tuple[str, str]]) -> str:
    """Return what to do about a refusal of uv's: the lines that it names, or the layer that makes what they require."""
    for name in own.brought.keys() - there.keys():
        if is_named(name, said):
            return f"the {name} of the index is not made for this image: --add {own.brought[name]}"
    lines = [f"{one.where} ({one.text})" for one in own.requirements if is_named(one.name, said)]
    has = [f"{who} has {name} {version}" for name, (version, who) in there.items() if is_named(name, said)]
    change = f"change {_joined(lines)}: " if lines else ""
    return f"{change}{_joined([*has, _STAYS])}"


def _versions(below: Sequence[LayerRequirements]) -> dict[str, tuple[str, str]]:
    """Return the version of each distribution that is there, and who has it."""
    found: dict[str, tuple[str, str]] = {}
    for layer in below:
        pins = map(Requirement, layer.requires)
        there = {**(layer.has or {}), **{pin.name: next(spec.version for spec in pin.specifier) for pin in pins}}
        found |= {canonicalize_name(name): (version, layer.title) for name, version in there.items()}
    _add_triton(found)
    return found


def _refuse_conflicts(own: OwnPackages, there: Mapping[str, tuple[str, str]], target: PythonTarget) -> None:
    """Raise RefusedError for all lines that want another version of what is there, or else for all that name what the
    index has for other images: the resolver names one alone.
    """
    counting = [one for one in own.requirements if target.meets(one.requirement.marker)]
    found = [(one, objection[2]) for one in counting if (objection := _objection(one, own, there)) is not None]
    if apart := [because for one, because in found if one.name in there]:
        raise RefusedError(_joined(apart), hint="loosen the line: what is below stays as it is")
    if found:
        raise RefusedError(_joined([because for _, because in found]))


def _joined(facts: Sequence[str]) -> str:
    more = f"; and {len(facts) - _SHOWN} more" if len(facts) > _SHOWN else ""
    return f"{'; '.join(facts[:_SHOWN])}{more}"


def installed_layer(layer: LockedLayer, *, is_base: bool) -> LayerRequirements:
    """Return a layer of a lock as one that is in the image, with every distribution that it brings.

    What is in the general index stays a requirement in its one version, so that its extras are known.
    """
    release = layer.release
    versions = layer.versions if is_base or wants_python(layer) else {}
    has = {name: version for name, version in versions.items() if name not in NOT_PYTHON}
    pins: dict[str, Requirement] = {
        canonicalize_name(pin.name): pin for pin in map(Requirement, release.wheels if release else ())
    }
    of_index: dict[str, str] = {}
    if not (release and release.indexes):
        of_index |= {name: str(pin) for name, pin in pins.items()}
    of_index |= {wheel.name: f"{wheel.name}=={wheel.version}" for wheel in layer.wheels if wheel.name not in pins}
    if release and release.indexes:
        has |= {name: next(spec.version for spec in pin.specifier) for name, pin in pins.items()}
    return LayerRequirements(
        layer.name,
        layer.release.version if layer.release else "",
        requires=tuple(of_index.values()),
        has={name: version for name, version in has.items() if canonicalize_name(name) not in of_index},
        without=tuple(map(canonicalize_name, release.without if release else ())),
        label="the image" if is_base else "",
    )


def _refuse(
    own: OwnPackages,
    there: set[str],
    parents: Mapping[str, frozenset[str]],
) -> None:
    """Raise RefusedError if a distribution comes in that is CUDA's, or that a layer makes for the image."""
    for name in sorted(parents.keys() - there):
        if not (is_of_cuda(name, of_index=True) or name in own.brought):
            continue
        one, by = _line_for(name, own, parents)
        if one is None:
            continue
        on_the_way = "which" if by == one.name else f"for which {by}"
        whose = f"{one.where} requires {f'{one.text}, {on_the_way} requires {name}' if by else name}"
        if name in own.brought:
            what = f"{whose}, and that of the index is not made for this image"
            raise RefusedError(what, hint=f"put the layer below: --add {own.brought[name]}")
        raise RefusedError(f"{whose}, which is for NVIDIA's GPUs", hint=_without(one.name))


def _line_for(name: str, own: OwnPackages, parents: Mapping[str, frozenset[str]]) -> tuple[OwnRequirement | None, str]:
    """Return the line for which a distribution is required, and what requires it on that way, if not the line."""
    waiting, seen = [(name, "")], {name}
    while waiting:
        one, by = waiting.pop(0)
        above = parents.get(one, frozenset())
        if THIS_IMAGE in above and (line := next((each for each in own.requirements if each.name == one), None)):
            return line, by
        for parent in sorted(above - seen):
            seen.add(parent)
            waiting.append((parent, by or parent))
    return None, ""


def _refuse_other_files(own: OwnPackages, wheels: Sequence[LockedSource]) -> None:
    """Raise RefusedError where hashes are named, and a wheel has none of them: as for pip, one hash means all."""
    named = {one.name: set[str]() for one in own.requirements}
    for one in own.requirements:
        named[one.name] |= {*one.hashes}
    if not any(named.values()):
        return
    for wheel in wheels:
        if wheel.sha256 not in named.get(wheel.name, ()):
            where = next((one.where for one in own.requirements if one.name == wheel.name and one.hashes), "")
            said = f"{where} names other hashes" if where else "no line names a hash of it, and other lines have one"
            raise RefusedError(
                f"{wheel.file} has the sha256 {wheel.sha256}, and {said}",
                hint="write the file again (uv export, pip-compile --generate-hashes), or take all hashes out",
            )
