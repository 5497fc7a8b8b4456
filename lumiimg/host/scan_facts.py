"""The facts of a scan: what is looked for, and where sites put it (`scan_facts.toml`)."""

from __future__ import annotations

import datetime as dt
from functools import cache

from msgspec import Struct

from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml


class Role(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the fabric path that a host may offer."""

    name: str
    files: tuple[str, ...]
    """File names; a `*` stands for anything."""
    source: str
    date: dt.date
    prefixes: tuple[str, ...] = ()
    """Folders; a `*` stands for one name."""
    wanted_by: str | None = None
    """The role without which this one is of no use."""
    beside: str | None = None
    """A folder of this name, next to each entry of `wanted_by`."""
    variable: str | None = None
    """A variable that names more folders."""


class ScanFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """All of `scan_facts.toml`."""

    role: tuple[Role, ...]
    own_folders: tuple[str, ...]
    """What lies below belongs to a person."""
    devices: tuple[str, ...]
    engine_settings: tuple[str, ...]
    engine_files: tuple[str, ...]
    """`{name}` is the engine's, `{prefix}` is where it is installed."""
    source: str
    date: dt.date


@cache
def scan_facts() -> ScanFacts:
    return decode(package_toml(__package__, "scan_facts.toml"), ScanFacts)
