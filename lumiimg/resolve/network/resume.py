"""The beginning of a file whose download broke off, kept so that the next one asks for the rest only.

    part-<key>.<word>/                                   nobody's: the next download of the file takes it
    part-<key>.<word>.<owner>.lumiimg-partial/           somebody's (workspace.owner_mark)
        data                                             the beginning of the file
        from.json                                        what the server called the file then

No lock of a file system is used: a partial changes hands by a rename, which only one of many can do. One whose owner
was killed keeps its owner's name, and is nobody's from then on; of another node or namespace, which alone can tell
whether its processes live, once it has stood still for longer than a download may take.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lumiimg.engine.own_folder import remove_files
from lumiimg.engine.owner import is_left, owner_mark
from lumiimg.files import read_beginning

TOTAL_S = 3600.0
"""Longest time of one download with all its tries, unless the caller sets another; a server that drips is given up."""
OLD_S = 7 * 24 * 3600.0
"""Of the last byte: what nobody has asked for since is removed."""
_STILL_S = 2 * TOTAL_S
_NOTE_LIMIT_BYTES = 64 * 1024
_FILES = re.compile(r"data|from\.json")
_NAME = re.compile(r"part-(?P<key>[a-z0-9-]+)\.(?P<word>[0-9a-f]+)(?P<owner>\..+)?")


@dataclass(frozen=True, slots=True)
class Partial:
    """What this process has of a file."""

    folder: Path
    is_known: bool
    """Whether the digest of the whole is known, so that a wrong end cannot pass."""

    @property
    def data(self) -> Path:
        """The file, as far as it came."""
        return self.folder / "data"

    def note(self, url: str, validator: str | None) -> None:
        """Keep what a server called the file, before any byte of it is kept."""
        self._note.write_text(json.dumps({"url": _digest(url), "validator": validator}), encoding="utf-8")

    def validator(self, url: str) -> str | None:
        """Return what the server at that address called the file; None where it said nothing, or another was asked."""
        try:
            note = json.loads(read_beginning(self._note, _NOTE_LIMIT_BYTES, follow=False))
            found = note["validator"] if note["url"] == _digest(url) else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) and found.isascii() and found.isprintable() else None  # a header

    def can_go_on(self, url: str) -> bool:
        """Whether something will tell if the rest is not of the same file: the digest, or the server."""
        return self.is_known or self.validator(url) is not None

    @property
    def _note(self) -> Path:
        return self.folder / "from.json"


@contextmanager
def taken(store: Path, url: str, sha256: str | None) -> Iterator[Partial]:
    """Yield the beginning of the file of a digest, of an address where the digest is not known, or a new one.

    Afterwards, also where the download failed or was interrupted, it is there for the next one, if that can go on.
    Old ones of any file are removed. Raises OSError if the folder cannot be written.
    """
    store.mkdir(parents=True, exist_ok=True)
    partial = Partial(_take(store, sha256 or f"url-{_digest(url)}"), is_known=sha256 is not None)
    try:
        yield partial
    finally:
        _give_back(partial, url)


def _take(store: Path, key: str) -> Path:
    """Return the largest partial that is nobody's, now ours; smaller ones, and old ones of any file, are removed."""
    mine = []
    for entry in store.glob("part-*"):
        match = _NAME.fullmatch(entry.name)
        if match is None:
            continue
        with contextlib.suppress(OSError):  # another process was as quick
            still_s = _still_s(entry)
            is_wanted = match["key"] == key and still_s < OLD_S
            if (is_wanted or still_s >= OLD_S) and _is_nobodys(entry, still_s, is_owned=match["owner"] is not None):
                os.utime(entry)  # under its new name it must not look as if it stood still
                entry = entry.rename(_named(store, match["key"]))  # noqa: PLW2901
                mine.append((_size(entry) if is_wanted else -1, entry))
    found = [(size, entry) for size, entry in mine if size >= 0]
    best = max(found)[1] if found else _named(store, key)
    for _, entry in mine:
        if entry != best:
            remove_files(entry, _FILES)
    best.mkdir(exist_ok=True)
    return best


def _is_nobodys(entry: Path, still_s: float, *, is_owned: bool) -> bool:
    if entry.lstat().st_uid != os.getuid():
        return False
    return not is_owned or is_left(entry) or still_s > _STILL_S


def _named(store: Path, key: str) -> Path:
    """Return a name that no other download has, in this process or another."""
    return store / f"part-{key}.{secrets.token_hex(8)}{owner_mark()}"


def _give_back(partial: Partial, url: str) -> None:
    if not _size(partial.folder) or not partial.can_go_on(url):
        remove_files(partial.folder, _FILES)
        return
    with contextlib.suppress(OSError):  # it is the next one's all the same when this process has ended
        partial.folder.rename(partial.folder.with_name(partial.folder.name.removesuffix(owner_mark())))


def _size(folder: Path) -> int:
    try:
        return (folder / "data").stat().st_size
    except OSError:
        return 0


def _still_s(folder: Path) -> float:
    """Return how long nobody has taken it, and no byte of it has come."""
    touched = folder.stat().st_mtime
    with contextlib.suppress(FileNotFoundError):
        touched = max(touched, (folder / "data").stat().st_mtime)
    return time.time() - touched


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
