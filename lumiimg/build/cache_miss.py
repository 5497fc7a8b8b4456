"""Why a layer is not in the cache: its key beside the key of the one that is nearest."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lumiimg.build.keys import layer_key
from lumiimg.build.steps import cached_prefix, content_below, content_with, inputs_of, steps_of
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.build.build_host import BuildHost
    from lumiimg.build.cache import CacheEntry, LayerCache
    from lumiimg.definition.definition import Definition

NOT_YET = "not known before the layers below are built"


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of a key that is another."""

    part: str
    """`content` (of what is below it), `engine`, `owners`, `mksquashfs`, `origin`, `files/…`, `environment` (of the
    layers below), `definition`."""
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


def steps_to(layer: str, chain: Sequence[Definition], machine: BuildHost) -> tuple[Definition, ...]:
    """Return the steps of a build up to that of a layer. Raises BadInputError for a layer that the image lacks."""
    steps = steps_of(chain, machine)
    names = [step.layers[0] for step in steps]
    if layer not in names:
        raise BadInputError(f"{layer!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")
    return steps[: names.index(layer) + 1]


def why_rebuilt(
    steps: Sequence[Definition], chain: Sequence[Definition], machine: BuildHost, cache: LayerCache
) -> CacheLookup:
    """Answer for the last of the steps."""
    found = why(cache, inputs_of(steps, machine), steps[-1].layers, content_below(chain[0]))
    return replace(found, below=steps[-2].layers[0]) if len(steps) > 1 else found


def why(cache: LayerCache, inputs: Sequence[Mapping[str, Any]], layers: tuple[str, ...], content: str) -> CacheLookup:
    """Compare the last step, which is that of `layers`, with what the cache has of the same layer.

    The nearest has the fewest other lines. `inputs` are those of all that is below it, too, and `content` that of what
    is below the first.
    """
    below = cached_prefix(inputs[:-1], content, cache.find)
    for entry in below:
        content = content_with(content, entry)
    is_known = len(below) == len(inputs) - 1
    key = layer_key(inputs[-1], content)
    found = cache.find(key) if is_known else None
    base = next(iter(below), found if len(inputs) == 1 else None)
    if found is not None:
        return CacheLookup(layers, found, base=base)
    wanted = key.parts if is_known else {**key.parts, "content": NOT_YET}
    others = [(differences(cache.key_of(entry), wanted), entry) for entry in cache.entries() if entry.layers == layers]
    if not others:
        return CacheLookup(layers, None, base=base)
    nearest, entry = min(others, key=lambda other: sum(len(one.lines) for one in other[0]))
    return CacheLookup(layers, None, entry, tuple(nearest), base)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the parts in which two keys differ."""
    found = [
        Difference(part, (f"- {old.get(part) or 'nothing'}", f"+ {new.get(part) or 'nothing'}"))
        for part in ("format", "engine", "base", "owners", "mksquashfs", "origin", "plain_http", "gpus", "content")
        if old.get(part) != new.get(part)
    ]
    before, after = (files if isinstance(files := key.get("files"), dict) else {} for key in (old, new))
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            lines = (f"- {before.get(name, 'not there')}", f"+ {after.get(name, 'not there')}")
            found.append(Difference(f"files/{name.removeprefix('files/')}", lines))
    for part in ("environment", "definition"):
        was, will = (str(key.get(part, "")).splitlines() for key in (old, new))
        diff = [line for line in difflib.unified_diff(was, will, lineterm="", n=1) if line[:3] not in {"---", "+++"}]
        found += [Difference(part, tuple(diff))] if diff else []
    return found
