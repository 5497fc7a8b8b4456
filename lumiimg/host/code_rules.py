"""Whether a piece of Python leaves its process as it is: a rule for each kind of syntax, whether it runs or not.

A value that the code makes itself may be used in any way that does not lead back to a module. Of the standard library
only what `startup_code.toml` names may be used, and only as it says.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml
from lumiimg.host.code_names import is_alias
from lumiimg.host.container_view import is_read

if TYPE_CHECKING:
    from lumiimg.host.code_names import PythonCode

_MOST_NODES = 100_000
_TO_NAMES = re.compile(r"(?:f|gi|cr|ag|tb|func|im)_\w+|mro|obj|__\w+__")
"""Attributes that lead from a value to a module or its names (Python reference, 3.2; `obj` of an AttributeError)."""
_KEEPS_WARNINGS = frozenset(("default", "always", "ignore", "module", "once"))
_CHANGES = re.compile(r"os\.(?:environ\.(?:setdefault|pop)|putenv|unsetenv)")
_OF_FRAMEWORKS = re.compile(r"PYTHON\w*|(?:VLLM|SGLANG|JAX|XLA|TF|CUPY|MSCCLPP)_\w*")
_OF_EXCEPTIONS = frozenset(
    f"builtins.{name}" for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, Exception)
)


class NotFollowedError(Exception):
    """The code does something that is not followed; the message says what, and where."""


@dataclass(frozen=True, slots=True)
class Template:
    """Code that is known, whatever a build backend filled in."""

    name: str
    maps: str
    """The call by which others give it a module and its path; empty: there is none."""


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    date: dt.date
    source: str
    frameworks: str
    lines: list[str]
    values: dict[str, list[str]]
    callables: dict[str, list[str]]
    members: list[str]
    dunders: list[str]
    maps: dict[str, str]
    templates: dict[str, dict[str, str]]


_ROOT = r"(?:sys\._getframe\(1\)\.f_locals\['sitedir'\]|'/[^'\\]*')"
_INSIDE_ANOTHER = r"(?:;m and setattr\(sys\.modules\['(?P<parent>[\w.]+)'\], '(?P<child>\w+)', m\))?"
_CUT_OUT = {"{root}": _ROOT, "{path}": r"\('[\w', ]+\)", "{name}": r"'[\w.]+'"}


def _pattern(line: str) -> str:
    parts = re.split(r"(\{\w+\})", line)
    return "".join(_CUT_OUT.get(part) or re.escape(part) for part in parts)


class Facts:
    """What `startup_code.toml` has."""

    def __init__(self) -> None:
        table = decode(package_toml(__package__, "startup_code.toml"), _Table)
        self.frameworks = re.compile(table.frameworks)
        self.lines = re.compile(f"(?:{'|'.join(map(_pattern, table.lines))}){_INSIDE_ANOTHER}")
        self.values, self.callables = (
            frozenset(f"{module}.{name}" for module, names in part.items() for name in names)
            for part in (table.values, table.callables)
        )
        self.values |= _OF_EXCEPTIONS
        self.members, self.dunders = frozenset(table.members), frozenset(table.dunders)
        self.templates = {
            digest: Template(name, table.maps.get(name, ""))
            for name, digests in table.templates.items()
            for digest in digests
        }


facts = cache(Facts)


class Rules:
    """The rules for the code of one process."""

    def __init__(
        self,
        meanings: Callable[[PythonCode, ast.AST], set[str]],
        imports: Callable[[PythonCode, ast.Import | ast.ImportFrom], None],
    ) -> None:
        self._meanings = meanings
        self._imports = imports
        self._uses: dict[int, str] = {}
        """How what is around a node uses it: `base` of an attribute, in a `call` or `except`, `member` of `in`."""
        self._nodes = 0
        self.changed: set[str] = set()
        """Variables that do not matter, and get a value that is not known."""

    def judge(self, code: PythonCode, statement: ast.stmt) -> None:
        """Raise NotFollowedError for what may change the process."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and (name := self._imported_by(code, node)):
                self._imports(code, ast.copy_location(ast.Import([ast.alias(name)]), node))
        for node in ast.walk(statement):
            self._nodes += 1
            if self._nodes > _MOST_NODES:
                raise not_followed("is more code than is read", code, node)
            self._visit(code, node)

    def _visit(self, code: PythonCode, node: ast.AST) -> None:  # noqa: C901, PLR0912 - one case for each kind of syntax
        match node:
            case ast.Import() | ast.ImportFrom():
                if id(node) in code.in_classes:
                    raise not_followed("imports inside of a class", code, node)
                self._imports(code, node)
            case ast.Attribute(base, name):
                self._use_as("base", base)
                self._attribute(code, node, name)
                if not isinstance(node.ctx, ast.Load) and (self._meanings(code, base) or not _is_self(base)):
                    raise not_followed(f"sets {self._shown(code, base)}.{name}", code, node)
                self._value(code, node)
            case ast.Name(ctx=ast.Load()):
                self._value(code, node)
            case ast.Subscript(base):
                self._subscript(code, node, base)
            case ast.Call():
                self._call(code, node)
            case ast.Assign(_, value) if is_alias(code, node):
                self._use_as("base", value)
            case ast.AugAssign(ast.Name() as target) if meanings := self._meanings(
                code, ast.Name(target.id, ast.Load())
            ):
                raise not_followed(f"sets {min(meanings)}", code, node)
            case ast.Expr(value):
                self._use_as("base", value)
            case ast.Compare(_, [ast.In() | ast.NotIn()], [value]):
                self._use_as("member", value)
            case ast.For(iter=value) | ast.comprehension(iter=value):
                self._use_as("member", value)
            case ast.ExceptHandler(type=ast.Tuple(values)):
                self._use_as("except", *values)
            case ast.ExceptHandler(type=ast.expr() as value):
                self._use_as("except", value)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._use_as("call", *node.decorator_list, *filter(None, (node.returns,)))
            case ast.ClassDef():
                self._use_as("call", *node.decorator_list, *node.bases, *(each.value for each in node.keywords))
            case ast.arg(annotation=ast.expr() as value) | ast.AnnAssign(annotation=value):
                parts = [each for each in ast.walk(value) if isinstance(each, ast.expr)]
                self._use_as("call", *(parts if not any(isinstance(each, ast.Call) for each in parts) else ()))
            case ast.MatchClass(value, _, names):
                self._use_as("call", value)
                for name in names:
                    self._attribute(code, node, name)
            case ast.Global() if not code.name:
                raise not_followed("sets a name of site.py", code, node)
            case ast.While(ast.Constant()):
                raise not_followed("may go on without end", code, node)

    def _use_as(self, use: str, *nodes: ast.AST) -> None:
        self._uses |= {id(node): use for node in nodes}

    def _attribute(self, code: PythonCode, node: ast.AST, name: str) -> None:
        if _TO_NAMES.fullmatch(name) and name not in facts().dunders:
            raise not_followed(f"uses {name}", code, node)

    def _value(self, code: PythonCode, node: ast.AST) -> None:
        """Judge the use of what may be an object of a module."""
        use, known = self._uses.get(id(node), ""), facts()
        if use == "base":
            return
        for meaning in sorted(self._meanings(code, node)):
            is_right = (
                meaning in known.values
                or (use in {"call", "except"} and meaning in known.callables)
                or (use == "member" and meaning in known.members)
                or (use == "except" and meaning == "builtins.BaseException")
            )
            if not is_right:
                raise not_followed(f"uses {meaning}", code, node)

    def _subscript(self, code: PythonCode, node: ast.Subscript, base: ast.expr) -> None:
        meanings = self._meanings(code, base)
        if not meanings:
            return
        if meanings == {"os.environ"}:
            self._use_as("base", base)
            name = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if not isinstance(node.ctx, ast.Load):
                self._change(code, node, name)
        elif not isinstance(node.ctx, ast.Load):
            raise not_followed(f"sets {min(meanings)}", code, node)
        elif self._uses.get(id(node)) == "call":
            self._use_as("call", base)

    def _change(self, code: PythonCode, node: ast.AST, name: object) -> None:
        """Judge a change of a variable."""
        if not isinstance(name, str):
            raise not_followed("sets a variable whose name is not constant", code, node)
        if is_read(name) or _OF_FRAMEWORKS.fullmatch(name):
            raise not_followed(f"sets {name} in a way that is not followed", code, node)
        self.changed.add(name)

    def _call(self, code: PythonCode, node: ast.Call) -> None:
        self._use_as("call", node.func)
        functions = self._meanings(code, node.func)
        first = node.args[0] if node.args else None
        name = first.value if isinstance(first, ast.Constant) else None
        for function in functions:
            if _CHANGES.fullmatch(function):
                self._use_as("base", node.func)
                self._change(code, node, name)
            elif self._imported_by(code, node):
                self._use_as("base", node.func)
                self._value(code, node)
            elif function in {"builtins.getattr", "builtins.hasattr"} and len(node.args) > 1:
                if not isinstance(node.args[1], ast.Constant):
                    raise not_followed("takes an attribute whose name is not constant", code, node)
                self._use_as("base", node.func, node.args[0])
                if function.endswith("getattr"):
                    self._attribute(code, node, str(node.args[1].value))
                    self._value(code, node)
            elif function in {"warnings.filterwarnings", "warnings.simplefilter"} and name not in _KEEPS_WARNINGS:
                raise not_followed("may make errors of warnings", code, node)
            elif function == "builtins.isinstance" and len(node.args) > 1:
                kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
                self._use_as("call", *kinds)
            elif function in {"builtins.open", "io.open"}:
                modes = [
                    *node.args[1:2],
                    *(each.value for each in node.keywords if each.arg in {"mode", "opener", None}),
                ]
                if not all(isinstance(mode, ast.Constant) and mode.value in {"r", "rb", "rt"} for mode in modes):
                    raise not_followed("opens a file to write it", code, node)

    def _imported_by(self, code: PythonCode, node: ast.Call) -> str | None:
        """Return the module that a call imports."""
        match node.args:
            case [ast.Constant(str(name)), *_] if name[:1] != "." and not self._meanings(code, node.func).isdisjoint(
                ("builtins.__import__", "importlib.import_module")
            ):
                return name
        return None

    def _shown(self, code: PythonCode, base: ast.AST) -> str:
        return min(self._meanings(code, base), default="…")


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def not_followed(what: str, code: PythonCode, node: ast.AST) -> NotFollowedError:
    """Return what to raise for what a piece of code does."""
    what = what.replace(" ?.", " ").replace(" builtins.", " ")
    return NotFollowedError(f"{what} ({code.path}, line {getattr(node, 'lineno', 1)})")
