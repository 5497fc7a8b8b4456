"""Reading a file that may be anything, and writing a result: whole, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from lumiimg.errors import BadInputError, FailedError

EPOCH = 315_532_800
"""1980-01-01, the first day that a zip file knows. Later times become this, so that files of two builds are equal."""
_NAME_BYTES = 100
_MAX_LINKS = 40
"""As Linux follows (path_resolution(7)); one more is not a file either."""


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading.

    Raises OSError, also for what is something else: to open a pipe, or to read a device, can go on without end. Files
    of /proc can do so too, and do not: where there is nothing to read yet, reading ends.
    """
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise OSError(errno.EINVAL, "it is not a file", str(path))


def read_beginning(path: Path | str, limit_bytes: int) -> bytes:
    """Return the first bytes of a regular file. Raises OSError as `open_regular` does."""
    with open_regular(path) as stream:
        return stream.read(limit_bytes) or b""  # None where there is nothing to read yet


def refuse_bad_name(path: Path) -> None:
    """Raise OSError for a name that no file can have, or that may not be looked at.

    The questions of pathlib (`exists`, `is_file`) raise it too, but answer no from Python 3.14 on.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()


def write_text(path: Path, text: str) -> None:
    """Write a file; whoever reads meanwhile sees the old file or the new one, never a part.

    It is written under a name that nobody could put something under before, as others may write to the folder.

    Raises BadInputError if the name is that of something other than a file, FailedError if it cannot be written.
    """
    target = _led_to(path)
    if target.exists() and not target.is_file():
        raise BadInputError("is not a file", where=str(path))
    name = os.fsdecode(os.fsencode(target.name)[:_NAME_BYTES])
    partial = target.with_name(f".{name}.{secrets.token_hex(8)}")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(target)
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def _led_to(path: Path) -> Path:
    """Return what is written where a link has the name: what it leads to, as a link stays a link.

    Raises BadInputError for a link that another user has made, who would choose which file of ours is written over.
    """
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            return path.resolve()
        if path.lstat().st_uid not in {os.getuid(), 0}:
            raise BadInputError("is a link that another user has made", where=str(path), hint="name another file")
        path = path.parent / path.readlink()
    raise BadInputError("is a link in a loop", where=str(path))
