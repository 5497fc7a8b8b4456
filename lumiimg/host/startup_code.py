"""Effects of the code that a Python runs at its start: lines of `.pth` files, sitecustomize, and what those import.

Code is read, never run. Modules of the image that it imports are read, too. Of the standard library only the names in
`startup_code.toml` may be used; any other use, called or not, raises an open question. Actions with constants at the
top level are followed, in execution order.
Sources: CPython Lib/site.py (addpackage: each line runs with the names of site.py, and after an exception the rest of
the file is skipped; execsitecustomize), Lib/os.py (_Environ).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.host.code_names import FOLLOWED, Modules, NotFollowedError, facts, namespace_package, source_of
from lumiimg.host.container_view import is_read
from lumiimg.image import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumiimg.host.code_names import PythonCode
    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.image import RootFileSystem

_MAX_BYTES = 256 << 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMESPACE_ATTRIBUTES = re.compile(
    r"(?:f|gi|cr|ag|tb|func|im)_\w+|mro|obj"
    r"|__(?!(?:init|name|doc|version|file|enter|exit|qualname|module)__)\w+__"
)
"""Attributes that lead from a value to a module or its names (Python reference, 3.2; `obj` of an AttributeError)."""
_UNSUPPORTED_SYNTAX = frozenset(
    ("ClassDef", "AsyncFunctionDef", "Lambda", "While", "Match", "TypeVar", "ParamSpec", "TypeVarTuple", "TypeAlias")
)
"""Syntax that start-up code does not need: it may not terminate, or binds names in its own way."""
_OWN_SCOPE = (ast.FunctionDef, ast.comprehension, ast.Global)
"""Syntax that, in a line of a `.pth` file, sees the names of site.py but not those of the line (Lib/site.py)."""
_KEEPS_WARNINGS = frozenset(("default", "always", "ignore", "module", "once"))
_FRAMEWORK_VARIABLES = re.compile(r"PYTHON\w*|(?:VLLM|SGLANG|JAX|XLA|TF|CUPY|MSCCLPP)_\w*")


@dataclass(frozen=True, slots=True)
class StartupCode:
    """Code that runs at each start."""

    path: str
    """The `.pth` file, sitecustomize.py, …"""
    text: str | None
    """A line of the `.pth` file, or the source; None if it is not read: bytecode, an extension, a zip, too much."""


@dataclass(frozen=True, slots=True)
class CodeEffects:
    """What a piece of start-up code does to its process."""

    paths: tuple[tuple[str, bool], ...] = ()
    """Folders that it adds to sys.path; True: at the front."""
    sites: tuple[str, ...] = ()
    """Site folders that it adds at the end, with their own `.pth` files."""
    variables: tuple[tuple[str, str | None], ...] = ()
    """Variables that it sets to a constant, or removes (None), in this order."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that an editable install maps to a file or folder; searched after sys.path."""
    question: str | None = None
    """First action that is not followed: "uses ctypes.CDLL (/…/sitecustomize.py, line 7)"."""
    may_fail: bool = False
    """Whether it may end with an exception: then Python skips the rest of its `.pth` file."""


def read_source(root: RootFileSystem, path: str) -> str | None:
    """Return the source of a module; None where it cannot be read whole."""
    try:
        return root.read_bytes(path, _MAX_BYTES).decode("utf-8-sig")
    except (OSError, ImageError, ValueError):
        return None


class StartupProcess:
    """A Python during its start, according to the code that was read."""

    def __init__(
        self,
        find: Callable[[str], ModuleSpec | None],
        read: Callable[[str], str | None],
        environment: Mapping[str, str],
    ) -> None:
        """Take a finder on the current sys.path, a reader of sources (None: unread), and the environment."""
        self._environment = dict(environment)
        self._modules = Modules(find, read)
        self._changed: set[str] = set()
        """Variables whose value is no longer known."""
        self._unsure: set[str] = set()
        """Files in which a line may have failed."""

    def run(self, code: StartupCode) -> CodeEffects:
        """Return the effects of the next piece of code."""
        self._paths: list[tuple[str, bool]] = []
        self._sites: list[str] = []
        self._variables: list[tuple[str, str | None]] = []
        self._bound: set[tuple[str, str]] = set()
        """(path, name) of each top-level import that has run."""
        self._values: dict[tuple[str, str], object] = {}
        """Value of each name with one assignment, such as `debug = os.getenv("DEBUG")`, by (path, name)."""
        self._is_sure = code.path not in self._unsure
        """Whether everything before the next statement certainly ended without an exception."""
        self._modules.begin()
        mapped = dict(self._modules.mapped)
        question = f"is not available as source ({code.path})" if code.text is None else None
        try:
            self._run_text(code.path, code.text or "")
        except NotFollowedError as error:
            question = one_safe_line(str(error))
        except (SyntaxError, ValueError) as error:
            question = one_safe_line(f"is not code that can be read ({code.path}: {error.args[0]})")
        except (RecursionError, MemoryError):
            question = f"is nested too deeply ({code.path})"
        self._unsure |= set() if self._is_sure else {code.path}
        modules = dict(self._modules.mapped.items() - mapped.items())
        return CodeEffects(
            tuple(self._paths), tuple(self._sites), tuple(self._variables), modules, question, not self._is_sure
        )

    def _run_text(self, path: str, text: str) -> None:
        is_line = path.endswith(".pth")
        if is_line and (package := namespace_package(text)):
            self._modules.take_over([[package]])
            return
        name = "" if is_line else path.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
        module = self._modules.code(text, path, name)
        self._run_body(module, module.body)

    def _run_body(self, code: PythonCode, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self._run_import(code, statement)
                case ast.If() if truth := self._constant(code, statement.test):
                    self._run_body(code, statement.body if truth[0] else statement.orelse)
                case ast.Try(tried, _, otherwise, finally_) if all(self._is_idle(code, each) for each in tried):
                    self._run_body(code, otherwise + finally_)
                case _ if self._is_idle(code, statement) or (self._is_sure and self._follow(code, statement)):
                    pass
                case _:
                    _Rules(code, self._modules, self._changed).visit(statement)
                    self._is_sure = False

    def _is_idle(self, code: PythonCode, statement: ast.stmt) -> bool:
        """Whether a statement certainly has no effect on other code."""
        match statement:
            case ast.Expr(value):
                return self._constant(code, value) is not None
            case ast.Assign([ast.Name(name)], value) if known := self._constant(code, value):
                if len(code.bindings[name]) == 1:
                    self._values[code.path, name] = known[0]
                return True
        return isinstance(statement, ast.Pass)

    def _run_import(self, code: PythonCode, node: ast.Import | ast.ImportFrom) -> None:
        needed = set()
        for name, module in self._modules.imported(code, node):
            if module:
                self._run_body(module, module.body)
            needed.add(name)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            needed |= {f"{source_of(code, node)}.{alias.name}" for alias in node.names}
        self._is_sure &= all(map(self._modules.is_there, needed))
        self._bound |= {(code.path, alias.asname or alias.name.partition(".")[0]) for alias in node.names}

    def _follow(self, code: PythonCode, statement: ast.stmt) -> bool:
        """Follow a statement; return False for a kind that is not followed."""
        match statement:
            case ast.Assign([ast.Subscript(base, ast.Constant(str(name)))], ast.Constant(str(value))):
                return self._is(code, base, "os.environ") and self._set(name, value)
            case ast.Expr(ast.Call(ast.Attribute(base, method), arguments, [])):
                values = [each.value if isinstance(each, ast.Constant) else None for each in arguments]
                known = [each for each in FOLLOWED if self._is(code, base, each)]
                return bool(known) and self._follow_call(known[0], method, values)
        return False

    def _follow_call(self, base: str, method: str, values: Sequence[object]) -> bool:
        match base, method, values:
            case "os.environ", "setdefault", [str(name), str(value)] if self._is_known(name):
                return name in self._environment or self._set(name, value)
            case "os.environ", "pop", [str(name), None] if name not in self._changed:
                return self._set(name, None)
            case "editables/redirector.py.RedirectingFinder", "install", []:
                return True
            case "editables/redirector.py.RedirectingFinder", "map_module", [str(name), str(place)] if place[:1] == "/":
                self._modules.take_over([{name: place}])
                return True
            case ("sys.path", "insert", [0, str(folder)]) | (
                ("sys.path", "append", [str(folder)]) | ("site", "addsitedir", [str(folder)])
            ) if folder[:1] == "/" and not self._modules.has_later_imports:
                self._modules.has_other_path = True
                if base == "site":
                    self._sites.append(folder)
                else:
                    self._paths.append((folder, method == "insert"))
                return True
        return False

    def _is_known(self, name: str) -> bool:
        """Return whether the value of a variable in a job is known, or that it has none."""
        return name not in self._changed and not re.fullmatch(facts().set_in_jobs, name)

    def _set(self, name: str, value: str | None) -> bool:
        """Set a variable; return False where Python would refuse to."""
        if not _VARIABLE.fullmatch(name) or not (value or "").isprintable():
            return False
        self._variables.append((name, value))
        self._environment.pop(name, None)
        self._environment |= {name: value} if value is not None else {}
        return True

    def _constant(self, code: PythonCode, node: ast.expr) -> tuple[object] | None:
        """Return, in a tuple, the value of an expression of constants and variables; None if it is not known."""
        try:
            return (self._value(code, node),)
        except LookupError:
            return None

    def _value(self, code: PythonCode, node: ast.expr) -> object:
        """Return the value of an expression of constants and variables. Raises LookupError if it is not known."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._values[code.path, name]
            case ast.IfExp():
                return self._value(code, node.body if self._value(code, node.test) else node.orelse)
            case ast.UnaryOp(ast.Not(), operand):
                return not self._value(code, operand)
            case ast.BoolOp(operator, operands):
                for operand in operands[:-1]:
                    if bool(first := self._value(code, operand)) is isinstance(operator, ast.Or):
                        return first
                return self._value(code, operands[-1])
            case ast.Compare(left, [ast.Eq()], [right]):
                return self._value(code, left) == self._value(code, right)
            case ast.Compare(ast.Constant(str(name)), [ast.In() | ast.NotIn() as operator], [base]):
                if self._is(code, base, "os.environ") and self._is_known(name):
                    return (name in self._environment) is isinstance(operator, ast.In)
            case ast.Call(ast.Attribute() as function, [ast.Constant(str(name)), *default], []) if len(default) < 2:
                is_read = self._is(code, function, "os.getenv") or self._is(code, function, "os.environ.get")
                if is_read and self._is_known(name):
                    is_default = default and name not in self._environment
                    return self._value(code, default[0]) if is_default else self._environment.get(name)
        raise LookupError

    def _is(self, code: PythonCode, node: ast.expr, dotted: str) -> bool:
        """Whether an expression is certainly this object of the standard library, once all before it has run."""
        base = node
        while isinstance(base, ast.Attribute):
            base = base.value
        is_bound = isinstance(base, ast.Name) and (code.path, base.id) in self._bound and len(code.names(base.id)) == 1
        return is_bound and self._modules.meanings(code, node) == {dotted}


class _Rules(ast.NodeVisitor):
    """Visitor of code that raises NotFollowedError for anything that may change the process."""

    def __init__(self, code: PythonCode, modules: Modules, changed: set[str]) -> None:
        self._code, self._modules = code, modules
        self._changed = changed
        """Irrelevant variables that get an unknown value."""

    def visit(self, node: ast.AST) -> None:
        """Visit any syntax."""
        if type(node).__name__ in _UNSUPPORTED_SYNTAX or (not self._code.name and isinstance(node, _OWN_SCOPE)):
            raise NotFollowedError(f"has a {type(node).__name__}", self._code, node)
        super().visit(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for _, module in self._modules.imported(self._code, node):
            if module:
                rules = _Rules(module, self._modules, self._changed)
                for statement in module.body:
                    rules.visit(statement)
        self._modules.has_later_imports = True

    visit_Import = visit_ImportFrom = _import  # noqa: N815 - names of ast.NodeVisitor

    def visit_Expr(self, node: ast.Expr) -> None:
        """Allow a call that imports a module."""
        if not self._is_import(node.value):
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        """Judge a name where it is used or bound."""
        self._judge(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Judge the object that an attribute refers to; its base may be a module."""
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            if _NAMESPACE_ATTRIBUTES.fullmatch(base.attr):
                raise NotFollowedError(f"uses {base.attr}", self._code, node)
            base = base.value
        if not isinstance(base, ast.Name) and not self._is_import(base):
            self.visit(base)
        if not isinstance(node.ctx, ast.Load):
            around = self._modules.meanings(self._code, node.value)
            raise NotFollowedError(f"sets {min(around, default='…')}.{node.attr}", self._code, node)
        self._judge(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Allow variables to be read, and irrelevant ones to be set."""
        if self._modules.meanings(self._code, node.value) != {"os.environ"}:
            self.generic_visit(node)
            return
        if not isinstance(node.ctx, ast.Load):
            self._change(node, node.slice)
        self.visit(node.slice)

    def visit_Call(self, node: ast.Call) -> None:
        """Judge the object that is called."""
        functions = self._modules.meanings(self._code, node.func)
        if functions and functions <= {"os.environ.setdefault", "os.environ.pop"}:
            self._change(node, node.args[0] if node.args else None)
        elif functions and functions <= {"warnings.filterwarnings", "warnings.simplefilter"}:
            if not node.args or getattr(node.args[0], "value", None) not in _KEEPS_WARNINGS:
                raise NotFollowedError("may turn warnings into errors", self._code, node)
        else:
            self.visit(node.func)
        for each in (*node.args, *node.keywords):
            self.visit(each)

    def _is_import(self, node: ast.expr) -> bool:
        """Process a call that imports a module; return False for any other."""
        if name := self._modules.imported_by(self._code, node):
            self._import(ast.copy_location(ast.Import([ast.alias(name)]), node))
        return name is not None

    def _judge(self, node: ast.expr) -> None:
        for meaning in sorted(self._modules.meanings(self._code, node)):
            if not facts().has_name(meaning):
                raise NotFollowedError(f"uses {meaning}", self._code, node)

    def _change(self, node: ast.expr, name: ast.expr | None) -> None:
        """Judge a change to a variable."""
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            raise NotFollowedError("sets a variable whose name is not constant", self._code, node)
        if is_read(name.value) or _FRAMEWORK_VARIABLES.fullmatch(name.value):
            raise NotFollowedError(f"sets {name.value} in a way that lumiimg does not follow", self._code, node)
        self._changed.add(name.value)
