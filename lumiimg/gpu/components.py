"""What people call a file with GPU code, what it is to a job, and the kernel files that libraries look for by name.

rocBLAS, hipBLASLt, AOTriton and aiter choose a file, or a folder, by the GPU's name in it; so the name says what there
is code for. The first file of each target is opened: a name alone is not evidence.
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
"""How files begin that hold many kernels, of the GPU that their name says."""
_ENDINGS = (".co", ".hsaco", *_CONTAINERS)
_COPIED = r"(?:-[0-9a-f]{8})?\.so"


class KernelFile(NamedTuple):
    """A file with kernels alone."""

    component: str
    """What looks for it; empty where that is not known."""
    root: str
    """The folder of all of the component's kernel files."""
    target: GpuTarget | None
    """What its name says that it is for."""


class ComponentRole(NamedTuple):
    """What a component is to a job."""

    needed: bool = False
    """Whether each job with that software calls its code."""
    without: str = 'what calls its kernels ends with "invalid device function"'
    """What happens on a GPU that takes none of it."""
    carries: bool = False
    """Whether it has GPU code wherever it works."""
    harmless: bool = False
    """Whether nothing ends without its code: it is slower."""


def component_of(path: str) -> str:
    """Return the common name of a library; else its file name, or its path where another library has that name."""
    known = _patterns("libraries")
    name = path.rpartition("/")[2]
    found = (known_name for known_name, pattern in known.items() if pattern.fullmatch(path))
    return next(found, path if name in known or name in _patterns("kernels") else name)


def is_library(path: str) -> bool:
    """Return whether a path is that of a library that people have a name for."""
    return any(pattern.fullmatch(path) for pattern in _patterns("libraries").values())


def role_of(component: str) -> ComponentRole:
    """Return the role of a component; of one that is not in the table, what holds for any."""
    # in a table of their own: a file of an image may be called as a key of ours is, such as `date`
    return ComponentRole(**_data("roles")["roles"].get(component, {}))


def kernel_file(path: str) -> KernelFile | None:
    """Return what a path says of a kernel file; None for the path of anything else."""
    if not path.endswith(_ENDINGS):
        return None
    for name, pattern in _patterns("kernels").items():
        if found := pattern.fullmatch(path):
            return KernelFile(name, found["root"] or "/", _target_of(path[len(found["root"]) :]))
    return None


def gpu_code_in(source: RandomAccess, path: str) -> tuple[tuple[GpuTarget, ...], ...]:
    """Return what each piece of GPU code in a file is for; of a kernel file, also by its name. Heads are read.

    Code that one piece needs may be in any other. Raises GpuCodeError where a file has code that cannot be read, or
    none where its name says so.
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
        raise GpuCodeError(f"its name says {named.target}, its code is for {', '.join(map(str, targets))}")
    return (targets,)


def _target_of(inside: str) -> GpuTarget | None:
    """Return the target in a file's name, else in the name of the nearest folder that has one."""
    if inside.endswith(_DATABASE):  # gfx90a68: MIOpen writes the number of compute units behind the processor
        name = inside.rpartition("/")[2]
        return next((GpuTarget(one) for one in table()["processors"] if name.startswith(one)), None)
    return next((target for part in reversed(inside.split("/")) if (target := target_in_name(part))), None)


@cache
def _data(name: str) -> dict[str, Any]:
    return package_toml(__package__, f"{name}.toml")


@cache
def _patterns(kind: str) -> Mapping[str, re.Pattern[str]]:
    # auditwheel puts a digest into the names of libraries that it copies into a wheel
    return {name: re.compile(text.replace(r"\.so", _COPIED)) for name, text in _data("components")[kind].items()}
