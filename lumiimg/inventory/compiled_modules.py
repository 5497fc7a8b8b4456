"""The compiled modules among the Python packages of an image: what they were built for."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.elf.system import exported_at, facts_at, read_what_is_there, wanted_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.image import RootFileSystem
    from lumiimg.inventory.components import Inventory

_MODULE = re.compile(r".+\.(?:cpython-3[0-9]+[^/]*|abi3)\.so")
_OLD_NUMPY, _NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_MOST_MODULES = 2000
_LARGEST_MODULE_BYTES = 4 << 20
_MOST_READ_BYTES = 64 << 20


def modules_in(contents: Inventory, folder: str) -> list[str]:
    """Return the compiled modules of a folder, beside torch and NumPy; of very many, the first."""
    own = ("torch/", "numpy/", "numpy.libs/")
    at = len(contents.image.root.resolve_where_possible(folder)) + 1
    found = (path for path in contents.libraries_in(folder) if not path.startswith(own, at))
    return list(islice(found, _MOST_MODULES))


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
        data = read_what_is_there(root, path, min(_LARGEST_MODULE_BYTES, left))
        left -= len(data)
        if _OLD_NUMPY in data and _NEW_NUMPY not in data:
            yield path
