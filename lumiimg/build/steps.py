"""What a build does, one step after the other, and how far the cache has it already.

A base that lumiimg makes takes minutes before its script runs. Its files are a step of their own, kept as a layer is:
where the script fails, or is changed, the next build begins with the script.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lumiimg.build.keys import layer_inputs, layer_key
from lumiimg.definition.definition import Definition, Sections, export
from lumiimg.image import ImageError
from lumiimg.image.sif import PartitionFormat, read_sif_file
from lumiimg.resolve.base_digest import stamp
from lumiimg.resolve.lock import LockedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.build.build_host import BuildHost
    from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache

BOOTSTRAP = "00-bootstrap"
"""The name of the first step, where a base is made in two."""


def steps_of(chain: Sequence[Definition], machine: BuildHost) -> tuple[Definition, ...]:
    """Return the steps of a chain: the definitions, with the files of the base before them where lumiimg makes these.

    Raises BadInputError if a base that is a file cannot be read.
    """
    base = chain[0]
    header = base.sections.header
    if content_below(base) or is_by_engine(base, machine):
        return tuple(chain)
    names = tuple(f"{name} (bootstrap)" for name in base.layers)
    files = replace(base, name=BOOTSTRAP, layers=names, sections=Sections(header), files=())
    return (files, *chain)


def is_by_engine(base: Definition, machine: BuildHost) -> bool:
    """Whether the engine builds a base, which then has what the definition says of it."""
    return not machine.makes_base(base.sections.header.agent) and not content_below(base)


def inputs_of(steps: Sequence[Definition], machine: BuildHost) -> list[dict[str, Any]]:
    """Return for each step what its result depends on, but the content of what is below it."""
    found, exports = [], list[str]()
    for at, step in enumerate(steps):
        found.append(layer_inputs(step, exports, machine))
        if at or not is_by_engine(step, machine):
            exports = [*exports, *map(export, step.sections.environment)]
    return found


def content_below(first: Definition) -> str:
    """Return the content of what layers are laid over as it is: a base that is a file here; nothing for another base.

    It is that of this machine's file: a copy of it, elsewhere, is another. Raises BadInputError if it cannot be read.
    """
    return stamp(first.origin) if first.origin is not None and can_be_below(first.origin) else ""


def can_be_below(image: Path) -> bool:
    """Whether layers can be laid over an image as it is: a SIF of one squashfs."""
    try:
        found = read_sif_file(image)
        return found.root_partition(str(image)).file_system == PartitionFormat.SQUASHFS and not found.overlays()
    except ImageError:
        return False


def content_with(content: str, entry: CacheEntry) -> str:
    """Return the content of what is below the next layer; `content` is that of what is below this one."""
    return hashlib.sha256(f"{content}{entry.sha256}".encode()).hexdigest()


def cached_prefix(
    inputs: Sequence[Mapping[str, Any]], content: str, find: Callable[[CacheKey], CacheEntry | None]
) -> list[CacheEntry]:
    """Return the results of the lowest steps, up to the first that is not there.

    `inputs` are those of `layer_inputs`, `content` that of what is below the first, `find` that of a cache. What a step
    that is not there will come to, and so what the keys of those above it are, nobody knows.
    """
    found: list[CacheEntry] = []
    for one in inputs:
        entry = find(layer_key(one, content))
        if entry is None:
            break
        found.append(entry)
        content = content_with(content, entry)
    return found


def sources_of(definition: Definition) -> list[LockedSource]:
    """Return what a layer needs that is fetched."""
    return [file.origin for file in definition.files if isinstance(file.origin, LockedSource)]


def sources_to_fetch(
    steps: Sequence[Definition], inputs: Sequence[Mapping[str, Any]], first: int, cache: LayerCache
) -> Iterator[LockedSource]:
    """Yield the sources of the steps that will be built, of which `first` is the number of the lowest.

    One over a step that is built again may be found all the same, if that comes to what it was. Where the cache has one
    of the same inputs, its sources are left to its turn.
    """
    if first == len(steps):
        return
    yield from sources_of(steps[first])
    kept = [cache.key_of(entry) for entry in cache.entries()] if first + 1 < len(steps) else []
    for step, made_of in zip(steps[first + 1 :], inputs[first + 1 :], strict=True):
        if not any(layer_key(made_of, key.get("content", "")).parts == key for key in kept):
            yield from sources_of(step)
