"""What the names of a piece of Python mean, without running it: which name may be which object of which module.

All bindings of a file count at once, whatever their order and scope: a name is whatever one of them makes of it.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_BYTES = 256 << 10
OF_SITE = ("os", "sys", "io", "builtins")
"""Modules that a line of a `.pth` file has without importing them: those of site.py, inside which it runs."""
_ARE_TEXT = frozenset(("__name__", "__file__", "__doc__", "__package__", "__qualname__", "__debug__"))
_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN = ("utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1", "iso-8859-15", "cp1252")
"""Encodings that a comment may name (PEP 263), in which ASCII is ASCII: in UTF-7 a comment may hold code."""
_NO_MEANING = frozenset(("ctx", "kind", "type_comment"))
_CUT = frozenset(("MAPPING", "NAMESPACES", "PATH_PLACEHOLDER"))
"""What a build backend fills in: values of these names, and the arguments of a call (setuptools
command/editable_wheel.py; meson-python mesonpy/__init__.py; scikit_build_core/build/_editable.py)."""


@dataclass(slots=True)
class PythonCode:
    """A file, or the lines of a `.pth` file, as syntax."""

    path: str
    name: str
    """As a module; empty for the lines of a `.pth` file."""
    package: str
    """That its relative imports start from."""
    body: list[ast.stmt]
    digest: str
    """Of all that it does, without docstrings, comments, and what a build backend filled in."""
    filled: list[object]
    """What a build backend filled in."""
    in_classes: set[int] = field(default_factory=set)
    """Nodes of class bodies, whose names are attributes that others reach."""
    aliases: set[int] = field(default_factory=set)
    bindings: defaultdict[str, set[str | ast.expr | None]] = field(default_factory=lambda: defaultdict(set))
    """What each name is: an imported module or object of one, by its dotted name; what another expression is; None: a
    value of its own."""

    def names(self, node: ast.Name) -> set[str | ast.expr | None]:
        """Return what a name may be."""
        if found := self.bindings.get(node.id):
            return found
        if not self.name and node.id in OF_SITE:
            return {node.id}
        return {
            None if node.id in _ARE_TEXT else f"builtins.{node.id}" if hasattr(builtins, node.id) else f"?.{node.id}"
        }


def read_code(texts: Iterable[str], path: str, name: str = "", *, is_package: bool = False) -> PythonCode:
    """Return a file, or the lines of a `.pth` file, as syntax.

    A statement `exec('…')` of a constant text is replaced by the statements of that text.

    Raises SyntaxError, ValueError, RecursionError or MemoryError (CPython Parser, `ast.parse`).
    """
    body = [statement for text in texts for statement in _inlined(_parse(text))]
    package = name if is_package else name.rpartition(".")[0]
    filled = [*_cut_out(body)]
    code = PythonCode(path, name, package, body, hashlib.sha256(_shape(body).encode()).hexdigest()[:20], filled)
    nodes = [node for statement in body for node in ast.walk(statement)]
    code.in_classes = {id(node) for one in nodes if isinstance(one, ast.ClassDef) for node in _own_nodes(one)}
    for node in nodes:
        _bind(code, node)
    if "exec" in code.bindings:
        raise ValueError("it has an exec of its own")
    return code


def _parse(text: str) -> list[ast.stmt]:
    if len(text) > MOST_BYTES:
        raise ValueError("it is too long")
    cookie = next(filter(None, map(_COOKIE.match, text.splitlines()[:2])), None)
    if cookie and not (cookie[1].lower() in _PLAIN[:2] or (cookie[1].lower() in _PLAIN and text.isascii())):
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


def _own_nodes(scope: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield what stands in the body of a class, but not in its functions."""
    nodes: list[ast.AST] = [*scope.body]
    while nodes:
        yield (node := nodes.pop())
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)


def is_alias(code: PythonCode, node: ast.AST) -> bool:
    """Whether a statement gives what another name means to a name, `a = os.environ`, but to no attribute of a class."""
    match node:
        case ast.Assign([ast.Name()], ast.Name() | ast.Attribute() | ast.Call()):
            return id(node) not in code.in_classes
    return False


def _bind(code: PythonCode, node: ast.AST) -> None:
    """Add what a node binds (Python reference, 4.2.1 Binding of names)."""
    found: list[tuple[str | None, str | ast.expr | None]] = []
    match node:
        case ast.Import():
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found.append((alias.asname, alias.name) if alias.asname else (top, top))
        case ast.ImportFrom():
            found += [(alias.asname or alias.name, f"{source_of(code, node)}.{alias.name}") for alias in node.names]
        case ast.Assign([ast.Name(name) as target], value) if is_alias(code, node):
            found.append((name, value))
            code.aliases.add(id(target))
        case ast.Name(name, ast.Store() | ast.Del()) if id(node) not in code.aliases:
            found.append((name, None))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler() | ast.MatchAs():
            found.append((node.name, None))
        case ast.MatchStar():
            found.append((node.name, None))
        case ast.arg():
            found.append((node.arg, None))
        case ast.MatchMapping():
            found.append((node.rest, None))
        case ast.Global():
            found += [(name, None) for name in node.names]
        case _ if type(node).__name__ in {"TypeVar", "ParamSpec", "TypeVarTuple"}:
            found.append((node.name, None))  # type: ignore[attr-defined]
    for bound, meaning in found:
        if bound:
            code.bindings[bound].add(meaning)


def source_of(code: PythonCode, node: ast.ImportFrom) -> str:
    """Return the module that `from … import` takes from (CPython importlib/_bootstrap.py, _resolve_name)."""
    if not node.level:
        return node.module or ""
    parts = code.package.split(".")
    above = ".".join(parts[: len(parts) - node.level + 1])
    return f"{above}.{node.module}" if node.module else above


def _cut_out(body: list[ast.stmt]) -> Iterator[object]:
    """Replace what a build backend filled in by nothing, and yield it."""
    inside = [one.body for one in body if isinstance(one, ast.FunctionDef) and one.name == "init"]
    for statement in (one for statements in (body, *inside) for one in statements):
        with suppress(ValueError, TypeError, SyntaxError):  # it is not a literal
            match statement:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value) if (
                    name in _CUT
                ):
                    if isinstance(value, ast.BinOp):  # `'…' + ".__path_hook__"`
                        yield ast.literal_eval(value.left)
                        value.left = ast.Constant(None)
                    else:
                        yield ast.literal_eval(value)
                        statement.value = ast.Constant(None)
                case ast.Expr(ast.Call(ast.Name("install"), [_, *_] as arguments, []) as call) | ast.Assign(
                    _, ast.Call(ast.Name("MesonpyMetaFinder"), [_, *_] as arguments, []) as call
                ):
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
