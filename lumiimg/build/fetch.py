"""Which sources a build will need, told before its first layer is built."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lumiimg.resolve.lock import LockedSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.build.cache import Entry, Key, LayerCache
    from lumiimg.definition.writer import Definition


def content_with(content: str, entry: Entry) -> str:
    """Return the content of what is below the next layer; `content` is that of what is below this one."""
    return hashlib.sha256(f"{content}{entry.sha256}".encode()).hexdigest()


def sources_of(definition: Definition) -> list[LockedSource]:
    """Return what a layer needs that is fetched."""
    return [file.origin for file in definition.files if isinstance(file.origin, LockedSource)]


def needed(chain: Sequence[Definition], keys: Sequence[Key], cache: LayerCache, content: str) -> Iterator[LockedSource]:
    """Yield the sources of the layers that will be built; `content` is that of what is below the first, if known.

    A layer over one that is built anew may be in the cache all the same, by the content of that one, which nobody knows
    yet. Where one was built from the same over another parent, it is left to its turn.
    """
    below: str | None = content
    kept: list[dict[str, object]] | None = None
    for definition, key in zip(chain, keys, strict=True):
        entry = cache.find(key, key.over(f"content:{below}") if below else None)
        if entry is not None:
            below = None if below is None else content_with(below, entry)
            continue
        if below is None and kept is None:
            kept = [{**cache.key_of(entry), "parent": ""} for entry in cache.entries()]
        if below is not None or {**key.parts, "parent": ""} not in (kept or []):
            yield from sources_of(definition)
        below = None
