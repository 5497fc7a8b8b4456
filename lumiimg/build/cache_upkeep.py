"""What the cache has of layers, built and of OCI images: listed, read again, and removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lumiimg.build.cache import FORMAT, CacheEntry, CacheKey, LayerCache
from lumiimg.core.errors import BadInputError, ExitCode, FailedError
from lumiimg.image.oci.layers import UnpackedLayer, unpacked_layers

_LEAST_DIGITS = 6
"""Of a key."""


@dataclass(frozen=True, slots=True)
class CacheContent:
    """What is in the cache."""

    cache: Path
    """The folder."""
    entries: tuple[CacheEntry, ...]
    """Layers that are kept."""
    unpacked: tuple[UnpackedLayer, ...]
    """Layers of OCI images, unpacked."""

    @property
    def size_bytes(self) -> int:
        """Of all entries, and of all that is unpacked."""
        return sum(entry.size_bytes for entry in self.entries) + sum(layer.size_bytes for layer in self.unpacked)


@dataclass(frozen=True, slots=True)
class CacheRemoved:
    """What was removed from the cache."""

    removed: tuple[str, ...]
    """Keys of layers."""
    unpacked: tuple[str, ...]
    """Keys of layers of OCI images."""
    freed_bytes: int
    """That they took."""


@dataclass(frozen=True, slots=True)
class CacheFault:
    """One."""

    key: str
    """Of the entry."""
    fault: str
    """What is wrong."""


@dataclass(frozen=True, slots=True)
class CacheVerified:
    """Which entries are not what they were."""

    checked: int
    """Entries that were read."""
    faults: tuple[CacheFault, ...]
    """Entries that are not what they were."""

    @property
    def exit_code(self) -> ExitCode:
        """Good where all are what they were."""
        return ExitCode.NO if self.faults else ExitCode.GOOD


def content_of(cache: LayerCache) -> CacheContent:
    """Return what is in a cache."""
    return CacheContent(cache.root, tuple(cache.entries()), tuple(unpacked_layers(cache.root)))


def verify(cache: LayerCache) -> CacheVerified:
    """Read the data of all entries, and return which is not what it was."""
    return CacheVerified(len(list(cache.entries())), tuple(_faults(cache)))


def _faults(cache: LayerCache) -> Iterator[CacheFault]:
    for key in cache.names():
        if cache.format_of(key) not in {0, FORMAT}:  # of another lumiimg
            continue
        entry = cache.read(key)
        if entry is None:
            yield CacheFault(key, "cannot be read, or has another size than it had")
        elif not entry.is_whole:
            yield CacheFault(key, "its content has changed")
        elif CacheKey(cache.key_of(entry)).digest != key:
            yield CacheFault(key, "does not match its name")
    for layer in unpacked_layers(cache.root):
        if not layer.is_whole:
            yield CacheFault(layer.key, "the content of a layer of an OCI image has changed")


def prune(cache: LayerCache, keep_bytes: int | None) -> CacheRemoved:
    """Remove what is damaged, then the longest unused until `keep_bytes` are left.

    What a newer lumiimg has kept stays. Raises FailedError at the end if something cannot be removed.
    """
    unpacked = {layer.key: layer for layer in unpacked_layers(cache.root)}
    kept = {entry.key: entry for entry in cache.entries()} | unpacked
    damaged = {*cache.names()}.difference(kept, cache.newer())
    damaged |= {key for key, layer in unpacked.items() if not layer.is_whole}
    left, refused, gone = sum(one.size_bytes for one in kept.values()), None, dict[str, int]()
    for key in (*sorted(damaged), *sorted(kept.keys() - damaged, key=lambda key: (kept[key].used_ns, key))):
        if key not in damaged and (keep_bytes is None or left <= keep_bytes):
            break
        try:
            if key in unpacked:
                unpacked[key].remove()
            else:
                cache.remove(key)
        except FailedError as error:  # the others can go
            refused = error
            continue
        gone[key] = kept[key].size_bytes if key in kept else 0
        left -= gone[key]
    cache.sweep()
    if refused is not None:
        raise refused
    layers = tuple(key for key in gone if key not in unpacked)
    return CacheRemoved(layers, tuple(key for key in gone if key in unpacked), sum(gone.values()))


def remove(cache: LayerCache, wanted: Sequence[str]) -> CacheRemoved:
    """Remove the entries whose layer or key (six digits or more of it) is wanted; by key also what cannot be read.

    Raises BadInputError for a name that nothing has.
    """
    entries = {key: cache.read(key) for key in cache.names()}
    going: dict[str, CacheEntry | None] = {}
    for name in wanted:
        found = {key: entry for key, entry in entries.items() if _is_called(name, key, entry)}
        if not found:
            raise BadInputError(f"the cache has no {name!r}", hint="lumiimg cache ls")
        going |= found
    for key in going:
        cache.remove(key)
    return CacheRemoved(tuple(going), (), sum(entry.size_bytes for entry in going.values() if entry))


def _is_called(name: str, key: str, entry: CacheEntry | None) -> bool:
    return (entry is not None and name in entry.layers) or (len(name) >= _LEAST_DIGITS and key.startswith(name))
