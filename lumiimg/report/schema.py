"""The JSON that commands print, and its JSON Schemas (2020-12), both made from the types in `report/outputs/`.

A value is printed by its attributes: those of a shape are looked up by name on what the rooms below return, and are
checked on the way. So a kind is declared once, with its number. docs/reference/json.md says what a number promises.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache, partial
from typing import Any, get_args, get_type_hints

import msgspec

from lumiimg.report.outputs.shape import Output, Text
from lumiimg.secret import HIDDEN, hidden, is_secret_name, secrets_here

_MODULES = {
    "build": "adapt build build-definitions build-plan diff-images diff-locks lock plan rebuild show-image",
    "cache": "cache cache-removed cache-verify why",
    "catalogue": "list schemas show-layer show-recipe show-site",
    "check": "check check-nodes",
    "draft": "draft",
    "fabric": "bind bind-manifest drift explain-image host ldd",
    "gpu": "show-gpu",
    "job": "job module venv",
    "log": "log signatures",
    "machine": "bench-import doctor",
    "request": "explain-bases explain-request",
    "trial": "trial trial-job trial-plan",
}
"""Of `report/outputs/`, with the kinds that each has."""
_AS_IT_IS = frozenset({"script"})
"""Of a job: it is run, and says what its user said."""
_NOT_ASCII = re.compile("[^\0-~]")


def names() -> tuple[str, ...]:
    """Return the names of all kinds of output, sorted."""
    return tuple(sorted(name for kinds in _MODULES.values() for name in kinds.split()))


def kind_of(name: str) -> type[Output]:
    """Return the type of a kind of output."""
    module = next(module for module, kinds in _MODULES.items() if name in kinds.split())
    types = importlib.import_module(f"lumiimg.report.outputs.{module}")
    kind: type[Output] = getattr(types, name.title().replace("-", ""))
    return kind


def json_text(name: str, source: object = None, /, **own: object) -> str:
    """Return an output of a kind, with its number: each key is one of its `own`, else an attribute of the source."""
    kind = kind_of(name)
    shaped = source if kind.made_of else _shaped(kind, source, own)
    return strict_json({kind.number_key: kind.number, **_without_secrets(msgspec.to_builtins(shaped, enc_hook=str))})


def _without_secrets(data: dict[str, Any]) -> dict[str, Any]:
    """Return JSON with the secrets in its texts replaced, and the variables that are called like one."""
    plain = cache(partial(hidden, known=secrets_here()))  # names and paths stand there many times

    def walk(value: Any, name: str = "") -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, str):
            is_named = value and name.isupper() and is_secret_name(name)
            return value if name in _AS_IT_IS else HIDDEN if is_named else plain(value)
        if isinstance(value, dict):
            return {plain(key): walk(inner, key) for key, inner in value.items()}
        return [walk(inner, name) for inner in value] if isinstance(value, list | tuple) else value

    return {key: walk(value, key) for key, value in data.items()}


def _shaped(kind: type[Output], source: object, own: Mapping[str, object]) -> Output:
    values = {
        field.encode_name: own[field.name] if field.name in own else getattr(source, field.name)
        for field in msgspec.structs.fields(kind)
        if field.name in own or hasattr(source, field.name)
    }
    return msgspec.convert(values, kind, from_attributes=True, dec_hook=_printable)


def _printable(kind: type, value: object) -> object:
    """Let through what msgspec has no type of its own for (a path): it is printed as its text."""
    if kind is Text:
        return Text(value)
    if not isinstance(value, kind):
        raise TypeError(f"is a {type(value).__name__}, no {kind.__name__}")
    return value


def strict_json(data: Mapping[str, Any]) -> str:
    r"""Return JSON that every parser takes and every terminal survives (RFC 8259, RFC 7493).

    In ASCII: valid in whatever encoding standard output has, and no direction mark or C1 control out of a hostile file
    reaches the terminal. A byte of a name that is not UTF-8, half a surrogate here, is spelled out in six letters
    (`\udcff`): as an escape it would stand for no character. Raises ValueError for NaN and infinity, which no output
    has.
    """
    return _NOT_ASCII.sub(_escaped, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def _escaped(letter: re.Match[str]) -> str:
    code = ord(letter[0])
    if 0xD800 <= code < 0xE000:
        return f"\\\\u{code:04x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


# -- schemas


@cache
def schema_of(name: str) -> dict[str, Any]:
    """Return the schema of a kind, which needs no other: closed, and each key with what the code says of it."""
    kind = kind_of(name)
    types = list(_shapes(kind.made_of or kind, set()))
    references, shapes = msgspec.json.schema_components(types, schema_hook=lambda _: {"type": "string"})
    of_types = [shapes[reference["$ref"].removeprefix("#/$defs/")] for reference in references]
    for shape, of in zip(of_types, types, strict=True):
        del shape["title"]
        if issubclass(of, StrEnum):
            _describe_words(shape, of)
        else:
            _describe_keys(shape, of, omits=kind.omits)
    body = of_types[0]
    shapes = {name: shape for name, shape in shapes.items() if shape is not body}
    number = {kind.number_key: {"description": "Number of this schema.", "const": kind.number}}
    body["properties"] = number | body["properties"] | number
    body["required"] = list(dict.fromkeys([*number, *body["required"]]))
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.printed_by,
        "description": inspect.getdoc(kind),
    }
    return {**body, **head, **({"$defs": shapes} if shapes else {})}


def _shapes(kind: Any, seen: set[type]) -> Iterator[type]:  # noqa: ANN401 - a type, or something that is made of types
    """Yield each type with fields, and each closed set of words, that a type is made of; itself among them."""
    inner = get_args(kind)
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct | StrEnum) or dataclasses.is_dataclass(kind)):
        if kind in seen:
            return
        seen.add(kind)
        yield kind
        inner = () if issubclass(kind, StrEnum) else tuple(get_type_hints(kind).values())
    for part in inner:
        yield from _shapes(part, seen)


def _describe_words(shape: dict[str, Any], kind: type[StrEnum]) -> None:
    docstrings = _docstrings(kind)
    words = [f"`{word.value}`: {docstrings[word.name]}" for word in kind if word.name in docstrings]
    shape["description"] = " ".join([inspect.getdoc(kind) or "", *words])
    shape["enum"] = [word.value for word in kind]


def _describe_keys(shape: dict[str, Any], kind: type, *, omits: bool) -> None:
    """Close a shape and describe its keys; each is there, unless a kind `omits` what has its default."""
    docstrings = {name: text for each in reversed(kind.__mro__[:-1]) for name, text in _docstrings(each).items()}
    fields = {}
    if issubclass(kind, msgspec.Struct):
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, inner in shape["properties"].items():
        inner.pop("default", None)
        inner["description"] = docstrings.get(fields[key].name if key in fields else key, "")
    if not omits:
        shape["required"] = [
            key for key in shape["properties"] if key not in fields or fields[key].default is not msgspec.UNSET
        ]
    shape["additionalProperties"] = False


def _docstrings(kind: type) -> dict[str, str]:
    """Return what stands below each field, or member, of a class in its source."""
    if not kind.__module__.startswith("lumiimg."):
        return {}
    found: dict[str, str] = {}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    for field, below in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
