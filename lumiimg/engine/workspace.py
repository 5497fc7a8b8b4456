"""Places where a build writes before its result is good: named for their owner, removed by it or by the next build."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lumiimg.engine import namespaces
from lumiimg.engine.owner import Owner, lives, this_process
from lumiimg.engine.process import run
from lumiimg.errors import BadInputError, FailedError

_MARK = "lumiimg-partial"
_OWNER = re.compile(
    rf"\.(?P<pid>\d{{1,10}})(?:-(?P<started>\d{{1,20}})-(?P<place>[0-9a-f]+))?@(?P<host>[^/]*)\.{_MARK}$"
)
"""Lumiimg 0.1.0 wrote no more than number and host."""
_REMOVE_TIMEOUT_S = 600.0
_OLD_S = 7 * 24 * 3600.0
"""No build goes on for so long without touching its folder: Slurm ends jobs sooner."""
_NAME_BYTES = 100
_SUFFIX_CHARS = 16


def owner_mark() -> str:
    """Return the end of a name that says whose it is: this process, on this machine; at most 130 bytes."""
    owner = this_process()
    return f".{owner.pid}-{owner.started}-{owner.place}@{owner.host}.{_MARK}"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder under `parent`, and remove it afterwards, whatever happened.

    Folders that builds on this machine left behind when they were killed are removed first.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_stale(parent)
        folder = Path(tempfile.mkdtemp(dir=parent, prefix="work-", suffix=owner_mark()))
    except OSError as error:
        raise _not_writable(parent, error) from error
    try:
        yield folder
    finally:
        remove_tree(folder)


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
    folder = None
    try:
        remove_stale(target.parent)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{name}.", suffix=owner_mark()))
        partial = folder / f"partial{target.suffix[:_SUFFIX_CHARS]}"
        yield partial
        partial.replace(target)
    except OSError as error:
        raise _not_writable(target, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _not_writable(path: Path, error: OSError) -> FailedError:
    return FailedError(
        f"cannot be written: {error.strerror or error}",
        where=str(path),
        hint="nothing was left there; LUMIIMG_CACHE names the folder for layers",
    )


def remove_stale(folder: Path) -> None:
    """Remove what processes that no longer live have left in `folder`."""
    for entry in folder.glob(f".*{_MARK}"):
        _remove_if_stale(entry)
    for entry in folder.glob(f"work-*{_MARK}"):
        _remove_if_stale(entry)


def is_left(entry: Path) -> bool:
    """Whether something that is named for its owner was left by a process that no longer lives.

    That of another node, boot or namespace of processes cannot be seen from here, and may live, as the name of a
    machine proves nothing: what it has is left alone, until nothing was put there for a week. In /tmp it may be another
    user's, named so that we touch it.
    """
    match = _OWNER.search(entry.name)
    if match is None:
        return False
    try:
        seen = entry.lstat()
    except FileNotFoundError:  # its owner has just removed it
        return False
    if seen.st_uid != os.getuid():
        return False
    owner = Owner(int(match["pid"]), int(match["started"] or 0), match["place"] or "", match["host"])
    is_there = lives(owner)
    return time.time() - seen.st_mtime > _OLD_S if is_there is None else not is_there


def _remove_if_stale(entry: Path) -> None:
    if not is_left(entry):
        return
    if entry.is_dir() and not entry.is_symlink():
        remove_tree(entry)
    else:
        entry.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder, also one that holds files of mapped user ids, as a fakeroot build leaves when it is killed."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        # In a user namespace with all of the user's ids, the files are one's own.
        run(
            [*namespaces.PROGRAM, "root", "rm", "-rf", "--one-file-system", "--", folder],
            env=dict(os.environ),
            timeout_s=_REMOVE_TIMEOUT_S,
        )
