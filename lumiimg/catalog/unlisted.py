"""How releases of a layer that nobody wrote down are read: `[unlisted]` of its layer.toml (docs/extend/layer.md)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from packaging.specifiers import SpecifierSet

from lumiimg.catalog.templates import unknown_placeholder
from lumiimg.decode import Text, matching, refuse

METADATA = "METADATA"
"""What a wheel says of itself, as the name of a file that a fact is read from."""
PROJECT, FILE = "project", "file"
"""The name of the project, and that of the file, as such files."""
_VERSIONS = ("VERSION", "FOUND")
_LISTS, _TABLES = ("requires", "expects", "wheels", "indexes"), ("has", "arguments")
"""Keys with templates."""


class ReadFact(Struct, frozen=True, forbid_unknown_fields=True):
    """A value that a file of a release says."""

    name: Annotated[str, matching(r"[a-z][a-z0-9-]{0,31}", "a name of lower-case letters, digits and dashes")]
    """How the templates of the table name it."""
    files: tuple[str, ...]
    """The first that says it counts: paths below the top folder of a source archive, METADATA, project or file."""
    pattern: re.Pattern[str]
    """Its first group is the value; of several versions the oldest counts."""

    def __post_init__(self) -> None:
        refuse({"pattern": self.pattern.groups != 1 and "should have one group, which is the value"})


class Unlisted(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rule by which a release without a row is read. Templates may hold {VERSION}, {FOUND} and each fact."""

    read: Literal["metadata", "sdist", "local-version"]
    projects: Annotated[tuple[str, ...], Meta(min_length=1, description="one project at least")]
    """Of a package index. Each that has the version makes one release."""
    range: SpecifierSet
    """The versions that can be read so."""
    facts: tuple[ReadFact, ...] = field(name="fact", default=())
    requires: tuple[str, ...] = ()
    expects: tuple[str, ...] = ()
    has: Mapping[str, Text] = {}
    arguments: Mapping[str, Text] = {}
    wheels: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    """Projects of the same index, each a fact: the newest version whose METADATA requires exactly this one."""
    gpus: str | None = None
    """The GPUs that its source has code for, apart by `;`."""
    index: str | None = None
    """The index of the project; None: that of everybody."""
    indexes: tuple[str, ...] = ()
    """Where its wheels are looked for; templates as others."""
    without: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    source: Text
    date: dt.date
    """When the rule was looked at."""

    def faults(self, arguments: Collection[str]) -> dict[str, str | None]:
        """Return what is wrong with the rule of a layer that has these arguments, by key; None where nothing is."""
        names = (*_VERSIONS, *(fact.name for fact in self.facts), *self.companions)
        texts = {f"{key}[{at}]": text for key in _LISTS for at, text in enumerate(getattr(self, key))}
        texts |= {f"{key}.{name}": text for key in _TABLES for name, text in getattr(self, key).items()}
        texts["gpus"] = self.gpus or ""
        found = {key: unknown_placeholder(text, names, "a fact of this table") for key, text in texts.items()}
        found |= {
            f"arguments.{one}": "is not an argument of this layer" for one in self.arguments.keys() - {*arguments}
        }
        return found
