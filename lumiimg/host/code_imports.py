"""What start-up code imports, and what its expressions may then be: objects of modules, by their dotted names.

A module of the image is read as its source; those of the standard library are known by their names alone.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING

from lumiimg.host.code_names import PythonCode, read_code, source_of
from lumiimg.host.code_rules import NotFollowedError, Template, facts, not_followed
from lumiimg.host.module_finder import ModuleSpec, SpecKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MOST_FILES, _MOST_MODULES = 64, 1000
_LIBRARY = re.compile(r".*/lib(?:64)?/python(?:3\.\d+t?/(?!(?:site|dist)-packages/)|3\d+t?\.zip).*")
"""Where the standard library is, below any prefix (CPython Modules/getpath.py)."""
_BUILT_IN = frozenset(
    [
        "sys",
        "builtins",
        "marshal",
        "posix",
        "time",
        "itertools",
        "errno",
        "gc",
        "_thread",
        "_signal",
        "_imp",
        "_io",
        "os",
        "site",
        "io",
        "abc",
        "codecs",
        "stat",
    ]
)
"""Modules that are in any Python, or that it has before it runs any of this code."""
_DOES_MORE = frozenset(("antigravity", "idlelib", "lib2to3", "test", "this", "turtle", "turtledemo"))
"""Of the standard library: what does more than define names when it is imported."""
_NO_CODE = {
    SpecKind.BYTECODE: "whose code is bytecode alone",
    SpecKind.EXTENSION: "an extension module",
    SpecKind.ZIP: "which is inside a zip file",
}


def with_parents(name: str) -> Iterator[str]:
    """Return the names of a module and those around it, these first."""
    parts = name.split(".") if name else []
    yield from (".".join(parts[: index + 1]) for index in range(len(parts)))


class Imports:
    """The modules that the code of one process has imported, or may import."""

    def __init__(self, find: Callable[[str], ModuleSpec | None], read: Callable[[str], str | None]) -> None:
        self._find, self._read = find, read
        self._modules: dict[str, PythonCode | Template | None] = {}
        """None: of the standard library, or of nowhere."""
        self.missing: set[str] = set()
        self.doubtful: set[str] = set()
        """Modules of the standard library of some Pythons."""
        self._files = 0
        self._open: set[tuple[str, int]] = set()
        self.is_shifted, self.is_longer = False, False
        """Whether sys.path has changed since: in front, behind."""
        self.mapped: dict[str, str] = {}
        """Modules that an editable install maps to a file or folder."""

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> PythonCode | Template | None:
        return self._modules.get(name)

    def of_statement(self, code: PythonCode, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """Yield the modules that a statement imports, those around them first."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from with_parents(alias.name)
            return
        source = source_of(code, node)
        if node.level and not source:
            raise not_followed("imports what is beside it", code, node)
        yield from with_parents(source)
        module = self._modules.get(source)
        if isinstance(module, PythonCode):
            for alias in node.names:
                if alias.name == "*":
                    raise not_followed(f"takes all names of {source}", code, node)
                if alias.name not in module.bindings and self._find(f"{source}.{alias.name}"):
                    yield f"{source}.{alias.name}"
        elif any(alias.name == "*" for alias in node.names):
            raise not_followed(f"takes all names of {source}", code, node)

    def load(self, code: PythonCode, node: ast.AST, name: str) -> PythonCode | Template | None:
        """Return a module that is imported; None for one of the standard library, or of nowhere."""
        if len(self._modules) >= _MOST_MODULES:
            raise not_followed("imports too many modules", code, node)
        self._modules[name] = None
        top = name.partition(".")[0]
        if name.rpartition(".")[0] in self.missing:
            self.missing.add(name)
        if name in _BUILT_IN or name in self.missing:
            return None
        spec = self._find(name)
        if self.is_shifted or (
            spec is None and (self.is_longer or any(top == each.partition(".")[0] for each in self.mapped))
        ):
            raise not_followed(f"imports {name} from where only Python looks", code, node)
        is_own = spec is None or bool(_LIBRARY.match(spec.origin or ""))
        if is_own and (top in _DOES_MORE or name.endswith(".__main__")):
            raise not_followed(f"imports {name}, which is a program", code, node)
        if top in sys.stdlib_module_names and not is_own:
            raise not_followed(f"imports {name}, which is not Python's own", code, node)
        if spec is None or is_own:
            self.missing |= {name} if spec is None and top not in sys.stdlib_module_names else set()
            self.doubtful |= {name} if spec is None else set()
            return None
        if spec.kind in _NO_CODE:
            raise not_followed(f"imports {name}, {_NO_CODE[spec.kind]}", code, node)
        text = self._read(spec.origin) if spec.origin else ""
        self._files += 1
        if text is None or self._files > _MOST_FILES:
            raise not_followed(f"imports {name}, which is not read", code, node)
        try:
            module = read_code((text,), spec.origin or "", name, is_package=bool(spec.locations))
        except (SyntaxError, ValueError) as error:
            raise not_followed(f"imports {name}, which is not code that can be read", code, node) from error
        self._modules[name] = template = facts().templates.get(module.digest)
        if template:
            self.take_over(module.filled, module.path, is_first=template.name.startswith("scikit"))
            return template
        self._modules[name] = module
        return module

    def take_over(self, filled: Iterable[object], path: str, *, is_first: bool = False) -> None:
        """Take what a build backend filled into code that is known; `is_first`: its finder comes before sys.path."""
        parts = [*filled]
        if any(isinstance(part, str) and not part.startswith("__editable__") for part in parts):
            raise NotFollowedError(f"adds what it should not to sys.path ({path})")
        while parts:
            match parts.pop():
                case dict() as mapping:
                    found = {
                        key: value for key, value in mapping.items() if isinstance(value, str) and value[:1] == "/"
                    }
                    self.mapped |= found
                    parts += [key for key in mapping if is_first or key not in found or key in sys.stdlib_module_names]
                    parts += mapping.values()
                case str(name) if (
                    top := name.partition(".")[0]
                ) in sys.stdlib_module_names or facts().frameworks.fullmatch(top):
                    raise NotFollowedError(f"says where {name} is, in a way of its own ({path})")
                case list() | tuple() | set() as names:
                    parts += names

    def meanings(self, code: PythonCode, node: ast.AST) -> set[str]:
        """Return the objects of modules that an expression may be; nothing: a value that the code itself made."""
        key = (code.path, id(node))
        if key in self._open:
            return set()
        self._open.add(key)
        try:
            return self._of(code, node)
        finally:
            self._open.remove(key)

    def _of(self, code: PythonCode, node: ast.AST) -> set[str]:
        match node:
            case ast.Name():
                return {each for one in code.names(node) for each in self._of_binding(code, one)}
            case ast.Attribute(base, name):
                return {each for one in self.meanings(code, base) for each in self._named(f"{one}.{name}")}
            case ast.Call(function, [ast.Constant(str(name)), *_]):
                if not self.meanings(code, function).isdisjoint(("builtins.__import__", "importlib.import_module")):
                    return self._named(name) | self._named(name.partition(".")[0])
            case ast.Call(function, [base, ast.Constant(str(name)), *_]) if "builtins.getattr" in self.meanings(
                code, function
            ):
                return {each for one in self.meanings(code, base) for each in self._named(f"{one}.{name}")}
        return set()

    def _of_binding(self, code: PythonCode, binding: str | ast.expr | None) -> set[str]:
        if isinstance(binding, ast.expr):
            return self.meanings(code, binding)
        return self._named(binding) if binding else set()

    def _named(self, dotted: str) -> set[str]:
        """Return what a dotted name comes to: an object that one module has from another one is the other's."""
        for prefix in reversed([*with_parents(dotted)]):
            if prefix in self.missing:
                return set()
            if (module := self._modules.get(prefix)) is None:
                continue
            if isinstance(module, Template):
                return {dotted} if module.maps else set()
            if prefix == dotted:
                return {dotted}
            name, _, rest = dotted.removeprefix(f"{prefix}.").partition(".")
            found = {each for one in module.bindings.get(name, ()) for each in self._of_binding(module, one)}
            return {each for one in found for each in (self._named(f"{one}.{rest}") if rest else {one})}
        return {dotted}
