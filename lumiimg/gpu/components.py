"""What people call the file that GPU code is in, and the kernel files that libraries look for by name beside them.

rocBLAS, hipBLASLt, AOTriton and aiter choose a file, or a folder, by the GPU's name in it; so the name says what there
is code for. The first file of each target is opened: a name alone is not evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.core.toml import package_toml
from lumiimg.gpu.fat_file import read_file
from lumiimg.gpu.source import GpuCodeError
from lumiimg.gpu.target import GpuTarget, table, target_in_name

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

_DATABASE = ".kdb"
_CONTAINERS = {_DATABASE: b"SQLite format 3\0", ".aks2": b"AKS2", ".zip": b"PK\3\4"}
"""How files begin that hold many kernels, of the GPU that their name says."""
_ENDINGS = (".co", ".hsaco", *_CONTAINERS)
_UNITS = re.compile(r"(?:_[0-9]{1,2}|(?P<hex>[0-9a-f]{2,3}))?")
"""Compute units, behind the processor in the name of a database of MIOpen: hexadecimal where they are more than 64
(MIOpen src/include/miopen/handle.hpp, GetDbBasename)."""
_MOST_IN_DECIMAL = 64
_COPIED = r"(?:-[0-9a-f]{8})?\.so"


class KernelFile(NamedTuple):
    """A file with kernels alone."""

    component: str
    """What looks for it; empty where that is not known."""
    root: str
    """The folder of all of the component's kernel files."""
    target: GpuTarget | None
    """What its name says that it is for."""


def component_of(path: str) -> str:
    """Return what people call a library; else its own name, or its path where another is called so."""
    known = _patterns("libraries")
    name = path.rpartition("/")[2]
    found = (known_name for known_name, pattern in known.items() if pattern.fullmatch(path))
    return next(found, path if name in known or name in _patterns("kernels") else name)


def is_library(path: str) -> bool:
    """Return whether a path is that of a library that people have a name for."""
    return any(pattern.fullmatch(path) for pattern in _patterns("libraries").values())


def kernel_file(path: str) -> KernelFile | None:
    """Return what a path says of a kernel file; None for the path of anything else."""
    if not path.endswith(_ENDINGS):
        return None
    for name, pattern in _patterns("kernels").items():
        if found := pattern.fullmatch(path):
            inside = path[len(found["root"]) :]
            return KernelFile(name, found["root"] or "/", _target(inside))
    return None


def read_kernel_file(source: RandomAccess, path: str) -> tuple[GpuTarget, ...]:
    """Return what a kernel file is for, by its head. Raises GpuCodeError for one that is empty, or something else."""
    named = kernel_file(path)
    target = named.target if named else None
    head = source.read_at(0, 16)
    container = next((magic for suffix, magic in _CONTAINERS.items() if path.endswith(suffix)), None)
    if target is not None and container is not None and head.startswith(container):
        return (target,)
    found = read_file(source)
    if not found:
        raise GpuCodeError(f"no GPU code, though its name says so: begins with {head[:8]!r}")
    targets = tuple(sorted({target for bundle in found for target in bundle}, key=str))
    if target is not None and target.processor not in {each.processor for each in targets}:
        raise GpuCodeError(f"its name says {target}, its code is for {', '.join(map(str, targets))}")
    return targets


def _target(inside: str) -> GpuTarget | None:
    """Return the target in a file's name, else in the name of the nearest folder that has one."""
    if inside.endswith(_DATABASE):
        return _of_database(inside.rpartition("/")[2].removesuffix(_DATABASE))
    return next((target for part in reversed(inside.split("/")) if (target := target_in_name(part))), None)


def _of_database(name: str) -> GpuTarget | None:
    for processor in table()["processors"]:
        units = _UNITS.fullmatch(name.removeprefix(processor)) if name.startswith(processor) else None
        if units and (units["hex"] is None or int(units["hex"], 16) > _MOST_IN_DECIMAL):
            return GpuTarget(processor)
    return None


@cache
def _patterns(kind: str) -> Mapping[str, re.Pattern[str]]:
    data = package_toml(__package__, "components.toml")
    # auditwheel puts a digest into the names of libraries that it copies into a wheel
    return {name: re.compile(pattern.replace(r"\.so", _COPIED)) for name, pattern in data[kind].items()}
