"""Results of layers, kept by what they were made of.

    layers/<key>/key.json     what the key is made of, for people who ask why it missed
                 entry.json   size, digest, what it cost
                 data.sif | data.sqfs | data.tar (what the script of a layer keeps)
    contents/<content key>    the key of an entry with the same inputs over a parent with the same content
    locks/<key>/              somebody is building it: host, process, job, and a heartbeat

Entries are folders that appear by one rename, so that a reader sees all of one or nothing, also on file systems that
know no locks (NFS, Lustre without flock). Two clocks are never compared: a lock is stale when its process is gone, or,
of another host, when its heartbeat stood still while we watched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.engine.workspace import is_alive, remove_stale, scratch_folder
from lumiimg.errors import FailedError
from lumiimg.resolve.lock import file_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

FORMAT = 1
NAMES = ("data.sif", "data.sqfs", "data.tar")
_BEAT_S = 5.0
_STILL_S = 60.0
"""A heartbeat that stands still for so long is that of a process that is gone."""
_WAIT_S = 0.5
_DOCUMENT_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Key:
    """What the result of a layer depends on."""

    parts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The name of its entry."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def over(self, parent: str) -> Key:
        """Return the same inputs over another parent."""
        return Key({**self.parts, "parent": parent})


@dataclass(frozen=True, slots=True)
class Entry:
    """One result."""

    key: str
    data: Path
    sha256: str
    """Of its data: what the content keys of layers above are made of."""
    size_bytes: int
    layers: tuple[str, ...]
    seconds: float
    """What it took to build."""


class LayerCache:
    """One cache, which several builds on several machines may use at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._layers = root / "layers"
        self._contents = root / "contents"
        self._locks = root / "locks"

    def find(self, key: Key, content_key: Key | None = None) -> Entry | None:
        """Return the entry of a key, or of the same inputs over the same content; None where there is none."""
        found = self._read(key.digest)
        if found is not None:
            # the longest unused is pruned first; a cache that only others may write is used all the same
            with contextlib.suppress(OSError):
                os.utime(found.data.with_name("entry.json"))
        if found is not None or content_key is None:
            return found
        try:
            other = (self._contents / content_key.digest).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return self._read(other.strip())

    def entries(self) -> Iterator[Entry]:
        """Yield all entries that can be read."""
        for folder in sorted(self._layers.glob("*")):
            entry = self._read(folder.name)
            if entry is not None:
                yield entry

    def key_of(self, entry: Entry) -> dict[str, Any]:
        """Return what an entry was made of."""
        return _document(self._layers / entry.key / "key.json")

    def _read(self, digest: str) -> Entry | None:
        """Return an entry; None for one that is damaged as far as a look at its size tells."""
        folder = self._layers / digest
        try:
            document = _document(folder / "entry.json")
            data = folder / document["data"]
            if document["format"] != FORMAT or document["data"] not in NAMES:
                return None
            if data.stat().st_size != document["size_bytes"]:
                return None
            return Entry(
                digest,
                data,
                document["sha256"],
                document["size_bytes"],
                tuple(document["layers"]),
                document["seconds"],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @contextmanager
    def making(self, key: Key, on_wait: Callable[[str], None]) -> Iterator[Path]:
        """Yield a new folder for a result, while nobody else builds the same; `on_wait` is told who does.

        Who has waited finds the result with `find`. Raises FailedError if the cache cannot be written.
        """
        with self._locked(key.digest, on_wait), scratch_folder(self.root / "work") as folder:
            yield folder

    def keep(self, key: Key, content_key: Key | None, data: Path, *, layers: tuple[str, ...], seconds: float) -> Entry:
        """Move a result into the cache. Raises FailedError if the cache cannot be written."""
        folder = data.parent / f"entry-{key.digest[:12]}"
        name = f"data{data.suffix}"
        try:
            folder.mkdir()
            size = data.stat().st_size
            sha256 = file_sha256(data)
            data.rename(folder / name)
            entry = {
                "format": FORMAT,
                "data": name,
                "sha256": sha256,
                "size_bytes": size,
                "layers": list(layers),
                "seconds": round(seconds, 3),
            }
            (folder / "key.json").write_text(json.dumps(key.parts, indent=1, sort_keys=True), encoding="utf-8")
            (folder / "entry.json").write_text(json.dumps(entry, indent=1), encoding="utf-8")
            self._layers.mkdir(parents=True, exist_ok=True)
            target = self._layers / key.digest
            if self._read(key.digest) is None:  # what is there and damaged makes way
                shutil.rmtree(target, ignore_errors=True)
            try:
                folder.rename(target)
            except OSError:
                if self._read(key.digest) is None:
                    raise
            if content_key is not None:
                self._note(content_key.digest, key.digest)
        except OSError as error:
            hint = "LUMIIMG_CACHE says where layers are kept"
            raise FailedError(
                f"cannot be written: {error.strerror or error}", where=str(self.root), hint=hint
            ) from error
        found = self._read(key.digest)
        if found is None:
            raise FailedError("what was just written cannot be read", where=str(self._layers / key.digest))
        return found

    def _note(self, content_key: str, key: str) -> None:
        self._contents.mkdir(parents=True, exist_ok=True)
        partial = self._contents / f".{content_key}.{os.getpid()}"
        partial.write_text(key, encoding="ascii")
        partial.replace(self._contents / content_key)

    @contextmanager
    def _locked(self, digest: str, on_wait: Callable[[str], None]) -> Iterator[None]:
        lock = self._locks / digest
        watch = _Watch(lock)
        told = False
        while True:
            try:
                self._locks.mkdir(parents=True, exist_ok=True)
                lock.mkdir()
                break
            except FileExistsError:
                pass
            except OSError as error:
                hint = "LUMIIMG_CACHE says where layers are kept"
                raise FailedError(f"cannot be written: {error.strerror}", where=str(self._locks), hint=hint) from error
            if watch.is_stale():
                shutil.rmtree(lock, ignore_errors=True)
                continue
            if not told:
                on_wait(f"waiting for another build of this layer: {watch.owner()}")
                told = True
            time.sleep(_WAIT_S)
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(lock, stop), daemon=True)
        _write_owner(lock, 0)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            beat.join()
            shutil.rmtree(lock, ignore_errors=True)

    def verify(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong) of every entry whose data is not what it was; reads all of them."""
        for folder in sorted(self._layers.glob("*")):
            entry = self._read(folder.name)
            if entry is None:
                yield folder.name, "cannot be read, or has another size than it had"
            elif file_sha256(entry.data) != entry.sha256:
                yield folder.name, "has another content than it had"
            elif Key(self.key_of(entry)).digest != folder.name:
                yield folder.name, "is not what its name says"

    def prune(self, keep_bytes: int | None) -> tuple[list[str], int]:
        """Remove what is damaged, then the longest unused until `keep_bytes` are left; return the keys, and the bytes.

        Raises FailedError if an entry cannot be removed.
        """
        whole = {entry.key: entry for entry in self.entries()}
        removed = [folder.name for folder in sorted(self._layers.glob("*")) if folder.name not in whole]
        left = sum(entry.size_bytes for entry in whole.values())
        freed = 0
        for entry in sorted(whole.values(), key=lambda entry: entry.data.with_name("entry.json").stat().st_mtime_ns):
            if keep_bytes is None or left <= keep_bytes:
                break
            removed.append(entry.key)
            left -= entry.size_bytes
            freed += entry.size_bytes
        for key in removed:
            self.remove(key)
        kept = whole.keys() - set(removed)
        for note in self._contents.glob("*"):
            if note.read_text(encoding="ascii", errors="replace").strip() not in kept:
                note.unlink(missing_ok=True)
        remove_stale(self.root / "work")
        return removed, freed

    def remove(self, key: str) -> None:
        """Remove one entry; who reads it at this moment has it open. Raises FailedError if it cannot be removed."""
        gone = self.root / f".{key}.{os.getpid()}"
        try:
            (self._layers / key).rename(gone)
        except OSError as error:
            raise FailedError(f"cannot be removed: {error.strerror}", where=str(self._layers / key)) from error
        shutil.rmtree(gone, ignore_errors=True)


class _Watch:
    """Looks at somebody's lock."""

    def __init__(self, lock: Path) -> None:
        self._file = lock / "owner.json"
        self._seen: tuple[dict[str, Any] | None, float] = (None, time.monotonic())

    def owner(self) -> str:
        document = self._read() or {}
        job = f", job {document['job']}" if document.get("job") else ""
        return f"process {document.get('pid', '?')} on {document.get('host', '?')}{job}"

    def is_stale(self) -> bool:
        document = self._read()
        now = time.monotonic()
        if document is not None and document.get("host") == socket.gethostname():
            pid = document.get("pid")
            return not (isinstance(pid, int) and pid > 0 and is_alive(pid))
        if document != self._seen[0]:
            self._seen = (document, now)
        return now - self._seen[1] > _STILL_S

    def _read(self) -> dict[str, Any] | None:
        try:
            return _document(self._file)
        except (OSError, ValueError):
            return None


def _beat(lock: Path, stop: threading.Event) -> None:
    count = 0
    while not stop.wait(_BEAT_S):
        count += 1
        _write_owner(lock, count)


def _write_owner(lock: Path, beat: int) -> None:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "job": os.environ.get("SLURM_JOB_ID"), "beat": beat}
    partial = lock / "owner.partial"
    try:
        partial.write_text(json.dumps(owner), encoding="utf-8")
        partial.replace(lock / "owner.json")
    except OSError:
        return  # somebody took the lock for stale; the result is written by rename all the same


def _document(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = json.loads(file.read(_DOCUMENT_LIMIT_BYTES))
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no object")  # noqa: TRY004 - as json's own
    return data
