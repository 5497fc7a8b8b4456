"""The pip part of a conda environment (`environment.yml`), and what pip would install in place of the rest.

No conda package goes into an image: a second Python, and other libraries beside ROCm's, are what breaks it.
Sources: conda, "Managing environments" and MatchSpec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from lumiimg.core.errors import BadInputError, LumiimgError, one_line, shortened
from lumiimg.core.toml import package_toml
from lumiimg.core.yaml import YamlNode, parse_yaml
from lumiimg.resolve.python_target import OF_TORCH, is_of_cuda

HasProject = Callable[[str], bool]
"""Returns whether the package index has a project. Raises LumiimgError if the index does not answer."""
_SAYS_NOTHING = frozenset({"name", "channels", "prefix"})
_OF_PYTHON = frozenset({"pip", "python-abi"})
_PACKAGE = re.compile(r"(?:[^\s:]+::)?([A-Za-z0-9_][\w.-]*)\s*([^\[]*)", re.ASCII)
_ONE_VERSION = re.compile(r"(==?)?\s*([A-Za-z0-9_.!+]+?)(\.?\*)?(?:[=\s]\s*[\w.*]+)?", re.ASCII)
_MINOR = re.compile(r"==(\d+\.\d+)(?:\.\w+)*")
_MAX_LOOKUPS, _SHOWN = 300, 60
_INSTEAD = "write the packages that you need under `pip:`"


@dataclass(frozen=True, slots=True)
class _Package:
    """A conda package."""

    text: str
    where: str
    name: str
    """Normalized name on the package index (PEP 503)."""
    version: str | None
    """In pip's notation: `>=1,<2`; empty if any version will do, None if pip cannot express it."""


def pip_lines(text: str, path: str, has_project: HasProject | None) -> Iterator[tuple[int, str]]:
    """Yield the lines of the pip part with their numbers, and the requested Python: `python==3.12.*`.

    Raises BadInputError for text that is not such an environment, has no pip part, or needs conda for more than Python.
    """
    of_conda, found = list[_Package](), list[tuple[int, str]]()
    has_pip = False
    for node in _dependencies(parse_yaml(text, path), path):
        where = f"line {node.line} of {path}"
        if isinstance(node.value, str):
            package = _package(node.value, where)
            if package.name == "python" and package.version is not None:
                minor = _MINOR.fullmatch(package.version)  # wheels fit any patch release
                found.append((node.line, f"python=={minor[1]}.*" if minor else f"python{package.version}"))
            elif package.name not in _OF_PYTHON:
                of_conda.append(package)
        elif isinstance(node.value, dict) and [*node.value] == ["pip"]:
            lines = node.value["pip"].value or ()
            if isinstance(lines, str):
                raise BadInputError("the pip part is not a list", where=where, hint="one line each: - NAME")
            for line in lines if isinstance(lines, tuple) else ():
                if not isinstance(line.value, str):
                    raise BadInputError("the pip part must be a list of lines", where=f"line {line.line} of {path}")
                found.append((line.line, line.value))
                has_pip = True
        else:
            hint = "a conda package, or `pip:` with a list, is needed"
            raise BadInputError("is not a dependency", where=where, hint=hint)
    if of_conda:
        raise _instead(of_conda, has_project)
    if not has_pip:
        raise BadInputError("has no pip part, so there is nothing to install", where=path, hint=_INSTEAD)
    yield from found


def _dependencies(document: YamlNode, path: str) -> Sequence[YamlNode]:
    """Return the dependencies of an environment. Raises BadInputError."""
    if not isinstance(document.value, dict):
        raise BadInputError("is not a conda environment: it has no keys", where=path, hint="dependencies: …")
    for key, node in document.value.items():
        if key not in _SAYS_NOTHING | {"dependencies"}:
            where = f"line {node.line} of {path}"
            raise BadInputError(f"the key {shortened(key)!r} is not supported", where=where, hint="leave it out")
    dependencies = document.value.get("dependencies")
    if dependencies is None or not dependencies.value:
        raise BadInputError("has no dependencies, so there is nothing to install", where=path, hint=_INSTEAD)
    if not isinstance(dependencies.value, tuple):
        raise BadInputError("dependencies is not a list", where=f"line {dependencies.line} of {path}")
    return dependencies.value


def _package(text: str, where: str) -> _Package:
    """Return the conda package that a line requests. Raises BadInputError."""
    match = _PACKAGE.match(text)
    if match is None:
        raise BadInputError("is not a conda package", where=where, hint="for example numpy=2.1")
    name = canonicalize_name(match[1])
    version = _pip_version(match[2].strip()) if match.end() == len(text) else None
    return _Package(text, where, _facts()["names"].get(name, name), version)


def _pip_version(spec: str) -> str | None:
    """Return the versions that conda would accept, in pip's notation; None if pip cannot express them.

    `=1.2` means 1.2 and versions that begin with `1.2.`; with a build name, or without `=`, a version is exact.
    """
    if one := _ONE_VERSION.fullmatch(spec):
        is_beginning = one[3] or (spec.startswith("=") and spec.count("=") == 1 and one[2].count(".") < 2)
        spec = f"=={one[2]}{'.*' if is_beginning else ''}"
    spec = "".join(spec.split())
    try:
        SpecifierSet(spec)
    except InvalidSpecifier:
        return None
    return spec


def _instead(packages: Sequence[_Package], has_project: HasProject | None) -> BadInputError:
    """Return the error that refuses conda packages: what pip would install instead, and what is in no index."""
    lines, without = list[str](), list[str]()
    for package in packages[:_MAX_LOOKUPS]:
        is_for_pip = package.version is not None and package.name not in _facts()["of_cuda"]
        is_for_pip = is_for_pip and package.name[:1] != "-" and not is_of_cuda(package.name, of_index=True)
        if is_for_pip and package.name in OF_TORCH:
            lines.append(package.name)  # the image has it
            continue
        if is_for_pip and has_project is not None:
            try:
                is_for_pip = has_project(package.name)
            except LumiimgError:
                has_project = None
        (lines if is_for_pip else without).append(f"{package.name}{package.version}" if is_for_pip else package.text)
    asked = "" if has_project else " (not all were looked up)"
    hint = f"write under `pip:`, as the index has a project of that name{asked}: {_named(lines)}; " if lines else ""
    hint += f"leave out, as pip has no package of that name: {_named(without)}" if without else ""
    more = f" and {len(packages) - 1} more" if len(packages) > 1 else ""
    what = f"conda packages are not installed: {shortened(one_line(packages[0].text))}{more}"
    return BadInputError(what, where=packages[0].where, hint=hint.removesuffix("; "), more=[*lines, *without])


def _named(texts: Sequence[str]) -> str:
    """Return texts in one line, each once and without spaces."""
    named = [*dict.fromkeys(shortened(one_line("".join(text.split()))) for text in texts)]
    return " ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN} more (--verbose)" if len(named) > _SHOWN else "")


@cache
def _facts() -> dict[str, Any]:
    return package_toml("lumiimg.resolve", "conda.toml")
