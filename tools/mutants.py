"""The mutants of a module: one small change each, of the kind that a slip of the hand makes, in its syntax tree.

Wording is left alone: no string is changed, nothing inside an f-string, no message of an error. So are annotations,
decorators, default values, and what a class says outside its methods.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

REMOVED = "(removed)"
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the tree: `make` does it, `undo` takes it back."""

    scope: str
    """The function or method, as in `__qualname__`; for a constant of the module its name."""
    lines: range
    before: str
    after: str
    make: Callable[[], None]
    undo: Callable[[], None]


def mutants(tree: ast.Module, names: Mapping[str, Any]) -> Iterator[Mutant]:
    """Yield the mutants of a module, each for as long as it is looked at; `names`: what its names stand for."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _in_function(node, node.name, names)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield from _in_function(method, f"{node.name}.{method.name}", names)
        elif (name := constant_of(node)) is not None:
            yield from _Scope(name, "", names).inside(node)


def constant_of(node: ast.stmt) -> str | None:
    """Return the name that a statement of a module gives a value to."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) and getattr(node, "value", None) is not None else None


def _in_function(node: ast.FunctionDef, name: str, names: Mapping[str, Any]) -> Iterator[Mutant]:
    scope = _Scope(name, ast.unparse(node.returns) if node.returns else "", names)
    for index, statement in enumerate(node.body):
        yield from scope.of(statement, _into(node.body, index))


def _into(nodes: list[Any], index: int) -> Callable[[Any], None]:
    return lambda new: nodes.__setitem__(index, new)


@dataclass(frozen=True, slots=True)
class _Scope:
    name: str
    returns: str
    names: Mapping[str, Any]

    def of(self, node: ast.AST, put: Callable[[Any], None]) -> Iterator[Mutant]:
        """Yield the mutants of a node and of what is in it; `put` puts another into its place."""
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.arguments) or _is_docstring(node):
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return  # of zip: it holds what is true anyway
        before = ast.unparse(node)
        for new in self._others(node):
            ast.copy_location(new, node)
            ast.fix_missing_locations(new)
            after = REMOVED if isinstance(node, ast.stmt) and not isinstance(node, ast.Return) else ast.unparse(new)
            yield Mutant(self.name, _lines(node), before, after, _call(put, new), _call(put, node))
        yield from self.inside(node)

    def inside(self, node: ast.AST) -> Iterator[Mutant]:
        """Yield the mutants of what is in a node."""
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "returns", "decorator_list", "ctx", "msg"}:
                continue
            if isinstance(value, list):
                for index, child in enumerate(value):
                    if isinstance(child, ast.AST):
                        condition = isinstance(node, ast.comprehension) and field == "ifs"
                        yield from self._child(child, _into(value, index), (True,) if condition else ())
            elif isinstance(value, ast.AST):
                decides = field == "test" and isinstance(node, ast.If | ast.IfExp)
                yield from self._child(value, _set(node, field), (True, False) if decides else ())

    def _child(self, node: ast.AST, put: Callable[[Any], None], instead: tuple[bool, ...]) -> Iterator[Mutant]:
        for value in instead:
            new = ast.copy_location(ast.Constant(value), node)
            yield Mutant(
                self.name, _lines(node), f"if {ast.unparse(node)}", f"if {value}", _call(put, new), _call(put, node)
            )
        yield from self.of(node, put)

    def _others(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
                yield ast.Expr(ast.YieldFrom(ast.Tuple([], ast.Load())))  # a generator stays one
            case ast.Expr() | ast.AugAssign() | ast.Continue() | ast.Break():
                yield ast.Pass()
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield ast.Pass()
            case ast.Return(value=ast.expr() as value):
                yield from self._returned(value)
            case ast.Compare():
                for index, operator in enumerate(node.ops):
                    for other in _COMPARISONS[type(operator)]:
                        ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                        yield ast.Compare(node.left, ops, node.comparators)
            case ast.BoolOp():
                yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
                for fewer in _without_one(node.values):
                    yield ast.BoolOp(node.op, fewer) if len(fewer) > 1 else fewer[0]
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                yield node.operand
            case ast.BinOp() if not any(map(_is_wording, (node.left, node.right))) and type(node.op) in _ARITHMETIC:
                yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
                yield node.left
            case _:
                yield from _fewer(node)
                yield from self._other_values(node)

    def _other_values(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Constant(value=bool(value)):
                yield ast.Constant(not value)
            case ast.Constant(value=int(value) | float(value)):
                yield ast.Constant(value + 1)
                if value > 0:
                    yield ast.Constant(value - 1)
            case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
                yield ast.Call(ast.Name(_CALLS[name], ast.Load()), node.args, node.keywords)
            case ast.Attribute(value=ast.Name(id=name), attr=member) if (
                isinstance(kind := self.names.get(name), enum.EnumMeta) and member in kind.__members__
            ):
                members = list(kind.__members__)
                other_member = members[(members.index(member) + 1) % len(members)]
                if other_member != member:
                    yield ast.Attribute(node.value, other_member, ast.Load())

    def _returned(self, value: ast.expr) -> Iterator[ast.AST]:
        if self.returns == "bool" and not isinstance(value, ast.Constant | ast.Compare | ast.UnaryOp):
            yield ast.Return(ast.UnaryOp(ast.Not(), value))
        elif "None" in self.returns and not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        elif self.returns.startswith(("tuple[", "list[")) and not isinstance(value, ast.Tuple | ast.List):
            yield ast.Return(ast.List([], ast.Load()) if self.returns.startswith("l") else ast.Tuple([], ast.Load()))


def _fewer(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a display or a slice without one of its parts."""
    match node:
        case ast.Set(elts=elements) if len(elements) > 1:
            yield from map(ast.Set, _without_one(elements))
        case ast.Tuple(elts=elements, ctx=ast.Load()) if len(elements) > 1:
            yield from (ast.Tuple(fewer, ast.Load()) for fewer in _without_one(elements))
        case ast.List(elts=elements, ctx=ast.Load()) if len(elements) > 1:
            yield from (ast.List(fewer, ast.Load()) for fewer in _without_one(elements))
        case ast.Dict(keys=keys, values=values) if len(keys) > 1:
            yield from (ast.Dict(k, v) for k, v in zip(_without_one(keys), _without_one(values), strict=True))
        case ast.Slice(lower=lower, upper=upper, step=step):
            if lower is not None:
                yield ast.Slice(None, upper, step)
            if upper is not None:
                yield ast.Slice(lower, None, step)


def _lines(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), getattr(node, "end_lineno", -1) + 1)


def _set(node: ast.AST, field: str) -> Callable[[Any], None]:
    return lambda new: setattr(node, field, new)


def _call(put: Callable[[Any], None], node: ast.AST) -> Callable[[], None]:
    return lambda: put(node)


def _without_one(nodes: list[Any]) -> list[list[Any]]:
    return [nodes[:index] + nodes[index + 1 :] for index in range(len(nodes))]


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_wording(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
