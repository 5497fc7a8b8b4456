"""What a layer asks of the stack below it: a component, with or without versions: `rccl`, `torch>=2.7,<2.10`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from lumiimg.catalog.toml_table import Table


NO_VERSION = Version("0")
"""Older than any."""
NOT_PYTHON = frozenset(
    ("os", "glibc", "python", "rocm", "rccl", "hip", "torch-rocm", "wheel-rocm", "mpi", "slingshot")
) | frozenset(("libfabric", "libcxi", "net-api", "net-api-oldest", "net-plugin", "mpi-abi"))
"""Components that are neither Python distributions nor systems, whatever one is called."""
_LIMIT = 300
"""Characters of a need; a version of thousands of digits is none."""


@dataclass(frozen=True, slots=True)
class Need:
    """One component, by the name that bases and layers give it."""

    component: str
    versions: SpecifierSet

    def __str__(self) -> str:
        # the lower bound first, as people write it
        parts = sorted(map(str, self.versions), key=lambda part: (part.startswith("<"), part))
        return f"{self.component}{','.join(parts)}"

    def holds_for(self, version: str | None) -> bool | None:
        """Return whether a version will do; None where one is asked for and the component's is not known."""
        if not self.versions:
            return True
        if version is None:
            return None
        found = version_of(version)
        return None if found is None else self.versions.contains(found, prereleases=True)


def version_of(text: str | None) -> Version | None:
    """Return a version that others can be compared with (PEP 440); None for what is not one."""
    if text is None or len(text) > _LIMIT:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def exact_version(wanted: SpecifierSet) -> Version | None:
    """Return the one version that is wanted, as in `==5.1`; None for a range, as in `==5.*`."""
    found = [spec.version for spec in wanted if spec.operator in {"==", "==="} and "*" not in spec.version]
    return version_of(found[0]) or NO_VERSION if len(found) == 1 else None


def is_version(text: str) -> bool:
    """Return whether versions can be compared with this one (PEP 440)."""
    return version_of(text) is not None


def read_needs(table: Table, key: str) -> tuple[Need, ...]:
    """Return the array of needs under `key`; one that cannot be read is a fault of the table."""
    needs = []
    for text in table.strings(key):
        try:
            requirement = Requirement(text[:_LIMIT])
        except InvalidRequirement:
            table.fault(key, f"holds {text!r}: a component, with or without versions, is needed: 'torch>=2.7,<2.10'")
            continue
        if requirement.extras or requirement.url or requirement.marker:
            table.fault(key, f"holds {text!r}: only a component and versions can stand here")
            continue
        needs.append(Need(requirement.name, requirement.specifier))
    return tuple(needs)
