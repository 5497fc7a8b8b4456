"""The cost of a build (download, disk space, time), and whether the space is there. Nothing is guessed.

What is known about a base or a layer has one of three sources, the surest first: the cache; an earlier run of the same
script here; a recorded build in the ledger. Sizes of wheels are from the index, the size of a registry image is from
its manifest. Anything else is unknown, and reported as such.
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

_MIN_BYTES = 256 << 20
"""Space that a build needs besides its layers, for the engine's own copies."""
_UNPACKED = 3
"""Ratio of a root file system's size to that of its squashfs (measured: 2.2 to 3.2)."""
Known = Literal["cache", "here", "ledger", "file", "nothing"]


@dataclass(frozen=True, slots=True)
class PartCost:
    """The cost of one base or layer."""

    title: str
    """Its title, with its release."""
    known_by: Known
    """`cache`: it is cached; `here`: its script was run on this machine; `ledger`: from a recorded build; `file`: it is
    a base that is a local file; `nothing`."""
    download_bytes: int | None
    """Bytes that lumiimg still has to fetch, without what scripts fetch, for example by apt; null: not known."""
    size_bytes: int | None
    """Size in the cache, and at most in the image; null: not known."""
    seconds: float | None
    """Elapsed time; null: not known."""

    @property
    def new_bytes(self) -> int | None:
        """Bytes by which the cache will grow; null: not known."""
        return 0 if self.known_by in {"cache", "file"} else self.size_bytes


@dataclass(frozen=True, slots=True)
class PlaceNeed:
    """A folder that a build writes to."""

    use: Literal["cache", "output", "TMPDIR"]
    """What it is used for."""
    room: FreeSpace
    """Free space there."""
    needed_bytes: int
    """Bytes that are known to be needed there, a lower bound if not everything is known."""

    @property
    def hint(self) -> str:
        """What to do if it is full."""
        return {"cache": MOVE_CACHE, "output": MOVE_OUTPUT, "TMPDIR": SET_TMPDIR}[self.use]


@dataclass(frozen=True, slots=True)
class Lacking:
    """Missing disk space."""

    place: PlaceNeed
    """The folder that needs most of it."""
    needed_bytes: int
    """Bytes needed in total on its file system."""
    missing_bytes: int
    """Bytes of these that are not free."""

    @property
    def sentence(self) -> str:
        """The needed, free and missing space in a sentence."""
        room = self.place.room
        where = "free in memory (it is a tmpfs)" if room.in_memory else "free"
        needs = f"the build needs about {size(self.needed_bytes)}, but only {size(room.left_bytes)} is {where}"
        return f"{needs}: {size(self.missing_bytes)} is missing"


@dataclass(frozen=True, slots=True)
class BuildCost:
    """The cost of a build; null where it is not known."""

    parts: tuple[PartCost, ...]
    """Costs of the base and the layers, the base first."""
    places: tuple[PlaceNeed, ...]
    """The folders that need space, and how much is free there."""

    @property
    def download_bytes(self) -> int | None:
        """Total download of the parts for which it is known; null: known for none."""
        return _sum(part.download_bytes for part in self.parts)

    @property
    def cache_bytes(self) -> int | None:
        """Growth of the cache by the parts for which it is known; null: known for none."""
        return _sum(part.new_bytes for part in self.parts)

    @property
    def image_bytes(self) -> int | None:
        """Upper limit of the image size by the known parts, as it omits hidden files; null: known for none."""
        return _sum(part.size_bytes for part in self.parts)

    @property
    def seconds(self) -> float | None:
        """Total time of the parts for which it is known; null: known for none."""
        found = [part.seconds for part in self.parts if part.seconds is not None]
        return sum(found) if found else None

    @property
    def lacking(self) -> Lacking | None:
        """The missing space on the first file system that is too small for the known needs; null: none is known."""
        devices = [place.room.folder.stat().st_dev for place in self.places]
        for device in dict.fromkeys(devices):
            same = [place for place, at in zip(self.places, devices, strict=True) if at == device]
            needed, left = sum(one.needed_bytes for one in same), min(one.room.left_bytes for one in same)
            if needed > left:
                return Lacking(max(same, key=lambda one: one.needed_bytes), needed, needed - left)
        return None

    def require_room(self) -> None:
        """Raise FailedError, early and with a remedy, if the space known to be needed is not free."""
        if (found := self.lacking) is not None:
            raise FailedError(found.sentence, where=str(found.place.room.folder), hint=found.place.hint)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The image that would be built."""

    plan: Lock
    """Its plan."""
    definitions: tuple[Definition, ...]
    """The chain, in order."""
    cost: BuildCost
    """The cost of its parts; null where it is not known."""


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """The answer to a request, and what its image would cost."""

    plan: Plan
    cost: BuildCost | None
    """Cost of the image; null if the request is refused, or its base is not available here."""


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

    `steps`: the steps of the machine that builds, if that is known; `scratch`: where it unpacks, by default in the
    cache; `unpacks_all`: whether all layers are unpacked there at once.

    Raises BadInputError or FailedError if a folder or a base cannot be read.
    """
    layers, base, temporary = LayerCache(cache), chain[0], temporary_folder()
    parts = tuple(_parts(lock, chain, layers, steps or steps_of(chain)))
    unpacked = [part.size_bytes or 0 for part in parts if unpacks_all or part.new_bytes != 0]
    needed_bytes = _UNPACKED * (sum(unpacked) if unpacks_all else max(unpacked, default=0)) + _MIN_BYTES
    if base.origin is not None and base.origin.is_file() and not _is_below(base) and not unpacks_all:
        needed_bytes += _UNPACKED * base.origin.stat().st_size
    in_cache_bytes = (_sum(part.new_bytes for part in parts) or 0) + (_sum(part.download_bytes for part in parts) or 0)
    # the script of a base removes leftovers of debootstrap: the image may have less than the base that was made
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
    """The result of a base or a layer, over its one or two steps."""

    size_bytes: int
    seconds: float


def measured(lock: Lock, chain: Sequence[Definition], cache: Path) -> Iterator[tuple[int | None, int, float]]:
    """Yield, for the ledger, the costs of base and layers up to the first whose result is not in the cache: bytes of
    downloads if the cache has all of them, bytes of the result, seconds.
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
    there, before = _cached_results(steps, len(chain), cache), _last_results(steps, len(chain), cache)
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
    """Return the cached results of a chain of `length` definitions, from the base up to the first that is missing.

    Steps without a machine are compared by the other parts of the keys.
    """
    known = [(entry, cache.key_of(entry).items()) for entry in cache.entries()]

    def find(key: CacheKey) -> CacheEntry | None:
        return next((entry for entry, parts in known if key.parts.items() <= parts), None)

    found = cached_prefix(steps, find)
    first = len(steps) - length + 1  # if lumiimg makes the files of the base, that is a separate step
    groups = [found[:first], *([one] for one in found[first:])] if len(found) >= first else []
    return [_result(group) for group in groups]


def _last_results(steps: Sequence[BuildStep], length: int, cache: LayerCache) -> dict[int, _Result]:
    """Return, by position in the chain, the results of base and layers from the last run of their scripts here,
    whatever was below.
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
    """Return whether a base is a local file that layers are built over as it is, and that is merged into the image."""
    return base.origin is not None and content_below(base) != "" and can_merge([base.origin])


def _download(lock: Lock, layer: LockedLayer, cache: Path) -> int | None:
    """Return the bytes that lumiimg still has to fetch for a base or a layer; None if that is not known."""
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
    """Return the path of a fetched source or wheel in a cache."""
    return cache / "sources" / f"{source.sha256}"


def _recorded(layer: LockedLayer) -> Iterator[LedgerEntry]:
    """Yield the ledger's entries for a base or layer; none if it has other sources than those recorded."""
    if not layer.others:
        yield from trials_of(layer.layer, layer.release)


def _sum(found: Iterable[int | None]) -> int | None:
    known = [one for one in found if one is not None]
    return sum(known) if known else None
