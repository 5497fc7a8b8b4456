"""The kinds of JSON that commands print: of which type each is, and which keys of it are printed (json_kinds.toml)."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.toml import own_table

if TYPE_CHECKING:
    from collections.abc import Mapping

AS_TEXT = frozenset({"Need", "GpuTarget"})
"""Types of rooms that are printed as their text."""
_SHARED = re.compile(r"@(\w+)")


@dataclass(frozen=True, slots=True)
class Kind:
    """One."""

    name: str
    """For `lumiimg schema NAME`."""
    printed_by: str
    """The command, or the file."""
    of: str
    """Its type: module, below `lumiimg`, and class."""
    keys: str = ""
    """Empty: all fields."""
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


def _filled(keys: str, shared: Mapping[str, str]) -> str:
    return _SHARED.sub(lambda found: _filled(shared[found[1]], shared), keys)


_TABLE = own_table(__package__, "json_kinds.toml")
KINDS = {
    name: Kind(name, **{**entry, "keys": _filled(entry.get("keys", ""), _TABLE["shared"])})
    for name, entry in _TABLE["kind"].items()
}
"""By name."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """The names of all schemas."""

    schemas: tuple[Kind, ...] = tuple(KINDS.values())
    """By name."""
