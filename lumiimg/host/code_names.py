"""Python source as a syntax tree: its names, its imports, and whether it is known code.

All bindings of a file count at once, whatever their order and scope: a name may mean what any of them binds it to.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import hashlib
import re
import sys
import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct

from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml
from lumiimg.host.module_finder import ModuleSpec, SpecKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_ARE_TEXT = frozenset(("__name__", "__file__", "__doc__", "__package__", "__qualname__", "__debug__"))
_RESERVED = re.compile(r"exec|\*|__(?:builtins|path|spec|loader|class|import|build_class|dict|name|package|file)__")
"""Names that Python's own machinery uses, and `*` (all names of a module); code that binds one is rejected."""
_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_SAFE_ENCODINGS = ("utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1")
"""Encodings that a comment may declare (PEP 263): in these ASCII is ASCII. In UTF-7, a comment may contain code."""
_IGNORED_FIELDS = frozenset(("ctx", "kind", "type_comment"))
_FILLED_NAMES = frozenset(("MAPPING", "NAMESPACES"))
"""Names whose values a build backend fills in; it also fills in the arguments of a call (setuptools
command/editable_wheel.py; scikit_build_core/build/_editable.py)."""
_PLACE = re.compile(r"os\.path\.join\((?:sys\._getframe\(1\)\.f_locals\['sitedir'\]|'/[^'\\]*'), \*\('[\w', ]+\)\)")
_MAX_TEXT, _MAX_MODULES, _MAX_MEANINGS = 512 << 10, 1000, 32
_LIBRARY = re.compile(r".*/lib(?:64)?/python(?:3\.\d+t?/(?!(?:site|dist)-packages/)|3\d+t?\.zip).*")
"""Path of the standard library below any prefix (CPython Modules/getpath.py)."""
_PRELOADED = ("sys", "builtins", "os", "site", "io", "abc", "codecs", "stat", "posix", "time", "marshal", "errno")
"""Modules that every Python has loaded before any of this code runs."""
FOLLOWED = ("os.environ", "sys.path", "site", "editables/redirector.py.RedirectingFinder")
"""Objects whose method calls may be followed; the last has a method that maps a module to its path."""


class Facts(Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of `startup_code.toml`."""

    date: dt.date
    source: str
    frameworks: str
    set_in_jobs: str
    lines: frozenset[str]
    names: dict[str, frozenset[str]]
    templates: dict[str, frozenset[str]]

    def has_name(self, dotted: str) -> bool:
        """Whether an object of a module may be used in any way, as may every built-in exception that is an error."""
        module, _, name = dotted.rpartition(".")
        known = getattr(builtins, name, None) if module == "builtins" else None
        is_error = isinstance(known, type) and issubclass(known, Exception)
        return is_error or name in self.names.get(module, ())


@cache
def facts() -> Facts:
    """Return the table of `startup_code.toml`."""
    return decode(package_toml(__package__, "startup_code.toml"), Facts)


@dataclass(slots=True)
class PythonCode:
    """Syntax tree of a file, or of a line of a `.pth` file."""

    path: str
    name: str
    """Module name; empty for a line of a `.pth` file."""
    body: list[ast.stmt]
    digest: str
    """Digest of the code without docstrings, comments, and what a build backend filled in."""
    filled: list[object]
    """Values that a build backend filled in."""
    bindings: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Meanings of each name: the dotted name of an imported module or object; empty for a value of the code's own."""

    @property
    def template(self) -> str:
        """Return the file that names this known code; empty for any other code."""
        return next((file for file, digests in facts().templates.items() if self.digest in digests), "")

    def names(self, name: str) -> set[str]:
        """Return the possible meanings of a name, as in `bindings`."""
        if name in self.bindings:
            return {*self.bindings[name]}
        return {"" if name in _ARE_TEXT else f"builtins.{name}" if hasattr(builtins, name) else f"?.{name}"}


def read_code(text: str, path: str, name: str = "") -> PythonCode:
    """Parse a file, or a line of a `.pth` file.

    A statement `exec('…')` with a constant string is replaced by the statements in that string.

    Raises SyntaxError, ValueError, RecursionError or MemoryError (CPython Parser, `ast.parse`).
    """
    body = [*_inline_exec(_parse(text))]
    filled = [*_remove_filled(body)]
    code = PythonCode(path, name, body, hashlib.sha256(_shape(body).encode()).hexdigest()[:20], filled)
    for node in (node for statement in body for node in ast.walk(statement)):
        for bound, meaning in _node_bindings(code, node):
            code.bindings[bound].append(meaning)
    if wrong := next(filter(_RESERVED.fullmatch, code.bindings), None):
        raise ValueError(f"it binds {wrong}")
    return code


def namespace_package(line: str) -> str | None:
    """Return the namespace package that a line written by setuptools creates; None for any other line."""
    found = re.search(r"setdefault\('([\w.]+)'", line)
    if found is None:
        return None
    parent, _, child = found[1].rpartition(".")
    line = line.rstrip().removesuffix(f";m and setattr(sys.modules['{parent}'], '{child}', m)")
    shape = _PLACE.sub("{place}", line).replace(f"'{found[1]}'", "{name}")
    return found[1] if shape in facts().lines else None


def _parse(text: str) -> list[ast.stmt]:
    cookie = next(filter(None, map(_COOKIE.match, re.split(r"\r\n?|\n", text, maxsplit=2)[:2])), None)
    if cookie and cookie[1].lower() not in _SAFE_ENCODINGS:
        raise ValueError(f"its encoding is {cookie[1]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text).body


def _inline_exec(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.Expr(ast.Call(ast.Name("exec"), [ast.Constant(str(text))], [])):
                yield from _inline_exec(_parse(text))
            case _:
                yield statement


def _node_bindings(code: PythonCode, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (name, meaning) for each name that a node binds (Python reference, 4.2.1 Binding of names)."""
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
            | ast.ExceptHandler(_, str(name))
            | ast.arg(name)
        ):
            yield name, ""


def source_of(code: PythonCode, node: ast.ImportFrom) -> str:
    """Return the full name of the module in `from … import` (CPython importlib/_bootstrap.py, _resolve_name)."""
    if not node.level:
        return node.module or ""
    parts = code.name.split(".")
    level = node.level - code.path.endswith("/__init__.py")
    above = ".".join(parts[: len(parts) - level])
    return f"{above}.{node.module}" if node.module else above


def _remove_filled(body: list[ast.stmt]) -> Iterator[object]:
    """Remove what a build backend filled in, and yield it."""
    for statement in body:
        with suppress(ValueError, TypeError, SyntaxError):  # not a literal
            match statement:
                case ast.Assign([ast.Name("PATH_PLACEHOLDER")], ast.BinOp() as joined):  # `'…' + ".__path_hook__"`
                    joined.left = ast.Constant(None)
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value) if (
                    name in _FILLED_NAMES
                ):
                    yield ast.literal_eval(value)
                    statement.value = ast.Constant(None)
                case ast.Expr(ast.Call(ast.Name("install"), [_, *_] as arguments, []) as call):
                    yield [ast.literal_eval(argument) for argument in arguments]
                    call.args = []


def _shape(node: object) -> str:
    """Return syntax as a text that is the same for every Python: without docstrings, positions and empty fields."""
    if isinstance(node, list):
        return f"[{','.join(_shape(one) for one in node if not _is_docstring(one))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        f"{name}={_shape(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _IGNORED_FIELDS and value not in (None, [])
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class NotFollowedError(Exception):
    """The code does something that lumiimg does not follow; the message says what and where."""

    def __init__(self, what: str, code: PythonCode, node: ast.AST) -> None:
        what = what.replace(" ?.", " ").replace(" builtins.", " ")
        super().__init__(f"{what} ({code.path}, line {getattr(node, 'lineno', 1)})")


def _with_parents(name: str) -> list[str]:
    """Return the names of a module and its parent packages, outermost first."""
    return [*accumulate(name.split("."), "{}.{}".format)]


class Modules:
    """The modules that the code of one process has imported, or may import."""

    def __init__(self, find: Callable[[str], ModuleSpec | None], read: Callable[[str], str | None]) -> None:
        self._find, self._read = find, read
        self._known: dict[str, PythonCode | None] = dict.fromkeys(_PRELOADED)
        """Code by module name; None for a module of the standard library, or one that is not found."""
        self._unfound: set[str] = set()
        self._text_left = _MAX_TEXT
        self.has_other_path = False
        """Whether sys.path has changed since the current piece of code began."""
        self.has_later_imports = False
        """Whether some imports may run now, later, or not at all."""
        self.mapped: dict[str, str] = {}
        """Modules that an editable install maps to a file or folder."""

    def begin(self) -> None:
        """Forget which modules were not found: sys.path may have changed."""
        self.has_other_path = False
        self._known = {name: module for name, module in self._known.items() if name not in self._unfound}
        self._unfound.clear()

    def code(self, text: str, path: str, name: str = "") -> PythonCode:
        """Parse a file, or a line of a `.pth` file; raises the errors of `read_code`."""
        self._text_left -= len(text)
        if self._text_left < 0:
            raise ValueError("it has more code than lumiimg reads")
        return read_code(text, path, name)

    def imported(self, code: PythonCode, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, PythonCode | None]]:
        """Yield the modules that a statement imports, parent packages first, with the code of each new one."""
        source = source_of(code, node) if isinstance(node, ast.ImportFrom) else None
        if source == "":
            raise NotFollowedError("imports files next to it", code, node)
        for name in [source] if source else [alias.name for alias in node.names]:
            for each in _with_parents(name):
                yield each, self._load(code, node, each)
        if source and (module := self._known[source]):
            names = [f"{source}.{alias.name}" for alias in node.names if alias.name not in module.bindings]
            yield from ((name, self._load(code, node, name)) for name in names if self._find(name))

    def _load(self, code: PythonCode, node: ast.AST, name: str) -> PythonCode | None:
        if name in self._known:
            return None
        if len(self._known) >= _MAX_MODULES:
            raise NotFollowedError("imports too many modules", code, node)
        self._known[name] = None
        spec, top = self._find(name), name.partition(".")[0]
        is_own = spec is None or bool(_LIBRARY.match(spec.origin or ""))
        is_mapped = any(top == each.partition(".")[0] for each in self.mapped)
        if self.has_other_path or (spec is None and is_mapped):
            raise NotFollowedError(f"imports {name} from a place that lumiimg does not search", code, node)
        if top in sys.stdlib_module_names and not is_own:
            raise NotFollowedError(f"imports {name}, which is not Python's own", code, node)
        if spec is None or is_own:
            self._unfound |= {name} if spec is None else set()
            return None
        text = self._read(spec.origin) if spec.origin and spec.kind is SpecKind.SOURCE else None
        if text is None and spec.kind is not SpecKind.NAMESPACE:
            raise NotFollowedError(f"imports {name}, which is not available as source", code, node)
        try:
            self._known[name] = module = self.code(text or "", spec.origin or "", name)
            if module.template:
                self.take_over(module.filled, is_first=module.template.startswith("scikit"))
        except (SyntaxError, ValueError) as error:
            raise NotFollowedError(f"imports {name}, which cannot be read: {error.args[0]}", code, node) from error
        return module if not module.template else None

    def take_over(self, filled: Iterable[object], *, is_first: bool = False) -> None:
        """Record what a build backend filled into known code; `is_first`: its finder precedes sys.path."""
        parts = [*filled]
        while parts:
            match parts.pop():
                case dict() as mapping:
                    found = {name: at for name, at in mapping.items() if isinstance(at, str) and at[:1] == "/"}
                    self.mapped |= found
                    parts += [
                        name for name in mapping if is_first or name not in found or name in sys.stdlib_module_names
                    ]
                    parts += mapping.values()
                case str(name):
                    top = name.partition(".")[0]
                    if top in sys.stdlib_module_names or re.fullmatch(facts().frameworks, top):
                        raise ValueError(f"it finds {name} with its own finder")
                case list() | tuple() | set() as names:
                    parts += names

    def is_there(self, name: str) -> bool:
        """Whether a module, or an object of one, certainly exists."""
        around = self._known.get(name.rpartition(".")[0])
        is_module = name in self._known and name not in self._unfound
        return is_module or name in FOLLOWED or facts().has_name(name) or bool(around and around.template)

    def meanings(self, code: PythonCode, node: ast.AST) -> set[str]:
        """Return the module objects that an expression may be; empty for a value that the code itself created."""
        match node:
            case ast.Name(name):
                if len(names := code.names(name)) > _MAX_MEANINGS:
                    raise NotFollowedError(f"gives {name} too many meanings", code, node)
                return {each for one in names for each in self._resolve(one)}
            case ast.Attribute(base, name):
                return {each for one in self.meanings(code, base) for each in self._resolve(f"{one}.{name}")}
            case ast.Call() if imported := self.imported_by(code, node):
                return self._resolve(imported) | self._resolve(imported.partition(".")[0])
        return set()

    def _resolve(self, dotted: str) -> set[str]:
        """Return the meaning of a dotted name: empty if its module is not found; known code is named by its file."""
        for prefix in reversed(_with_parents(dotted)):
            if prefix in self._unfound and prefix.partition(".")[0] not in sys.stdlib_module_names:
                return set()
            if (module := self._known.get(prefix)) and module.template:
                return {f"{module.template}{dotted.removeprefix(prefix)}"}
        return {dotted} if dotted else set()

    def imported_by(self, code: PythonCode, node: ast.AST) -> str | None:
        """Return the module that a call such as `__import__('…')` imports."""
        match node:
            case ast.Call(function, [ast.Constant(str(name))], []) if name and name[0] != ".":
                is_import = self.meanings(code, function) <= {"builtins.__import__", "importlib.import_module"}
                return name if is_import and self.meanings(code, function) else None
        return None
