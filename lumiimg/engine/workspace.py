"""Scratch folders for unfinished results: removed by their process, or by the next one.

In a shared folder without a sticky bit, another user can give any name to a private folder of this user: a name cannot
prove that a folder is ours. Its content does:

    PREFIX….lumiimg/<owner>/    a folder that only this user may open, and in it the one that is written to

The owner is a process, with a unique name. A process id is not enough: each PID namespace counts from one (containers,
jobs with their own namespaces), often with the same machine name.

A process removes its folder through the descriptor that has been open since its creation. The next process removes the
folders of killed owners by their names, and the folder around them if it is empty.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError, FailedError, MissingHereError
from lumiimg.core.files import SET_TMPDIR, read_beginning
from lumiimg.engine import namespaces
from lumiimg.engine.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_ALONE = secrets.token_hex(8)
MARK = ".lumiimg-partial"
"""Suffix of files and folders that have an owner."""
_OWNER = re.compile(rf"\.(?P<pid>\d{{1,10}})-(?P<place>[0-9a-f]+@[^/]*){re.escape(MARK)}$")
_OLD_S = 7 * 24 * 3600.0
"""Age of abandoned folders: no build runs for a week without touching its folder, as Slurm ends jobs sooner."""
_ENDING = ".lumiimg"
_REMOVE_TIMEOUT_S = 600.0
_FULL = {errno.ENOSPC, errno.EDQUOT}
_LITTLE_BYTES = 1 << 20
"""A file system with less free space counts as full."""
MOVE_CACHE = "free some space there (`lumiimg cache prune --keep 0`), or move the cache: LUMIIMG_CACHE=FOLDER"
"""Hint for a full cache, or scratch in it."""
MOVE_OUTPUT = "free some space there, or write it elsewhere: -o"


@contextmanager
def scratch_folder(parent: Path, prefix: str = "work-") -> Iterator[Path]:
    """Yield a new folder below `parent`, and remove it afterwards in any case.

    Raises FailedError if it cannot be created, or the file system is full; MissingHereError if TMPDIR is full.
    """
    with ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(own_folder(parent, prefix))
        except OSError as error:
            raise _not_writable(parent, error) from error
        try:
            yield folder
        except OSError as error:
            if full_folder(error, parent):
                raise _not_writable(parent, error) from error
            raise


@contextmanager
def written_by_rename(target: Path) -> Iterator[Path]:
    """Yield a path on the file system of `target` to write to; on success it is renamed to `target`, else removed.

    It is in a new private folder of this user: others who may write beside `target` cannot place a link there that
    would redirect the writing to another file.

    Raises BadInputError if `target` exists but is not a file, FailedError if its folder cannot be written.
    """
    if target.exists() and not target.is_file():
        raise BadInputError("is not a file, but would be replaced by one", where=str(target))
    try:
        with own_folder(target.parent, ".lumiimg-") as folder:
            partial = folder / "partial"
            yield partial
            partial.replace(target)
    except OSError as error:
        where, hint = (target.parent, MOVE_OUTPUT) if error.errno in _FULL else (target, "nothing was left there")
        raise FailedError(f"cannot be written: {error.strerror or error}", where=str(where), hint=hint) from error


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new private folder of this user, and remove it afterwards; first remove leftovers of killed processes.

    Raises OSError if it cannot be made.
    """
    remove_left(parent)
    path = Path(tempfile.mkdtemp(_ENDING, prefix, parent))
    with _opened(path) as around:
        if _names(around) or os.fstat(around).st_uid != os.getuid():
            raise PermissionError(f"{path} was replaced by another folder")
        owner = owner_mark()
        try:
            os.mkdir(owner, 0o700, dir_fd=around)
            yield path / owner
        finally:
            _remove(owner, around, path)


def remove_left(parent: Path) -> None:
    """Remove the folders in `parent` that dead processes have left."""
    for path in parent.glob(f"*{_ENDING}"):
        with suppress(OSError), _opened(path) as around:
            seen = os.fstat(around)
            if seen.st_uid == os.getuid() and not seen.st_mode & 0o077:
                for name in _names(around):
                    if is_abandoned(name, os.stat(name, dir_fd=around, follow_symlinks=False)):
                        _remove(name, around, path)


def remove_tree(path: Path) -> None:
    """Remove a folder in one of ours, even with files of mapped user ids, which a fakeroot build leaves."""
    with suppress(OSError), _opened(path.parent) as around:
        _remove(path.name, around)


def remove_files(path: Path, names: re.Pattern[str]) -> bool:
    """Remove a folder if all files in it match `names`; return whether it was removed."""
    with suppress(OSError), _opened(path) as folder:
        if all(map(names.fullmatch, found := _names(folder))):
            for name in found:
                os.unlink(name, dir_fd=folder)
            path.rmdir()
            return True
    return False


def _remove(name: str, around: int, path: Path | None = None) -> None:
    """Remove the entry `name` of an open folder; then the folder itself, by its path, if it is empty."""
    with suppress(OSError):
        os.unlink(name, dir_fd=around)
    with suppress(OSError, RecursionError):
        shutil.rmtree(name, ignore_errors=True, dir_fd=around)
        _open_to_owner(name, around)
        shutil.rmtree(name, ignore_errors=True, dir_fd=around)
    if name in _names(around):
        # In a user namespace with all of the user's ids, the files are the user's own.
        words = [*namespaces.PROGRAM, "root", "rm", "-rf", "--one-file-system", "--", f"./{name}"]
        run(words, env=dict(os.environ), cwd=Path(f"/proc/self/fd/{around}"), timeout_s=_REMOVE_TIMEOUT_S)
    if path is not None:
        with suppress(OSError):
            path.rmdir()  # whatever has that name by now is removed only if it is empty


def _open_to_owner(name: str, around: int) -> None:
    """Make folders accessible to their owner where the image did not."""
    for _, folders, _, at in os.fwalk(name, dir_fd=around):
        for folder in folders:
            with suppress(OSError):  # another user's; chmod(2) follows links
                if stat.S_ISDIR(os.stat(folder, dir_fd=at, follow_symlinks=False).st_mode):
                    os.chmod(folder, 0o700, dir_fd=at)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield folder
    finally:
        os.close(folder)


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def full_folder(error: OSError, *folders: Path) -> Path | None:
    """Return which of the folders is full, by the file that an error names, else by free space; for a quota, which
    cannot be attributed, the first. None for another error, or if no folder is full.
    """
    if error.errno not in _FULL:
        return None
    if error.filename is not None:
        named = Path(os.fsdecode(error.filename))
        return next((folder for folder in folders if named.is_relative_to(folder)), None)
    return next((one for one in folders if error.errno == errno.EDQUOT or _has_none_left(one)), None)


def _has_none_left(folder: Path) -> bool:
    seen = os.statvfs(folder)
    return seen.f_bavail * seen.f_frsize < _LITTLE_BYTES or seen.f_favail == 0


def named_folder(folder: Path) -> Path:
    """Return the folder that the user named, if `folder` is inside one of our own in it; else `folder`."""
    return next((one.parent for one in (folder, *folder.parents) if one.name.endswith(_ENDING)), folder)


def no_room(folder: Path, what: str) -> FailedError | MissingHereError:
    """Return the error for a full TMPDIR or cache."""
    folder = named_folder(folder)
    if folder == Path(tempfile.gettempdir()):
        return MissingHereError(what, where=str(folder), hint=SET_TMPDIR)
    return FailedError(what, where=str(folder), hint=MOVE_CACHE)


def _not_writable(path: Path, error: OSError) -> FailedError | MissingHereError:
    what = f"cannot be written: {error.strerror or error}"
    if error.errno in _FULL:
        return no_room(path, what)
    return FailedError(what, where=str(path), hint="nothing was left there; LUMIIMG_CACHE names the folder for layers")


# -- owners


def owner_mark() -> str:
    """Return the suffix of a name that identifies its owner: this process, on this machine; at most 110 bytes."""
    return f".{os.getpid()}-{_place()}{MARK}"


def is_abandoned(name: str, seen: os.stat_result) -> bool:
    """Return whether the owner named in a file or folder of this user is dead.

    Owners on another node, or in another boot or PID namespace, cannot be seen from here and may live, as a machine
    name proves nothing: their folders are left alone until they have not changed for a week.
    """
    match = _OWNER.search(name)
    if match is None:
        return False
    if match["place"] != _place():
        return time.time() - seen.st_mtime > _OLD_S
    try:
        os.kill(int(match["pid"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # another user's process has the id now, or it gained privileges
        return False
    return False


def _place() -> str:
    """Return the scope of a process id: a short digest of boot and namespace, and the name of the machine.

    Source: random(4), pid_namespaces(7).
    """
    try:
        counts = f"{read_beginning(_BOOT, 64).decode('ascii')}{_NAMESPACE.readlink()}"
    except OSError:  # unknown: a value that no other process has
        counts = f"{_ALONE}{os.getpid()}"
    return f"{hashlib.sha256(counts.encode()).hexdigest()[:12]}@{socket.gethostname()[:64]}"
