"""The Python distributions of an image, and what compiled modules were built for.

A distribution is known by the name of its metadata: `NAME-VERSION.dist-info`, a folder (PEP 376, PEP 427), or
`NAME-VERSION-pyX.Y.egg-info`, a folder or a file, of which the part behind the version may lack (setuptools; Debian).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from lumiimg.elf import exported_at, facts_at, wanted_at
from lumiimg.image import ImageError
from lumiimg.inventory.system import read_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.image import RootFileSystem

MOST_DISTRIBUTIONS = 20_000
"""Of one image, or of the folders that are looked into together: more are left out."""
METADATA = (".dist-info", ".egg-info")
"""What the names of the metadata of distributions end in."""
_NAME, _VERSION = r"[A-Za-z0-9._]{1,128}", r"[A-Za-z0-9.+!_]{1,64}"
_NAMED = re.compile(rf"({_NAME})-({_VERSION})(?:-py3[\w.-]{{0,64}})?\.(?:dist|egg)-info", re.ASCII)
_MODULE = re.compile(r".+\.(?:cpython-3[0-9]+[^/]*|abi3)\.so")
_OLD_NUMPY, _NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_LARGEST_MODULE_BYTES, _MOST_READ_BYTES = 4 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Python distribution that is installed."""

    name: str
    """As PEP 503 writes it: `flash-attn`."""
    version: str
    """As its metadata is called: `2.7.1+rocm6.2`."""
    metadata: str
    """Path of its metadata in the image."""

    @property
    def site(self) -> str:
        """The folder that it is in."""
        return self.metadata.rpartition("/")[0]


def distribution_of(path: str) -> Distribution | None:
    """Return the distribution whose metadata is at a path; None for the path of anything else."""
    found = _NAMED.fullmatch(path.rpartition("/")[2])
    return Distribution(canonicalize_name(found[1]), found[2], path) if found else None


def distributions_in(root: RootFileSystem, folders: Iterable[str]) -> dict[str, Distribution]:
    """Return the distributions in some folders by their names; of two, that of the first folder, as Python takes it."""
    found: dict[str, Distribution] = {}
    for folder in folders:
        with contextlib.suppress(OSError, ImageError):
            for distribution in filter(None, (distribution_of(f"{folder}/{n}") for n, _ in root.list_dir(folder))):
                if len(found) < MOST_DISTRIBUTIONS:
                    found.setdefault(distribution.name, distribution)
    return found


def of_other_torch(root: RootFileSystem, c10: str, modules: Sequence[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the modules that ask for what the image's libc10 does not have, each with the first such symbol."""
    offered = exported_at(root, c10)
    found: dict[str, str] = {}
    for path in modules if offered else ():
        facts = facts_at(root, path)
        if facts is not None and "libc10.so" in facts.needed:
            lacking = [name for name in wanted_at(root, path) - offered if name.startswith(prefixes)]
            found |= {path: min(lacking)} if lacking else {}
    return found


def of_numpy_1(root: RootFileSystem, modules: Sequence[str]) -> Iterator[str]:
    """Yield the modules that were compiled with NumPy 1; large ones are not read."""
    left = _MOST_READ_BYTES
    for path in filter(_MODULE.fullmatch, modules):
        data = read_or_empty(root, path, min(_LARGEST_MODULE_BYTES, left))
        left -= len(data)
        if _OLD_NUMPY in data and _NEW_NUMPY not in data:
            yield path
