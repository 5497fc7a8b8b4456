"""Where releases that no row has are looked for, and what was found: values, without the code that looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.age import OLD_AFTER_DAYS
from lumiimg.catalog.templates import expand

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.catalog.layers import Release
    from lumiimg.catalog.settings import UserSettings
    from lumiimg.catalog.unlisted import Unlisted
    from lumiimg.resolve.network.mirrors import Mirrors
    from lumiimg.resolve.network.web import Web


@dataclass(frozen=True, slots=True)
class FoundReleases:
    """What a look for a version found."""

    releases: tuple[Release, ...] = ()
    nearest: str | None = None
    """What the index has instead, where it does not have the version; the releases are then of the nearest."""


@dataclass(frozen=True, slots=True)
class ReleaseIndexes:
    """Where releases are looked for."""

    general: Callable[[], str]
    """The index of everybody, or of this machine. Raises MissingHereError, BadInputError."""
    mirrors: Mirrors
    web: Web
    settings: UserSettings
    """They name the cache, whose place is looked at only where something is looked for."""
    on_line: Callable[[str], None]
    today: dt.date
    kept_days: int = OLD_AFTER_DAYS
    """How old what is kept may be before it is read again."""

    @property
    def cache(self) -> Path:
        """Of the user."""
        return self.settings.cache

    def index_of(self, rule: Unlisted, version: str = "") -> str:
        """Return the address of the index of a rule, for one version of it. Raises as `general` does."""
        return self.mirrors.rewrite(expand(rule.index, {"VERSION": version})) if rule.index else self.general()
