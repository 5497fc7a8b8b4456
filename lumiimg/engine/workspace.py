"""Places where a build writes before its result is good: named for their owner, removed by it or by the next build."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.engine.process import run
from lumiimg.errors import BadInputError, FailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = "lumiimg-partial"
_OWNER = re.compile(rf"\.(?P<pid>\d+)@(?P<host>[^/]*)\.{_MARK}$")
_REMOVE_TIMEOUT_S = 600.0


def owner_mark() -> str:
    """Return the end of a name that says whose it is: this process, on this machine."""
    return f".{os.getpid()}@{socket.gethostname()}.{_MARK}"


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

    Raises BadInputError where something other than a file has that name, FailedError if the folder cannot be written.
    """
    if target.exists() and not target.is_file():
        raise BadInputError("is not a file, and would be replaced by one", where=str(target))
    partial = target.parent / f".{target.name[:100]}{owner_mark()}"
    try:
        remove_stale(target.parent)
        yield partial
        partial.replace(target)
    except OSError as error:
        raise _not_writable(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _not_writable(path: Path, error: OSError) -> FailedError:
    return FailedError(
        f"cannot be written: {error.strerror or error}",
        where=str(path),
        hint="nothing was left there; LUMIIMG_CACHE says where layers are kept",
    )


def remove_stale(folder: Path) -> None:
    """Remove what processes of this machine that no longer live have left in `folder`."""
    for entry in folder.glob(f".*{_MARK}"):
        _remove_if_stale(entry)
    for entry in folder.glob(f"work-*{_MARK}"):
        _remove_if_stale(entry)


def is_left(entry: Path) -> bool:
    """Whether something that is named for its owner was left by a process of this machine that no longer lives.

    On a shared file system the owner may live on another node: only its own node can tell. In /tmp it may be another
    user's, named so that we touch it.
    """
    match = _OWNER.search(entry.name)
    if match is None or match["host"] != socket.gethostname() or is_alive(int(match["pid"])):
        return False
    return entry.lstat().st_uid == os.getuid()


def _remove_if_stale(entry: Path) -> None:
    if not is_left(entry):
        return
    if entry.is_dir() and not entry.is_symlink():
        remove_tree(entry)
    else:
        entry.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Tell whether a process of this machine lives; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    try:
        # behind the name in parentheses, which may hold anything (proc_pid_stat(5))
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (OSError, IndexError):
        return True


def remove_tree(folder: Path) -> None:
    """Remove a folder, also one that holds files of mapped user ids, as a fakeroot build leaves when it is killed."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and (unshare := shutil.which("unshare")):
        # In a user namespace with all of the user's ids mapped, the files are one's own.
        run(
            [unshare, "--map-root-user", "--map-auto", "rm", "-rf", "--one-file-system", "--", folder],
            env=dict(os.environ),
            timeout_s=_REMOVE_TIMEOUT_S,
        )
