"""What the code does that a Python runs at its start: lines of `.pth` files, sitecustomize, and what those import.

It is read, never run. Where a module imports another one of the image, that is read, too. Of the standard library only
the names in `startup_code.toml` may be used; any other use, called or not, makes an open question. What is done at the
top level with constants is followed, in the order in which it runs.
Sources: CPython Lib/site.py (addpackage: each line runs with the names of site.py, and after an exception the rest of
the file is passed over; execsitecustomize), Lib/os.py (_Environ).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.host.code_imports import Imports
from lumiimg.host.code_names import MOST_BYTES, PythonCode, read_code, source_of
from lumiimg.host.code_rules import NotFollowedError, Rules, Template, facts
from lumiimg.image import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.host.python_start import StartupCode
    from lumiimg.image import RootFileSystem

_DEEPEST = 16
_IS_CODE = ("import ", "import\t")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_PYTHON = frozenset(
    f"__{name}__"
    for name in [
        "builtins",
        "path",
        "spec",
        "loader",
        "class",
        "import",
        "build_class",
        "dict",
        "name",
        "package",
        "file",
    ]
)
"""Names by which Python itself finds its way; code that sets them is not followed."""


@dataclass(frozen=True, slots=True)
class CodeEffects:
    """What a piece of start-up code does to its process."""

    paths: tuple[tuple[str, bool], ...] = ()
    """Folders that it adds to sys.path; True: in front."""
    sites: tuple[str, ...] = ()
    """Site folders that it adds at the end, with their own `.pth` files."""
    variables: tuple[tuple[str, str | None], ...] = ()
    """Variables that it sets to a constant, or takes away, in this order."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that an editable install maps to a file or folder; looked for behind sys.path."""
    question: str | None = None
    """The first thing that it does that is not followed: "uses ctypes.CDLL (/…/sitecustomize.py, line 7)"."""
    may_fail: bool = False
    """Whether it may end with an exception: then Python passes over the rest of its `.pth` file."""


def read_source(root: RootFileSystem, path: str) -> str | None:
    """Return the source of a module; None where it cannot be read whole."""
    try:
        return root.read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, ImageError, ValueError):
        return None


def effects_of(
    code: StartupCode,
    find: Callable[[str], ModuleSpec | None],
    read: Callable[[str], str | None],
    environment: Mapping[str, str] | None = None,
) -> CodeEffects:
    """Return what a piece of start-up code does; `effects_in_order` for several."""
    return effects_in_order((code,), find, read, environment)[0]


def effects_in_order(
    codes: Iterable[StartupCode],
    find: Callable[[str], ModuleSpec | None],
    read: Callable[[str], str | None],
    environment: Mapping[str, str] | None = None,
) -> list[CodeEffects]:
    """Return what each piece does, one after the other in one process.

    `find` is importlib's path finder, `read` gives the source of a module, None where it cannot be read, `environment`
    is the process's own; None: not known.
    """
    process = StartupProcess(find, read, environment)
    return [process.run(code) for code in codes]


class StartupProcess:
    """A Python at its start, as far as its code was read."""

    def __init__(
        self,
        find: Callable[[str], ModuleSpec | None],
        read: Callable[[str], str | None],
        environment: Mapping[str, str] | None,
    ) -> None:
        self._environment = None if environment is None else dict(environment)
        self._imports = Imports(find, read)
        self._rules = Rules(self._imports.meanings, self._import_later)
        self._kept: list[PythonCode] = []
        """All that was read, whose nodes the rules know by their id()."""
        self._unread: list[PythonCode] = []
        """Modules whose import may run, or not, or later."""
        self._has_later_imports = False
        self._has_run: set[tuple[str, str]] = set()
        """(path, name): imports at a top level that have run."""
        self._unsure: set[str] = set()
        """Files of which a line may have failed."""
        self._of_lines: dict[str, dict[str, set[str | ast.expr | None]]] = {}
        """What the lines of a `.pth` file bound: the next ones have it, before Python 3.13."""

    def run(self, code: StartupCode) -> CodeEffects:
        """Return what a piece of code does."""
        self._paths: list[tuple[str, bool]] = []
        self._sites: list[str] = []
        self._variables: list[tuple[str, str | None]] = []
        mapped = dict(self._imports.mapped)
        self._is_sure = code.path not in self._unsure
        question = None
        try:
            self._run_text(code)
        except NotFollowedError as error:
            question = str(error)
        except (SyntaxError, ValueError) as error:
            question = f"is not code that can be read ({code.path}: {error.args[0] if error.args else ''})"
        except (RecursionError, MemoryError):
            question = f"is nested too deeply ({code.path})"
        if question is not None:
            self._environment, question = None, one_safe_line(question)
        self._unsure |= set() if self._is_sure else {code.path}
        modules = dict(self._imports.mapped.items() - mapped.items())
        return CodeEffects(
            tuple(self._paths), tuple(self._sites), tuple(self._variables), modules, question, not self._is_sure
        )

    def _run_text(self, code: StartupCode) -> None:
        if code.text is None:
            raise NotFollowedError(f"is not there as source ({code.path})")
        if not code.path.endswith(".pth"):
            name = code.path.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
            is_package = code.path.endswith("/__init__.py")
            self._run_module(read_code((code.text,), code.path, name, is_package=is_package), 0)
            return
        lines = [line for line in code.text.splitlines() if line.startswith(_IS_CODE)]
        if lines != [line for line in re.split("\r\n|\r|\n", code.text) if line.startswith(_IS_CODE)]:
            raise ValueError("its lines end in an unusual way")
        unknown: list[str] = []
        for line in lines:
            if form := facts().lines.fullmatch(line.rstrip()):
                self._imports.take_over([re.findall(r"setdefault\('([\w.]+)'", line)], code.path)
                self._imports.take_over([[f"{form['parent']}.{form['child']}"]], code.path)
            else:
                unknown.append(line)
        module = read_code(unknown, code.path)
        for name, meanings in self._of_lines.setdefault(code.path, {}).items():
            module.bindings[name] |= meanings
        self._of_lines[code.path] = module.bindings
        self._run_module(module, 0)

    def _run_module(self, code: PythonCode, depth: int) -> None:
        self._kept.append(code)
        if depth > _DEEPEST:
            raise NotFollowedError(f"imports one module by another, {depth} deep ({code.path})")
        self._check_bindings(code)
        self._run_body(code, code.body, depth)

    def _is_idle(self, code: PythonCode, statement: ast.stmt) -> bool:
        """Whether a statement certainly does nothing."""
        match statement:
            case ast.Expr(value):
                return self._constant(code, value) is not None
            case ast.If(test, _, []):
                return self._constant(code, test) in {(False,), (None,), ("",)}
        return isinstance(statement, ast.Pass)

    def _run_body(self, code: PythonCode, body: list[ast.stmt], depth: int) -> None:
        for statement in body:
            match statement:
                case ast.If() if (truth := self._constant(code, statement.test)) is not None:
                    self._run_body(code, statement.body if truth[0] else statement.orelse, depth)
                case ast.Try(tried, _, otherwise, finally_) if all(self._is_idle(code, each) for each in tried):
                    self._run_body(code, otherwise + finally_, depth)
                case ast.Import() | ast.ImportFrom():
                    self._run_import(code, statement, depth)
                case _ if self._is_idle(code, statement):
                    pass
                case _ if self._is_sure and self._follow(code, statement):
                    pass
                case _:
                    self._rules.judge(code, statement)
                    self._is_sure &= self._never_fails(code, statement)
            while self._unread:
                module = self._unread.pop()
                self._check_bindings(module)
                for each in module.body:
                    self._rules.judge(module, each)

    def _check_bindings(self, code: PythonCode) -> None:
        if wrong := next((name for name in code.bindings if name in _OF_PYTHON), None):
            raise NotFollowedError(f"sets {wrong} ({code.path})")

    def _run_import(self, code: PythonCode, node: ast.Import | ast.ImportFrom, depth: int) -> None:
        for name in self._imports.of_statement(code, node):
            if name not in self._imports and isinstance(module := self._imports.load(code, node, name), PythonCode):
                self._run_module(module, depth + 1)
            self._is_sure &= name not in self._imports.missing | self._imports.doubtful
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = {f"{source_of(code, node)}.{alias.name}" for alias in node.names}
            self._is_sure &= all(self._is_there(name) for name in names)
        self._has_run |= {(code.path, alias.asname or alias.name.partition(".")[0]) for alias in node.names}

    def _is_there(self, name: str) -> bool:
        """Whether `from … import` finds a name for sure."""
        known = facts()
        is_known = name in known.values | known.callables | known.members or name in self._imports
        return is_known or isinstance(self._imports[name.rpartition(".")[0]], Template)

    def _import_later(self, code: PythonCode, node: ast.Import | ast.ImportFrom) -> None:
        """Take an import that may run, or not, or later."""
        for name in self._imports.of_statement(code, node):
            if name not in self._imports and isinstance(module := self._imports.load(code, node, name), PythonCode):
                self._unread.append(module)
        self._has_later_imports = True

    def _follow(self, code: PythonCode, statement: ast.stmt) -> bool:
        """Follow a statement; False: it is not one of those that are."""
        match statement:
            case ast.Assign([ast.Subscript(base, ast.Constant(str(name)))], ast.Constant(str(value))):
                return self._is(code, base, "os.environ") and self._set(name, value)
            case ast.Delete([ast.Subscript(base, ast.Constant(str(name)))]):
                is_there = bool(self._variable(name))
                return is_there and self._is(code, base, "os.environ") and self._set(name, None)
            case ast.Expr(ast.Call(ast.Attribute(base, method), arguments, [])):
                values = [each.value if isinstance(each, ast.Constant) else None for each in arguments]
                return self._follow_call(code, base, method, values)
        return False

    def _follow_call(self, code: PythonCode, base: ast.expr, method: str, values: Sequence[object]) -> bool:
        match method, values:
            case "setdefault", [str(name), str(value)] if self._is(code, base, "os.environ"):
                known = self._variable(name)
                return known is not None and (known != () or self._set(name, value))
            case "pop", [str(name), *default] if self._is(code, base, "os.environ") and len(default) < 2:
                known = self._variable(name)
                return known is not None and bool(known or default) and self._set(name, None)
            case "insert" | "append" | "addsitedir", _ if self._has_later_imports:
                return False
            case "insert", [0, str(path)] if path[:1] == "/" and self._is(code, base, "sys.path"):
                self._paths.append((path, True))
                self._imports.is_shifted = True
                return True
            case "append", [str(path)] if path[:1] == "/" and self._is(code, base, "sys.path"):
                self._paths.append((path, False))
                self._imports.is_longer = True
                return True
            case "addsitedir", [str(path)] if path[:1] == "/" and self._is(code, base, "site"):
                self._sites.append(path)
                self._imports.is_longer = True
                return True
            case _, [str(name), str(path)] if path[:1] == "/" and self._is_map(code, base, method):
                self._imports.take_over([{name: path}], code.path)
                return True
        return False

    def _set(self, name: str, value: str | None) -> bool:
        """Set a variable; False where Python would not."""
        if not _VARIABLE.fullmatch(name) or not (value or "").isprintable():
            return False
        self._variables.append((name, value))
        if self._environment is not None:
            self._environment.pop(name, None)
            self._environment |= {name: value} if value is not None else {}
        return True

    def _variable(self, name: str) -> tuple[str, ...] | None:
        """Return the value of a variable, nothing where it is not set; None: not known."""
        if self._environment is None or name in self._rules.changed:
            return None
        return (self._environment[name],) if name in self._environment else ()

    def _constant(self, code: PythonCode, node: ast.expr) -> tuple[object] | None:
        """Return the value of an expression of constants and variables; None: not known."""
        match node:
            case ast.Constant():
                return (node.value,)
            case ast.NamedExpr():
                return self._constant(code, node.value)
            case ast.IfExp(test, first, second):
                truth = self._constant(code, test)
                return truth and self._constant(code, first if truth[0] else second)
            case ast.UnaryOp(ast.Not(), operand):
                truth = self._constant(code, operand)
                return truth and (not truth[0],)
            case ast.BoolOp(operator, operands):
                for operand in operands:
                    truth = self._constant(code, operand)
                    if truth is None or bool(truth[0]) is isinstance(operator, ast.Or):
                        break
                return truth
            case ast.Compare(left, [ast.Eq() | ast.NotEq() as operator], [right]):
                one, other = self._constant(code, left), self._constant(code, right)
                return None if one is None or other is None else ((one == other) is isinstance(operator, ast.Eq),)
        return self._constant_of_variable(code, node)

    def _constant_of_variable(self, code: PythonCode, node: ast.expr) -> tuple[object] | None:
        match node:
            case ast.Compare(ast.Constant(str(name)), [ast.In() | ast.NotIn() as operator], [base]):
                found = self._variable(name) if self._is(code, base, "os.environ") else None
                return None if found is None else (bool(found) is isinstance(operator, ast.In),)
            case ast.Call(ast.Attribute(base, "get" | "getenv" as method), [ast.Constant(str(name)), *default], []):
                is_read = len(default) < 2 and self._is(code, base, "os.environ" if method == "get" else "os")
                found = self._variable(name) if is_read else None
                if found == ():
                    return self._constant(code, default[0]) if default else (None,)
                return None if found is None else (found[0],)
        return None

    def _is(self, code: PythonCode, node: ast.expr, dotted: str) -> bool:
        """Whether an expression is an object of the standard library for sure, once all before it has run."""
        base = node
        while isinstance(base, ast.Attribute):
            base = base.value
        if not isinstance(base, ast.Name) or len(code.names(base)) != 1:
            return False
        is_bound = (code.path, base.id) in self._has_run or (not code.name and base.id not in code.bindings)
        return is_bound and self._imports.meanings(code, node) == {dotted}

    def _is_map(self, code: PythonCode, base: ast.expr, method: str) -> bool:
        """Whether a call gives a known finder a module and its path."""
        for meaning in self._imports.meanings(code, base):
            parent = meaning
            while parent := parent.rpartition(".")[0]:
                template = self._imports[parent]
                if isinstance(template, Template):
                    return bool(template.maps) and f"{meaning}.{method}" == f"{parent}.{template.maps}"
        return False

    def _never_fails(self, code: PythonCode, statement: ast.stmt) -> bool:
        """Whether a statement certainly ends without an exception."""
        match statement:
            case ast.Assign([ast.Name()], value):
                return self._constant(code, value) is not None
            case ast.Expr(ast.Call(function, [], [])):  # `RedirectingFinder.install()`
                modules = {
                    meaning.rpartition(".")[0].rpartition(".")[0] for meaning in self._imports.meanings(code, function)
                }
                return bool(modules) and all(isinstance(self._imports[module], Template) for module in modules)
            case ast.FunctionDef(decorator_list=[], returns=None, args=arguments):
                annotated = [
                    *arguments.args,
                    *arguments.posonlyargs,
                    *arguments.kwonlyargs,
                    arguments.vararg,
                    arguments.kwarg,
                ]
                defaults = filter(None, (*arguments.defaults, *arguments.kw_defaults))
                return all(isinstance(each, ast.Constant) for each in defaults) and not any(
                    each and each.annotation for each in annotated
                )
        return False
