"""The JSON Schemas (2020-12) of command output, made from the types that json_kinds.toml names.

The type of a key is that of its field or property, and its description is the docstring of that.
"""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import importlib
import inspect
import itertools
import sys
import types
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lumiimg.core.decode import fields_of as all_fields
from lumiimg.report.json_output import KINDS, Keys, fields_of, is_object

_PLAIN = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    types.NoneType: {"type": "null"},
    dt.date: {"type": "string", "format": "date"},
    Any: {},
}

Schema = dict[str, Any]


@cache
def schema_of(name: str) -> Schema:
    """Return the self-contained, closed schema of a kind, with each key described by its docstring."""
    kind = KINDS[name]
    number = {kind.number_key: {"description": "Number of this schema.", "const": kind.number}}
    shared = _Shared(omits=kind.omits)
    body = _object(kind.type, kind.keys, shared)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.printed_by,
        **body,
        "description": kind.summary,
        "properties": number | body["properties"] | number,
        "required": list(dict.fromkeys([*number, *body["required"]])),
        **({"$defs": shared.shapes} if shared.shapes else {}),
    }


class _Shared:
    """The objects and enumerations of one schema; each is defined once, under a name."""

    def __init__(self, *, omits: bool) -> None:
        self.omits = omits
        """Whether keys with their default value are omitted."""
        self.shapes: dict[str, Schema] = {}
        self._names: dict[object, str] = {}

    def reference(self, kind: type, keys: Keys | None) -> Schema:
        """Return the reference to a type of which `keys` are printed."""
        what = kind, repr(keys)
        if what not in self._names:
            taken = (f"{kind.__name__}{number}" for number in itertools.count(2))
            name = next(one for one in itertools.chain([kind.__name__], taken) if one not in self.shapes)
            self._names[what] = name
            self.shapes[name] = {}
            self.shapes[name] = _words(kind) if issubclass(kind, StrEnum) else _object(kind, keys, self)
        return {"$ref": f"#/$defs/{self._names[what]}"}


def _schema(hint: Any, keys: Keys | None, shared: _Shared) -> Schema:  # noqa: ANN401 - a type, or a composed one
    """Return the schema of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_schema(one, keys, shared) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(inner[1], keys, shared)}
    if origin is tuple and Ellipsis not in inner:
        of_each = [_schema(one, keys, shared) for one in inner]
        return {"type": "array", "prefixItems": of_each, "items": False, "minItems": len(inner), "maxItems": len(inner)}
    if origin is not None:
        return {"type": "array", "items": _schema(inner[0], keys, shared)}
    if is_object(hint) or issubclass(hint, StrEnum):
        return shared.reference(hint, keys)
    return {"type": "string"}


def _object(kind: type, keys: Keys | None, shared: _Shared) -> Schema:
    """Return the closed schema of a type with fields."""
    keys = keys or fields_of(kind)
    absent = {field.key for field in all_fields(kind) if not field.is_required} if shared.omits else set()
    absent |= {name for name, key in keys.items() if key.may_be_absent}
    properties = {}
    for name, key in keys.items():
        hint, description = kind, ""
        for part in key.path:
            may_be_none = types.NoneType in get_args(hint)
            hint, description = _member(hint, part)
            hint = hint | None if may_be_none else hint
        properties[name] = {**_schema(hint, key.keys, shared), "description": description}
    return {
        "type": "object",
        "description": inspect.getdoc(kind),
        "properties": properties,
        "required": [name for name in keys if name not in absent],
        "additionalProperties": False,
    }


def _words(kind: type[StrEnum]) -> Schema:
    docstrings = _docstrings(kind)
    words = [f"`{word.value}`: {docstrings[word.name]}" for word in kind if word.name in docstrings]
    return {"description": " ".join([inspect.getdoc(kind) or "", *words]), "enum": [word.value for word in kind]}


def _member(kind: Any, name: str) -> tuple[Any, str]:  # noqa: ANN401 - a type, or one that may be None
    """Return the type and the docstring of a field or property."""
    kind = next((one for one in get_args(kind) if one is not types.NoneType), kind)
    names = {name: each for one in kind.__mro__ for name, each in _imported_for_types(one.__module__).items()}
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, property):
        return get_type_hints(found.fget, localns=names)["return"], " ".join((inspect.getdoc(found) or "").split())
    docstrings = {name: text for one in reversed(kind.__mro__) for name, text in _docstrings(one).items()}
    return get_type_hints(kind, localns=names)[name], docstrings.get(name, "")


# -- information from the source of a module


@cache
def _source(module: str) -> ast.Module:
    own = module.startswith("lumiimg.")
    return ast.parse(inspect.getsource(sys.modules[module]) if own else "")


@cache
def _imported_for_types(module: str) -> Mapping[str, Any]:
    """Return what a module imports only for types, under `if TYPE_CHECKING`."""
    blocks = (
        node for node in _source(module).body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    )
    found: dict[str, Any] = {}
    for node in itertools.chain.from_iterable(block.body for block in blocks):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            name = alias.asname or alias.name
            with contextlib.suppress(ImportError):  # available only to type checkers
                if isinstance(node, ast.ImportFrom):
                    found[name] = getattr(importlib.import_module(node.module or ""), alias.name)
                else:
                    found[name] = importlib.import_module(alias.name)
    return found


@cache
def _docstrings(kind: type) -> Mapping[str, str]:
    """Return the docstring below each field or member of a class in its source."""
    found: dict[str, str] = {}
    nodes = (node for node in _source(kind.__module__).body if isinstance(node, ast.ClassDef))
    body = next((node.body for node in nodes if node.name == kind.__name__), [])
    for field, below in itertools.pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
