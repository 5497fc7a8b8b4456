"""The files that an import reads for sure: of the module, and of what its first column imports, and so on.

What stands in an `if`, a `try` or a function may not run. Modules that are frozen into a Python, or built in, have no
file that counts (CPython Tools/build/freeze_modules.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.host.module_finder import SpecKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.host.python_process import PythonProcess
    from lumiimg.image import RootFileSystem

_MOST_MODULES = 100
_FROZEN = re.compile(
    r"abc|codecs|genericpath|importlib\.(?:machinery|util)|io|ntpath|os|os\.path|posixpath|runpy|site|stat|sys"
    r"|_collections_abc|_sitebuiltins"
)
_IMPORT = re.compile(r"(?m)^(?:import[ \t]+([\w. \t,]+)|from[ \t]+(\.*)([\w.]*)[ \t]+import\b)")


@dataclass(frozen=True, slots=True)
class ImportedFiles:
    """What an import reads."""

    read: tuple[str, ...]
    denied: str | None = None
    """The file, or folder, that only root may read or enter: the import fails, or the module is empty."""


def imported_files(python: PythonProcess, *names: str) -> ImportedFiles:
    """Return the files of imports, up to the first that a user who is not root cannot get at."""
    finder = python.start.finder
    todo, files = [*names], dict[str, None]()
    for module in todo:
        spec = python.find_spec(module)
        is_module = spec is not None and spec.kind is not SpecKind.NAMESPACE
        file = finder.code_file(spec) if spec is not None and is_module else None
        if spec is None or file is None or not finder.can_load(spec):
            places = [file] if file is not None else _places_of(python, module)
            if (denied := next(filter(None, (_denied(python.root, place) for place in places)), None)) is not None:
                return ImportedFiles(tuple(files), denied)
        else:
            files[file] = None
            new = (each for each in _imports_of(python, spec) if each not in todo)
            todo += list(dict.fromkeys(new))[: _MOST_MODULES - len(todo)]
    return ImportedFiles(tuple(files))


def _places_of(python: PythonProcess, module: str) -> Iterator[str]:
    """Yield where the file of a module would be."""
    above, _, tail = module.rpartition(".")
    package = python.find_spec(above) if above else None
    for folder in package.locations if package is not None else () if above else python.path:
        yield from (f"{folder}/{tail}{end}" for end in ("/__init__.py", *python.start.suffixes, ".py"))


def _denied(root: RootFileSystem, path: str) -> str | None:
    """Return a file that is there and cannot be read, or the folder that cannot be listed; None where neither is."""
    folder = path.removesuffix("/__init__.py").rpartition("/")[0]
    for place in (path, folder if root.is_file(path) else ""):
        if (obstacle := root.obstacle(place)) is not None and not obstacle.is_for_some:
            return place
    return None


def _imports_of(python: PythonProcess, spec: ModuleSpec) -> Iterator[str]:
    """Yield the names that a module imports in its first column, packages before what is in them."""
    package = spec.name.split(".") if spec.locations else spec.name.split(".")[:-1]
    for names, dots, name in _IMPORT.findall(python.read(spec) or ""):
        above = package[: len(package) + 1 - len(dots)] if dots else []
        whole = [each.split()[0] for each in names.split(",") if each.strip()] or [".".join((*above, *name.split(".")))]
        for parts in (each.strip(".").split(".") for each in whole):
            for count in range(1, len(parts) + 1):
                if (module := ".".join(parts[:count])) and not _FROZEN.fullmatch(module):
                    yield module
