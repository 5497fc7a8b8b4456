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
from lumiimg.core.decode import Text, read_toml

_PLACES = Path(__file__).with_name("places.toml")


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """`config.toml`."""

    cache: Text | None = None
    site: Text | None = None
    mirrors: Mapping[str, Text] = {}


class _Place(Struct, frozen=True, forbid_unknown_fields=True):
    """Where members of a Unix group have disk space: `…/{group}/{user}/NAME`."""

    machine: Text
    group: re.Pattern[str]
    path: Text
    source: Text
    date: dt.date


class _Places(Struct, frozen=True, forbid_unknown_fields=True):
    places: tuple[_Place, ...] = field(name="place", default=())


@dataclass(frozen=True)
class UserSettings:
    """Settings of a user for all commands."""

    environment: Mapping[str, str]
    named: str | None
    """The cache, if one was named."""
    mirrors: Mapping[str, str]
    """Mirrors, as for `--mirror FROM=TO`."""
    site: str | None
    """The site, as for `--site`."""
    site_of: str
    """The file or variable that sets it."""

    @cached_property
    def cache(self) -> Path:
        """Built layers, downloads, scratch: as large as a few images. The machine's places are read only now, so that a
        file system that hangs does not stop a command without a cache.

        A missing cache is created for this user only, whatever the umask: its writers control what is built.
        """
        path = Path(self.named or default_cache(self.environment)).absolute()
        with contextlib.suppress(OSError):  # reported when something is written to it
            path.mkdir(0o700, parents=True)
        return path


def read_settings(environment: Mapping[str, str]) -> UserSettings:
    """Return the settings; LUMIIMG_CACHE and LUMIIMG_SITE override the file. Without a named cache, a default is used.

    Raises DecodeError if the file is invalid.
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
    """Return the cache of the user who runs this. Raises DecodeError if the file of settings is invalid."""
    return read_settings(os.environ).cache


def ownership_problem(cache: Path) -> str | None:
    """Return who else may write to a cache, as the end of a sentence; None if nobody may."""
    try:
        seen = cache.stat()
    except OSError:
        return None
    if seen.st_uid != os.getuid():
        return "belongs to another user"
    return "can be written by others" if seen.st_mode & 0o022 else None


def default_cache(environment: Mapping[str, str], places: Path = _PLACES) -> Path:
    """Return the default folder of the cache: with a project that has disk space, else below $HOME.

    Of several projects, one that already has a cache is used, else the last, which has the highest number. All members
    of a project may write there, and the origin of layers in a cache is not checked: so the folder is created here, for
    this user alone, and one that somebody else created, or may write to, is skipped.
    """
    if named := environment.get("XDG_CACHE_HOME"):
        return Path(named) / "lumiimg"
    found = [path for place in read_toml(places, _Places).places for path in _caches(place)]
    found.reverse()
    found.sort(key=lambda path: not os.path.lexists(path))
    return next(filter(_is_ours, found), Path(environment.get("HOME", "/")) / ".cache" / "lumiimg")


def _caches(place: _Place) -> Iterator[Path]:
    """Yield paths of caches for which the folder above the user's own exists and is writable."""
    for group in sorted(filter(place.group.fullmatch, _groups()), key=lambda name: (len(name), name)):
        path = Path(place.path.format(group=group, user=_user()))
        if os.access(path.parents[1], os.W_OK | os.X_OK):
            yield path


def _is_ours(cache: Path) -> bool:
    """Create a cache and the folder above it, and return whether this user owns them, and nobody else may write."""
    try:
        for folder, mode in ((cache.parent, 0o755), (cache, 0o700)):  # the first may be open to the group
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode)
            seen = folder.lstat()
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
                return False
    except OSError:
        return False
    return not seen.st_mode & 0o022


def _groups() -> Iterator[str]:
    for number in {os.getgid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):  # a number without a name
            yield grp.getgrgid(number).gr_name


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
