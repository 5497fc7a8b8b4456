"""What else the wheels of a layer require: by resolvelib, which is pip's resolver, for the Python of the image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from resolvelib import AbstractProvider, BaseReporter, ResolutionImpossible, Resolver
from resolvelib.resolvers import ResolutionTooDeep

from lumiimg.errors import FailedError
from lumiimg.resolve.wheels import offered_wheels, read_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lumiimg.resolve.network.web import Web
    from lumiimg.resolve.wheels import PythonTarget, Wheel, WheelMetadata

_ROUNDS = 2000
_CUDA = ("nvidia-", "cuda-")
"""Beginnings of projects that hold CUDA's libraries: in an image for ROCm they mean that a wrong wheel came in."""


class CudaError(FailedError):
    """A distribution for CUDA is required by one that was asked for."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    version: str
    extras: frozenset[str]
    wheel: Wheel | None
    """None for what is there already."""


def complete(
    pins: Sequence[str],
    indexes: Sequence[str],
    general: str,
    target: PythonTarget,
    web: Web,
    *,
    installed: Mapping[str, str],
    held: Mapping[str, str],
    fetch_metadata: Callable[[Wheel], WheelMetadata],
) -> tuple[Wheel, ...]:
    """Return the wheels of `pins` with all that they require and that is not there, each project once, by name.

    What is pinned is looked up in `indexes`, everything else in `general`. `installed` are versions that the image has
    by then, which stay; `held` are versions to keep where they still fit; both by name. `fetch_metadata` reads the
    metadata of a wheel whose index does not offer it.

    Raises FailedError if requirements do not go together, naming them; CudaError for a wheel of CUDA's.
    """
    provider = _Provider(pins, indexes, general, target, web, installed, held, fetch_metadata)
    roots = [Requirement(pin) for pin in pins]
    try:
        result = Resolver(provider, BaseReporter()).resolve(roots, max_rounds=_ROUNDS)
    except ResolutionImpossible as error:
        told = _told(error.causes)
        there = [
            f"{name} {version}" for name, version in installed.items() if re.search(rf"\b{re.escape(name)}\b", told)
        ]
        told += f"; the image has {', '.join(there)} by then" if there else ""
        raise FailedError(f"these do not go together: {told}", hint="ask for another release") from error
    except ResolutionTooDeep as error:
        raise FailedError(f"no set of wheels was found in {_ROUNDS} rounds", hint="pin more of them") from error
    wheels = {found.name: found.wheel for found in result.mapping.values() if found.wheel is not None}
    return tuple(wheels[name] for name in sorted(wheels))


class _Provider(AbstractProvider[Requirement, _Candidate, str]):
    """Requirements and candidates in resolvelib's terms; a project with extras is one more, which needs the plain."""

    def __init__(
        self,
        pins: Sequence[str],
        indexes: Sequence[str],
        general: str,
        target: PythonTarget,
        web: Web,
        installed: Mapping[str, str],
        held: Mapping[str, str],
        fetch_metadata: Callable[[Wheel], WheelMetadata],
    ) -> None:
        self._pinned = {canonicalize_name(Requirement(pin).name) for pin in pins}
        self._indexes = indexes
        self._general = general
        self._target = target
        self._environment = target.environment()
        self._web = web
        self._installed = installed
        self._held = held
        self._fetch_metadata = fetch_metadata
        self._metadata: dict[str, WheelMetadata] = {}
        self._offered: dict[str, tuple[Wheel, ...]] = {}

    def identify(self, requirement_or_candidate: Requirement | _Candidate) -> str:
        if isinstance(requirement_or_candidate, _Candidate):
            name, extras = requirement_or_candidate.name, requirement_or_candidate.extras
        else:
            name, extras = canonicalize_name(requirement_or_candidate.name), frozenset(requirement_or_candidate.extras)
        return f"{name}[{','.join(sorted(extras))}]" if extras else name

    def get_preference(self, identifier: str, *_: Any, **__: Any) -> tuple[bool, str]:  # noqa: ANN401
        # what is pinned first: it leaves the least to try
        return identifier.partition("[")[0] not in self._pinned, identifier

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[Requirement]],
        incompatibilities: Mapping[str, Iterator[_Candidate]],
    ) -> Iterable[_Candidate]:
        name = canonicalize_name(identifier.partition("[")[0])
        asked = list(requirements[identifier])
        if name.startswith(_CUDA):
            raise CudaError(
                f"{name}, of CUDA, is required by what was asked for: a wheel that is not for ROCm came in",
                hint="take the layer's releases as they are, or report the layer",
            )
        extras = frozenset(extra for requirement in asked for extra in requirement.extras)
        bad = {candidate.version for candidate in incompatibilities[identifier]}
        return [
            found
            for found in self._candidates(name, extras)
            if found.version not in bad and all(r.specifier.contains(found.version, prereleases=True) for r in asked)
        ]

    def _candidates(self, name: str, extras: frozenset[str]) -> Iterable[_Candidate]:
        """Return what is there already, and nothing else; or what an index offers, the release to keep first."""
        if name in self._installed:
            return [_Candidate(name, self._installed[name], extras, None)]
        held = self._held.get(name)
        wheels = sorted(self._wheels(name), key=lambda wheel: wheel.version != held)
        return [_Candidate(wheel.name, wheel.version, extras, wheel) for wheel in wheels]

    def is_satisfied_by(self, requirement: Requirement, candidate: _Candidate) -> bool:
        return requirement.specifier.contains(candidate.version, prereleases=True)

    def get_dependencies(self, candidate: _Candidate) -> Iterable[Requirement]:
        wheel = candidate.wheel
        if wheel is None:
            return  # who put it in saw to what it requires
        if wheel.filename not in self._metadata:
            self._metadata[wheel.filename] = read_metadata(wheel, self._web) or self._fetch_metadata(wheel)
        if candidate.extras:
            yield Requirement(f"{wheel.name}=={wheel.version}")
        for requirement in self._metadata[wheel.filename].requires_dist:
            if self._is_wanted(requirement, candidate.extras):
                yield requirement

    def _is_wanted(self, requirement: Requirement, extras: frozenset[str]) -> bool:
        if requirement.marker is None:
            return not extras  # of the plain project, which the one with extras needs too
        plain = requirement.marker.evaluate({**self._environment, "extra": ""})
        if not extras:
            return plain
        return not plain and any(requirement.marker.evaluate({**self._environment, "extra": e}) for e in extras)

    def _wheels(self, name: str) -> tuple[Wheel, ...]:
        if name not in self._offered:
            indexes = self._indexes if name in self._pinned else (self._general,)
            pinned = name in self._pinned
            self._offered[name] = tuple(offered_wheels(name, indexes, self._target, self._web, every=pinned))
        return self._offered[name]


def _told(causes: Collection[Any]) -> str:
    """Return the requirements that stand against each other, with who has them."""
    words = []
    for cause in causes:
        parent = f" (of {cause.parent.name} {cause.parent.version})" if cause.parent else ""
        words.append(f"{cause.requirement}{parent}")
    return ", ".join(dict.fromkeys(words))[:500]
