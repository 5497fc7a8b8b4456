"""Why a layer is not in the cache: its key beside the key of the one that is nearest."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lumiimg.build.keys import BuildStep, cached_prefix, content_below, content_with
from lumiimg.core.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def require_layer(layer: str, chain: Sequence[Definition]) -> None:
    """Raise BadInputError for a layer that the image lacks."""
    names = [definition.layers[0] for definition in chain]
    if layer not in names:
        raise BadInputError(f"{layer!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")


def why_rebuilt(layer: str, steps: Sequence[BuildStep], cache: LayerCache) -> CacheLookup:
    """Compare the step of a layer with what the cache has of the same layer; the nearest has the fewest other lines."""
    steps = steps[: [step.definition.layers[0] for step in steps].index(layer) + 1]
    *lower, step = steps
    layers = step.definition.layers
    found = cached_prefix(steps, cache.find)
    lookup = CacheLookup(
        layers,
        entry=found[-1] if len(found) == len(steps) else None,
        base=next(iter(found), None),
        below=lower[-1].definition.layers[0] if lower else None,
    )
    if lookup.hit:
        return lookup
    content = content_below(steps[0].definition)
    for entry in found:
        content = content_with(content, entry)
    wanted = step.key(content if len(found) == len(lower) else NOT_YET).parts
    others = [(differences(cache.key_of(entry), wanted), entry) for entry in cache.entries() if entry.layers == layers]
    if not others:
        return lookup
    nearest, entry = min(others, key=lambda other: sum(len(one.lines) for one in other[0]))
    return replace(lookup, nearest=entry, differences=tuple(nearest))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the parts in which two keys differ."""
    before, after = _texts(old), _texts(new)
    found = []
    for part in dict.fromkeys((*after, *before)):
        was, will = before.get(part, ""), after.get(part, "")
        lines = [f"- {was or 'nothing'}", f"+ {will or 'nothing'}"]
        if "\n" in f"{was}{will}":
            diff = difflib.unified_diff(was.splitlines(), will.splitlines(), lineterm="", n=1)
            lines = [line for line in diff if line[:3] not in {"---", "+++"}]
        if was != will:
            found.append(Difference(part, tuple(lines)))
    return found


def _texts(key: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of a key, each file as a part of its own."""
    files = key["files"] if isinstance(key.get("files"), dict) else {}
    parts = {part: str(value) for part, value in key.items() if part != "files"}
    return parts | {f"files/{name.removeprefix('files/')}": str(digest) for name, digest in files.items()}
