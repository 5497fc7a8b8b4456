"""Why a layer is not in the cache: its key beside the key of the one that is nearest."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lumiimg.build.fetch import content_with, lowest
from lumiimg.build.keys import layer_keys
from lumiimg.build.steps import content_below, steps_of
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
    from lumiimg.build.capabilities import BuildMachine
    from lumiimg.definition.definition import Definition

NOT_YET = "not known before the layers below are built"


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of a key that is another."""

    part: str
    """`parent`, `engine`, `owners`, `mksquashfs`, `origin`, `files/…`, `definition`; `content`: of what is below it."""
    lines: tuple[str, ...]
    """What changed, as a unified diff where it is a text."""


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """Why a layer would be built again, or that it would not."""

    layers: tuple[str, ...]
    """Of the catalogue, that the step makes."""
    entry: CacheEntry | None
    """The result, where it is there."""
    nearest: CacheEntry | None = None
    """Where there is none: the entry that is most like it."""
    differences: tuple[Difference, ...] = ()
    """In the order of the key."""
    base: CacheEntry | None = None
    """What all of it stands on, where that is there."""
    below: str | None = None
    """The layer that it lies on; null for a base."""

    @property
    def hit(self) -> bool:
        """Whether it is in the cache."""
        return self.entry is not None

    @property
    def exit_code(self) -> ExitCode:
        """The same."""
        return ExitCode.GOOD if self.hit else ExitCode.NO


def steps_to(layer: str, chain: Sequence[Definition], machine: BuildMachine) -> tuple[Definition, ...]:
    """Return the steps of a build up to that of a layer. Raises BadInputError for a layer that the image lacks."""
    steps = steps_of(chain, machine)
    names = [step.layers[0] for step in steps]
    if layer not in names:
        raise BadInputError(f"{layer!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")
    return steps[: names.index(layer) + 1]


def why_rebuilt(
    steps: Sequence[Definition], chain: Sequence[Definition], machine: BuildMachine, cache: LayerCache
) -> CacheLookup:
    """Answer for the last of the steps."""
    found = why(cache, layer_keys(steps, machine), steps[-1].layers, content_below(chain[0]))
    return replace(found, below=steps[-2].layers[0]) if len(steps) > 1 else found


def why(cache: LayerCache, keys: Sequence[CacheKey], layers: tuple[str, ...], content: str) -> CacheLookup:
    """Compare the last key, which is that of `layers`, with those of the same layer that are in the cache.

    The nearest has the fewest other lines. `keys` are those of all that is below it, too, and `content` that of what
    is below the first.
    """
    key, below = keys[-1], lowest(keys[:-1], cache.find, content)
    for entry in below:
        content = content_with(content, entry)
    is_known = len(below) == len(keys) - 1
    found = cache.find(key, content) if is_known else None
    base = next(iter(below), found if len(keys) == 1 else None)
    if found is not None:
        return CacheLookup(layers, found, base=base)
    others = [
        ([*differences(cache.key_of(entry), key.parts), *_below(entry, content, is_known=is_known)], entry)
        for entry in cache.entries()
        if entry.layers == layers
    ]
    if not others:
        return CacheLookup(layers, None, base=base)
    nearest, entry = min(others, key=lambda other: sum(len(one.lines) for one in other[0]))
    return CacheLookup(layers, None, entry, tuple(nearest), base)


def _below(entry: CacheEntry, content: str, *, is_known: bool) -> list[Difference]:
    """Return whether a result was built on another content than it would lie over."""
    if is_known and entry.below == content:
        return []
    now = content or "nothing"
    return [Difference("content", (f"- {entry.below or 'nothing'}", f"+ {now if is_known else NOT_YET}"))]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the parts in which two keys differ."""
    found = [
        Difference(part, (f"- {old.get(part, 'nothing')}", f"+ {new.get(part, 'nothing')}"))
        for part in ("format", "result", "engine", "owners", "mksquashfs", "origin", "parent")
        if old.get(part) != new.get(part)
    ]
    before, after = (files if isinstance(files := key.get("files"), dict) else {} for key in (old, new))
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            lines = (f"- {before.get(name, 'not there')}", f"+ {after.get(name, 'not there')}")
            found.append(Difference(f"files/{name.removeprefix('files/')}", lines))
    was, will = (str(key.get("definition", "")).splitlines() for key in (old, new))
    diff = [line for line in difflib.unified_diff(was, will, lineterm="", n=1) if not line.startswith(("---", "+++"))]
    return [*found, *([Difference("definition", tuple(diff))] if diff else [])]
