"""The files that an import certainly reads: the module, the modules that its unindented lines import, and so on.

Code in an `if`, a `try` or a function may not run. Modules that are frozen into a Python, or built in, have no file
that counts (CPython Tools/build/freeze_modules.py). `from package import name` prefers an attribute to a module
(Lib/importlib/_bootstrap.py, _handle_fromlist).
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.host.module_finder import ModuleFinder, SpecKind
from lumiimg.host.root_queries import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.host.python_process import PythonProcess

_MAX_MODULES = 100
_FROZEN = re.compile(
    r"abc|codecs|genericpath|importlib\.(?:machinery|util)|io|ntpath|os|os\.path|posixpath|runpy|site|stat|sys"
    r"|_collections_abc|_sitebuiltins"
)
_IMPORT = re.compile(
    r"(?m)^(?:import[ \t]+([\w. \t,]+)"
    r"|from[ \t]+(\.*)([\w.]*)[ \t]+import\b[ \t]*(?:\(((?:#[^\n]*+|[^)#])*+)\)|([^\n]*)))"
)
_NAME_OF_IMPORT = re.compile(r"(?:^|,)\s*(\w+)")
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class ImportedFiles:
    """The files that an import reads."""

    read: tuple[str, ...]
    denied: str | None = None
    """File or folder that only root may read or enter: the import fails, or the module is empty."""
    missing: str | None = None
    """Module that one of the files needs and that does not exist: the import fails."""


def imported_files(python: PythonProcess, *names: str) -> ImportedFiles:
    """Return the files that imports read, up to the first that a non-root user cannot access."""
    todo, files, missing = [*names], dict[str, None](), None
    packages = dict[str, frozenset[str]]()
    for module in todo:
        spec = python.find_spec(module)
        if spec is not None and (file := python.finder.code_file(spec)) is not None:
            files[file] = None
            new = [each for each in _imports_of(python, spec, packages) if each not in todo]
            todo += list(dict.fromkeys(new))[: _MAX_MODULES - len(todo)]
            missing = missing or next((each for each in new if _is_missing(python, spec, each)), None)
        elif (denied := _denied_path(python, module)) is not None:
            return ImportedFiles(tuple(files), denied)
    return ImportedFiles(tuple(files), missing=missing)


def _denied_path(python: PythonProcess, module: str) -> str | None:
    """Return the unreadable file of a module, or its folder that cannot be listed; None without either."""
    root = python.root.for_root()
    full = ModuleFinder(root, python.finder.suffixes, python.finder.version)
    tops = (*python.path, *(f"{folder}/lib-dynload" for folder in python.path))  # on sys.path where users may enter
    spec = full.find_spec(module, tops, python.modules)
    path = spec.origin if spec is not None else None
    for place in (path, path.removesuffix("/__init__.py").rpartition("/")[0]) if path is not None else ():
        if (obstacle := python.root.obstacle(place)) is not None and not obstacle.is_for_some:
            return place
    return None


def _imports_of(python: PythonProcess, spec: ModuleSpec, packages: dict[str, frozenset[str]]) -> Iterator[str]:
    """Yield the modules that unindented lines of a module import, packages before their submodules."""
    package = spec.name.split(".") if spec.locations else spec.name.split(".")[:-1]
    for names, dots, name, *listed in _IMPORT.findall(python.read(spec) or ""):
        above = package[: len(package) + 1 - len(dots)] if dots else []
        whole = [each.split()[0] for each in names.split(",") if each.strip()] or [".".join((*above, *name.split(".")))]
        for parts in (each.strip(".").split(".") for each in whole):
            for count in range(1, len(parts) + 1):
                if (module := ".".join(parts[:count])) and not _FROZEN.fullmatch(module):
                    yield module
        taken = _NAME_OF_IMPORT.findall(_COMMENT.sub("", "".join(listed)))
        yield from _modules_in(python, whole[0].strip("."), taken, packages) if taken else ()


def _modules_in(
    python: PythonProcess, package: str, names: Iterable[str], packages: dict[str, frozenset[str]]
) -> Iterator[str]:
    """Yield the names imported from a package that are submodules: the package's own code does not bind them."""
    if package.partition(".")[0] in sys.stdlib_module_names:
        return
    spec = python.find_spec(package)
    if spec is None or spec.kind is not SpecKind.SOURCE or not spec.locations:
        return
    if package not in packages:
        packages[package] = _bound_names(python.read(spec) or "", package)
    there = {name.partition(".")[0] for folder in spec.locations for name in names_in(python.root.for_root(), folder)}
    yield from (f"{package}.{name}" for name in names if name in there and name not in packages[package])


def _bound_names(source: str, package: str) -> frozenset[str]:
    """Return the names that a package's code may bind, except for submodules that it imports from itself."""
    found = set[str]()
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = []
    for node in nodes:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                found.add(name)
            case ast.Name(name, ast.Store()):
                found.add(name)
            case ast.Import(aliases):
                found |= {each.asname or each.name.partition(".")[0] for each in aliases}
            case ast.ImportFrom(module, aliases, level):
                is_own = (module == package and not level) or (module is None and level == 1)
                found |= {
                    each.asname or each.name for each in aliases if not (is_own and each.asname in {None, each.name})
                }
    return frozenset(found)


def _is_missing(python: PythonProcess, spec: ModuleSpec, name: str) -> bool:
    """Whether a module that does not exist is certainly imported: at the top level, with no other code providing it."""
    if "." in name or name in python.builtins or python.questions or python.find_spec(name) is not None:
        return False
    try:
        body = ast.parse(source := python.read(spec) or "").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if f"'{name}'" in source or f'"{name}"' in source:  # as a key of sys.modules would be
        return False
    wanted = [alias.name for each in body if isinstance(each, ast.Import) for alias in each.names]
    wanted += [each.module or "" for each in body if isinstance(each, ast.ImportFrom) and not each.level]
    return name in {each.partition(".")[0] for each in wanted}
