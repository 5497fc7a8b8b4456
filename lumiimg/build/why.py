"""Why a layer is not in the cache: its key beside the key of the one that is nearest."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.build.cache import Entry, Key, LayerCache


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of a key that is another."""

    part: str
    """`parent`, `engine`, `origin`, `files/…`, `definition`."""
    lines: tuple[str, ...]
    """What changed, as a unified diff where it is a text."""


@dataclass(frozen=True, slots=True)
class Why:
    """The answer for one layer."""

    layers: tuple[str, ...]
    entry: Entry | None
    """The result, where it is there."""
    nearest: Entry | None = None
    differences: tuple[Difference, ...] = ()


def why(cache: LayerCache, key: Key, layers: tuple[str, ...]) -> Why:
    """Compare a key with those of the same layer that are in the cache; the nearest has the fewest other lines."""
    found = cache.find(key)
    if found is not None:
        return Why(layers, found)
    others = [
        (differences(cache.key_of(entry), key.parts), entry) for entry in cache.entries() if entry.layers == layers
    ]
    if not others:
        return Why(layers, None)
    nearest, entry = min(others, key=lambda other: sum(len(one.lines) for one in other[0]))
    return Why(layers, None, entry, tuple(nearest))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the parts in which two keys differ."""
    found = [
        Difference(part, (f"- {old.get(part, 'nothing')}", f"+ {new.get(part, 'nothing')}"))
        for part in ("format", "result", "engine", "origin", "parent")
        if old.get(part) != new.get(part)
    ]
    before, after = old.get("files") or {}, new.get("files") or {}
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            lines = (f"- {before.get(name, 'not there')}", f"+ {after.get(name, 'not there')}")
            found.append(Difference(f"files/{name.removeprefix('files/')}", lines))
    was, will = (str(key.get("definition", "")).splitlines() for key in (old, new))
    diff = [line for line in difflib.unified_diff(was, will, lineterm="", n=1) if not line.startswith(("---", "+++"))]
    return [*found, *([Difference("definition", tuple(diff))] if diff else [])]
