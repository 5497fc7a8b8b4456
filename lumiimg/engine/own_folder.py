"""A folder that lumiimg makes where others may write, and removes again: no name proves that it is ours.

In a shared folder without sticky bit a neighbour can give any name to a private folder of the user's. So a new folder
first gets a file with a word that nobody can guess, and a note of it lies in a folder of the user's own:

    $XDG_STATE_HOME/lumiimg/made/<digest of the folder above>.<word><owner_mark>

A process removes what it has made through the descriptor that it holds since then. What a killed one has left is
removed if the folder that is opened has the word, the inode and the owner of its note. Where there is no note, it
stays. The number of a device is not compared: NFS and btrfs have a new one at each mount.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lumiimg.engine import namespaces
from lumiimg.engine.owner import is_left, owner_mark
from lumiimg.engine.process import run
from lumiimg.errors import FailedError
from lumiimg.files import read_beginning

MARK = ".lumiimg-made"
"""The file with the word."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_KEPT = ".kept"
"""Ends the name of the note of a folder that outlives its process."""
_NOTE_LIMIT_BYTES = 64 * 1024
_WORD_CHARS = 32
_WORD = re.compile(rb"[0-9a-f]{32}")
_REMOVE_TIMEOUT_S = 600.0


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder of this user alone, and remove it afterwards; before, what killed processes left beside it.

    Raises OSError if it cannot be made.
    """
    remove_left(parent)
    path = Path(tempfile.mkdtemp(dir=parent, prefix=prefix, suffix=owner_mark()))
    note = None
    with _opened(path) as folder:
        if _names(folder) or os.fstat(folder).st_uid != os.getuid():
            raise PermissionError(f"somebody has put another folder in the place of {path}")
        try:
            note = _noted(path, folder, owner_mark())
            yield path
        finally:
            if _emptied(folder, path) and note is not None:
                note.unlink(missing_ok=True)


def remove_left(parent: Path) -> None:
    """Remove the folders in `parent` that noted processes have left which no longer live."""
    notes = _notes()
    for note in notes.glob(f"{_key(parent)}.*") if notes is not None else ():
        if is_left(note) and _is_done(note):
            note.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder in one of ours, also one that holds files of mapped user ids, as a fakeroot build leaves."""
    with suppress(OSError), _opened(path) as folder:
        _emptied(folder, path)


def keep_folder(path: Path, target: Path) -> None:
    """Give a folder in one of ours its place for good, and note that it is ours. Raises OSError."""
    with _opened(path) as folder:
        note = _noted(target, folder, _KEPT)
        try:
            path.rename(target)
        except OSError:
            if note is not None:
                note.unlink(missing_ok=True)
            raise


def remove_kept(path: Path, known_as: Path) -> None:
    """Remove a folder that was kept as `known_as`, and was renamed since. Raises FailedError for what is not ours."""
    with suppress(OSError, ValueError), _opened(path) as folder:
        notes = _notes()
        note = notes / f"{_key(known_as.parent)}.{_word_in(folder)}{_KEPT}" if notes is not None else None
        if note is not None and _is_noted(note, folder):
            _emptied(folder, path)
            note.unlink(missing_ok=True)
            return
    hint = f"nobody has noted that you made it; look at it, and remove it by hand: rm -r {known_as}"
    raise FailedError("is left alone", where=str(known_as), hint=hint)


def remove_files(path: Path, names: re.Pattern[str]) -> bool:
    """Remove a folder if there are only files in it that have such names; whether it is gone."""
    with suppress(OSError), _opened(path) as folder:
        if all(map(names.fullmatch, found := _names(folder))):
            for name in found:
                os.unlink(name, dir_fd=folder)
            path.rmdir()
            return True
    return False


def _is_done(note: Path) -> bool:
    """Remove what a note is about, if that is there; whether the note has no purpose any more."""
    try:
        path = Path(json.loads(read_beginning(note, _NOTE_LIMIT_BYTES))["path"])
        with _opened(path) as folder:
            return not _is_noted(note, folder) or _emptied(folder, path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return True


def _is_noted(note: Path, folder: int) -> bool:
    """Whether a note is about an open folder. Raises OSError, ValueError where either cannot be read."""
    said, seen = json.loads(read_beginning(note, _NOTE_LIMIT_BYTES)), os.fstat(folder)
    found = {"uid": seen.st_uid, "inode": seen.st_ino, "word": _word_in(folder)}
    return isinstance(said, dict) and seen.st_uid == os.getuid() and found.items() <= said.items()


def _noted(path: Path, folder: int, end: str) -> Path | None:
    """Put a new word into a folder, and note it down; return the note, None where there can be none.

    Raises OSError where the word cannot be written.
    """
    word = secrets.token_hex(_WORD_CHARS // 2)
    file = os.open(MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        os.write(file, word.encode())
    finally:
        os.close(file)
    if (notes := _notes()) is None:
        return None
    note, seen = notes / f"{_key(path.parent)}.{word}{end}", os.fstat(folder)
    with suppress(OSError):  # it is removed in the end all the same, unless this process is killed
        said = {"path": str(path.absolute()), "uid": seen.st_uid, "inode": seen.st_ino, "word": word}
        note.write_text(json.dumps(said), encoding="ascii")
    return note


def _notes() -> Path | None:
    """Return the folder of the notes; None where there can be none that is this user's alone."""
    home, named = os.environ.get("HOME"), os.environ.get("XDG_STATE_HOME")
    state = Path(named or "")
    if not state.is_absolute():  # as the XDG Base Directory Specification has it
        if not home:
            return None
        state = Path(home, ".local/state")
    folder = state / "lumiimg" / "made"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        seen = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o077
    return folder if is_ours and not folder.parent.is_symlink() else None


def _key(parent: Path) -> str:
    return hashlib.sha256(os.fsencode(parent.resolve())).hexdigest()[:16]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


def _word_in(folder: int) -> str:
    """Return what the file with the word has. Raises OSError, ValueError."""
    file = os.open(MARK, _FILE, dir_fd=folder)
    try:
        word = os.read(file, _WORD_CHARS + 1) if stat.S_ISREG(os.fstat(file).st_mode) else b""
        if not _WORD.fullmatch(word):
            raise ValueError("not a word of lumiimg")
        return word.decode()
    finally:
        os.close(file)


def _emptied(folder: int, path: Path) -> bool:
    """Remove all that is in an open folder, and at last its word and its name; whether it is gone."""
    for name in _others(folder):
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
            continue
        with suppress(RecursionError):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
    if left := [f"./{name}" for name in _others(folder)]:
        # In a user namespace with all of the user's ids, the files are one's own.
        words = [*namespaces.PROGRAM, "root", "rm", "-rf", "--one-file-system", "--", *left]
        run(words, env=dict(os.environ), cwd=Path(f"/proc/self/fd/{folder}"), timeout_s=_REMOVE_TIMEOUT_S)
    with suppress(OSError):
        if not _others(folder):
            with suppress(FileNotFoundError):
                os.unlink(MARK, dir_fd=folder)
            path.rmdir()  # what has the name by now goes only if it is empty
            return True
    return False


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _others(folder: int) -> list[str]:
    return [name for name in _names(folder) if name != MARK]
