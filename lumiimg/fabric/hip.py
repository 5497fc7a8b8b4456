"""The HIP runtimes of a process, where there is more than one: which library uses which."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.elf import LoadedObject, Process

_HIP = re.compile(r"libamdhip64(?:-[0-9a-f]{8})?\.so(?:\.[0-9]+)*")
"""auditwheel puts a part of the digest into the name of what it takes into a wheel."""


def is_hip(name: str) -> bool:
    """Whether a name, or a path, is that of a HIP runtime."""
    return _HIP.fullmatch(name.rpartition("/")[2]) is not None


def users_of_hip(process: Process, runtimes: Sequence[LoadedObject]) -> dict[LoadedObject, frozenset[LoadedObject]]:
    """Return the runtimes that serve each library which needs one."""
    needing = (loaded for loaded in process.objects if any(map(is_hip, loaded.facts.needed)))
    return {loaded: _serving(process, loaded, runtimes) for loaded in needing}


def _serving(process: Process, loaded: LoadedObject, runtimes: Sequence[LoadedObject]) -> frozenset[LoadedObject]:
    """Return the runtimes that serve a library: for each version that it asks for the first that defines it."""
    seen = [each for each in process.scopes.of(loaded) if each in runtimes]
    asked = {need.name for need in loaded.facts.version_needs if is_hip(need.file)}
    firsts = (next((each for each in seen if _defines(each, version)), None) for version in asked)
    return frozenset(filter(None, firsts)) or frozenset(seen[:1])


def _defines(runtime: LoadedObject, version: str) -> bool:
    return not runtime.facts.version_definitions or version in runtime.facts.version_definitions
