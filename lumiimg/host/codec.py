"""Frozen dataclasses to JSON data and back, by the types of their fields.

What a snapshot holds is facts of other rooms, which grow: they are written by their own declaration, not field by
field. Known are str, int, float, bool, StrEnum, `X | None`, tuples, `dict[str, X]` and dataclasses of these. A field
that has its default, where that is empty (None, 0, False, nothing in it), is not written: most of a library's facts are
such.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_MAX_INTEGER = (1 << 64) - 1
"""The largest that a field of an ELF file can hold."""


class FormError(ValueError):
    """Data that is not of the type that is declared: `key` says where."""

    def __init__(self, key: str, what: str) -> None:
        self.key = key
        self.what = what
        super().__init__(f"{key}: {what}")


def encode(value: object) -> Any:  # noqa: ANN401 - JSON data
    """Return what `json` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(inner)
            for field in dataclasses.fields(value)
            if (inner := getattr(value, field.name)) or inner != _default(field)
        }
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(inner) for key, inner in value.items()}
    return value


def decode(kind: type[T], data: object, key: str) -> T:
    """Return a dataclass out of what `json` read; keys that it does not know are passed over. Raises FormError."""
    if not isinstance(data, dict):
        raise FormError(key or "the file", f"should be an object, is {_named(data)}")
    values: dict[str, Any] = {}
    known: Any = kind
    for name, (wanted, default) in _fields(known).items():
        if name in data:
            values[name] = _decode(wanted, data[name], f"{key}.{name}" if key else name)
        elif default is dataclasses.MISSING:
            raise FormError(f"{key}.{name}" if key else name, "is missing")
    return kind(**values)


def _decode(wanted: Any, data: object, key: str) -> Any:  # noqa: ANN401 - typed by `wanted`
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (types.UnionType, Union):
        return None if data is None else _decode(arguments[0], data, key)
    if origin is tuple:
        if not isinstance(data, list):
            raise FormError(key, f"should be an array, is {_named(data)}")
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(data):
            raise FormError(key, f"should have {len(kinds)} items, has {len(data)}")
        return tuple(_decode(kinds[index], item, f"{key}[{index}]") for index, item in enumerate(data))
    if origin is dict:
        if not isinstance(data, dict):
            raise FormError(key, f"should be an object, is {_named(data)}")
        return {name: _decode(arguments[1], item, f"{key}.{name}") for name, item in data.items()}
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return decode(wanted, data, key)
    if isinstance(wanted, type) and issubclass(wanted, enum.StrEnum):
        words = [member.value for member in wanted]
        if data not in words:
            raise FormError(key, f"should be one of {', '.join(words)}")
        return wanted(data)
    if wanted is float and type(data) is int and abs(data) <= _MAX_INTEGER:
        return float(data)
    if type(data) is not wanted:
        raise FormError(key, f"should be {_ARTICLES[wanted]}, is {_named(data)}")
    if isinstance(data, int) and not 0 <= data <= _MAX_INTEGER:
        raise FormError(key, "is a number that no file has")
    return data


_ARTICLES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _named(data: object) -> str:
    """Return what JSON calls a value, not the value: it may be long."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(data), "a number")


@cache
def _fields(kind: type) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each field by its name."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], _default(field)) for field in dataclasses.fields(kind)}


def _default(field: dataclasses.Field[Any]) -> Any:  # noqa: ANN401 - of any field
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
