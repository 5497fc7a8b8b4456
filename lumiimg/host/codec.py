"""Frozen dataclasses to JSON data and back, by the types of their fields; msgspec reads them.

What a snapshot holds is facts of other rooms, which grow: they are written by their own declaration, not field by
field. A field that has its default, where that is empty (None, 0, False, nothing in it), is not written: most of a
library's facts are such.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, TypeVar

from lumiimg.findings import Remedy

T = TypeVar("T")
_MAX_INTEGER = (1 << 64) - 1
"""The largest that a field of an ELF file can hold."""
_MAX_TEXT = 1 << 17
"""Characters; what LD_LIBRARY_PATH can hold."""
_NAMES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
}


class FormError(ValueError):
    """Data that is not of the type that is declared: `key` says where, and is empty for the whole of it."""

    def __init__(self, key: str, what: str) -> None:
        self.key = key
        self.what = what
        super().__init__(f"{key}: {what}" if key else what)


def encode(value: object) -> Any:  # noqa: ANN401 - JSON data
    """Return what `json` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(inner)
            for field in dataclasses.fields(value)
            if (inner := getattr(value, field.name)) or inner != _default(field)
        }
    if isinstance(value, Remedy):
        return {"text": value.text, "command": value.command, "where": value.where}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(inner) for key, inner in value.items()}
    return value


def _remedy(kind: type, value: object) -> object:
    """Return a remedy, of its parts or as it is shown. Raises TypeError for what is none."""
    parts = value if isinstance(value, dict) else {"text": value}
    if kind is not Remedy or not all(isinstance(part, str | None) for part in parts.values()):
        raise TypeError("should be a remedy")
    return Remedy(**parts)


def _default(field: dataclasses.Field[Any]) -> Any:  # noqa: ANN401 - of any field
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def decode(kind: type[T], data: object) -> T:
    """Return a dataclass out of what `json` read; keys that it does not know are passed over. Raises FormError."""
    import msgspec

    try:
        value = msgspec.convert(data, kind, dec_hook=_remedy)
    except msgspec.ValidationError as error:
        raise _form_error(str(error)) from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise FormError("the file", "has a key, or a number, that none has") from error
    _check_sizes(msgspec.to_builtins(value, enc_hook=str), "")
    return value


def from_json(kind: type[T], data: bytes) -> T:
    """Return what `decode` makes of JSON. Raises FormError, whatever the bytes."""
    try:
        read = json.loads(data)
    except RecursionError as error:
        raise FormError("", "is nested too deeply") from error
    except ValueError as error:
        raise FormError("", "is cut off, or not JSON") from error
    return decode(kind, read)


def to_json(value: object) -> str:
    """Return what `from_json` reads."""
    return json.dumps(encode(value))


def count_of_values(data: bytes) -> int:
    """Return how many values JSON has at most, unread: of a byte of it Python can make a hundred."""
    return sum(map(data.count, (b",", b"[", b"{")))


def _form_error(text: str) -> FormError:
    """Return an error of msgspec (`Expected X, got Y - at $.key`) with the key in front, and without the data."""
    what, _, place = text.partition(" - at ")
    key = place.strip("`").removeprefix("$").removeprefix(".")
    if missing := re.fullmatch("Object missing required field `(.*)`", what):
        return FormError(f"{key}.{missing[1]}" if key else missing[1], "is missing")
    if what.startswith("Invalid enum value"):
        return FormError(key, "is none of its words")
    what = re.sub("`([a-z]*)(?: [|] null)?`", lambda word: _NAMES.get(word[1], word[1]), what)
    return FormError(key or "the file", what.replace("Expected", "should be").replace(", got", ", is"))


def _check_sizes(value: object, key: str) -> None:
    """Raise FormError for a whole number that no field of a file holds, and for a text that nobody wrote."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_sizes(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_sizes(inner, f"{key}[{index}]")
    elif isinstance(value, int) and not 0 <= value <= _MAX_INTEGER:
        raise FormError(key, "is a number that no file has")
    elif isinstance(value, str) and len(value) > _MAX_TEXT:
        raise FormError(key, f"has {len(value)} characters, more than any has")
