"""What is said of the cache."""

from __future__ import annotations

from pathlib import Path

from msgspec import field

from lumiimg.build.cache_miss import Difference
from lumiimg.report.outputs.shape import Output, Shape


class CacheEntry(Shape):
    """One layer that is kept."""

    key: str
    """Of all that it was made from, sha256 in hexadecimal."""
    data: Path = field(name="file")
    """Where what it changed is kept."""
    sha256: str
    """Of that file, in hexadecimal."""
    size_bytes: int
    """Of that file."""
    layers: tuple[str, ...]
    """Of the catalogue, that it holds."""
    seconds: float
    """That it took to build."""


class UnpackedImage(Shape):
    """One file system of an image, unpacked where there is no FUSE to mount it, or one layer of an OCI image."""

    key: str
    """A digest of which file it was, and when that was written; of a layer, the hexadecimal digits of its digest."""
    image: str
    """Path of that file; of a layer, words that name its digest."""
    size_bytes: int
    """Of its files."""


class Cache(Output):
    """What is in the cache."""

    printed_by = "lumiimg cache ls --json"

    cache: Path
    """The folder."""
    size_bytes: int
    """Of all entries, and of all that is unpacked."""
    entries: tuple[CacheEntry, ...]
    """Layers that are kept."""
    unpacked: tuple[UnpackedImage, ...]
    """Images that were unpacked once."""


class CacheRemoved(Output):
    """What was removed from the cache."""

    printed_by = "lumiimg cache prune --json, lumiimg cache rm --json"

    removed: tuple[str, ...]
    """Keys of layers."""
    unpacked: tuple[str, ...]
    """Keys of images that were unpacked."""
    freed_bytes: int
    """That they took."""


class Fault(Shape):
    """One."""

    key: str
    """Of the entry."""
    fault: str
    """What is wrong."""


class CacheVerify(Output):
    """Which entries are not what they were."""

    printed_by = "lumiimg cache verify --json"

    checked: int
    """Entries that were read."""
    faults: tuple[Fault, ...]
    """Entries that are not what they were."""


class Why(Output):
    """Why a layer would be built again, or that it would not."""

    printed_by = "lumiimg build … --why LAYER --json"

    layers: tuple[str, ...]
    """Of the catalogue, that the step makes."""
    hit: bool
    """Whether it is in the cache."""
    entry: CacheEntry | None
    """The entry; null where there is none."""
    nearest: CacheEntry | None
    """Where there is none: the entry that is most like it."""
    differences: tuple[Difference, ...]
    """In the order of the key."""
