"""Read files that may be of any kind, and write results completely or not at all."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO

from lumiimg.core.errors import BadInputError, FailedError, MissingHereError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from io import BufferedReader

EPOCH = 315_532_800
"""1980-01-01, the earliest day in a zip file. It replaces later times, so that files of two builds are equal."""
SET_TMPDIR = "set TMPDIR to a folder with space"
_NAME_BYTES = 100
_MAX_LINKS = 40
"""Limit of Linux (path_resolution(7)); with one more link, it does not find a file either."""


def today() -> dt.date:
    """Return the day, in UTC, for records: no answer depends on it (tests/unit/test_calendar.py)."""
    return dt.datetime.now(dt.UTC).date()


def regular_file(path: Path | str, flags: int = os.O_RDONLY, *, follow: bool = True) -> int:
    """Open a regular file, and return its descriptor; `follow`: also one that a link leads to.

    Raises OSError, also for any other kind of file: opening a pipe, or reading a device, may never end. A file of /proc
    may block, too, but not here: where there is nothing to read yet, reading ends.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a file", str(path))


def open_regular(path: Path | str, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. Raises OSError as `regular_file` does."""
    return open(regular_file(path, follow=follow), "rb")


def read_beginning(path: Path | str, limit_bytes: int, *, follow: bool = True) -> bytes:
    """Return the first bytes of a regular file. Raises OSError as `regular_file` does."""
    with open_regular(path, follow=follow) as stream:
        return stream.read(limit_bytes) or b""  # None where there is nothing to read yet


def file_sha256(path: Path) -> str:
    """Return the digest of a file, in hexadecimal. Raises BadInputError if it is not a file that can be read."""
    try:
        if not path.is_file():
            raise BadInputError("is not a file", where=str(path))
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise BadInputError(f"cannot be read: {error}", where=str(path)) from error


def refuse_bad_name(path: Path) -> None:
    """Raise OSError for a name that no file can have, or that may not be accessed.

    `exists` and `is_file` of pathlib raise it, too, but return False from Python 3.14 on.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()


_DATA_SUFFIXES = frozenset({".json", ".yaml", ".yml", ".toml", ".lock", ".py", ".sh", ".def", ".md", ".ini", ".cfg"})


def is_named_as_data(name: str) -> bool:
    """Whether a file of this name is data or a program, and so named by mistake for a job's output or an image."""
    return Path(name).suffix in _DATA_SUFFIXES


def free_name(name: str) -> str:
    """Return a name for a new file: this one, or this with the first number that makes it unused."""
    path = Path(name)
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return name if not os.path.lexists(path) else str(next(one for one in numbered if not os.path.lexists(one)))


def refuse_places(places: Mapping[str, Path | None], reads: Collection[Path | None]) -> None:
    """Refuse, before any work, to write a result into a folder that does not exist, or over an input.

    `places` are files to be written, by the option that names them; `reads` is what the command reads. Raises
    BadInputError.
    """
    taken: dict[Path, str] = {}
    for option, place in places.items():
        if place is None:
            continue
        if str(place) == "-":
            raise BadInputError("standard output is not a file", where=f"{option} -", hint="name a file")
        refuse_bad_name(place)
        if (other := taken.setdefault(place.resolve(), option)) != option:
            raise BadInputError(
                "is one file for two results", where=str(place), hint=f"{other} and {option} must name two files"
            )
        if not place.parent.is_dir():
            raise BadInputError("no such folder", where=str(place.parent), hint=f"make it first ({option})")
        if not os.access(place.parent, os.W_OK):
            raise BadInputError("is a folder that is not writable", where=str(place.parent), hint=f"for {option}")
        if place.is_dir():
            raise BadInputError("is a folder", where=str(place), hint=f"{option} names a file")
        for source in reads:
            if source is not None and place.exists() and source.exists() and place.samefile(source):
                raise BadInputError("is an input of the command", where=str(place), hint=f"{option} names another file")


def write_text(path: Path, text: str) -> None:
    """Write a file; where the path is a link of the user's own, replace the file that it leads to.

    Raises BadInputError if the path is something other than a file, FailedError if it cannot be written.
    """
    target = _write_target(path)
    if target.exists() and not target.is_file():
        raise BadInputError("is not a file", where=str(path))
    with atomic_file(target) as file:
        file.write(text.encode())


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which gets its name once it is complete; a link of that name is replaced, not followed.

    A concurrent reader sees the old file or the new one, never a part. It is written under a name that nobody can have
    occupied before, as others may write to the folder.

    Raises FailedError if it cannot be written.
    """
    name = os.fsdecode(os.fsencode(path.name)[:_NAME_BYTES])
    partial = path.with_name(f".{name}.{os.urandom(8).hex()}")
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def temporary_folder() -> Path:
    """Return TMPDIR, or what Python uses instead. Raises MissingHereError where none of these can be written."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        where = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
        what = "nothing can be written there or to another temporary folder"
        raise MissingHereError(what, where=where, hint=SET_TMPDIR) from error


def make_folder(folder: Path, below: str = "") -> Path:
    """Create a folder if it does not exist, and those of the path `below` in it; return the last.

    For `folder`, a link of the user's own is followed, as in `write_text`; below it, no link is.

    Raises BadInputError for a link, OSError for anything else that cannot be created.
    """
    made = _write_target(folder)
    made.mkdir(parents=True, exist_ok=True)
    for name in PurePath(below).parts:
        made /= name
        if made.is_symlink():
            raise BadInputError("is a link, not a folder", where=str(made), hint="name another folder")
        made.mkdir(exist_ok=True)
    return made


def _write_target(path: Path) -> Path:
    """Return the path to write: for a link, what it leads to, because a link stays a link.

    Raises BadInputError for a link of another user, who would choose which file of ours is overwritten.
    """
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            return path.resolve()
        if path.lstat().st_uid not in {os.getuid(), 0}:
            raise BadInputError("is a link made by another user", where=str(path), hint="name another file")
        path = path.parent / path.readlink()
    raise BadInputError("is a link in a loop", where=str(path))
