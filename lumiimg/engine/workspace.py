"""Places where a build writes before its result is good: removed by their process, or by the next one."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lumiimg.engine.own_folder import own_folder
from lumiimg.errors import BadInputError, FailedError, MissingHereError
from lumiimg.files import SET_TMPDIR

_NAME_BYTES = 100
_SUFFIX_CHARS = 16
_FULL = {errno.ENOSPC, errno.EDQUOT}
_LITTLE_BYTES = 1 << 20
"""Of a file system that has no room for what is written here."""


@contextmanager
def scratch_folder(parent: Path, prefix: str = "work-") -> Iterator[Path]:
    """Yield a new folder under `parent`, and remove it afterwards, whatever happened.

    Folders that builds on this machine left behind when they were killed are removed first. Raises FailedError where
    none can be made, and for a file system that is full; MissingHereError where TMPDIR is the full one.
    """
    with _said_if_full(parent), ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(own_folder(parent, prefix))
        except OSError as error:
            raise _not_writable(parent, error) from error
        yield folder


@contextmanager
def written_by_rename(target: Path) -> Iterator[Path]:
    """Yield a name beside `target` to write to; on success it becomes `target`, else it is gone.

    It is in a new folder of this user alone: who may write beside `target` can put nothing under it before, through
    which another file would be written.

    Raises BadInputError where something other than a file has that name, FailedError if the folder cannot be written.
    """
    if target.exists() and not target.is_file():
        raise BadInputError("is not a file, and would be replaced by one", where=str(target))
    name = os.fsdecode(os.fsencode(target.name)[:_NAME_BYTES])
    try:
        with own_folder(target.parent, f".{name}.") as folder:
            partial = folder / f"partial{target.suffix[:_SUFFIX_CHARS]}"
            yield partial
            partial.replace(target)
    except OSError as error:
        raise _not_writable(target, error) from error


@contextmanager
def _said_if_full(parent: Path) -> Iterator[None]:
    """Name the folder where what is written to it does not fit. Raises FailedError for OSError of that kind."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or not _is_full(parent, error):
            raise
        raise _not_writable(parent, error) from error


def _is_full(parent: Path, error: OSError) -> bool:
    if error.filename is not None:
        return Path(os.fsdecode(error.filename)).is_relative_to(parent)
    seen = os.statvfs(parent)
    return error.errno == errno.EDQUOT or seen.f_bavail * seen.f_frsize < _LITTLE_BYTES or seen.f_favail == 0


def _not_writable(path: Path, error: OSError) -> FailedError | MissingHereError:
    what, where = f"cannot be written: {error.strerror or error}", str(path)
    if error.errno in _FULL and path == Path(tempfile.gettempdir()):
        return MissingHereError(what, where=where, hint=SET_TMPDIR)
    return FailedError(what, where=where, hint="nothing was left there; LUMIIMG_CACHE names the folder for layers")
