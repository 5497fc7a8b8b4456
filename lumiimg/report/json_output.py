"""The JSON that commands print: of a value of a room, the keys that its kind has (json_kinds.toml), without secrets."""

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
"""Types of rooms that are printed as their text."""
_WORD = re.compile(r"[{}]|[^\s{}]+")
_TABLE = package_toml(__package__, "json_kinds.toml")
_AS_IT_IS = frozenset({"script"})
"""Of a job: it is run, and has the words of its user."""
_NOT_ASCII = re.compile("[^\0-~]")

Keys = dict[str, "Key"]


@dataclass(frozen=True, slots=True)
class Key:
    """Where the value of a key is, and what is printed of it."""

    path: tuple[str, ...]
    """Attributes, one of the other."""
    keys: Keys | None
    """Those of its objects; None: all fields."""
    may_be_absent: bool


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of JSON that a command prints or a file has."""

    name: str
    """For `lumiimg schema NAME`."""
    printed_by: str
    """The command, or the file."""
    of: str
    """Its type: module, below `lumiimg`, and class."""
    keys: Keys | None = None
    """None: all fields."""
    number: int = 1
    """Of the schema: the `schema` of its output."""
    number_key: str = "schema"
    omits: bool = False
    """Whether what has its default is left out, as in a file that another room writes."""

    @property
    def type(self) -> type:
        """The class that `of` names."""
        module, _, name = self.of.rpartition(".")
        found: type = getattr(importlib.import_module(f"lumiimg.{module}"), name)
        return found

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return (self.type.__doc__ or "").partition("\n")[0]


@cache
def fields_of(kind: type) -> Keys:
    """Return the keys of a type of which all fields are printed; of a Struct, as a file has them."""
    names = getattr(kind, "__struct_fields__", None) or [field.name for field in dataclasses.fields(kind)]
    keys = getattr(kind, "__struct_encode_fields__", names)
    return {key: Key((name,), None, may_be_absent=False) for key, name in zip(keys, names, strict=True)}


def is_object(kind: type) -> bool:
    """Whether a type is printed by its fields: a dataclass or a Struct of msgspec, which `log` does not import."""
    return kind.__name__ not in AS_TEXT and (dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"))


def _words(text: str) -> Iterator[str]:
    """Yield the words of keys, and for `@name` those under that name."""
    for word in _WORD.findall(text):
        if word.startswith("@"):
            yield from _words(_TABLE["shared"][word[1:]])
        else:
            yield word


def _keys(words: Iterator[str]) -> Keys:
    """Return keys as the table has them, up to the brace that closes their object."""
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
"""By name."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """The names of all schemas."""

    schemas: tuple[Kind, ...] = tuple(KINDS.values())
    """By name."""


def write_json(kind: str, value: object) -> None:
    """Print a result for machines."""
    print(json_text(kind, value))


def write_json_line(kind: str, value: object) -> None:
    """Print a result for machines in one line, as one of several (JSON Lines)."""
    print(json_text(kind, value).replace("\n", " "), flush=True)  # a line break in a text is an escape


def json_text(name: str, value: object) -> str:
    """Return a value of a kind's type as JSON, with the kind's number."""
    kind = KINDS[name]
    plain = cache(partial(redact, known=secrets_here()))  # names and paths stand there many times
    return strict_json({kind.number_key: kind.number, **_builtins(value, kind.keys, "", plain)})


def _builtins(value: Any, keys: Keys | None, name: str, plain: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    """Return what `json` can write, with the secrets in texts replaced, and the variables that are called like one."""
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
    text = str(value)  # as a path, a version, a day are
    is_named = text and name.isupper() and is_secret_name(name)
    return text if name in _AS_IT_IS else HIDDEN if is_named else plain(text)


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
