"""What a build takes from the cache: read through, and held so that nobody can remove it meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache

TAKEN = "taken"
"""The folder in a build's scratch."""


class CacheLease:
    """The results that one build uses."""

    def __init__(self, cache: LayerCache, scratch: Path, on_notice: Callable[[str], None]) -> None:
        self._cache = cache
        self._folder = scratch / TAKEN
        self._notice = on_notice
        self._found: dict[tuple[str, str], CacheEntry] = {}

    def find(self, key: CacheKey, below: str) -> CacheEntry | None:
        """Return the result of a key, as `LayerCache.find`, if all of it is what it was: read, if it was touched.

        What is damaged is removed. Raises FailedError if it cannot be.
        """
        known = self._found.get((key.digest, below))
        if known is not None:
            return known
        entry = self._cache.find(key, below)
        if entry is None:
            return None
        held = self.hold(entry)
        if not self._cache.is_whole(held):
            self._notice(f"{', '.join(entry.layers)}: is damaged in the cache, and removed from it")
            self._cache.remove(entry.key)
            held.data.unlink(missing_ok=True)
            return None
        self._found[key.digest, below] = held
        return held

    def hold(self, entry: CacheEntry) -> CacheEntry:
        """Return an entry whose data is there until the build ends: another name of the same file, in its scratch.

        Where that cannot be (another file system, another user's cache), it is the entry as it is.
        """
        name = self._folder / f"{entry.key}{entry.data.suffix}"
        try:
            self._folder.mkdir(exist_ok=True)
            name.unlink(missing_ok=True)
            name.hardlink_to(entry.data)
        except OSError:
            return entry
        return replace(entry, data=name)
