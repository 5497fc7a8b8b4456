"""A user's settings: `~/.config/lumiimg/config.toml`, every key optional."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import user_folder
from lumiimg.catalog.table import Table, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user wants everywhere."""

    cache: Path
    """Built layers, downloads, scratch: as large as a few images."""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """As `--mirror FROM=TO`."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings; LUMIIMG_CACHE wins over the file.

    Raises CatalogError if the file is there and wrong.
    """
    path = user_folder(environment) / "config.toml"
    table = Table(read_toml(path) if path.is_file() else {}, path)
    cache = table.optional_string("cache")
    mirrors = table.table("mirrors").string_values()
    table.finish()
    default = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/")) / ".cache") / "lumiimg"
    return Settings(cache=Path(environment.get("LUMIIMG_CACHE") or cache or default).absolute(), mirrors=mirrors)
