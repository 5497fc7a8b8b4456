"""Decode TOML and JSON of ours to typed values, reporting all faults of a file at once; and encode values for JSON.

A type is a `msgspec.Struct`, a dataclass, or composed of these. Its fields define what is allowed; its `__post_init__`
checks rules across fields, with `refuse`. A class of ours that a file stores as one string has a classmethod
`decoded(value)`, which raises ValueError; any other class that msgspec does not know is created from the string.

msgspec stops at the first fault, so in a faulty file each value is converted by its own type. The error has one line:
`site.toml: key 'name' is 'A'; a name of small letters is needed; key 'node' is not known; did you mean 'nodes'? …`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import EnumType
from functools import cache
from itertools import islice, starmap
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from lumiimg.core.errors import LONG, BadInputError, shortened
from lumiimg.core.files import read_beginning
from lumiimg.core.toml import TomlError, parse_toml

T = TypeVar("T")
FILE_LIMIT_BYTES = 256 * 1024
"""Size limit of files that people write by hand."""
_MAX_VALUES = 1 << 18
"""Limit on the values in a JSON text: Python may need a hundred bytes for one of the text."""
_MAX_INTEGER = (1 << 64) - 1
"""Largest number that a field of an ELF file can hold."""
_MAX_TEXT = 1 << 17
"""Maximum characters of a string: what LD_LIBRARY_PATH can hold."""
_MAX_FAULTS, _MAX_SHOWN = 64, 8
"""Faults of one file that are searched for, and that are printed."""
LONG_FAULT = 800
"""Maximum characters of a whole fault."""
ANY_TEXT = "any text"
"""In `Annotated`: a string of TOML that may have several lines."""


def matching(pattern: str, what: str) -> Meta:
    """Return the annotation of a string that a pattern matches as a whole; `what` describes such a string."""
    return Meta(pattern=rf"\A(?:{pattern})\Z", description=what)


Text = Annotated[str, Meta(pattern=r"\S")]
"""A string that is not blank."""
AnyText = Annotated[str, ANY_TEXT]
Positive = Annotated[int, Meta(gt=0, lt=10**9, description="a whole number above 0")]
Natural = Annotated[int, Meta(ge=0, lt=10**6, description="a whole number of at least 0")]
PositiveFloat = Annotated[float, Meta(gt=0, lt=10**9, description="a number above 0")]
Sha256 = Annotated[str, matching(r"[0-9a-f]{64}", "a digest of 64 hexadecimal digits")]


class DecodeError(BadInputError):
    """A file, or a value in it, is not what it should be; the message lists the faults."""


class _RefusedError(ValueError):
    """Faults that `refuse` found, by key."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = faults
        super().__init__("; ".join(f"{key} {what}" for key, what in faults.items()))


def refuse(faults: Mapping[str, str | Literal[False] | None]) -> None:
    """Raise ValueError, in a `__post_init__`, unless every fault, given by the key that is wrong, is None or False."""
    if found := {key: what for key, what in faults.items() if what}:
        raise _RefusedError(found)


# -- reading


def read_toml(path: Path, kind: type[T]) -> T:
    """Return the value in a TOML file. Raises only DecodeError, whatever the file."""
    return decode_toml(read_text(path, FILE_LIMIT_BYTES), kind, where=str(path))


def read_text(path: Path, limit_bytes: int) -> str:
    """Return the text of a whole file. Raises DecodeError if it cannot be read, is too large, or is not UTF-8."""
    try:
        return read_whole(path, limit_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError("is not UTF-8", where=str(path)) from error


def read_whole(path: Path, limit_bytes: int, *, hint: str | None = None) -> bytes:
    """Return the bytes of a whole regular file. Raises DecodeError if it cannot be read, or is too large."""
    try:
        data = read_beginning(path, limit_bytes + 1)
    except (OSError, ValueError) as error:
        what = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise DecodeError(what, where=str(path), hint=hint) from error
    if len(data) > limit_bytes:
        raise DecodeError(f"is larger than {limit_bytes} bytes", where=str(path))
    return data


def decode_toml(text: str, kind: type[T], *, where: str | None = None, hint: str | None = None) -> T:
    """Return the value in TOML of others; its strings must be printable, except for AnyText. Raises DecodeError."""
    try:
        return decode(parse_toml(text), kind, where=where, hint=hint, toml=True)
    except TomlError as error:
        raise DecodeError(str(error), where=where, hint=hint) from error


def decode_json(data: bytes, kind: type[T], *, where: str | None = None, hint: str | None = None) -> T:
    """Return the value in JSON of others. Raises only DecodeError, whatever the bytes."""
    return decode(parse_json(data, where=where, hint=hint), kind, where=where, hint=hint)


def parse_json(data: bytes, *, where: str | None = None, hint: str | None = None) -> Any:  # noqa: ANN401 - JSON data
    """Return the data in JSON, whatever its type. Raises only DecodeError, whatever the bytes."""
    if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise DecodeError(f"has more than {_MAX_VALUES} values", where=where, hint=hint)
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise DecodeError("is nested too deeply", where=where, hint=hint) from error
    except UnicodeDecodeError as error:
        raise DecodeError("is cut off, or not JSON: not UTF-8 text", where=where, hint=hint) from error
    except ValueError as error:
        raise DecodeError(f"is cut off, or not JSON: {str(error)[:LONG]}", where=where, hint=hint) from error


def decode(data: object, kind: type[T], *, where: str | None = None, hint: str | None = None, toml: bool = False) -> T:
    """Return the value in parsed JSON, or with `toml` in parsed TOML, whose strings are printable and dates are dates.

    Raises DecodeError.
    """
    if _is_plain(data, toml=toml):
        with suppress(ValueError, OverflowError):  # this fault and all others are searched for below
            return _convert(data, kind, toml=toml)
    if faults := [*islice(_Faults(toml).of(kind, data, ""), _MAX_FAULTS)]:
        more = f"; and {len(faults) - _MAX_SHOWN} more" if len(faults) > _MAX_SHOWN else ""
        raise DecodeError("; ".join(starmap(_fault_text, faults[:_MAX_SHOWN])) + more, where=where, hint=hint)
    return _convert(data, kind, toml=toml)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _fault_text(key: str, what: str) -> str:
    what = shortened(what, LONG_FAULT)
    return f"key {shortened(key)!r} {what}" if key else what


def _convert(data: object, kind: type[T], *, toml: bool) -> T:
    """Return data as a value. Raises ValueError, which UnicodeEncodeError is too, or OverflowError."""
    return msgspec.convert(data, kind, builtin_types=(dt.date, dt.datetime) if toml else (), dec_hook=_of_class)


def _of_class(kind: Any, value: object) -> object:  # noqa: ANN401 - a class that msgspec does not know
    """Return a value of a class of ours, or of one that is created from a string. Raises ValueError."""
    if kind is re.Pattern or get_origin(kind) is re.Pattern:
        return _compiled(value)
    decoded = getattr(kind, "decoded", None)
    return decoded(value) if decoded else kind(text_of(value))


def text_of(value: object) -> str:
    """Return a value that should be a string. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"should be a string, is {_shown(value)}")  # noqa: TRY004 - of data
    return value


def _compiled(value: object) -> re.Pattern[str]:
    """Return a regular expression. Raises ValueError, whatever it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # for `[[`, which later Pythons may read as a set
            return re.compile(text_of(value))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a valid regular expression: {error}") from error


def _is_plain(data: object, *, toml: bool) -> bool:
    """Whether all strings and numbers are within limits that hold for every type."""
    texts: list[str] = []
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            texts += map(str, value)
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, str):
            texts.append(value)
        elif isinstance(value, int) and not 0 <= value <= _MAX_INTEGER:
            return False
    return max(map(len, texts), default=0) <= _MAX_TEXT and (not toml or "".join(texts).isprintable())


# -- what is wrong


@dataclass(frozen=True, slots=True)
class _Faults:
    """Finds everything that is wrong with data; each fault is a key and a clause."""

    toml: bool

    def of(self, kind: Any, data: object, key: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any type
        """Yield the faults in the parts of `data`; where there are none, those of the whole."""
        if data is None and NoneType in get_args(kind):
            return
        found = None
        for found in self._of_parts(kind, data, key):
            yield found
        if found is None:
            yield from self._of_whole(_without_none(kind), data, key)

    def _of_parts(self, kind: Any, data: object, key: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
        kind, parts = _plain_type(kind)
        if isinstance(data, dict) and has_fields(kind):
            yield from self._of_fields(kind, data, key)
        elif isinstance(data, dict) and isinstance(kind, type) and issubclass(kind, Mapping):
            for name, value in data.items():
                yield from self.of(parts[0], name, _child_key(key, name))
                yield from self.of(parts[1], value, _child_key(key, name))
        elif isinstance(data, list) and kind in _ARRAYS and parts[1:] in {(), (...,)}:
            for number, value in enumerate(data):
                yield from self.of(parts[0], value, f"{key}[{number}]")

    def _of_fields(self, kind: type, data: dict[str, Any], key: str) -> Iterator[tuple[str, str]]:
        fields = {field.key: field for field in fields_of(kind)}
        types = get_type_hints(kind, include_extras=True)
        for name, field in fields.items():
            if name in data:
                yield from self.of(types[field.name], data[name], _child_key(key, name))
            elif field.is_required:
                yield _child_key(key, name), "is missing"
        if issubclass(kind, Struct) and kind.__struct_config__.forbid_unknown_fields:
            for name in (name for name in data if name not in fields):
                near = difflib.get_close_matches(name[:LONG], fields, n=1)
                hint = f"did you mean {shortened(near[0])!r}? " if near else ""
                yield _child_key(key, name), f"is not known; {hint}allowed: {', '.join(fields)}"

    def _of_whole(self, kind: Any, data: object, key: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
        if isinstance(data, str) and len(data) > _MAX_TEXT:
            yield key, f"has {len(data)} characters, more than allowed"
        elif isinstance(data, str) and self.toml and not data.isprintable() and ANY_TEXT not in get_args(kind):
            yield key, "holds a character that cannot be printed, or more than one line"
        elif isinstance(data, int) and not 0 <= data <= _MAX_INTEGER:
            yield key, "is out of range"
        else:
            try:
                _convert(data, kind, toml=self.toml)
            except msgspec.ValidationError as error:
                if isinstance(error.__cause__, _RefusedError):
                    yield from ((_child_key(key, name), what) for name, what in error.__cause__.faults.items())
                else:
                    yield key, str(error.__cause__ or _sentence(kind, data, str(error)))
            except (ValueError, OverflowError):
                yield key, "has a key or a number that is not allowed"


def _sentence(kind: Any, data: object, error: str) -> str:  # noqa: ANN401
    """Return an error of msgspec as a clause with the value and what is allowed."""
    plain, _ = _plain_type(kind)
    if words := get_args(plain) if get_origin(plain) is Literal else plain if isinstance(plain, EnumType) else ():
        return f"is {_shown(data)}; allowed: {', '.join(map(str, words))}"
    if expected := _EXPECTED.match(error):
        return f"should be {_TYPES.get(expected[1], expected[1])}, is {_shown(data)}"
    if note := next((note.description for note in get_args(kind) if isinstance(note, Meta) and note.description), None):
        return f"is {'empty' if data == [] else _shown(data)}; {note} is needed"
    return "is empty" if isinstance(data, str) and not data.strip() else f"is {_shown(data)}: {error}"


_EXPECTED = re.compile(r"Expected `(\w+)`, got ")
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "a table",
    "date": "a date like 2026-11-21, without quotes",
}
"""Descriptions of types, by msgspec's names."""
_ARRAYS = (tuple, list, frozenset)


def _without_none(kind: Any) -> Any:  # noqa: ANN401
    others = [part for part in get_args(kind) if part is not NoneType]
    return others[0] if get_origin(kind) in {Union, UnionType} and len(others) == 1 else kind


def _plain_type(kind: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401
    """Return a type without annotations and None, and its parameters: `tuple`, and `(str, ...)`."""
    kind = _without_none(kind)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return (kind, ()) if get_origin(kind) in {None, Literal, Union, UnionType} else (get_origin(kind), get_args(kind))


def _shown(value: object) -> str:
    return "a table" if isinstance(value, dict) else "an array" if isinstance(value, list) else repr(value)[:LONG]


def _child_key(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


# -- fields, and writing


class Field(NamedTuple):
    """A field of a Struct or of a dataclass."""

    name: str
    key: str
    """Name in a file."""
    default: Any
    is_required: bool
    """Whether a file must contain it."""


def has_fields(kind: object) -> bool:
    """Whether a type is a Struct or a dataclass."""
    return isinstance(kind, type) and (issubclass(kind, Struct) or dataclasses.is_dataclass(kind))


@cache
def fields_of(kind: Any) -> tuple[Field, ...]:  # noqa: ANN401
    """Return the fields of a Struct or of a dataclass."""
    own: Any = msgspec.structs.fields(kind) if issubclass(kind, Struct) else dataclasses.fields(kind)
    nothing = (msgspec.NODEFAULT, dataclasses.MISSING)
    found = []
    for one in own:
        default = one.default if one.default_factory in nothing else one.default_factory()
        is_required = any(default is none for none in nothing)
        found.append(Field(one.name, getattr(one, "encode_name", one.name), default, is_required))
    return tuple(found)


def encode(value: object) -> Any:  # noqa: ANN401 - JSON data
    """Return a value as data for JSON or TOML, which `decode` reads back.

    A field with its default is left out if that is empty (None, 0, False, an empty container).
    """
    kind: Any = type(value)
    if has_fields(kind):
        found = ((field, getattr(value, field.name)) for field in fields_of(kind))
        return {field.key: encode(inner) for field, inner in found if inner or inner != field.default}
    if (encoded := getattr(value, "encoded", None)) is not None:
        return encoded()
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, tuple | list | frozenset):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(inner) for key, inner in value.items()}
    return value


def to_json(value: object) -> str:
    """Return a value as JSON text for `decode_json`."""
    return json.dumps(encode(value))
