"""A user's settings: `~/.config/lumiimg/config.toml`, every key optional."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import user_folder
from lumiimg.catalog.table import Table, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLACES = Path(__file__).with_name("places.toml")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user wants everywhere."""

    cache: Path
    """Built layers, downloads, scratch: as large as a few images."""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """As `--mirror FROM=TO`."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings; LUMIIMG_CACHE wins over the file, and both over the machine's own place for such things.

    Raises CatalogError if the file is there and wrong.
    """
    path = user_folder(environment) / "config.toml"
    table = Table(read_toml(path) if path.is_file() else {}, path)
    cache = table.optional_string("cache")
    mirrors = table.table("mirrors").string_values()
    table.finish()
    named = environment.get("LUMIIMG_CACHE") or cache
    return Settings(cache=Path(named or default_cache(environment)).absolute(), mirrors=mirrors)


def default_cache(environment: Mapping[str, str], places: Path = _PLACES) -> Path:
    """Return where layers are kept if nobody says: with a project that has room, else below $HOME.

    Of several projects it is the one that has a cache already, else the last, which has the highest number.
    """
    if named := environment.get("XDG_CACHE_HOME"):
        return Path(named) / "lumiimg"
    found = [path for place in Table(read_toml(places), places).tables("place") for path in _paths(place)]
    fallback = Path(environment.get("HOME", "/")) / ".cache" / "lumiimg"
    return next((path for path in found if path.is_dir()), found[-1] if found else fallback)


def _paths(place: Table) -> Iterator[Path]:
    pattern = re.compile(place.string("group"))
    template = place.string("path")
    for name in sorted(filter(pattern.fullmatch, _groups()), key=lambda name: (len(name), name)):
        path = template.replace("{group}", name).replace("{user}", _user())
        if os.access(template.partition("{user}")[0].replace("{group}", name), os.W_OK | os.X_OK):
            yield Path(path)


def _groups() -> Iterator[str]:
    for number in {os.getgid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):  # a number without a name
            yield grp.getgrgid(number).gr_name


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
