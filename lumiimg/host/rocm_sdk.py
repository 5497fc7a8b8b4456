"""The libraries that TheRock's wheels open before torch's own, given by short names and found in rocm_sdk's packages.

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
    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.host.python_process import PythonProcess

FAMILY = "ROCM_SDK_TARGET_FAMILY"
"""Names the GPUs whose libraries are used; if it is not set, the GPU of the node decides (offload-arch)."""
_EXTRA_VARIABLE = "ROCM_SDK_PRELOAD_LIBRARIES"
_PRELOADED = re.compile(r"preload_shortnames\s*=\s*\[([^\]]*)\]")
_SHORT_NAME = re.compile(r"[\"']([A-Za-z0-9_-]+)[\"']")
_FAMILY_FIELD = "{target_family}"
_MAX_LIBRARIES = 200


@dataclass(frozen=True, slots=True)
class Preloads:
    """Libraries that are opened first, with RTLD_GLOBAL."""

    paths: tuple[str, ...] = ()
    failure: Failure | None = None
    questions: tuple[OpenQuestion, ...] = ()


@dataclass(frozen=True, slots=True)
class _Library:
    package: str
    pattern: str
    folder: str
    deps: tuple[str, ...]


@dataclass(slots=True)
class _Distribution:
    """Contents of `_dist_info.py`."""

    file: str
    libraries: dict[str, _Library] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)
    families: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)

    def package(self, of: str, family: str | None) -> str:
        """Return the name of a package as Python imports it."""
        name = self.templates.get(of, of).replace(_FAMILY_FIELD, family or "")
        return f"_{name.replace('-', '_')}{self.values.get('PY_PACKAGE_SUFFIX_NONCE', '')}"

    def ordered(self, names: list[str]) -> list[str]:
        """Return short names, each after those that it depends on."""
        found, seen = list[str](), set[str]()

        def add(name: str) -> None:
            if name not in seen:
                seen.add(name)
                for below in self.libraries[name].deps if name in self.libraries else ():
                    add(below)
                found.append(name)

        for name in names:
            add(name)
        return found


def read_preloads(python: PythonProcess, init: ModuleSpec) -> Preloads:
    """Return the libraries that torch's `_rocm_init` opens."""
    source = python.read(init)
    named = _PRELOADED.search(source or "")
    if source is None or (named is None and "preload" in source):
        what = "opens libraries first, but which ones cannot be read in it"
        return Preloads(questions=(OpenQuestion(QuestionKind.CODE, init.origin or init.name, what),))
    names = _SHORT_NAME.findall(named[1]) if named else []
    names += filter(None, map(str.strip, re.split("[,;]", python.variable(_EXTRA_VARIABLE) or "")))
    sdk = python.find_spec("rocm_sdk")
    if sdk is None:
        return Preloads(failure=Failure("it imports rocm_sdk, which is not in any of its module folders", init.origin))
    dist_info = _read_distribution(python)
    if dist_info is None:
        what = "opens libraries first, but its list of them cannot be read (_dist_info.py)"
        return Preloads(questions=(OpenQuestion(QuestionKind.CODE, sdk.origin or sdk.name, what),))
    family, questions = python.variable(FAMILY), tuple[OpenQuestion, ...]()
    if family is None:
        family, questions = _family_by_default(python, dist_info)
    elif dist_info.families and family not in dist_info.families:
        what = f"{FAMILY}={family} is not one of {', '.join(dist_info.families)}"
        return Preloads(failure=Failure(what, dist_info.file))
    paths: list[str] = []
    for name in dist_info.ordered(names):
        if (library := dist_info.libraries.get(name)) is None:
            failure = Failure(f"rocm_sdk does not know a library named {name}", dist_info.file)
            return Preloads(tuple(paths), failure, questions)
        package = python.find_spec(of := dist_info.package(library.package, family))
        place = f"{package.locations[0]}/{library.folder}" if package is not None and package.locations else ""
        files = sorted(fnmatch.filter(names_in(python.root, place), library.pattern)) if place else []
        if not files:
            what = f"{library.pattern} of {of} is not {'in it' if place else 'installed'}"
            return Preloads(tuple(paths), Failure(what, dist_info.file), questions)
        paths.append(f"{place}/{files[0]}")
    return Preloads(tuple(paths), None, questions)


def _family_by_default(python: PythonProcess, dist: _Distribution) -> tuple[str | None, tuple[OpenQuestion, ...]]:
    """Return (the family whose libraries are used, the questions that the GPU of the node decides)."""
    installed = [family for family in dist.families if python.find_spec(dist.package("libraries", family))]
    default = dist.values.get("DEFAULT_TARGET_FAMILY")
    family = default if default in installed or not installed else installed[-1]
    if len(installed) < 2 or _FAMILY_FIELD not in dist.templates.get("libraries", ""):
        return family, ()
    what = f"chooses the libraries for one of {', '.join(installed)}, by the GPU of the node: {FAMILY} is not set"
    return family, (OpenQuestion(QuestionKind.CODE, dist.file, what),)


def _read_distribution(python: PythonProcess) -> _Distribution | None:
    """Read rocm_sdk's list of libraries from calls and assignments with constants; None where it lists none."""
    spec = python.find_spec("rocm_sdk._dist_info")
    if spec is None or spec.origin is None:
        return None
    dist_info = _Distribution(spec.origin)
    try:
        body = ast.parse(read_text(python.root, dist_info.file) or "").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in body:
        match node:
            case ast.Expr(ast.Call(ast.Name("LibraryEntry"), args, keywords)):
                texts = [*map(_constant, args)]
                more = {each.arg: _constant(each.value) for each in keywords}
                if len(texts) >= 3 and len(dist_info.libraries) < _MAX_LIBRARIES:
                    folder, deps = more.get("posix_relpath") or "lib", more.get("deps")
                    own = tuple(map(str, deps)) if isinstance(deps, list) else ()
                    folder = texts[4] if len(texts) > 4 else folder
                    dist_info.libraries[str(texts[0])] = _Library(str(texts[1]), str(texts[2]), str(folder), own)
            case ast.Expr(ast.Call(ast.Name("PackageEntry"), [first, second, *_])):
                dist_info.templates[str(_constant(first))] = str(_constant(second))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("AVAILABLE_TARGET_FAMILIES"), "append"), [each])):
                dist_info.families.append(str(_constant(each)))
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                constant = _constant(value)
                if name == "AVAILABLE_TARGET_FAMILIES" and isinstance(constant, list):
                    dist_info.families = [*map(str, constant)]
                elif isinstance(constant, str):
                    dist_info.values[name] = constant
    return dist_info if dist_info.libraries else None


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
