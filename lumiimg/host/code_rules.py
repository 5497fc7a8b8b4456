"""Whether a piece of Python leaves its process as it is, whether it runs or not.

A value that the code makes itself may be used in any way that does not lead back to a module. Of the standard library
only what `startup_code.toml` names may be used; modules of the image are read as their source, by the same rules.
"""

from __future__ import annotations

import ast
import re
import sys
from itertools import accumulate
from typing import TYPE_CHECKING

from lumiimg.host.code_names import PythonCode, facts, read_code, source_of
from lumiimg.host.container_view import is_read
from lumiimg.host.module_finder import ModuleSpec, SpecKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MOST_TEXT, _MOST_MODULES, _MOST_MEANINGS = 512 << 10, 1000, 32
_LIBRARY = re.compile(r".*/lib(?:64)?/python(?:3\.\d+t?/(?!(?:site|dist)-packages/)|3\d+t?\.zip).*")
"""Where the standard library is, below any prefix (CPython Modules/getpath.py)."""
_LOADED = frozenset(
    ("sys", "builtins", "os", "site", "io", "abc", "codecs", "stat", "posix", "time", "marshal", "errno")
)
"""Modules that any Python has before it runs any of this code."""
_DOES_MORE = frozenset(("antigravity", "idlelib", "lib2to3", "test", "this", "turtle", "turtledemo"))
"""Of the standard library: what does more than define names when it is imported."""
_TO_NAMES = re.compile(
    r"(?:f|gi|cr|ag|tb|func|im)_\w+|mro|obj"
    r"|__(?!(?:init|name|doc|version|file|enter|exit|qualname|module)__)\w+__"
)
"""Attributes that lead from a value to a module or its names (Python reference, 3.2; `obj` of an AttributeError)."""
_ODD = frozenset(("While", "Match", "TypeVar", "ParamSpec", "TypeVarTuple", "TypeAlias"))
"""Syntax that start-up code has no need of: it may not end, or binds names in ways of its own."""
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.comprehension, ast.Global)
"""What in a line of a `.pth` file sees the names of site.py, but not those of the line (Lib/site.py, addpackage)."""
_KEEPS_WARNINGS = frozenset(("default", "always", "ignore", "module", "once"))
_OF_FRAMEWORKS = re.compile(r"PYTHON\w*|(?:VLLM|SGLANG|JAX|XLA|TF|CUPY|MSCCLPP)_\w*")


class NotFollowedError(Exception):
    """The code does something that is not followed; the message says what, and where."""

    def __init__(self, what: str, code: PythonCode, node: ast.AST) -> None:
        what = what.replace(" ?.", " ").replace(" builtins.", " ")
        super().__init__(f"{what} ({code.path}, line {getattr(node, 'lineno', 1)})")


def _with_parents(name: str) -> list[str]:
    """Return the names of a module and those around it, these first."""
    return [*accumulate(name.split("."), "{}.{}".format)]


class Modules:
    """The modules that the code of one process has imported, or may import."""

    def __init__(self, find: Callable[[str], ModuleSpec | None], read: Callable[[str], str | None]) -> None:
        self._find, self._read = find, read
        self._known: dict[str, PythonCode | None] = {}
        """None: of the standard library, or of nowhere."""
        self._unfound: set[str] = set()
        self._text_left = _MOST_TEXT
        self.has_other_path = False
        """Whether sys.path is not any more what it was when the piece of code began that runs now."""
        self.has_later_imports = False
        """Whether there are imports that may run, or not, or later."""
        self.mapped: dict[str, str] = {}
        """Modules that an editable install maps to a file or folder."""

    def begin(self) -> None:
        """Forget what was not found: sys.path may have become another one."""
        self.has_other_path = False
        self._known = {name: module for name, module in self._known.items() if name not in self._unfound}
        self._unfound.clear()

    def code(self, text: str, path: str, name: str = "") -> PythonCode:
        """Return a file, or a line of a `.pth` file, as syntax; `read_code` has the errors."""
        self._text_left -= len(text)
        if self._text_left < 0:
            raise ValueError("it is more code than is read")
        return read_code(text, path, name)

    def imported(self, code: PythonCode, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, PythonCode | None]]:
        """Yield the modules that a statement imports, those around them first; with the code of each new one."""
        source = source_of(code, node) if isinstance(node, ast.ImportFrom) else None
        if source == "":
            raise NotFollowedError("imports what is beside it", code, node)
        for name in [source] if source else [alias.name for alias in node.names]:
            for each in _with_parents(name):
                yield each, self._load(code, node, each)
        if source and (module := self._known[source]):
            names = [f"{source}.{alias.name}" for alias in node.names if alias.name not in module.bindings]
            yield from ((name, self._load(code, node, name)) for name in names if self._find(name))

    def _load(self, code: PythonCode, node: ast.AST, name: str) -> PythonCode | None:
        if name in self._known:
            return None
        if len(self._known) >= _MOST_MODULES:
            raise NotFollowedError("imports too many modules", code, node)
        self._known[name] = None
        if name in _LOADED:
            return None
        spec, top = self._find(name), name.partition(".")[0]
        is_own = spec is None or bool(_LIBRARY.match(spec.origin or ""))
        is_mapped = any(top == each.partition(".")[0] for each in self.mapped)
        if self.has_other_path or (spec is None and is_mapped):
            raise NotFollowedError(f"imports {name} from where only Python looks", code, node)
        if is_own and (top in _DOES_MORE or name.endswith(".__main__")):
            raise NotFollowedError(f"imports {name}, which is a program", code, node)
        if top in sys.stdlib_module_names and not is_own:
            raise NotFollowedError(f"imports {name}, which is not Python's own", code, node)
        if spec is None or is_own:
            self._unfound |= {name} if spec is None else set()
            return None
        text = self._read(spec.origin) if spec.origin and spec.kind is SpecKind.SOURCE else None
        if text is None and spec.kind is not SpecKind.NAMESPACE:
            raise NotFollowedError(f"imports {name}, which is not there as source", code, node)
        try:
            self._known[name] = module = self.code(text or "", spec.origin or "", name)
            if module.template:
                self.take_over(module.filled, is_first=module.template.startswith("scikit"))
        except (SyntaxError, ValueError) as error:
            raise NotFollowedError(f"imports {name}, which cannot be read: {error.args[0]}", code, node) from error
        return module if not module.template else None

    def take_over(self, filled: Iterable[object], *, is_first: bool = False) -> None:
        """Take what a build backend filled into code that is known; `is_first`: its finder comes before sys.path."""
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
                        raise ValueError(f"it says where {name} is, in a way of its own")
                case list() | tuple() | set() as names:
                    parts += names

    def is_there(self, name: str) -> bool:
        """Whether there is a module, or an object of one, for sure."""
        around = self._known.get(name.rpartition(".")[0])
        is_module = name in self._known and name not in self._unfound
        return is_module or name in facts().names | facts().members or bool(around and around.template)

    def meanings(self, code: PythonCode, node: ast.AST) -> set[str]:
        """Return the objects of modules that an expression may be; nothing: a value that the code itself made."""
        match node:
            case ast.Name(name):
                if len(names := code.names(name)) > _MOST_MEANINGS:
                    raise NotFollowedError(f"has too many meanings of {name}", code, node)
                return {each for one in names for each in self._named(one)}
            case ast.Attribute(base, name):
                return {each for one in self.meanings(code, base) for each in self._named(f"{one}.{name}")}
            case ast.Call() if imported := self.imported_by(code, node):
                return self._named(imported) | self._named(imported.partition(".")[0])
        return set()

    def _named(self, dotted: str) -> set[str]:
        """Return what a dotted name comes to: an object that one module has from another one is the other's."""
        for prefix in reversed(_with_parents(dotted)):
            if prefix in self._unfound and prefix.partition(".")[0] not in sys.stdlib_module_names:
                return set()
            if (module := self._known.get(prefix)) is None:
                continue
            if module.template:
                return {f"{module.template}{dotted.removeprefix(prefix)}"}
            if prefix == dotted:
                return {dotted}
            name, _, rest = dotted.removeprefix(f"{prefix}.").partition(".")
            found = {each for one in module.bindings.get(name, ()) for each in self._named(one)}
            return {each for one in found for each in (self._named(f"{one}.{rest}") if rest else {one})}
        return {dotted} if dotted else set()

    def imported_by(self, code: PythonCode, node: ast.AST) -> str | None:
        """Return the module that a call imports, `__import__('…')`."""
        match node:
            case ast.Call(function, [ast.Constant(str(name))], []) if name and name[0] != ".":
                is_import = self.meanings(code, function) <= {"builtins.__import__", "importlib.import_module"}
                return name if is_import and self.meanings(code, function) else None
        return None


class Rules(ast.NodeVisitor):
    """Goes through code; raises NotFollowedError for what may change the process."""

    def __init__(self, code: PythonCode, modules: Modules, changed: set[str]) -> None:
        self._code, self._modules = code, modules
        self._changed = changed
        """Variables that do not matter, and get a value that is not known."""

    def visit(self, node: ast.AST) -> None:
        """Go through any syntax."""
        if type(node).__name__ in _ODD or (not self._code.name and isinstance(node, _OWN_SCOPE)):
            raise NotFollowedError(f"has a {type(node).__name__}", self._code, node)
        super().visit(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for _, module in self._modules.imported(self._code, node):
            if module:
                rules = Rules(module, self._modules, self._changed)
                for statement in module.body:
                    rules.visit(statement)
        self._modules.has_later_imports = True

    visit_Import = visit_ImportFrom = _import  # noqa: N815 - names of ast.NodeVisitor

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Let no class have a module as its attribute."""
        if any(isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(node)):
            raise NotFollowedError("imports inside of a class", self._code, node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Let a module be imported by a call."""
        if not self._is_import(node.value):
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        """Judge a name where it is used, or is another thing from then on."""
        self._judge(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Judge the object that an attribute is; what it is taken from may be a module."""
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            if _TO_NAMES.fullmatch(base.attr):
                raise NotFollowedError(f"uses {base.attr}", self._code, node)
            base = base.value
        if not isinstance(base, ast.Name) and not self._is_import(base):
            self.visit(base)
        around = self._modules.meanings(self._code, node.value)
        is_self = isinstance(node.value, ast.Name) and node.value.id == "self" and not around
        if not isinstance(node.ctx, ast.Load) and not is_self:
            raise NotFollowedError(f"sets {min(around, default='…')}.{node.attr}", self._code, node)
        self._judge(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Let variables be read, and be set where they do not matter."""
        if self._modules.meanings(self._code, node.value) != {"os.environ"}:
            self.generic_visit(node)
            return
        if not isinstance(node.ctx, ast.Load):
            self._change(node, node.slice)
        self.visit(node.slice)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Let something be looked for in what `members` has."""
        match node:
            case ast.Compare(left, [ast.In() | ast.NotIn()], [place]) if (
                meanings := self._modules.meanings(self._code, place)
            ) and meanings <= facts().members:
                self.visit(left)
            case _:
                self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Judge what is called."""
        functions = self._modules.meanings(self._code, node.func)
        if functions and functions <= {"os.environ.setdefault", "os.environ.pop"}:
            self._change(node, node.args[0] if node.args else None)
        elif functions and functions <= {"warnings.filterwarnings", "warnings.simplefilter"}:
            if not node.args or getattr(node.args[0], "value", None) not in _KEEPS_WARNINGS:
                raise NotFollowedError("may make errors of warnings", self._code, node)
        else:
            self.visit(node.func)
        for each in (*node.args, *node.keywords):
            self.visit(each)

    def _is_import(self, node: ast.expr) -> bool:
        """Take an import by a call; False where it is none."""
        if name := self._modules.imported_by(self._code, node):
            self._import(ast.copy_location(ast.Import([ast.alias(name)]), node))
        return name is not None

    def _judge(self, node: ast.expr) -> None:
        for meaning in sorted(self._modules.meanings(self._code, node) - facts().names):
            raise NotFollowedError(f"uses {meaning}", self._code, node)

    def _change(self, node: ast.expr, name: ast.expr | None) -> None:
        """Judge a change of a variable."""
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            raise NotFollowedError("sets a variable whose name is not constant", self._code, node)
        if is_read(name.value) or _OF_FRAMEWORKS.fullmatch(name.value):
            raise NotFollowedError(f"sets {name.value} in a way that is not followed", self._code, node)
        self._changed.add(name.value)
