"""What a layer requires of the stack below it: a component, with or without versions: `rccl`, `torch>=2.7,<2.10`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from lumiimg.core.decode import text_of

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet


NO_VERSION = Version("0")
"""Older than any other version."""
NOT_PYTHON = frozenset(
    ("os", "glibc", "python", "rocm", "rccl", "hip", "torch-rocm", "wheel-rocm", "mpi", "slingshot")
) | frozenset(("libfabric", "libcxi", "net-api", "net-api-oldest", "net-plugin", "mpi-abi"))
"""Components that are neither Python distributions nor systems, even if one of these has the same name."""
_MAX_CHARACTERS = 300
"""Maximum length of a need, in characters; a version with thousands of digits is not valid."""


class Need(str):
    """One component, by its name in bases and layers; as a text `name>=1.2`, the lower bound first."""

    __slots__ = ("component", "versions")

    component: str
    versions: SpecifierSet

    def __new__(cls, component: str, versions: SpecifierSet) -> Self:
        """Create a need from its parts."""
        parts = sorted(map(str, versions), key=lambda part: (part.startswith("<"), part))
        made = super().__new__(cls, f"{component}{','.join(parts)}")
        made.component, made.versions = component, versions
        return made

    @classmethod
    def decoded(cls, value: object) -> Need:
        """Return the need that a file contains as a text. Raises ValueError."""
        return _read(text_of(value))

    def holds_for(self, version: str | None) -> bool | None:
        """Return whether a version satisfies it; None if one is required and the component's is not known."""
        if not self.versions:
            return True
        if version is None:
            return None
        found = version_of(version)
        return None if found is None else self.versions.contains(found, prereleases=True)


@lru_cache(4096)
def _read(text: str) -> Need:
    """Return a need; cached, as the same few are in many layers."""
    try:
        requirement = Requirement(text[:_MAX_CHARACTERS])
    except InvalidRequirement as error:
        what = "a component, with or without versions, is needed: 'torch>=2.7,<2.10'"
        raise ValueError(f"is {text[:_MAX_CHARACTERS]!r}; {what}") from error
    if requirement.extras or requirement.url or requirement.marker:
        raise ValueError(f"is {text[:_MAX_CHARACTERS]!r}; only a component and versions are allowed here")
    return Need(requirement.name, requirement.specifier)


@lru_cache(4096)
def version_of(text: str | None) -> Version | None:
    """Return a version that others can be compared with (PEP 440); None if it is not one."""
    if text is None or len(text) > _MAX_CHARACTERS:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def exact_version(wanted: SpecifierSet) -> Version | None:
    """Return the one version that is required, as in `==5.1`; None for a range, as in `==5.*`."""
    found = [spec.version for spec in wanted if spec.operator in {"==", "==="} and "*" not in spec.version]
    return version_of(found[0]) or NO_VERSION if len(found) == 1 else None


def is_version(text: str) -> bool:
    """Return whether versions can be compared with this one (PEP 440)."""
    return version_of(text) is not None
