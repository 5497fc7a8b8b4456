"""The libraries that wheels of TheRock open before torch's own: by short names, in the packages of rocm_sdk.

Source: TheRock build_tools/packaging/python/templates/rocm/src/rocm_sdk (find_libraries, preload_libraries and
initialize_process of __init__.py; determine_target_family of _dist_info.py), read in November 2026.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.host.job_process import Failure, OpenQuestion, QuestionKind
from lumiimg.host.root_queries import names_in, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.host.python_process import PythonProcess

FAMILY = "ROCM_SDK_TARGET_FAMILY"
"""Names the GPUs for which libraries are taken; else the GPU of the node does (offload-arch)."""
_MORE = "ROCM_SDK_PRELOAD_LIBRARIES"
_PRELOADED = re.compile(r"preload_shortnames\s*=\s*\[([^\]]*)\]")
_SHORT_NAME = re.compile(r"[\"']([A-Za-z0-9_-]+)[\"']")
_OF_FAMILY = "{target_family}"
_LIBRARIES = "_rocm_sdk_libraries"
_DEFAULT_TEMPLATES = {"core": "rocm-sdk-core", "libraries": f"rocm-sdk-libraries-{_OF_FAMILY}"}


@dataclass(frozen=True, slots=True)
class Preloads:
    """What is opened first, with RTLD_GLOBAL."""

    paths: tuple[str, ...] = ()
    failure: Failure | None = None
    questions: tuple[OpenQuestion, ...] = ()


@dataclass(frozen=True, slots=True)
class _Library:
    package: str
    pattern: str
    folder: str = "lib"
    deps: tuple[str, ...] = ()


@dataclass(slots=True)
class _Distribution:
    """What `_dist_info.py` says."""

    file: str | None = None
    libraries: dict[str, _Library] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=lambda: dict(_DEFAULT_TEMPLATES))
    families: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)

    def package(self, of: str, family: str | None) -> str:
        """Return the name of a package as Python imports it."""
        name = self.templates[of].replace(_OF_FAMILY, family or "")
        return f"_{name.replace('-', '_')}{self.values.get('PY_PACKAGE_SUFFIX_NONCE', '')}"

    def ordered(self, names: list[str]) -> list[str]:
        """Return short names, each behind those that it depends on."""
        found: dict[str, None] = {}

        def add(name: str, above: tuple[str, ...]) -> None:
            for below in self.libraries[name].deps if name in self.libraries and name not in above else ():
                add(below, (*above, name))
            found[name] = None

        for name in names:
            add(name, ())
        return list(found)


def preloaded(python: PythonProcess, init: ModuleSpec) -> Preloads:
    """Return what torch's `_rocm_init` opens."""
    named = _PRELOADED.search(python.read(init) or "")
    names = _SHORT_NAME.findall(named[1]) if named else []
    names += filter(None, map(str.strip, re.split("[,;]", python.variable(_MORE) or "")))
    sdk = python.find_spec("rocm_sdk")
    if sdk is None:
        return Preloads(failure=Failure("it imports rocm_sdk, which is in no folder of its modules", init.origin))
    said = _read_distribution(python)
    family, failure, questions = _family(python, said, python.variable(FAMILY))
    paths: list[str] = []
    for name in said.ordered(names) if failure is None else ():
        library = said.libraries.get(name)
        if library is None and said.libraries:
            failure = Failure(f"rocm_sdk knows no library by the name {name}", said.file)
        elif library is None:
            paths += _by_name(python, said, name, family)
        else:
            package = python.find_spec(said.package(library.package, family))
            found = _matching(python, package, library.folder, library.pattern) if package else None
            if found is None:
                what = "is not in it" if package else "is not installed"
                failure = Failure(f"{library.pattern} of {said.package(library.package, family)} {what}", said.file)
            else:
                paths.append(found)
        if failure is not None:
            break
    return Preloads(tuple(paths), failure, questions)


def _family(
    python: PythonProcess, said: _Distribution, named: str | None
) -> tuple[str | None, Failure | None, tuple[OpenQuestion, ...]]:
    """Return (whose libraries are taken, why the import fails, what the GPU of the node decides)."""
    if named is not None:
        is_known = named in said.families or not said.families
        failure = None if is_known else Failure(f"{FAMILY}={named} is not one of {', '.join(said.families)}", said.file)
        return named, failure, ()
    installed = [family for family in said.families if python.find_spec(said.package("libraries", family))]
    if not said.families:
        names = {name for folder in python.path for name in names_in(python.root, folder)}
        installed = sorted(name.removeprefix(f"{_LIBRARIES}_") for name in names if name.startswith(f"{_LIBRARIES}_"))
    default = said.values.get("DEFAULT_TARGET_FAMILY")
    family = default if default in installed or not installed else installed[-1]
    if len(installed) < 2 or _OF_FAMILY not in said.templates["libraries"]:
        return family, None, ()
    what = f"takes the libraries for one of {', '.join(installed)}, by the GPU of the node: {FAMILY} is not set"
    return family, None, (OpenQuestion(QuestionKind.CODE, said.file or "rocm_sdk", what),)


def _by_name(python: PythonProcess, said: _Distribution, name: str, family: str | None) -> Iterator[str]:
    """Yield the library that a short name means where rocm_sdk has no list of them."""
    for package in filter(None, map(python.find_spec, (said.package(of, family) for of in ("core", "libraries")))):
        if found := _matching(python, package, "lib", f"lib{name}.so*"):
            yield found
            return


def _matching(python: PythonProcess, package: ModuleSpec, folder: str, pattern: str) -> str | None:
    place = f"{package.locations[0]}/{folder}" if package.locations else None
    names = sorted(fnmatch.filter(names_in(python.root, place), pattern)) if place else []
    return f"{place}/{names[0]}" if names else None


def _read_distribution(python: PythonProcess) -> _Distribution:
    """Read what rocm_sdk says of its libraries: calls and assignments with constants."""
    spec = python.find_spec("rocm_sdk._dist_info")
    said = _Distribution(spec.origin if spec else None)
    try:
        body = ast.parse(read_text(python.root, said.file) or "").body if said.file else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return said
    for node in body:
        match node:
            case ast.Expr(ast.Call(ast.Name("LibraryEntry"), args, keywords)):
                texts = [*map(_constant, args)]
                more = {each.arg: _constant(each.value) for each in keywords}
                if len(texts) >= 3:
                    folder, deps = more.get("posix_relpath") or "lib", more.get("deps")
                    own = tuple(map(str, deps)) if isinstance(deps, list) else ()
                    folder = texts[4] if len(texts) > 4 else folder
                    said.libraries[str(texts[0])] = _Library(str(texts[1]), str(texts[2]), str(folder), own)
            case ast.Expr(ast.Call(ast.Name("PackageEntry"), [first, second, *_])):
                said.templates[str(_constant(first))] = str(_constant(second))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("AVAILABLE_TARGET_FAMILIES"), "append"), [each])):
                said.families.append(str(_constant(each)))
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value):
                constant = _constant(value) if value is not None else None
                if name == "AVAILABLE_TARGET_FAMILIES" and isinstance(constant, list):
                    said.families = [*map(str, constant)]
                elif isinstance(constant, str):
                    said.values[name] = constant
    return said


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
