"""Changes to a layer's files as root of a user namespace: `python -m lumiimg.build.userns_helper COMMAND FOLDER …`.

Files of a layer may belong to ids that are the user's only there, in folders that nobody else may enter.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import struct
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path

from lumiimg.build.safe_fs import open_file
from lumiimg.errors import FailedError, LumiimgError
from lumiimg.files import EPOCH
from lumiimg.image import FileKind, RootFileSystem, open_image, open_stack

_PYC = struct.Struct("<4sIII")
_OPAQUE_FILES = (".wh..wh..opq", ".wh..opq")
"""fuse-overlayfs's marks of a folder that was deleted and made anew. Source: containers/fuse-overlayfs main.c."""
_ORIGIN = "user.fuseoverlayfs.origin"
"""On a file that was copied up to be changed, not on one that took another's place. Source: as above."""
_OPAQUE_XATTRS = ("user.overlay.opaque", "trusted.overlay.opaque", "user.fuseoverlayfs.opaque")


def tidy(upper: Path, layers: Sequence[Path]) -> None:
    """Make the upper folder of an overlay into a layer that any engine shows as the build saw it.

    A folder that hides all that is below it becomes one whiteout a name: the overlay of an engine at run time
    honours no other mark. What hides nothing, and folders that are as they were, go: the same work leaves the same
    layer. Compiled Python files get the time that their source will have in the image, else Python would compile
    again at each start.
    """
    opaque: dict[Path, set[str]] = {}
    marks: list[Path] = []
    copied: list[Path] = []
    folders_seen: list[Path] = []
    for folder, folders, files in os.walk(upper):
        here = Path(folder)
        folders_seen.append(here)
        for name in files:
            if name.endswith(".pyc"):
                _date(upper, here / name)
            seen = (here / name).lstat()
            if name not in _OPAQUE_FILES and _is_mark(seen):
                marks.append(here / name)
            elif stat.S_ISREG(seen.st_mode) and _ORIGIN in os.listxattr(here / name, follow_symlinks=False):
                copied.append(here / name)
        if _was_opaque(here):
            opaque[here] = {*folders, *files} - {*_OPAQUE_FILES}
    if not layers:
        return
    with open_stack(layers) as image:
        below = image.root
        for here, names in opaque.items():
            for name in _names(below, _inside(here, upper)) - names:
                os.mknod(here / name, stat.S_IFCHR, os.makedev(0, 0))
        _link_again(upper, below, copied)
        for mark in marks:
            if mark.name not in _names(below, _inside(mark.parent, upper)):
                mark.unlink()  # made and deleted by the same script: there is nothing to hide
        for folder_seen in reversed(folders_seen[1:]):
            if _is_as_below(folder_seen, below, _inside(folder_seen, upper)):
                folder_seen.rmdir()


def _link_again(upper: Path, below: RootFileSystem, copied: Sequence[Path]) -> None:
    """Have all names of a file show what was changed under one of them: an overlay copies a file up by one name."""
    wanted: dict[Hashable, Path] = {}
    for path in copied:
        with contextlib.suppress(OSError):
            was = below.stat(_inside(path, upper), follow=False)
            if was.links > 1:
                wanted[was.identity] = path
    if not wanted:
        return
    for entry in below.walk():
        if entry.kind is not FileKind.FILE or os.path.lexists(upper / entry.path[1:]):
            continue
        changed = wanted.get(below.stat(entry.path, follow=False).identity)
        if changed is not None and _parents(upper, below, entry.path):
            os.link(changed, upper / entry.path[1:])


def _parents(upper: Path, below: RootFileSystem, path: str) -> bool:
    """Make the folders of a path as they are below; return whether it is there at all for the layer."""
    for parent in reversed(Path(path).parents[:-1]):
        there = upper / parent.relative_to("/")
        if os.path.lexists(there):
            if not stat.S_ISDIR(there.lstat().st_mode):
                return False  # gone, or something else by now
            continue
        was = below.stat(str(parent), follow=False)
        there.mkdir()
        os.chown(there, was.uid, was.gid)
        there.chmod(was.permissions)
    return True


def _inside(path: Path, upper: Path) -> str:
    inside = path.relative_to(upper).as_posix()
    return "/" if inside == "." else f"/{inside}"


def _is_mark(seen: os.stat_result) -> bool:
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == 0


def _is_as_below(folder: Path, below: RootFileSystem, path: str) -> bool:
    """Tell whether a folder holds nothing and is what it was: overlays copy a folder for as little as a mount in it."""
    if any(folder.iterdir()):
        return False
    try:
        was, seen = below.stat(path, follow=False), folder.lstat()
    except OSError:
        return False
    return (was.kind, was.permissions, was.uid, was.gid) == (
        FileKind.DIRECTORY,
        stat.S_IMODE(seen.st_mode),
        seen.st_uid,
        seen.st_gid,
    )


def _was_opaque(folder: Path) -> bool:
    """Tell whether a folder hides what is below it, and take the marks away."""
    found = False
    for name in _OPAQUE_FILES:
        if os.path.lexists(folder / name):
            (folder / name).unlink()
            found = True
    for name in _OPAQUE_XATTRS:
        try:
            found = os.getxattr(folder, name, follow_symlinks=False) == b"y" or found
            os.removexattr(folder, name, follow_symlinks=False)
        except OSError:
            continue
    return found


def _names(below: RootFileSystem, path: str) -> set[str]:
    try:
        return {entry.name for entry in below.list_dir(path)}
    except OSError:
        return set()  # nothing below to be hidden


def listing(root: Path) -> dict[str, list[int]]:
    """Return what tells of each name below a folder whether it was touched: the inode, and when it was changed."""
    found: dict[str, list[int]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            seen = os.lstat(f"{folder}/{name}")
            path = f"{folder}/{name}".removeprefix(f"{root}/")
            # the kernel sets the time of change, and nobody else can; a folder's is that of the names in it, too
            touched = 0 if stat.S_ISDIR(seen.st_mode) else seen.st_ctime_ns
            found[path] = [seen.st_ino, seen.st_mode, seen.st_uid, seen.st_gid, touched]
    return found


def difference(root: Path, before: dict[str, list[int]], delta: Path) -> None:
    """Make `delta`, on the same file system, the layer that makes what a folder was into what it is.

    Files are links to those of the folder, so that none is copied; what is gone becomes a whiteout.
    """
    after = listing(root)
    delta.mkdir()
    for path in (path for path, seen in after.items() if before.get(path) != seen):
        _take(root, delta, path)
    for path in sorted(before.keys() - after.keys()):
        parent = os.path.dirname(path)  # noqa: PTH120 - relative, and very many
        if parent and parent not in after:
            continue  # gone with its folder
        if parent and not stat.S_ISDIR(after[parent][1]):
            continue
        if parent:
            _take(root, delta, parent)
        os.mknod(delta / path, stat.S_IFCHR, os.makedev(0, 0))


def _take(root: Path, delta: Path, path: str) -> None:
    there, here = delta / path, root / path
    if os.path.lexists(there):
        return
    parent = os.path.dirname(path)  # noqa: PTH120
    if parent:
        _take(root, delta, parent)
    seen = here.lstat()
    if not stat.S_ISDIR(seen.st_mode):
        os.link(here, there, follow_symlinks=False)
        return
    there.mkdir()
    os.chown(there, seen.st_uid, seen.st_gid)
    there.chmod(stat.S_IMODE(seen.st_mode))
    shutil.copystat(here, there)


def clear(root: Path, delta: Path) -> None:
    """Remove from a folder what a layer replaces or has whiteouts for: before it is unpacked there, and after."""
    with open_image(delta) as image:
        for entry in image.root.walk():
            there = root / entry.path.lstrip("/")
            try:
                seen = there.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            is_folder = stat.S_ISDIR(seen.st_mode)
            # of devices a layer has only whiteouts: a build cannot make others
            if entry.kind is FileKind.DEVICE or is_folder != (entry.kind is FileKind.DIRECTORY):
                shutil.rmtree(there) if is_folder else there.unlink()


def _date(upper: Path, compiled: Path) -> None:
    """Set the time that a .pyc believes its source to have. Source: PEP 552; importlib._bootstrap_external."""
    source = compiled.parent.parent / f"{compiled.name.partition('.')[0]}.py"
    try:
        seen = source.lstat()
        descriptor = open_file(upper, _inside(compiled, upper), os.O_RDWR)
        with open(descriptor, "r+b") as file:  # noqa: PTH123 - a descriptor has no path
            magic, flags, mtime, size = _PYC.unpack(file.read(_PYC.size))
            if flags == 0 and mtime == int(seen.st_mtime) & 0xFFFFFFFF and mtime > EPOCH and stat.S_ISREG(seen.st_mode):
                file.seek(0)
                file.write(_PYC.pack(magic, flags, EPOCH, size))
    except (OSError, FailedError, struct.error):
        return  # no source beside it, a link, or none of ours to change: Python looks itself


def main(command: str, target: str, *others: str) -> None:
    """Run one command. Ends the process with one line where it fails."""
    paths = [Path(name) for name in others]
    try:
        match command:
            case "tidy":
                tidy(Path(target), paths)
            case "list":
                paths[0].write_text(json.dumps(listing(Path(target))), encoding="utf-8")
            case "difference":
                difference(Path(target), json.loads(paths[0].read_text(encoding="utf-8")), paths[1])
            case "clear":
                clear(Path(target), paths[0])
    except (LumiimgError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
