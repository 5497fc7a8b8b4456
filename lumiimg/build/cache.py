"""Results of layers, kept by what they were made of.

    layers/<key>/key.json     what the key is made of, for people who ask why it missed
                 entry.json   size, digest, what it cost, the content of what was below
                 data.sif | data.sqfs | data.tar (what the script of a layer keeps)
    contents/<content key>    the key of an entry with the same inputs over a parent with the same content
    locks/<key>/              somebody is building it: host, process, job, and a heartbeat

A key is made of texts, and the same text may come out otherwise another day: a result counts only over the content on
which it was built. Entries are folders that appear by one rename, so that a reader sees all of one or nothing, also on
file systems that know no locks (NFS, Lustre without flock). Two clocks are never compared: a lock is stale when its
process is seen to be gone, or when its heartbeat stood still while we watched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lumiimg.engine.namespaces.unpacked import FOLDER as UNPACKED
from lumiimg.engine.own_folder import remove_files, remove_left
from lumiimg.engine.owner import Owner, lives, this_process
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import BadInputError, FailedError, LumiimgError
from lumiimg.files import file_sha256, read_beginning, write_text

FORMAT = 2
_NAMES = ("data.sif", "data.sqfs", "data.tar")
_GONE = re.compile(r"\.[0-9a-f]{64}\.\w+")
"""What is being removed."""
_FILES = re.compile(r"(key|entry|owner)\.json|data\.(sif|sqfs|tar)|[0-9a-f]{16}\.partial|\.\w+\.json\.[0-9a-f]{16}")
"""What an entry or a lock has, and what a killed process may have left in one."""
_ELSEWHERE = "LUMIIMG_CACHE names the folder for layers"
_BY_HAND = "it holds what lumiimg did not write; look at it, and remove it by hand"
_BEAT_S = 5.0
_STILL_S = 60.0
"""A heartbeat that stands still for so long is that of a process that is gone."""
_WAIT_S = 0.5
_DOCUMENT_LIMIT_BYTES = 64 << 20
_BELIEVED_S = 7 * 24 * 3600.0
"""How long a digest is taken for that of its data without another look."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What the result of a layer depends on."""

    parts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The name of its entry."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One result."""

    key: _Sha256
    """Of all that it was made from, sha256 in hexadecimal."""
    data: Path
    """Where what it changed is kept."""
    sha256: _Sha256
    """Of its data: what the content keys of layers above are made of."""
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Of that file."""
    layers: tuple[str, ...]
    """Of the catalogue, that it holds."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """What it took to build."""
    below: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    """The content of what it was built on (fetch.content_with); nothing for a base, and for what a script keeps."""
    mark: tuple[int, ...] = ()
    """Inode and time of its data when its digest was taken: who writes to the file changes that."""
    boot: str = ""
    """Of the machine that took it: what it wrote before it went down may not have come to the disk."""
    read_s: float = 0.0
    """When it was taken, in seconds since 1970."""

    @property
    def made_s(self) -> float:
        """When its data was written, in seconds since 1970. Raises OSError."""
        return self.data.stat().st_mtime

    @property
    def is_known(self) -> bool:
        """Whether its digest was taken by this machine since it was started, lately, and nobody wrote to it since.

        False for a copy of a cache. Raises OSError.
        """
        is_ours = self.boot != "" and (self.boot, self.mark) == (_boot(), _mark(self.data))
        return is_ours and 0 <= time.time() - self.read_s < _BELIEVED_S


def _mark(data: Path) -> tuple[int, int]:
    seen = data.stat()
    return seen.st_ino, seen.st_mtime_ns


def _boot() -> str:
    """Return what the kernel calls the time since this machine was started; nothing where it does not say."""
    try:
        return read_beginning(_BOOT, 64).decode("ascii").strip()
    except OSError:
        return ""


def _to_disk(path: Path) -> None:
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _entry_of(document: Mapping[str, Any], key: str, data: Path) -> CacheEntry:
    """Return what the document of an entry says. Raises KeyError, ValueError."""
    if document["format"] != FORMAT:
        raise ValueError(f"is of format {str(document['format'])[:20]!r}; this lumiimg reads {FORMAT}")
    return msgspec.convert({**document, "key": key, "data": data}, CacheEntry)


class LayerCache:
    """One cache, which several builds on several machines may use at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._layers = root / "layers"
        self._contents = root / "contents"
        self._locks = root / "locks"

    def find(self, key: CacheKey, below: str = "") -> CacheEntry | None:
        """Return the result of a key over the content of what is `below`, or of the same inputs over that content.

        None where there is none; also where one is there that was built over another content.
        """
        found = self._over(key.digest, below)
        if found is None and below:
            content_key = _content_key(key, below)
            try:
                noted = _noted(self._contents / content_key)
            except OSError:
                return None
            found = self._over(noted, below)
            if found is not None and _content_key(CacheKey(self.key_of(found)), below) != content_key:
                return None
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
        found = {}
        for entry in sorted(self.entries(), key=lambda entry: entry.mark[1:]):
            found[entry.layers] = entry.seconds
        return found

    def key_of(self, entry: CacheEntry) -> dict[str, Any]:
        """Return what an entry was made of; nothing where that is damaged."""
        try:
            return read_object(self._layers / entry.key / "key.json")
        except (OSError, ValueError):
            return {}

    def newer(self) -> list[str]:
        """Return the keys of entries of a newer lumiimg: this one cannot use them, and leaves them to that."""
        return [key for key in self.names() if self._is_newer(key)]

    def _is_newer(self, key: str) -> bool:
        try:
            written = read_object(self._layers / key / "entry.json").get("format")
        except (OSError, ValueError):
            return False
        return type(written) is int and written > FORMAT

    def _over(self, digest: str, below: str) -> CacheEntry | None:
        found = self.read(digest)
        return found if found is not None and found.below == below else None

    def read(self, digest: str) -> CacheEntry | None:
        """Return an entry; None for one that is damaged, or another's, as far as a look at its size shows."""
        folder = self._layers / digest
        try:
            document = read_object(folder / "entry.json")
            if document["data"] not in _NAMES or document.get("key", digest) != digest:  # it has been moved
                return None
            found = _entry_of(document, digest, folder / document["data"])
            seen = found.data.lstat()
            return found if stat.S_ISREG(seen.st_mode) and seen.st_size == found.size_bytes else None
        except (OSError, ValueError, KeyError):
            return None

    @contextlib.contextmanager
    def making(self, key: CacheKey, on_wait: Callable[[str], None]) -> Iterator[Path]:
        """Yield a new folder for a result, while nobody else builds the same; `on_wait` gets who does.

        Who has waited finds the result with `find`. Raises FailedError if the cache cannot be written.
        """
        with self._locked(key.digest, on_wait), scratch_folder(self.root / "work") as folder:
            yield folder

    def keep(
        self,
        key: CacheKey,
        data: Path,
        *,
        layers: tuple[str, ...],
        seconds: float,
        below: str = "",
        replaces: bool = False,
    ) -> CacheEntry:
        """Move a result into the cache, and return it, or the one that another build was quicker with.

        It takes the place of one that was built over another content; `replaces`: of any. Raises FailedError if the
        cache cannot be written.
        """
        folder = data.parent / f"entry-{key.digest[:12]}"
        name = f"data{data.suffix}"
        try:
            folder.mkdir()
            size_bytes, sha256 = data.stat().st_size, file_sha256(data)
            data = data.rename(folder / name)
            made, took_s = (_mark(data), _boot(), round(time.time(), 3)), round(seconds, 3)
            entry = CacheEntry(key.digest, data, sha256, size_bytes, layers, took_s, below, *made)
            document = {"format": FORMAT, **asdict(entry), "data": name}
            (folder / "key.json").write_text(json.dumps(key.parts, indent=1, sort_keys=True), encoding="utf-8")
            (folder / "entry.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
            self._layers.mkdir(parents=True, exist_ok=True)
            for path in (*folder.iterdir(), folder):  # a name that outlives a crash must not be that of half a file
                _to_disk(path)
            if replaces or self._over(key.digest, below) is None:  # what is there and damaged makes way, too
                self.remove(key.digest)
            try:
                folder.rename(self._layers / key.digest)
                _to_disk(self._layers)
            except OSError:
                if self._over(key.digest, below) is None:
                    raise
            if below:
                self._note(_content_key(key, below), key.digest)
        except OSError as error:
            what = f"cannot be written: {error.strerror or error}"
            raise FailedError(what, where=str(self.root), hint=_ELSEWHERE) from error
        found = self._over(key.digest, below)
        if found is None:
            raise FailedError("the entry that was just written cannot be read", where=str(self._layers / key.digest))
        return found

    def _note(self, content_key: str, key: str) -> None:
        self._contents.mkdir(parents=True, exist_ok=True)
        write_text(self._contents / content_key, key)

    @contextlib.contextmanager
    def _locked(self, digest: str, on_wait: Callable[[str], None]) -> Iterator[None]:
        lock = self._locks / digest
        seen: tuple[_Holder | None, float] = (None, time.monotonic())
        told = False
        while True:
            try:
                self._locks.mkdir(parents=True, exist_ok=True)
                lock.mkdir()
                break
            except OSError as error:
                if not (isinstance(error, FileExistsError) and self._locks.is_dir()):
                    what = f"cannot be written: {error.strerror}"
                    raise FailedError(what, where=str(self._locks), hint=_ELSEWHERE) from error
            holder, now = _holder_of(lock), time.monotonic()
            if holder != seen[0]:
                seen = (holder, now)
            if now - seen[1] > _STILL_S or (holder is not None and _is_gone(holder)):
                self._take_away(lock, holder)
                continue
            if not told:
                on_wait(f"waiting for another build of this layer: {holder or _Holder()}")
                told = True
            time.sleep(_WAIT_S)
        stop, word = threading.Event(), secrets.token_hex(8)
        place = os.open(lock, os.O_RDONLY | os.O_DIRECTORY)  # ours, whatever has its name by and by
        beat = threading.Thread(target=_beat, args=(place, word, stop), daemon=True)
        _write_owner(place, word, 0)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            beat.join()
            os.close(place)
            holder = _holder_of(lock)
            if holder is None or holder.word == word:
                self._take_away(lock, holder)

    def _take_away(self, lock: Path, holder: _Holder | None) -> None:
        """Remove a lock, if it still is that of this holder once nobody else can reach it."""
        gone = self._gone()
        with contextlib.suppress(OSError):  # somebody was as quick
            lock.rename(gone)
            if _holder_of(gone) != holder:
                gone.rename(lock)
        remove_files(gone, _FILES)

    def _gone(self) -> Path:
        """Return the name that something has while it is removed."""
        return self.root / f".{secrets.token_hex(32)}.{os.getpid()}"

    def is_whole(self, entry: CacheEntry) -> bool:
        """Whether the data of an entry is what it was, to the byte; False too where it has just been removed.

        It is read unless it is known to be (`CacheEntry.is_known`): `cache verify` reads all.
        """
        try:
            if not entry.data.is_file() or (not entry.is_known and file_sha256(entry.data) != entry.sha256):
                return False
            if not entry.is_known:
                place = self._layers / entry.key / "entry.json"
                seen = {"mark": _mark(entry.data), "boot": _boot(), "read_s": round(time.time(), 3)}
                with contextlib.suppress(OSError, ValueError, LumiimgError):  # in a cache that only others may write to
                    write_text(place, json.dumps({**read_object(place), **seen}, indent=1))
        except (BadInputError, OSError):
            return False
        return True

    def forget_all_but(self, kept: Collection[str]) -> None:
        """Remove the notes of entries that are not kept, and what builds that were killed left."""
        for note in self._contents.glob("*"):
            with contextlib.suppress(OSError):  # a folder, or another was quicker
                if not note.is_file() or _noted(note) not in kept:
                    note.unlink()
        self.sweep()

    def sweep(self) -> None:
        """Remove what builds that were killed left: half removed entries, folders they worked in, and their locks."""
        for gone in self.root.glob(".*"):
            if _GONE.fullmatch(gone.name):
                remove_files(gone, _FILES)
        for folder in ("work", UNPACKED):
            remove_left(self.root / folder)
        for lock in self._locks.glob("*"):
            holder = _holder_of(lock)
            if holder is not None and _is_gone(holder):
                self._take_away(lock, holder)

    def remove(self, key: str) -> None:
        """Remove one entry; a build that uses it has it by another name (cache_lease.py).

        Raises FailedError if it cannot be removed.
        """
        gone = self._gone()
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


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who builds, as a lock has it; what another lumiimg did not write there is not known."""

    pid: int = 0
    started: int = 0
    place: str = ""
    host: str = "?"
    job: str | None = None
    word: str = ""
    beat: int = 0

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"process {self.pid or '?'} on {self.host}{job}"


def _holder_of(lock: Path) -> _Holder | None:
    try:
        return msgspec.convert(read_object(lock / "owner.json"), _Holder)
    except (OSError, ValueError):
        return None


def _is_gone(holder: _Holder) -> bool:
    owner = Owner(holder.pid, holder.started, holder.place, holder.host)
    return holder.pid > 0 and lives(owner) is False


def _beat(place: int, word: str, stop: threading.Event) -> None:
    count = 0
    while not stop.wait(_BEAT_S):
        count += 1
        _write_owner(place, word, count)


def _write_owner(place: int, word: str, beat: int) -> None:
    """Note down in the open folder of a lock whose it is; in one that was taken for stale nothing can be written."""
    owner = {**asdict(this_process()), "job": os.environ.get("SLURM_JOB_ID"), "word": word, "beat": beat}
    partial = f"{word}.partial"
    with contextlib.suppress(OSError):  # the result is written by rename all the same
        with open(partial, "w", opener=lambda path, flags: os.open(path, flags, dir_fd=place)) as file:
            json.dump(owner, file)
        os.replace(partial, "owner.json", src_dir_fd=place, dst_dir_fd=place)


def _content_key(key: CacheKey, below: str) -> str:
    """Return the name of the same inputs over a content, whatever its recipe."""
    return CacheKey({**key.parts, "parent": f"content:{below}"}).digest


def _noted(note: Path) -> str:
    """Return the key in a note. Raises OSError."""
    return read_beginning(note, 65, follow=False).decode("ascii", "replace").strip()


def read_object(path: Path) -> dict[str, Any]:
    """Return a document of an entry. Raises OSError, and ValueError for what is not a JSON object."""
    text = read_beginning(path, _DOCUMENT_LIMIT_BYTES, follow=False)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not a JSON object") from None
