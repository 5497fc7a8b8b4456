"""How releases of a layer that nobody wrote down are read: `[unlisted]` of its layer.toml (docs/extend/layer.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from lumiimg.catalog.templates import check_placeholders

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Mapping

    from lumiimg.catalog.toml_table import Table

METADATA = "METADATA"
"""What a wheel says of itself, as the name of a file that a fact is read from."""
PROJECT, FILE = "project", "file"
"""The name of the project, and that of the file, as such files."""
WAYS = ("metadata", "sdist", "local-version")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_VERSIONS = ("VERSION", "FOUND")


@dataclass(frozen=True, slots=True)
class ReadFact:
    """A value that a file of a release says."""

    name: str
    """How the templates of the table name it."""
    files: tuple[str, ...]
    """The first that says it counts: paths below the top folder of a source archive, METADATA, project or file."""
    pattern: re.Pattern[str]
    """Its first group is the value; of several versions the oldest counts."""


@dataclass(frozen=True, slots=True)
class Unlisted:
    """The rule by which a release without a row is read. Templates may hold {VERSION}, {FOUND} and each fact."""

    read: str
    """One of WAYS."""
    projects: tuple[str, ...]
    """Of a package index. Each that has the version makes one release."""
    range: SpecifierSet
    """The versions that can be read so."""
    facts: tuple[ReadFact, ...]
    requires: tuple[str, ...]
    expects: tuple[str, ...]
    has: Mapping[str, str]
    arguments: Mapping[str, str]
    wheels: tuple[str, ...]
    companions: tuple[str, ...]
    """Projects of the same index, each a fact: the newest version whose METADATA requires exactly this one."""
    gpus: str | None
    """The GPUs that its source has code for, apart by `;`."""
    index: str | None
    """The index of the project; None: that of everybody."""
    indexes: tuple[str, ...]
    """Where its wheels are looked for; templates as others."""
    without: tuple[str, ...]
    unused: tuple[str, ...]
    source: str
    date: dt.date
    """When the rule was looked at."""


def read_unlisted(table: Table, arguments: Collection[str]) -> Unlisted:
    """Return the table; what is wrong in it is a fault of the file."""
    facts = tuple(_fact(entry) for entry in table.tables("fact"))
    rule = table.fill(
        Unlisted,
        read=table.choice("read", WAYS),
        range=_range(table),
        facts=facts,
        has=table.table("has").string_values(),
        arguments=table.table("arguments").string_values(),
    )
    if not rule.projects:
        table.fault("projects", "names none")
    names = (*_VERSIONS, *(fact.name for fact in facts), *rule.companions)
    for key in ("requires", "expects", "wheels", "indexes"):
        for text in getattr(rule, key):
            check_placeholders(table, key, text, names, "a fact of this table")
    for key in ("has", "arguments"):
        for name, text in getattr(rule, key).items():
            check_placeholders(table, f"{key}.{name}", text, names, "a fact of this table")
    check_placeholders(table, "gpus", rule.gpus or "", names, "a fact of this table")
    for name in rule.arguments:
        if name not in arguments:
            table.fault("arguments", f"names {name!r}, which is not an argument of this layer")
    return rule


def _fact(entry: Table) -> ReadFact:
    pattern = entry.pattern("pattern")
    if pattern is None or pattern.groups != 1:
        entry.fault("pattern", "should be a regular expression with one group, which is the value")
        pattern = re.compile("()")
    entry.match("name", _NAME, "not lower-case letters, digits and dashes")
    return entry.fill(ReadFact, pattern=pattern)


def _range(table: Table) -> SpecifierSet:
    text = table.string("range", may_be_empty=True)
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        table.fault("range", f"is {text[:80]!r}; versions are needed: '>=0.10,<1'")
        return SpecifierSet()
