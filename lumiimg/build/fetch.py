"""Which sources a build will need, told before its first layer is built."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lumiimg.resolve.lock import LockedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
    from lumiimg.definition.definition import Definition


def content_with(content: str, entry: CacheEntry) -> str:
    """Return the content of what is below the next layer; `content` is that of what is below this one."""
    return hashlib.sha256(f"{content}{entry.sha256}".encode()).hexdigest()


def sources_of(definition: Definition) -> list[LockedSource]:
    """Return what a layer needs that is fetched."""
    return [file.origin for file in definition.files if isinstance(file.origin, LockedSource)]


def lowest(
    keys: Sequence[CacheKey], find: Callable[[CacheKey, str], CacheEntry | None], content: str
) -> list[CacheEntry]:
    """Return the results of the lowest layers, up to the first that is not there.

    `content` is that of what is below the first, `find` that of a cache. What a layer that is not there will come to,
    and so whether those above it can be used, nobody knows.
    """
    found: list[CacheEntry] = []
    for key in keys:
        entry = find(key, content)
        if entry is None:
            break
        found.append(entry)
        content = content_with(content, entry)
    return found


def needed(
    chain: Sequence[Definition], keys: Sequence[CacheKey], cache: LayerCache, content: str
) -> Iterator[LockedSource]:
    """Yield the sources of the layers that will be built; `content` is that of what is below the first.

    A layer over one that is built again may be used all the same, by the content of that one, which nobody knows yet.
    Where the cache has one of the same inputs, it is left to its turn.
    """
    first = len(lowest(keys, cache.find, content))
    if first == len(chain):
        return
    yield from sources_of(chain[first])
    kept = [{**cache.key_of(entry), "parent": ""} for entry in cache.entries()] if first + 1 < len(chain) else []
    for definition, key in zip(chain[first + 1 :], keys[first + 1 :], strict=True):
        if {**key.parts, "parent": ""} not in kept:
            yield from sources_of(definition)
