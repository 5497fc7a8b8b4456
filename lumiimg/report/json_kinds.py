"""The kinds of JSON that commands print: of which type each is, and which keys of it are printed (json_kinds.toml)."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from lumiimg.toml import own_table

AS_TEXT = frozenset({"Need", "GpuTarget"})
"""Types of rooms that are printed as their text."""
_WORD = re.compile(r"[{}]|[^\s{}]+")
_TABLE = own_table(__package__, "json_kinds.toml")

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
    """One."""

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
        """The type."""
        module, _, name = self.of.rpartition(".")
        found: type = getattr(importlib.import_module(f"lumiimg.{module}"), name)
        return found

    @property
    def summary(self) -> str:
        """What it says."""
        return self.type.__doc__ or ""


@cache
def fields_of(kind: type) -> Keys:
    """Return the keys of a type of which all fields are printed."""
    return {field.name: Key((field.name,), None, may_be_absent=False) for field in dataclasses.fields(kind)}


def _words(text: str) -> Iterator[str]:
    """Yield the words of keys, and for `@name` those under that name."""
    for word in _WORD.findall(text):
        if word.startswith("@"):
            yield from _words(_TABLE["shared"][word[1:]])
        else:
            yield word


def _keys(words: Iterator[str]) -> Keys:
    """Return keys as the table has them, as far as the brace that closes their object."""
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
