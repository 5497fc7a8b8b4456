"""Common names of files with GPU code, their role in a job, and the kernel files that libraries look for by name.

rocBLAS, hipBLASLt, AOTriton and aiter choose a file, or a folder, by the GPU's name in it; so the name shows what its
code is for. The first file of each target is opened: a name alone is not evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from lumiimg.core.toml import package_toml
from lumiimg.gpu.code import read_file
from lumiimg.gpu.target import GpuCodeError, GpuTarget, table, target_in_name

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

_DATABASE = ".kdb"
_CONTAINERS = {_DATABASE: b"SQLite format 3\0", ".aks2": b"AKS2", ".zip": b"PK\3\4"}
"""First bytes of files that contain many kernels, for the GPU in their name."""
_ENDINGS = (".co", ".hsaco", *_CONTAINERS)
_COPIED = r"(?:-[0-9a-f]{8})?\.so"


class KernelFile(NamedTuple):
    """A file that contains only kernels."""

    component: str
    """Component that looks for it; empty where that is not known."""
    root: str
    """Folder of all kernel files of the component."""
    target: GpuTarget | None
    """Target in its name."""


class ComponentRole(NamedTuple):
    """Role of a component in a job."""

    needed: bool = False
    """Whether every job with that software calls its code."""
    without: str = 'what calls its kernels fails with "invalid device function"'
    """What happens on a GPU that accepts none of it."""
    carries: bool = False
    """Whether it has GPU code in every working copy."""
    harmless: bool = False
    """Whether nothing fails without its code, but is slower."""


def component_of(path: str) -> str:
    """Return the common name of a library; else its file name, or its path where that is another's common name."""
    known = _patterns("libraries")
    name = path.rpartition("/")[2]
    found = (known_name for known_name, pattern in known.items() if pattern.fullmatch(path))
    return next(found, path if name in known or name in _patterns("kernels") else name)


def is_library(path: str) -> bool:
    """Return whether a path is that of a library with a common name."""
    return any(pattern.fullmatch(path) for pattern in _patterns("libraries").values())


def role_of(component: str) -> ComponentRole:
    """Return the role of a component, which is the default for one that is not in the table."""
    # in a separate table: a file of an image may have the name of one of our keys, such as `date`
    return ComponentRole(**_data("roles")["roles"].get(component, {}))


def kernel_file(path: str) -> KernelFile | None:
    """Return the kernel file that a path names; None for any other path."""
    if not path.endswith(_ENDINGS):
        return None
    for name, pattern in _patterns("kernels").items():
        if found := pattern.fullmatch(path):
            return KernelFile(name, found["root"] or "/", _target_of(path[len(found["root"]) :]))
    return None


def gpu_code_in(source: RandomAccess, path: str) -> tuple[tuple[GpuTarget, ...], ...]:
    """Return the targets of each piece of GPU code in a file; for a kernel file, also by its name. Headers are read.

    Code that one piece needs may be in any other. Raises GpuCodeError where a file has code that cannot be read, or
    none although its name says so.
    """
    named = kernel_file(path)
    if named is None:
        return read_file(source)
    head = source.read_at(0, 16)
    container = next((magic for suffix, magic in _CONTAINERS.items() if path.endswith(suffix)), None)
    if named.target is not None and container is not None and head.startswith(container):
        return ((named.target,),)
    found = read_file(source)
    if not found:
        raise GpuCodeError(f"not GPU code, despite its name: begins with {head[:8]!r}")
    targets = tuple(sorted({target for bundle in found for target in bundle}, key=str))
    if named.target is not None and named.target.processor not in {each.processor for each in targets}:
        raise GpuCodeError(f"its name says {named.target}, but its code is for {', '.join(map(str, targets))}")
    return (targets,)


def _target_of(inside: str) -> GpuTarget | None:
    """Return the target in a file's name, else in the name of the nearest folder that has one."""
    if inside.endswith(_DATABASE):  # gfx90a68: MIOpen writes the number of compute units after the processor
        name = inside.rpartition("/")[2]
        return next((GpuTarget(one) for one in table()["processors"] if name.startswith(one)), None)
    return next((target for part in reversed(inside.split("/")) if (target := target_in_name(part))), None)


@cache
def _data(name: str) -> dict[str, Any]:
    return package_toml(__package__, f"{name}.toml")


@cache
def _patterns(kind: str) -> Mapping[str, re.Pattern[str]]:
    # auditwheel adds a digest to the names of libraries that it copies into a wheel
    return {name: re.compile(text.replace(r"\.so", _COPIED)) for name, text in _data("components")[kind].items()}
