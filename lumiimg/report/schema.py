"""The JSON that commands print, and its JSON Schemas (2020-12): a file for each kind of output in schemas/.

A file holds the number of its kind too, so that an output and its schema cannot name two. docs/reference/json.md says
what a number promises.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FOLDER = Path(__file__).with_name("schemas")
_SHARED = "common"
"""The file of shapes that several kinds have: findings, rules, …"""
_REFERENCE = f"{_SHARED}.json#/$defs/"
NUMBERS = ("schema", "format")
"""Under which key an output has its number; the second is that of the plan in an image."""
_NOT_ASCII = re.compile("[^\0-~]")


def names() -> tuple[str, ...]:
    """Return the names of all kinds of output, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json") if path.stem != _SHARED))


def read_schema(name: str) -> dict[str, Any]:
    """Return a schema as it lies in its file, which may refer to the shared one."""
    schema: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return schema


def whole_schema(name: str) -> dict[str, Any]:
    """Return a schema that needs no other file: the shapes that it shares with others are among its own."""
    schema, shared = read_schema(name), read_schema(_SHARED)["$defs"]
    own = schema.pop("$defs", {})
    wanted = [*_references(schema), *_references(own)]
    while wanted:
        shape = wanted.pop()
        if shape not in own:
            own[shape] = shared[shape]
            wanted += _references(shared[shape])
    document = {**schema, **({"$defs": dict(sorted(own.items()))} if own else {})}
    inside: dict[str, Any] = json.loads(json.dumps(document).replace(_REFERENCE, "#/$defs/"))
    return inside


def _references(value: object) -> Iterator[str]:
    """Yield the names of the shared shapes that a part of a schema refers to."""
    if isinstance(value, dict):
        if str(value.get("$ref", "")).startswith(_REFERENCE):
            yield value["$ref"].removeprefix(_REFERENCE)
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def number_of(schema: Mapping[str, Any]) -> int:
    """Return the number of a kind: what its outputs have as `schema`."""
    constant: int = next(schema["properties"][key]["const"] for key in NUMBERS if key in schema["properties"])
    return constant


def json_text(name: str, data: Mapping[str, Any]) -> str:
    """Return an output of a kind, with its number."""
    return strict_json({"schema": number_of(read_schema(name)), **data})


def strict_json(data: Mapping[str, Any]) -> str:
    r"""Return JSON that every parser takes and every terminal survives (RFC 8259, RFC 7493).

    In ASCII: valid in whatever encoding standard output has, and no direction mark or C1 control out of a hostile file
    reaches the terminal. A byte of a name that is no UTF-8, half a surrogate here, is spelled out in six letters
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
