"""The facts of a scan: what is looked for, and where sites put it (`scan_facts.toml`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from lumiimg.catalog.toml_table import Table, read_toml

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "scan_facts.toml"


@dataclass(frozen=True, slots=True)
class Role:
    """One part of the fabric path that a host may offer."""

    name: str
    files: tuple[str, ...]
    """File names; a `*` stands for anything."""
    packages: tuple[str, ...]
    """Names for pkg-config."""
    prefixes: tuple[str, ...]
    """Folders; a `*` stands for one name."""
    modules: str | None
    """The folder of its modules, where one may say which version is the default."""
    wanted_by: str | None
    """The role without which this one is of no use."""
    beside: str | None
    """A folder of this name, next to each entry of `wanted_by`."""
    variable: str | None
    """A variable that names more folders."""


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """All of `scan_facts.toml`."""

    roles: tuple[Role, ...]
    package_folders: tuple[str, ...]
    module_folders: tuple[str, ...]
    own_folders: tuple[str, ...]
    """What lies below belongs to a person."""
    devices: tuple[str, ...]
    engine_settings: frozenset[str]
    engine_files: tuple[str, ...]
    """`{name}` is the engine's, `{prefix}` is where it is installed."""


@cache
def known() -> ScanFacts:
    """Return the facts. Raises CatalogError if the file is wrong."""
    with resources.as_file(resources.files(__package__).joinpath(_FILE)) as path:
        return read_known(path)


def read_known(path: Path) -> ScanFacts:
    """Return the facts in a file. Raises CatalogError with all that is wrong in it."""
    table = Table(read_toml(path), path)
    roles = tuple(_role(entry) for entry in table.tables("role"))
    places, node = table.table("places"), table.table("node")
    for part in (places, node):
        part.string("source")
        part.date("date")
    result = ScanFacts(
        roles=roles,
        package_folders=places.strings("package_folders"),
        module_folders=places.strings("module_folders"),
        own_folders=places.strings("own_folders"),
        devices=node.strings("devices"),
        engine_settings=frozenset(node.strings("engine_settings")),
        engine_files=node.strings("engine_files"),
    )
    table.finish()
    return result


def _role(entry: Table) -> Role:
    entry.string("source")
    entry.date("date")
    return Role(
        name=entry.string("name"),
        files=entry.strings("files"),
        packages=entry.strings("packages"),
        prefixes=entry.strings("prefixes"),
        modules=entry.optional_string("modules"),
        wanted_by=entry.optional_string("wanted_by"),
        beside=entry.optional_string("beside"),
        variable=entry.optional_string("variable"),
    )
