"""Cache of layer results, stored by what they were made from.

    layers/<key>/key.json     the parts of the key, to explain why a lookup missed
                 entry.json   size, digest, build time
                 data.sif | data.sqfs | data.tar (the compile cache of a layer's script)
    work/                     where results are written before they are stored

A key includes the content below the layer. Entries are folders that appear by one rename: a reader sees a whole entry
or nothing, also on file systems without locks (NFS, Lustre without flock). An entry cut short by a crash is detected by
its digest, which is checked before use. Two concurrent builds of one layer both do the work; one result is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lumiimg.core.errors import BadInputError, ExitCode, FailedError
from lumiimg.core.files import file_sha256, read_beginning
from lumiimg.engine.workspace import remove_files, remove_left, scratch_folder
from lumiimg.fetch.pull import FetchedImage, fetched_images
from lumiimg.image.oci.layers import UnpackedLayer, unpacked_layers

FORMAT = 3
_NAMES = ("data.sif", "data.sqfs", "data.tar")
_GONE = re.compile(r"\.[0-9a-f]{64}\.\w+")
"""Folders that are being removed."""
_FILES = re.compile(r"(key|entry)\.json|data\.(sif|sqfs|tar)|\.\w+\.json\.[0-9a-f]{16}")
"""The files of an entry, and those that a killed process may have left in one."""
_BY_HAND = "it contains files that lumiimg did not write; check it, and remove it manually"
_DOCUMENT_LIMIT_BYTES = 64 << 20
_MIN_DIGITS = 6
"""Minimum length of an abbreviated key."""
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything that the result of a layer depends on."""

    parts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The name of the key's entry."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One cached result."""

    key: _Sha256
    """SHA-256, in hexadecimal, over everything that it was made from."""
    data: Path
    """The file with the changes that the layer made."""
    sha256: _Sha256
    """Digest of the data, which goes into the keys of the layers above."""
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Size of the data file."""
    layers: tuple[str, ...]
    """The catalogue layers that it contains."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Build time."""

    @property
    def made_s(self) -> float:
        """When its data was written, in seconds since 1970. Raises OSError."""
        return self.data.stat().st_mtime

    @property
    def used_ns(self) -> int:
        """When a build last used it, in nanoseconds since 1970. Raises OSError."""
        return self.data.with_name("entry.json").stat().st_mtime_ns

    @property
    def is_intact(self) -> bool:
        """Whether its data is unchanged to the byte; also false if it has just been removed."""
        try:
            return file_sha256(self.data) == self.sha256
        except BadInputError:
            return False


class LayerCache:
    """A cache that several builds on several machines may use at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._layers = root / "layers"

    def find(self, key: CacheKey) -> CacheEntry | None:
        """Return the result of a key; None if there is none."""
        found = self.read(key.digest)
        if found is not None:
            # prune removes the least recently used first; a cache that only others may write to is still used
            with contextlib.suppress(OSError):
                os.utime(found.data.with_name("entry.json"))
        return found

    def entries(self) -> Iterator[CacheEntry]:
        """Yield all readable entries."""
        for key in self.names():
            entry = self.read(key)
            if entry is not None:
                yield entry

    def names(self) -> list[str]:
        """Return the keys of all entries, including unreadable ones."""
        return sorted(folder.name for folder in self._layers.glob("*"))

    def seconds(self) -> dict[tuple[str, ...], float]:
        """Return the time of each layer's last build."""
        found: dict[tuple[str, ...], tuple[float, float]] = {}
        for entry in self.entries():
            with contextlib.suppress(OSError):  # removed meanwhile
                found[entry.layers] = max(found.get(entry.layers, (0.0, 0.0)), (entry.made_s, entry.seconds))
        return {layers: seconds for layers, (_, seconds) in found.items()}

    def key_of(self, entry: CacheEntry) -> dict[str, Any]:
        """Return the parts of an entry's key; an empty dict if they are damaged."""
        try:
            return read_object(self._layers / entry.key / "key.json")
        except (OSError, ValueError):
            return {}

    def newer(self) -> list[str]:
        """Return the keys of entries of a newer lumiimg, which this one cannot use and does not prune."""
        return [key for key in self.names() if self.format_of(key) > FORMAT]

    def format_of(self, key: str) -> int:
        """Return the format of an entry; 0 if it cannot be read."""
        try:
            written = read_object(self._layers / key / "entry.json").get("format")
        except (OSError, ValueError):
            return 0
        return written if type(written) is int else 0

    def read(self, key: str) -> CacheEntry | None:
        """Return an entry; None if it is unreadable, of another format or key, or its data has the wrong size."""
        folder = self._layers / key
        try:
            document = read_object(folder / "entry.json")
            if document["data"] not in _NAMES or document.get("key", key) != key or document["format"] != FORMAT:
                return None
            found = msgspec.convert({**document, "key": key, "data": folder / document["data"]}, CacheEntry)
            seen = found.data.lstat()
        except (OSError, ValueError, KeyError):
            return None
        return found if stat.S_ISREG(seen.st_mode) and seen.st_size == found.size_bytes else None

    @contextlib.contextmanager
    def building(self) -> Iterator[Path]:
        """Yield a new folder for a result, on the file system of the cache.

        Raises FailedError if the cache cannot be written.
        """
        with scratch_folder(self.root / "work") as folder:
            yield folder

    def store(
        self, key: CacheKey, data: Path, *, layers: tuple[str, ...], seconds: float, replaces: bool = False
    ) -> CacheEntry:
        """Move a result into the cache, and return its entry, or the one that a faster build has stored.

        The complete result replaces a damaged entry, or any entry with `replaces`.
        Raises FailedError if the cache cannot be written.
        """
        folder, target = data.parent / f"entry-{key.digest[:12]}", self._layers / key.digest
        try:
            folder.mkdir()
            size_bytes, sha256 = data.stat().st_size, file_sha256(data)
            data = data.rename(folder / f"data{data.suffix}")
            entry = CacheEntry(key.digest, data, sha256, size_bytes, layers, round(seconds, 3))
            document = {"format": FORMAT, **asdict(entry), "data": data.name}
            (folder / "key.json").write_text(json.dumps(key.parts, indent=1, sort_keys=True), encoding="utf-8")
            (folder / "entry.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
            self._layers.mkdir(parents=True, exist_ok=True)
            if replaces or self.read(key.digest) is None:
                self.remove(key.digest)
            try:
                folder.rename(target)
            except OSError:
                if self.read(key.digest) is None:
                    raise
        except OSError as error:
            what = f"cannot be written: {error.strerror or error}"
            hint = "LUMIIMG_CACHE names the folder for layers"
            raise FailedError(what, where=str(self.root), hint=hint) from error
        found = self.read(key.digest)
        if found is None:
            raise FailedError("the entry that was just written cannot be read", where=str(target))
        return found

    def pin(self, entry: CacheEntry, folder: Path) -> CacheEntry:
        """Return an entry with a hard link to its data in `folder`, which nobody else removes.

        Where no link can be made (another file system, another user's cache), the entry is returned unchanged.
        """
        name = folder / f"{entry.key}{entry.data.suffix}"
        try:
            folder.mkdir(exist_ok=True)
            name.unlink(missing_ok=True)
            name.hardlink_to(entry.data)
        except OSError:
            return entry
        return replace(entry, data=name)

    def sweep(self) -> None:
        """Remove leftovers of killed builds: partly removed entries, and work folders."""
        for gone in self.root.glob(".*"):
            if _GONE.fullmatch(gone.name):
                remove_files(gone, _FILES)
        remove_left(self.root / "work")

    def remove(self, key: str) -> None:
        """Remove one entry; a build that uses it has its own hard link (`pin`).

        Raises FailedError if it cannot be removed.
        """
        gone = self.root / f".{secrets.token_hex(32)}.{os.getpid()}"
        try:
            (self._layers / key).rename(gone)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FailedError(f"cannot be removed: {error.strerror}", where=str(self._layers / key)) from error
        if not remove_files(gone, _FILES):
            with contextlib.suppress(OSError):
                gone.rename(self._layers / key)
            raise FailedError("cannot be removed", where=str(self._layers / key), hint=_BY_HAND)


def read_object(path: Path) -> dict[str, Any]:
    """Return a document of an entry. Raises OSError, and ValueError if it is not a JSON object."""
    text = read_beginning(path, _DOCUMENT_LIMIT_BYTES, follow=False)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not a JSON object") from None


# -- listing, verifying and removing: results of layers, and of OCI images --


@dataclass(frozen=True, slots=True)
class CacheContent:
    """The entries of the cache, and their sizes."""

    cache: Path
    """The cache folder."""
    entries: tuple[CacheEntry, ...]
    """Results of layers."""
    unpacked: tuple[UnpackedLayer, ...]
    """Unpacked layers of OCI images."""
    images: tuple[FetchedImage, ...]
    """Images that were fetched from registries and Docker engines to be read."""

    @property
    def size_bytes(self) -> int:
        """Total size of all entries."""
        old: tuple[CacheEntry | UnpackedLayer | FetchedImage, ...] = (*self.entries, *self.unpacked, *self.images)
        return sum(one.size_bytes for one in old)


@dataclass(frozen=True, slots=True)
class CacheRemoved:
    """What was removed from the cache."""

    removed: tuple[str, ...]
    """Keys of layer results."""
    unpacked: tuple[str, ...]
    """Keys of unpacked OCI layers."""
    images: tuple[str, ...]
    """Keys of images that were fetched to be read."""
    freed_bytes: int
    """Space that they occupied."""


@dataclass(frozen=True, slots=True)
class CacheFault:
    """A damaged entry."""

    key: str
    """Key of the entry."""
    fault: str
    """What is wrong."""


@dataclass(frozen=True, slots=True)
class CacheVerified:
    """The result of `cache verify`."""

    checked: int
    """Number of layer results that were read."""
    faults: tuple[CacheFault, ...]
    """Damaged entries."""

    @property
    def exit_code(self) -> ExitCode:
        """Good if no entry is damaged."""
        return ExitCode.NO if self.faults else ExitCode.GOOD


def cache_content(cache: LayerCache) -> CacheContent:
    """Return the entries, unpacked layers and images of a cache with their sizes."""
    root = cache.root
    return CacheContent(root, tuple(cache.entries()), tuple(unpacked_layers(root)), tuple(fetched_images(root)))


def verify(cache: LayerCache) -> CacheVerified:
    """Read the data of all entries, and return the damaged ones."""
    return CacheVerified(len(list(cache.entries())), tuple(_faults(cache)))


def _faults(cache: LayerCache) -> Iterator[CacheFault]:
    for key in cache.names():
        if cache.format_of(key) not in {0, FORMAT}:  # from another version of lumiimg
            continue
        entry = cache.read(key)
        if entry is None:
            yield CacheFault(key, "cannot be read, or its size has changed")
        elif not entry.is_intact:
            yield CacheFault(key, "its content has changed")
        elif CacheKey(cache.key_of(entry)).digest != key:
            yield CacheFault(key, "does not match its name")
    for other in _others(cache).values():
        if not other.is_intact:
            what = "a layer of an OCI image" if isinstance(other, UnpackedLayer) else "an image"
            yield CacheFault(other.key, f"the content of {what} has changed")


def prune(cache: LayerCache, keep_bytes: int | None) -> CacheRemoved:
    """Remove damaged entries, then, with `keep_bytes`, the least recently used until at most that is left.

    Entries of a newer lumiimg stay. Raises FailedError at the end if an entry cannot be removed.
    """
    others = _others(cache)
    old = {**{entry.key: entry for entry in cache.entries()}, **others}
    damaged = {*cache.names()}.difference(old, cache.newer())
    damaged |= {key for key, one in others.items() if not one.is_intact}
    left, refused, gone = sum(one.size_bytes for one in old.values()), None, dict[str, int]()
    for key in (*sorted(damaged), *sorted(old.keys() - damaged, key=lambda key: (old[key].used_ns, key))):
        if key not in damaged and (keep_bytes is None or left <= keep_bytes):
            break
        try:
            if key in others:
                others[key].remove()
            else:
                cache.remove(key)
        except FailedError as error:  # continue with the others
            refused = error
            continue
        gone[key] = old[key].size_bytes if key in old else 0
        left -= gone[key]
    cache.sweep()
    if refused is not None:
        raise refused
    return _removed(gone, others)


def remove(cache: LayerCache, wanted: Sequence[str]) -> CacheRemoved:
    """Remove the entries with one of the `wanted` layers or keys (at least their first six digits).

    A key may also be that of an image, an unpacked layer or an unreadable entry. Raises BadInputError if a name
    matches nothing.
    """
    entries = {key: cache.read(key) for key in cache.names()}
    others, going = _others(cache), dict[str, int]()
    for name in wanted:
        found = [key for key, entry in entries.items() if _is_called(name, key, entry)]
        found += [key for key in others if _is_called(name, key, None)]
        if not found:
            raise BadInputError(f"the cache has no {name!r}", hint="lumiimg cache ls")
        for key in found:
            thing = others.get(key) or entries[key]
            going[key] = thing.size_bytes if thing else 0
    for key in going:
        if key in others:
            others[key].remove()
        else:
            cache.remove(key)
    return _removed(going, others)


def _others(cache: LayerCache) -> dict[str, UnpackedLayer | FetchedImage]:
    """Return the images and unpacked OCI layers by their keys."""
    found: list[UnpackedLayer | FetchedImage] = [*unpacked_layers(cache.root), *fetched_images(cache.root)]
    return {one.key: one for one in found}


def _removed(gone: Mapping[str, int], others: Mapping[str, UnpackedLayer | FetchedImage]) -> CacheRemoved:
    """Return what was removed; `gone` maps each key to its size in bytes."""
    layers = tuple(key for key in gone if key not in others)
    unpacked = tuple(key for key in gone if isinstance(others.get(key), UnpackedLayer))
    images = tuple(key for key in gone if isinstance(others.get(key), FetchedImage))
    return CacheRemoved(layers, unpacked, images, sum(gone.values()))


def _is_called(name: str, key: str, entry: CacheEntry | None) -> bool:
    return (entry is not None and name in entry.layers) or (len(name) >= _MIN_DIGITS and key.startswith(name))
