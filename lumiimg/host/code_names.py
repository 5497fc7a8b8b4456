"""Python source as syntax: what its names are, and whether it is code that is known.

All bindings of a file count at once, whatever their order and scope: a name is whatever one of them makes of it.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import hashlib
import re
import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

_ARE_TEXT = frozenset(("__name__", "__file__", "__doc__", "__package__", "__qualname__", "__debug__"))
_OF_PYTHON = re.compile(r"exec|\*|__(?:builtins|path|spec|loader|class|import|build_class|dict|name|package|file)__")
"""Names by which Python itself finds its way, and all names of a module; code that binds them is not read."""
_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN = ("utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1")
"""Encodings that a comment may name (PEP 263), in which ASCII is ASCII: in UTF-7 a comment may hold code."""
_NO_MEANING = frozenset(("ctx", "kind", "type_comment"))
_CUT = frozenset(("MAPPING", "NAMESPACES"))
"""What a build backend fills in: values of these names, and the arguments of a call (setuptools
command/editable_wheel.py; scikit_build_core/build/_editable.py)."""
_PLACE = re.compile(r"os\.path\.join\((?:sys\._getframe\(1\)\.f_locals\['sitedir'\]|'/[^'\\]*'), \*\('[\w', ]+\)\)")


class Facts(Struct, frozen=True, forbid_unknown_fields=True):
    """What `startup_code.toml` has."""

    date: dt.date
    source: str
    frameworks: str
    members: frozenset[str]
    names: frozenset[str]
    lines: frozenset[str]
    templates: dict[str, str]


@cache
def facts() -> Facts:
    """Return the table."""
    return decode(package_toml(__package__, "startup_code.toml"), Facts)


@dataclass(slots=True)
class PythonCode:
    """A file, or a line of a `.pth` file, as syntax."""

    path: str
    name: str
    """As a module; empty for a line of a `.pth` file."""
    body: list[ast.stmt]
    digest: str
    """Of all that it does, without docstrings, comments, and what a build backend filled in."""
    filled: list[object]
    """What a build backend filled in."""
    bindings: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """What each name is: an imported module or object of one, by its dotted name; empty: a value of the code's own."""

    @property
    def template(self) -> str:
        """Return which code it is that is known; empty for any other."""
        return facts().templates.get(self.digest, "").partition(" of ")[0]

    def names(self, name: str) -> set[str]:
        """Return what a name may be, as in `bindings`."""
        if name in self.bindings:
            return self.bindings[name]
        return {"" if name in _ARE_TEXT else f"builtins.{name}" if hasattr(builtins, name) else f"?.{name}"}


def read_code(text: str, path: str, name: str = "") -> PythonCode:
    """Return a file, or a line of a `.pth` file, as syntax.

    A statement `exec('…')` of a constant text is replaced by the statements of that text.

    Raises SyntaxError, ValueError, RecursionError or MemoryError (CPython Parser, `ast.parse`).
    """
    body = [*_inlined(_parse(text))]
    filled = [*_cut_out(body)]
    code = PythonCode(path, name, body, hashlib.sha256(_shape(body).encode()).hexdigest()[:20], filled)
    for node in (node for statement in body for node in ast.walk(statement)):
        for bound, meaning in _bound(code, node):
            code.bindings[bound].add(meaning)
    if wrong := next(filter(_OF_PYTHON.fullmatch, code.bindings), None):
        raise ValueError(f"it binds {wrong}")
    return code


def namespace_package(line: str) -> str | None:
    """Return the package that a line makes as setuptools wrote it; None for any other line."""
    found = re.search(r"setdefault\('([\w.]+)'", line)
    if found is None:
        return None
    parent, _, child = found[1].rpartition(".")
    line = line.rstrip().removesuffix(f";m and setattr(sys.modules['{parent}'], '{child}', m)")
    shape = _PLACE.sub("{place}", line).replace(f"'{found[1]}'", "{name}")
    return found[1] if shape in facts().lines else None


def _parse(text: str) -> list[ast.stmt]:
    cookie = next(filter(None, map(_COOKIE.match, text.splitlines()[:2])), None)
    if cookie and cookie[1].lower() not in _PLAIN:
        raise ValueError(f"its encoding is {cookie[1]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text).body


def _inlined(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.Expr(ast.Call(ast.Name("exec"), [ast.Constant(str(text))], [])):
                yield from _inlined(_parse(text))
            case _:
                yield statement


def _bound(code: PythonCode, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what a node binds, and to what (Python reference, 4.2.1 Binding of names)."""
    match node:
        case ast.Import(aliases):
            for alias in aliases:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        case ast.ImportFrom(names=aliases):
            for alias in aliases:
                yield alias.asname or alias.name, f"{source_of(code, node)}.{alias.name}"
        case (
            ast.Name(name, ast.Store() | ast.Del())
            | ast.FunctionDef(name)
            | ast.AsyncFunctionDef(name)
            | ast.ClassDef(name)
            | ast.ExceptHandler(_, str(name))
            | ast.arg(name)
        ):
            yield name, ""


def source_of(code: PythonCode, node: ast.ImportFrom) -> str:
    """Return the module that `from … import` takes from (CPython importlib/_bootstrap.py, _resolve_name)."""
    if not node.level:
        return node.module or ""
    parts = code.name.split(".")
    level = node.level - code.path.endswith("/__init__.py")
    above = ".".join(parts[: len(parts) - level])
    return f"{above}.{node.module}" if node.module else above


def _cut_out(body: list[ast.stmt]) -> Iterator[object]:
    """Replace what a build backend filled in by nothing, and yield it."""
    for statement in body:
        with suppress(ValueError, TypeError, SyntaxError):  # it is not a literal
            match statement:
                case ast.Assign([ast.Name("PATH_PLACEHOLDER")], ast.BinOp() as joined):  # `'…' + ".__path_hook__"`
                    joined.left = ast.Constant(None)
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value) if (
                    name in _CUT
                ):
                    yield ast.literal_eval(value)
                    statement.value = ast.Constant(None)
                case ast.Expr(ast.Call(ast.Name("install"), [_, *_] as arguments, []) as call):
                    yield [ast.literal_eval(argument) for argument in arguments]
                    call.args = []


def _shape(node: object) -> str:
    """Return what syntax does as text, the same for each Python: without docstrings, places and empty fields."""
    if isinstance(node, list):
        return f"[{','.join(_shape(one) for one in node if not _is_docstring(one))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        f"{name}={_shape(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _NO_MEANING and value not in (None, [])
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
