"""Layers of a cache in one file, to be carried to another machine."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from lumiimg.build.cache import FORMAT, NAMES, CacheEntry, CacheKey, LayerCache, entry_of, read_object
from lumiimg.build.disk_space import require, room_at
from lumiimg.engine.workspace import scratch_folder, written_by_rename
from lumiimg.errors import BadInputError, FailedError
from lumiimg.files import open_regular
from lumiimg.image.oci.tar import Member, read_members
from lumiimg.image.tree import FileKind, ImageError
from lumiimg.resolve.lock import file_sha256
from lumiimg.wording import size

_MEMBERS = ("key.json", "entry.json", *NAMES)
_DOCUMENT_LIMIT_BYTES = 1 << 20
_MAX_MEMBERS = 30_000
_CHUNK_BYTES = 1 << 20


def chosen(cache: LayerCache, wanted: Sequence[str]) -> list[CacheEntry]:
    """Return the entries whose layer or key (six digits or more of it) is wanted; all of them for nothing.

    Raises BadInputError for a name that nothing has.
    """
    entries = list(cache.entries())
    for name in wanted:
        if not any(_is_called(entry, name) for entry in entries):
            raise BadInputError(f"the cache has no {name!r}", hint="lumiimg cache ls")
    return [entry for entry in entries if not wanted or any(_is_called(entry, name) for name in wanted)]


def _is_called(entry: CacheEntry, name: str) -> bool:
    return name in entry.layers or (len(name) >= 6 and entry.key.startswith(name))


def write_archive(cache: LayerCache, target: Path, wanted: Sequence[str]) -> list[CacheEntry]:
    """Write entries into a tar: all, or those whose layer or key is wanted; return them.

    Raises BadInputError for a name that nothing has.
    """
    entries = chosen(cache, wanted)
    with written_by_rename(target) as partial, tarfile.open(partial, "w") as archive:
        for entry in entries:
            for name in ("key.json", "entry.json", entry.data.name):
                archive.add(entry.data.with_name(name), f"{entry.key}/{name}", recursive=False)
    return entries


def read_archive(cache: LayerCache, source: Path) -> list[CacheEntry]:
    """Take the entries of such a tar into the cache, each only if it is what it says; return them.

    What is there already stays. Raises BadInputError for a file that is none, FailedError where an entry is not what
    its name says, or there is no room for it.
    """
    taken: list[CacheEntry] = []
    try:
        with TarFile(source) as archive, scratch_folder(cache.root / "work") as folder:
            current = ""
            parts: dict[str, Path] = {}
            for number, member in enumerate(archive.members()):
                key, _, name = member.name.partition("/")
                _check(member, number, name, source, folder)
                if key != current:
                    current, parts = key, {}
                parts[name] = archive.copy(member, folder / f"{key[:12]}-{name}")
                if len(parts) == 3:
                    taken.append(_take(cache, key, parts))
                    for part in parts.values():
                        part.unlink(missing_ok=True)
                    parts = {}
    except ImageError as error:
        raise BadInputError(
            "is not an archive written by `lumiimg cache export`", where=str(source), hint="lumiimg cache export FILE"
        ) from error
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(source)) from error
    return taken


class TarFile:
    """A tar that others may have made, as it lies there: nothing packed, nothing sparse, no name without end."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._file = open_regular(source)
        self._size_bytes = source.stat().st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        return self._file.tell()

    def take(self, size: int) -> bytes:
        return self._file.read(size)

    def skip(self, size: int) -> None:
        if self._file.seek(size, os.SEEK_CUR) > self._size_bytes:
            raise ImageError("ends within a member", where=str(self._source))

    def members(self) -> Iterator[Member]:
        """Yield the members. Raises ImageError for what is not a tar, also where one is cut off."""
        if not self._size_bytes:
            raise ImageError("is empty", where=str(self._source))
        return read_members(self, str(self._source))

    def copy(self, member: Member, target: Path) -> Path:
        """Write the content of a member that was just yielded. Raises ImageError where it is cut off, OSError."""
        left = member.size_bytes
        with target.open("wb") as file:
            while chunk := self._file.read(min(left, _CHUNK_BYTES)):
                file.write(chunk)
                left -= len(chunk)
        if left:
            raise ImageError("ends within a member", where=str(self._source))
        with contextlib.suppress(OSError, OverflowError):  # of a day that no file system knows
            os.utime(target, (member.mtime_s, member.mtime_s))
        return target


def _check(member: Member, number: int, name: str, source: Path, folder: Path) -> None:
    """Raise BadInputError for what `write_archive` would not have written, FailedError where it has no room."""
    key = member.name.partition("/")[0]
    is_ours = member.kind is FileKind.FILE and not member.is_hard_link and name in _MEMBERS and _is_key(key)
    if not is_ours or number >= _MAX_MEMBERS:
        raise BadInputError(
            f"holds {member.name[:80]!r}", where=str(source), hint="was it written by `lumiimg cache export`?"
        )
    if name not in NAMES and member.size_bytes > _DOCUMENT_LIMIT_BYTES:
        raise BadInputError(
            f"{member.name[:80]} has {size(member.size_bytes)}",
            where=str(source),
            hint=f"no such document has more than {size(_DOCUMENT_LIMIT_BYTES)}",
        )
    if member.size_bytes > source.stat().st_size:
        raise BadInputError(f"{member.name[:80]} is larger than the archive", where=str(source), hint="export it again")
    require(room_at(folder), member.size_bytes, f"{key[:12]}")


def _is_key(name: str) -> bool:
    return len(name) == 64 and all(c in "0123456789abcdef" for c in name)


def _take(cache: LayerCache, name: str, parts: dict[str, Path]) -> CacheEntry:
    try:
        key = CacheKey(read_object(parts["key.json"]))
        data = next(path for part, path in parts.items() if part in NAMES)
        document = read_object(parts["entry.json"])
        if type(written := document.get("format")) is int and written > FORMAT:
            what = f"an entry is of format {written}, and this lumiimg reads {FORMAT}"
            raise BadInputError(what, where=name[:12], hint="use the lumiimg that exported it")
        entry = entry_of(document, name, data)
    except (ValueError, KeyError, StopIteration) as error:
        told = f": {error}" if type(error) is ValueError else ""
        raise FailedError(f"an entry is damaged{told}", where=name[:12], hint="export it again") from error
    if key.digest != name or entry.sha256 != file_sha256(data) or entry.size_bytes != data.stat().st_size:
        raise FailedError("an entry does not match its name", where=name[:12], hint="export it again")
    if (there := cache.read(name)) is not None:
        return there
    return cache.keep(key, data, layers=entry.layers, seconds=entry.seconds, below=entry.below)
