"""The JSON that commands print: the keys that json_kinds.toml lists for a kind of value, without secrets."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from lumiimg.core.redact import HIDDEN, is_secret_name, redact, secrets_here
from lumiimg.core.toml import package_toml

AS_TEXT = frozenset({"GpuTarget"})
"""Types that are printed as their text."""
_WORD = re.compile(r"[{}]|[^\s{}]+")
_TABLE = package_toml(__package__, "json_kinds.toml")
_AS_IT_IS = frozenset({"script"})
"""Keys printed without redaction: a job's script is run, and is what its user wrote."""
_NOT_ASCII = re.compile("[^\0-~]")

Keys = dict[str, "Key"]


@dataclass(frozen=True, slots=True)
class Key:
    """Where the value of a key comes from, and which part of it is printed."""

    path: tuple[str, ...]
    """Chain of attributes."""
    keys: Keys | None
    """Keys of its objects; None for all fields."""
    may_be_absent: bool


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of JSON that a command prints or a file contains."""

    name: str
    """Name for `lumiimg schema NAME`."""
    printed_by: str
    """The command or file."""
    of: str
    """Its type: module below `lumiimg`, and class."""
    keys: Keys | None = None
    """Keys that are printed; None for all fields."""
    number: int = 1
    """Number of the schema: the `schema` key of its output."""
    number_key: str = "schema"
    omits: bool = False
    """Whether keys with their default value are omitted, as in a file that another room writes."""

    @property
    def type(self) -> type:
        """The class that `of` names."""
        module, _, name = self.of.rpartition(".")
        found: type = getattr(importlib.import_module(f"lumiimg.{module}"), name)
        return found

    @property
    def summary(self) -> str:
        """What it contains, in one line."""
        return (self.type.__doc__ or "").partition("\n")[0]


@cache
def fields_of(kind: type) -> Keys:
    """Return the keys of a type whose fields are all printed; for a Struct, as they appear in a file."""
    names = getattr(kind, "__struct_fields__", None) or [field.name for field in dataclasses.fields(kind)]
    keys = getattr(kind, "__struct_encode_fields__", names)
    return {key: Key((name,), None, may_be_absent=False) for key, name in zip(keys, names, strict=True)}


def is_object(kind: type) -> bool:
    """Return whether a type is printed by fields: a dataclass, or a Struct of msgspec, which `log` does not import."""
    return kind.__name__ not in AS_TEXT and (dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"))


def _words(text: str) -> Iterator[str]:
    """Yield the words of keys, with `@name` replaced by the words under that name."""
    for word in _WORD.findall(text):
        if word.startswith("@"):
            yield from _words(_TABLE["shared"][word[1:]])
        else:
            yield word


def _keys(words: Iterator[str]) -> Keys:
    """Return the keys up to the brace that closes their object."""
    found: Keys = {}
    name = ""
    for word in words:
        if word == "}":
            break
        if word == "{":
            found[name] = replace(found[name], keys=_keys(words))
            continue
        named, _, path = word.rstrip("?").partition("=")
        name = named.rpartition(".")[2]
        found[name] = Key(tuple((path or named).split(".")), None, word.endswith("?"))
    return found


KINDS = {
    name: Kind(name, **{**entry, "keys": _keys(_words(entry.get("keys", ""))) or None})
    for name, entry in _TABLE["kind"].items()
}
"""Kinds by name."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """The names of all schemas."""

    schemas: tuple[Kind, ...] = tuple(KINDS.values())
    """All kinds, by name."""


def write_json(kind: str, value: object) -> None:
    """Print a result for machines."""
    print(json_text(kind, value))


def write_json_line(kind: str, value: object) -> None:
    """Print a result for machines on one line, as one of several (JSON Lines)."""
    print(json_text(kind, value).replace("\n", " "), flush=True)  # line breaks within text are escaped


def json_text(name: str, value: object) -> str:
    """Return a value of a kind's type as JSON, with the kind's number."""
    kind = KINDS[name]
    plain = cache(partial(redact, known=secrets_here()))  # names and paths occur many times
    return strict_json({kind.number_key: kind.number, **_builtins(value, kind.keys, "", plain)})


def _builtins(value: Any, keys: Keys | None, name: str, plain: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    """Return what `json` can write, with secrets in texts replaced, and the values of variables named like a secret."""
    if value is None or isinstance(value, int | float):
        return value
    if is_object(value.__class__):
        made = {}
        for key, chosen in (keys or fields_of(value.__class__)).items():
            inner: Any = value
            for part in chosen.path:
                inner = None if inner is None else getattr(inner, part)
            if inner or not chosen.may_be_absent:
                made[key] = _builtins(inner, chosen.keys, key, plain)
        return made
    if isinstance(value, Mapping):
        return {plain(str(key)): _builtins(inner, keys, str(key), plain) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_builtins(inner, keys, name, plain) for inner in value]
    text = str(value)  # a path, a version, a date
    is_named = text and name.isupper() and is_secret_name(name)
    return text if name in _AS_IT_IS else HIDDEN if is_named else plain(text)


def strict_json(data: Mapping[str, Any]) -> str:
    r"""Return JSON that every parser accepts and every terminal survives (RFC 8259, RFC 7493).

    It is ASCII: valid in any encoding of standard output, and no direction mark or C1 control from a hostile file
    reaches the terminal. A byte of a name that is not UTF-8, here a lone surrogate, is spelled out in six characters
    (`\udcff`), because as an escape it would not denote a character. Raises ValueError for NaN and infinity, which no
    output contains.
    """
    return _NOT_ASCII.sub(_escaped, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def _escaped(letter: re.Match[str]) -> str:
    code = ord(letter[0])
    if 0xD800 <= code < 0xE000:
        return f"\\\\u{code:04x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
