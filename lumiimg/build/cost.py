"""What a build will cost: download, disk, time; and whether it fits where it will be needed. Nothing of it is guessed.

What is known of a base or a layer is of three kinds, the surest first: it is in the cache; the same script was run here
before; the ledger has what it took where it was recorded as built. Sizes of wheels are the index's, that of an image in
a registry is of its manifest. What is of none of these is not known, and said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
from lumiimg.build.keys import cached_prefix, content_below, steps_of
from lumiimg.build.merge import can_merge
from lumiimg.catalog.ledger import trials_of
from lumiimg.core.errors import FailedError
from lumiimg.core.files import SET_TMPDIR, temporary_folder
from lumiimg.core.text import size
from lumiimg.engine.room import FreeSpace, room_at
from lumiimg.engine.workspace import MOVE_CACHE, MOVE_OUTPUT
from lumiimg.resolve.bootstrap import known_size
from lumiimg.resolve.lock import wants_python

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.build.keys import BuildStep
    from lumiimg.catalog.ledger import LedgerEntry
    from lumiimg.definition.definition import Definition
    from lumiimg.resolve.lock import Lock, LockedLayer, LockedSource
    from lumiimg.resolve.plan import Plan

_LEAST_BYTES = 256 << 20
"""What a build writes besides its layers: the engine's own copies."""
_UNPACKED = 3
"""Bytes of a root file system to one of its squashfs (measured: 2.2 to 3.2)."""
Known = Literal["cache", "here", "ledger", "file", "nothing"]


@dataclass(frozen=True, slots=True)
class PartCost:
    """What one base or layer will cost."""

    title: str
    """With its release."""
    known_by: Known
    """`cache`: it is there; `here`: its script was run on this machine; `ledger`: from a recorded build; `file`: a base
    that is a file here; `nothing`."""
    download_bytes: int | None
    """Still to be fetched by lumiimg; what scripts fetch, as by apt, is not counted. null: not known."""
    size_bytes: int | None
    """In the cache, and at most in the image; null: not known."""
    seconds: float | None
    """By the clock; null: not known."""

    @property
    def new_bytes(self) -> int | None:
        """That the cache will hold more; null: not known."""
        return 0 if self.known_by in {"cache", "file"} else self.size_bytes


@dataclass(frozen=True, slots=True)
class PlaceNeed:
    """A folder that a build writes to."""

    use: Literal["cache", "output", "TMPDIR"]
    """What for."""
    room: FreeSpace
    """What is left there."""
    needed_bytes: int
    """That are known to be needed there; more where not all is known."""

    @property
    def hint(self) -> str:
        """What to do where it is full."""
        return {"cache": MOVE_CACHE, "output": MOVE_OUTPUT, "TMPDIR": SET_TMPDIR}[self.use]


@dataclass(frozen=True, slots=True)
class Lacking:
    """Room that is missing."""

    place: PlaceNeed
    """Where most of it is needed."""
    needed_bytes: int
    """By all that is written on its file system."""
    missing_bytes: int
    """Of that, what is not free."""

    @property
    def sentence(self) -> str:
        """Both, and what is free."""
        room = self.place.room
        where = "in memory (it is a tmpfs)" if room.in_memory else "free"
        needs = f"the build needs about {size(self.needed_bytes)}, and {size(room.left_bytes)} are {where}"
        return f"{needs}: {size(self.missing_bytes)} are missing"


@dataclass(frozen=True, slots=True)
class BuildCost:
    """What a build will cost; null where nobody knows."""

    parts: tuple[PartCost, ...]
    """Base first."""
    places: tuple[PlaceNeed, ...]
    """Where it will be needed, and what is free there."""

    @property
    def download_bytes(self) -> int | None:
        """Of all parts of which it is known; null: of none."""
        return _sum(part.download_bytes for part in self.parts)

    @property
    def cache_bytes(self) -> int | None:
        """That the cache will hold more, of all parts of which it is known; null: of none."""
        return _sum(part.new_bytes for part in self.parts)

    @property
    def image_bytes(self) -> int | None:
        """Of the image at most, of all parts of which it is known; null: of none. What a layer hides is not in it."""
        return _sum(part.size_bytes for part in self.parts)

    @property
    def seconds(self) -> float | None:
        """Of all parts of which it is known; null: of none."""
        found = [part.seconds for part in self.parts if part.seconds is not None]
        return sum(found) if found else None

    @property
    def lacking(self) -> Lacking | None:
        """The file system that is too small for what is known; null: no such problem is known."""
        devices = [place.room.folder.stat().st_dev for place in self.places]
        for device in dict.fromkeys(devices):
            same = [place for place, at in zip(self.places, devices, strict=True) if at == device]
            needed, left = sum(one.needed_bytes for one in same), min(one.room.left_bytes for one in same)
            if needed > left:
                return Lacking(max(same, key=lambda one: one.needed_bytes), needed, needed - left)
        return None

    def require_room(self) -> None:
        """Raise FailedError where what is known to be needed does not fit: early, and with what to do."""
        if (found := self.lacking) is not None:
            raise FailedError(found.sentence, where=str(found.place.room.folder), hint=found.place.hint)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What would be built."""

    plan: Lock
    """Of it."""
    definitions: tuple[Definition, ...]
    """The chain, in order."""
    cost: BuildCost
    """Its parts; null where not known."""


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """The answer to a request, and what its image would cost."""

    plan: Plan
    cost: BuildCost | None
    """null where it is refused, or its base cannot be had here."""


def cost_of(
    lock: Lock,
    chain: Sequence[Definition],
    cache: Path,
    output: Path,
    *,
    steps: Sequence[BuildStep] | None = None,
    scratch: Path | None = None,
    unpacks_all: bool = False,
) -> BuildCost:
    """Return what it costs to build a chain into the file `output`.

    `steps` are those of the machine that builds, where that is known; `scratch` is where it unpacks, in the cache if
    nothing is said; `unpacks_all`: whether all layers are unpacked there at once.

    Raises BadInputError, FailedError for a folder or a base that cannot be read.
    """
    layers, base, temporary = LayerCache(cache), chain[0], temporary_folder()
    parts = tuple(_parts(lock, chain, layers, steps or steps_of(chain)))
    unpacked = [part.size_bytes or 0 for part in parts if unpacks_all or part.new_bytes != 0]
    needed_bytes = _UNPACKED * (sum(unpacked) if unpacks_all else max(unpacked, default=0)) + _LEAST_BYTES
    if base.origin is not None and base.origin.is_file() and not _is_below(base) and not unpacks_all:
        needed_bytes += _UNPACKED * base.origin.stat().st_size
    in_cache_bytes = (_sum(part.new_bytes for part in parts) or 0) + (_sum(part.download_bytes for part in parts) or 0)
    # a script of a base takes away what debootstrap leaves: of a base that is made, less may be in the image
    woven = [part.size_bytes for part in (parts if parts[0].known_by == "file" else parts[1:])]
    in_tmpdir = scratch == temporary
    places = (
        PlaceNeed("cache", room_at(cache), in_cache_bytes + (0 if in_tmpdir else needed_bytes)),
        PlaceNeed("output", room_at(output.absolute().parent), _sum(woven) or 0),
        PlaceNeed("TMPDIR", room_at(temporary), needed_bytes if in_tmpdir else 0),
    )
    return BuildCost(parts, places)


@dataclass(frozen=True, slots=True)
class _Result:
    """What a base or a layer came to, in one step or two."""

    size_bytes: int
    seconds: float


def measured(lock: Lock, chain: Sequence[Definition], cache: Path) -> Iterator[tuple[int | None, int, float]]:
    """Yield what base and layers took whose results are in a cache, up to the first that is not: bytes of downloads,
    where all of them are there, bytes of the result, seconds. For the ledger.
    """
    layers = LayerCache(cache)
    for layer, result in zip(lock.stack, _cached_results(steps_of(chain), len(chain), layers), strict=False):
        files = [_source_file(one, cache) for one in (*layer.sources, *layer.wheels)]
        is_fetched = layer is not lock.base and all(file.is_file() for file in files)
        fetched = sum(file.stat().st_size for file in files) if is_fetched else None
        yield fetched, result.size_bytes, result.seconds


def _parts(
    lock: Lock, chain: Sequence[Definition], cache: LayerCache, steps: Sequence[BuildStep]
) -> Iterator[PartCost]:
    there, before = _cached_results(steps, len(chain), cache), _before(steps, len(chain), cache)
    for at, layer in enumerate(lock.stack):
        download = _download(lock, layer, cache.root)
        trial = next((one for one in _recorded(layer) if one.size_bytes is not None), None)
        origin = chain[0].origin
        if not at and origin is not None and _is_below(chain[0]):
            yield PartCost(layer.title, "file", 0, origin.stat().st_size, 0.0)
        elif at < len(there):
            yield PartCost(layer.title, "cache", 0, there[at].size_bytes, 0.0)
        elif (own := before.get(at)) is not None:
            yield PartCost(layer.title, "here", download, own.size_bytes, own.seconds)
        elif trial is not None:
            download = trial.download_bytes if download is None else download
            yield PartCost(layer.title, "ledger", download, trial.size_bytes, trial.seconds)
        else:
            yield PartCost(layer.title, "nothing", download, None, None)


def _cached_results(steps: Sequence[BuildStep], length: int, cache: LayerCache) -> list[_Result]:
    """Return the results of the lowest base and layers, of a chain of such a length, that are in the cache.

    Steps of no machine are compared by all else that keys say.
    """
    known = [(entry, cache.key_of(entry).items()) for entry in cache.entries()]

    def find(key: CacheKey) -> CacheEntry | None:
        return next((entry for entry, parts in known if key.parts.items() <= parts), None)

    found = cached_prefix(steps, find)
    first = len(steps) - length + 1  # where lumiimg makes the files of the base, these are a step of their own
    groups = [found[:first], *([one] for one in found[first:])] if len(found) >= first else []
    return [_result(group) for group in groups]


def _before(steps: Sequence[BuildStep], length: int, cache: LayerCache) -> dict[int, _Result]:
    """Return what base and layers came to when their scripts were run here the last time, on whatever, by their places
    in the chain.
    """
    newest, wanted = dict[str, CacheEntry](), {step.definition.layers: step for step in steps}
    with suppress(OSError):  # an entry is removed meanwhile
        for entry in sorted(cache.entries(), key=lambda one: one.made_s):
            step = wanted.get(entry.layers)
            if step is not None and cache.key_of(entry).get("definition") == step.inputs["definition"]:
                newest[step.name] = entry
    first = len(steps) - length + 1
    groups = [steps[:first], *([step] for step in steps[first:])]
    found = ([newest[step.name] for step in group if step.name in newest] for group in groups)
    return {at: _result(one) for at, one in enumerate(found) if len(one) == len(groups[at])}


def _result(entries: Sequence[CacheEntry]) -> _Result:
    return _Result(sum(one.size_bytes for one in entries), sum(one.seconds for one in entries))


def _is_below(base: Definition) -> bool:
    """Whether layers are laid over a base that is a file here, as it is, and woven with it into the image."""
    return base.origin is not None and content_below(base) != "" and can_merge([base.origin])


def _download(lock: Lock, layer: LockedLayer, cache: Path) -> int | None:
    """Return what lumiimg has still to fetch for a base or a layer; None where that is not known."""
    if layer is lock.base and lock.bootstrap.image is not None:
        return known_size(lock.bootstrap.image, cache)
    if layer is lock.base and lock.bootstrap.agent == "debootstrap":
        return None
    if not lock.resolved and wants_python(layer):
        return None
    if not all(_source_file(one, cache).is_file() for one in layer.sources):
        return None
    there = [file for file in (_source_file(one, cache) for one in layer.wheels) if file.is_file()]
    if len(there) == len(layer.wheels):
        return 0
    return None if layer.wheel_bytes is None else layer.wheel_bytes - sum(file.stat().st_size for file in there)


def _source_file(source: LockedSource, cache: Path) -> Path:
    """Return where a cache has a source or a wheel once it is fetched."""
    return cache / "sources" / f"{source.sha256}"


def _recorded(layer: LockedLayer) -> Iterator[LedgerEntry]:
    """Yield what the ledger has of a base or layer; of one from other sources than it knows, nothing."""
    if not layer.others:
        yield from trials_of(layer.layer, layer.release)


def _sum(found: Iterable[int | None]) -> int | None:
    known = [one for one in found if one is not None]
    return sum(known) if known else None
