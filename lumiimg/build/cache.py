"""Results of layers, stored by what they were made of.

    layers/<key>/key.json     what the key is made of, for people who ask why it missed
                 entry.json   size, digest, what it cost
                 data.sif | data.sqfs | data.tar (what the script of a layer keeps)
    work/                     where results are written before they are here

A key has the content of what is below. Entries are folders that appear by one rename: a reader sees all of one or
nothing, also on file systems without locks (NFS, Lustre without flock). What a crash has cut short is found by its
digest, which is read before an entry is used. Two builds of one layer do its work twice, and one result is stored.
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
"""What is being removed."""
_FILES = re.compile(r"(key|entry)\.json|data\.(sif|sqfs|tar)|\.\w+\.json\.[0-9a-f]{16}")
"""What an entry has, and what a killed process may have left in one."""
_BY_HAND = "it contains files that lumiimg did not write; check it, and remove it by hand"
_DOCUMENT_LIMIT_BYTES = 64 << 20
_LEAST_DIGITS = 6
"""Of a key."""
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What the result of a layer depends on."""

    parts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The name of its entry."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One result."""

    key: _Sha256
    """Of all that it was made from, sha256 in hexadecimal."""
    data: Path
    """What the layer changed, as a file."""
    sha256: _Sha256
    """Of its data: what the keys of layers above are made of."""
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Of that file."""
    layers: tuple[str, ...]
    """Of the catalogue, that it holds."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """What it took to build."""

    @property
    def made_s(self) -> float:
        """When its data was written, in seconds since 1970. Raises OSError."""
        return self.data.stat().st_mtime

    @property
    def used_ns(self) -> int:
        """When a build has found it the last time, in nanoseconds since 1970. Raises OSError."""
        return self.data.with_name("entry.json").stat().st_mtime_ns

    @property
    def is_intact(self) -> bool:
        """Whether its data is what it was, to the byte; False too where it has just been removed."""
        try:
            return file_sha256(self.data) == self.sha256
        except BadInputError:
            return False


class LayerCache:
    """One cache, which several builds on several machines may use at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._layers = root / "layers"

    def find(self, key: CacheKey) -> CacheEntry | None:
        """Return the result of a key; None where there is none."""
        found = self.read(key.digest)
        if found is not None:
            # the longest unused is pruned first; a cache that only others may write is used all the same
            with contextlib.suppress(OSError):
                os.utime(found.data.with_name("entry.json"))
        return found

    def entries(self) -> Iterator[CacheEntry]:
        """Yield all entries that can be read."""
        for key in self.names():
            entry = self.read(key)
            if entry is not None:
                yield entry

    def names(self) -> list[str]:
        """Return the keys of all entries, also of those that cannot be read."""
        return sorted(folder.name for folder in self._layers.glob("*"))

    def seconds(self) -> dict[tuple[str, ...], float]:
        """Return what each layer took when it was built the last time."""
        found: dict[tuple[str, ...], tuple[float, float]] = {}
        for entry in self.entries():
            with contextlib.suppress(OSError):  # removed meanwhile
                found[entry.layers] = max(found.get(entry.layers, (0.0, 0.0)), (entry.made_s, entry.seconds))
        return {layers: seconds for layers, (_, seconds) in found.items()}

    def key_of(self, entry: CacheEntry) -> dict[str, Any]:
        """Return what an entry was made of; nothing where that is damaged."""
        try:
            return read_object(self._layers / entry.key / "key.json")
        except (OSError, ValueError):
            return {}

    def newer(self) -> list[str]:
        """Return the keys of entries of a newer lumiimg: this one cannot use them, and leaves them to that."""
        return [key for key in self.names() if self.format_of(key) > FORMAT]

    def format_of(self, key: str) -> int:
        """Return the format of an entry; 0 where that cannot be read."""
        try:
            written = read_object(self._layers / key / "entry.json").get("format")
        except (OSError, ValueError):
            return 0
        return written if type(written) is int else 0

    def read(self, key: str) -> CacheEntry | None:
        """Return an entry; None for one that is damaged, or another's, by its size."""
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
        """Move a result into the cache, and return it, or the one that another build was quicker with.

        When complete, it replaces a damaged entry, or with `replaces` any. Raises
        FailedError if the cache cannot be written.
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
        """Return an entry whose data nobody can remove while `folder` is there: another name of the same file, in it.

        Where that cannot be (another file system, another user's cache), it is the entry as it is.
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
        """Remove what builds that were killed left: half removed entries, and folders they worked in."""
        for gone in self.root.glob(".*"):
            if _GONE.fullmatch(gone.name):
                remove_files(gone, _FILES)
        remove_left(self.root / "work")

    def remove(self, key: str) -> None:
        """Remove one entry; a build that uses it has it by another name (`pin`).

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
    """Return a document of an entry. Raises OSError, and ValueError for what is not a JSON object."""
    text = read_beginning(path, _DOCUMENT_LIMIT_BYTES, follow=False)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not a JSON object") from None


# -- listed, read again, and removed: what was built, and layers of OCI images --


@dataclass(frozen=True, slots=True)
class CacheContent:
    """The entries of the cache, and their sizes."""

    cache: Path
    """The folder."""
    entries: tuple[CacheEntry, ...]
    """Results of layers."""
    unpacked: tuple[UnpackedLayer, ...]
    """Layers of OCI images, unpacked."""
    images: tuple[FetchedImage, ...]
    """Images of registries and of Docker engines, as they were got to be read."""

    @property
    def size_bytes(self) -> int:
        """Sum of all entries."""
        old: tuple[CacheEntry | UnpackedLayer | FetchedImage, ...] = (*self.entries, *self.unpacked, *self.images)
        return sum(one.size_bytes for one in old)


@dataclass(frozen=True, slots=True)
class CacheRemoved:
    """What `cache prune` removed."""

    removed: tuple[str, ...]
    """Keys of layers."""
    unpacked: tuple[str, ...]
    """Keys of layers of OCI images."""
    images: tuple[str, ...]
    """Keys of images that were got to be read."""
    freed_bytes: int
    """That they took."""


@dataclass(frozen=True, slots=True)
class CacheFault:
    """An entry whose data is not what it was."""

    key: str
    """Key of the entry."""
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


def cache_content(cache: LayerCache) -> CacheContent:
    """Return the entries, unpacked layers and images of a cache with their sizes."""
    root = cache.root
    return CacheContent(root, tuple(cache.entries()), tuple(unpacked_layers(root)), tuple(fetched_images(root)))


def verify(cache: LayerCache) -> CacheVerified:
    """Read the data of all entries, and return which is not what it was."""
    return CacheVerified(len(list(cache.entries())), tuple(_faults(cache)))


def _faults(cache: LayerCache) -> Iterator[CacheFault]:
    for key in cache.names():
        if cache.format_of(key) not in {0, FORMAT}:  # of another lumiimg
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
    """Remove what is damaged, then the longest unused until `keep_bytes` are left.

    What a newer lumiimg has stored stays. Raises FailedError at the end if something cannot be removed.
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
        except FailedError as error:  # the others can go
            refused = error
            continue
        gone[key] = old[key].size_bytes if key in old else 0
        left -= gone[key]
    cache.sweep()
    if refused is not None:
        raise refused
    return _removed(gone, others)


def remove(cache: LayerCache, wanted: Sequence[str]) -> CacheRemoved:
    """Remove the entries whose layer or key (six digits or more of it) is wanted; by key also images, and what cannot
    be read.

    Raises BadInputError for a name that nothing has.
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
    """Return what is not a layer, by its key."""
    found: list[UnpackedLayer | FetchedImage] = [*unpacked_layers(cache.root), *fetched_images(cache.root)]
    return {one.key: one for one in found}


def _removed(gone: Mapping[str, int], others: Mapping[str, UnpackedLayer | FetchedImage]) -> CacheRemoved:
    """Return what has gone; `gone` has the bytes of each by its key."""
    layers = tuple(key for key in gone if key not in others)
    unpacked = tuple(key for key in gone if isinstance(others.get(key), UnpackedLayer))
    images = tuple(key for key in gone if isinstance(others.get(key), FetchedImage))
    return CacheRemoved(layers, unpacked, images, sum(gone.values()))


def _is_called(name: str, key: str, entry: CacheEntry | None) -> bool:
    return (entry is not None and name in entry.layers) or (len(name) >= _LEAST_DIGITS and key.startswith(name))
