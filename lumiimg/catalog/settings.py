"""A user's settings: `~/.config/lumiimg/config.toml`, every key optional."""

from __future__ import annotations

import contextlib
import datetime as dt
import grp
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec import Struct, field

from lumiimg.catalog.folders import user_folder
from lumiimg.decode import Text, read_toml

_PLACES = Path(__file__).with_name("places.toml")


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """`config.toml`."""

    cache: Text | None = None
    site: Text | None = None
    mirrors: Mapping[str, Text] = {}


class _Place(Struct, frozen=True, forbid_unknown_fields=True):
    """Where members of a Unix group have room; `{user}` and `{group}` stand for names."""

    machine: Text
    group: re.Pattern[str]
    path: Text
    source: Text
    date: dt.date


class _Places(Struct, frozen=True, forbid_unknown_fields=True):
    places: tuple[_Place, ...] = field(name="place", default=())


@dataclass(frozen=True)
class UserSettings:
    """What a user wants everywhere."""

    environment: Mapping[str, str]
    named: str | None
    """The cache, where somebody named one."""
    mirrors: Mapping[str, str]
    """As `--mirror FROM=TO`."""
    site: str | None
    """As `--site`."""
    site_of: str
    """Where that is said."""

    @cached_property
    def cache(self) -> Path:
        """Built layers, downloads, scratch: as large as a few images. The places of a machine are looked at only now:
        a file system that hangs does not stop a command without a cache.

        One that is not there is made for this user alone, whatever the umask: whoever fills it decides what is built.
        """
        path = Path(self.named or default_cache(self.environment)).absolute()
        with contextlib.suppress(OSError):  # whoever writes to it reports it
            path.mkdir(0o700, parents=True)
        return path


def read_settings(environment: Mapping[str, str]) -> UserSettings:
    """Return the settings; LUMIIMG_CACHE and LUMIIMG_SITE win over the file. A cache that neither names has its place.

    Raises DecodeError if the file is there and wrong.
    """
    path = user_folder(environment) / "config.toml"
    file = read_toml(path, _File) if path.is_file() else _File()
    named = environment.get("LUMIIMG_SITE")
    return UserSettings(
        environment,
        environment.get("LUMIIMG_CACHE") or file.cache,
        file.mirrors,
        named or file.site,
        "LUMIIMG_SITE" if named else str(path),
    )


def user_cache() -> Path:
    """Return the cache of whoever runs this. Raises DecodeError if the file of settings is there and wrong."""
    return read_settings(os.environ).cache


def open_to_others(cache: Path) -> str | None:
    """Return who else may put something into a cache, as the end of a sentence; None where nobody may."""
    try:
        seen = cache.stat()
    except OSError:
        return None
    if seen.st_uid != os.getuid():
        return "belongs to another user"
    return "can be written by others" if seen.st_mode & 0o022 else None


def default_cache(environment: Mapping[str, str], places: Path = _PLACES) -> Path:
    """Return where layers are kept if nobody says: with a project that has room, else below $HOME.

    Of several projects it is the one that has a cache already, else the last, which has the highest number. All of a
    project may write there, and layers from a cache are not asked where they are from: the folder is made here, for
    this user alone, and one that somebody else made, or may write to, is passed over.
    """
    if named := environment.get("XDG_CACHE_HOME"):
        return Path(named) / "lumiimg"
    found = [path for place in read_toml(places, _Places).places for path in _paths(place)]
    there = [path for path in found if os.path.lexists(path[0] / path[1])]
    missing = [path for path in reversed(found) if path not in there]
    fallback = Path(environment.get("HOME", "/")) / ".cache" / "lumiimg"
    return next((above / below for above, below in (*there, *missing) if _is_ours(above, below)), fallback)


def _is_ours(above: Path, below: str) -> bool:
    """Make the folders of a path below `above`, and tell whether they are this user's, and nobody else may write."""
    *parents, last = Path(below).parts
    try:
        for name in parents:
            above /= name
            _made(above, 0o755)
        seen = _made(above / last, 0o700)  # what is made in it may be open to the group, as by umask 0007 on LUMI
    except OSError:
        return False
    return not seen.st_mode & 0o022


def _made(folder: Path, mode: int) -> os.stat_result:
    """Make a folder unless it is there. Raises OSError for a symlink, and for one of somebody else."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise PermissionError(folder)
    return seen


def _paths(place: _Place) -> Iterator[tuple[Path, str]]:
    """Yield folders that are there and may be written, each with the path of a cache below it."""
    above, user, below = place.path.partition("{user}")
    for name in sorted(filter(place.group.fullmatch, _groups()), key=lambda name: (len(name), name)):
        folder = above.replace("{group}", name)
        if os.access(folder, os.W_OK | os.X_OK):
            yield Path(folder), f"{user}{below}".replace("{user}", _user()).replace("{group}", name)


def _groups() -> Iterator[str]:
    for number in {os.getgid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):  # a number without a name
            yield grp.getgrgid(number).gr_name


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
