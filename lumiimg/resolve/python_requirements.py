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
from lumiimg.resolve.network.web import place
from lumiimg.resolve.wheels import offered_wheels, read_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lumiimg.resolve.network.web import Web
    from lumiimg.resolve.network.wheel_index import IndexFile
    from lumiimg.resolve.wheels import PythonTarget

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
    wheel: IndexFile | None
    """None for what is there already."""


def complete(wheels: RequiredWheels) -> tuple[IndexFile, ...]:
    """Return the wheels of the pins with all that they require and that is not there, each project once, by name.

    Raises FailedError if requirements do not go together, naming them; CudaError for a wheel of CUDA's.
    """
    roots = [Requirement(pin) for pin in wheels.pins]
    try:
        result = Resolver(wheels, BaseReporter()).resolve(roots, max_rounds=_ROUNDS)
    except ResolutionImpossible as error:
        told = _told(error.causes)
        there = [
            f"{name} {version}"
            for name, version in wheels.installed.items()
            if re.search(rf"\b{re.escape(name)}\b", told)
        ]
        told += f"; the image has {', '.join(there)} by then" if there else ""
        raise FailedError(f"these do not go together: {told}", hint="ask for another release") from error
    except ResolutionTooDeep as error:
        raise FailedError(f"no set of wheels was found in {_ROUNDS} rounds", hint="pin more of them") from error
    found = {one.name: one.wheel for one in result.mapping.values() if one.wheel is not None}
    return tuple(found[name] for name in sorted(found))


@dataclass
class RequiredWheels(AbstractProvider[Requirement, _Candidate, str]):
    """Requirements and candidates in resolvelib's terms; a project with extras is one more, which needs the plain."""

    pins: Sequence[str]
    indexes: Sequence[str]
    """Where what is pinned is looked up."""
    general: str
    """The index of everything else."""
    target: PythonTarget
    web: Web
    installed: Mapping[str, str]
    """Versions that the image has by then, which stay, by name."""
    held: Mapping[str, str]
    """Versions to keep where they still fit, by name."""
    fetch_metadata: Callable[[IndexFile], tuple[Requirement, ...]]
    """Reads what a wheel requires whose index does not offer that."""

    def __post_init__(self) -> None:
        self._pinned = {canonicalize_name(Requirement(pin).name) for pin in self.pins}
        self._environment = self.target.environment()
        self._required: dict[str, tuple[Requirement, ...]] = {}
        self._offered: dict[str, tuple[IndexFile, ...]] = {}

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
        if by_address := next((requirement for requirement in asked if requirement.url), None):
            raise FailedError(
                f"{by_address.name} is required from an address of its own, {place(by_address.url or '')[:200]}",
                hint="wheels come from the indexes of the layer only: ask for another release",
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
        if name in self.installed:
            return [_Candidate(name, self.installed[name], extras, None)]
        held = self.held.get(name)
        wheels = sorted(self._wheels(name), key=lambda wheel: str(wheel.version) != held)
        return [_Candidate(wheel.name, str(wheel.version), extras, wheel) for wheel in wheels]

    def is_satisfied_by(self, requirement: Requirement, candidate: _Candidate) -> bool:
        return requirement.specifier.contains(candidate.version, prereleases=True)

    def get_dependencies(self, candidate: _Candidate) -> Iterable[Requirement]:
        wheel = candidate.wheel
        if wheel is None:
            return  # who put it in saw to what it requires
        if wheel.filename not in self._required:
            required = read_metadata(wheel, self.web)
            self._required[wheel.filename] = self.fetch_metadata(wheel) if required is None else required
        if candidate.extras:
            yield Requirement(f"{wheel.name}=={wheel.version}")
        for requirement in self._required[wheel.filename]:
            if self._is_wanted(requirement, candidate.extras):
                yield requirement

    def _is_wanted(self, requirement: Requirement, extras: frozenset[str]) -> bool:
        if requirement.marker is None:
            return not extras  # of the plain project, which the one with extras needs too
        plain = requirement.marker.evaluate({**self._environment, "extra": ""})
        if not extras:
            return plain
        return not plain and any(requirement.marker.evaluate({**self._environment, "extra": e}) for e in extras)

    def _wheels(self, name: str) -> tuple[IndexFile, ...]:
        if name not in self._offered:
            pinned = name in self._pinned
            indexes = self.indexes if pinned else (self.general,)
            self._offered[name] = tuple(offered_wheels(name, indexes, self.target, self.web, every=pinned))
        return self._offered[name]


def _told(causes: Collection[Any]) -> str:
    """Return the requirements that stand against each other, with who has them."""
    words = []
    for cause in causes:
        parent = f" (of {cause.parent.name} {cause.parent.version})" if cause.parent else ""
        words.append(f"{cause.requirement}{parent}")
    return ", ".join(dict.fromkeys(words))[:500]
