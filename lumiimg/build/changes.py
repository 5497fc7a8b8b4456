"""Change a layer's files as root of a user namespace: `python -m lumiimg.build.changes COMMAND FOLDER …`.

Only there does the user have the ids that may own files of a layer, in folders that nobody else may enter.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import struct
import sys
from collections.abc import Container, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from lumiimg.build.safe_fs import OWN, open_file
from lumiimg.build.safe_fs import folder as opened_folder
from lumiimg.core.errors import FailedError, LumiimgError
from lumiimg.core.files import EPOCH
from lumiimg.image import FileKind, RootFileSystem, open_image, open_stack

_OWN_XATTRS = ("user.overlay.", "user.fuseoverlayfs.")
"""Where overlays record their own state. Source: kernel Documentation/filesystems/overlayfs.rst, `userxattr`."""
_OPAQUE = "user.overlay.opaque"
_PYC = struct.Struct("<4sIII")
_VOLATILE_FILES: dict[str, tuple[str, ...]] = {
    "/etc": ("machine-id",),
    "/var/cache/apt": ("pkgcache.bin", "srcpkgcache.bin"),
    "/var/cache/ldconfig": ("aux-cache",),
    "/var/lib/apt/lists": (),
    "/var/lib/dbus": ("machine-id",),
    "/var/log": ("alternatives.log", "bootstrap.log", "dpkg.log"),
    "/var/log/apt": ("eipp.log.xz", "history.log", "term.log"),
}
"""By folder, files that installation leaves and that differ each time (all files if none is named): they contain the
time, inodes, a random number, or what a mirror offered that day. Source: comparison of two builds of equal packages;
machine-id(5): images have none.
"""
_SET_ON = re.compile(rb"(?m)^([^:\n]*:[^:\n]*:)(\d{1,9})(?=:)")
"""Matches the day on which a password was set. Source: shadow(5)."""
_DAY = EPOCH // 86_400
_SHADOW_LIMIT_BYTES = 1 << 20
_COPIED = (b"user.", b"security.capability")
"""Attributes that belong to files: SELinux labels, which a whole image may have, belong to the machine."""
_CHUNK_BYTES = 8 << 20


def place(upper: Path, noted: Path, layers: Sequence[Path]) -> None:
    """Copy the files that an overlay could not change into its upper folder, and record their state there.

    An overlay copies a file up under one name; its other names keep the old content, for the script and in the layer.
    It also does not find empty extended attributes or capabilities in squashfuse, and then refuses every change.
    """
    with open_stack(layers) as image:
        for names in _delicate(image.root):
            paths = [upper / name[1:] for name in names]
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
            _copy(image.root, names[0], paths[0])
            for path in paths[1:]:
                os.link(paths[0], path, follow_symlinks=False)
        for folder, _, _ in os.walk(upper):
            if folder != str(upper):
                _set_attributes(Path(folder), image.root, f"/{Path(folder).relative_to(upper)}")
    noted.write_text(json.dumps(listing(upper)), encoding="utf-8")


def take_back(upper: Path, noted: Path) -> None:
    """Remove all names of the placed files that are unchanged."""
    before, after = json.loads(noted.read_text(encoding="utf-8")), listing(upper)
    for path, seen in after.items():  # adding or removing a name changes the file, too
        if before.get(path) == seen and not stat.S_ISDIR(seen[1]):
            with _same_time((upper / path).parent):
                (upper / path).unlink()


def drop(root: Path, spared: Container[str] = ()) -> None:
    """Remove the files that differ between two equal builds, except those in `spared` and whiteouts.

    Versions of these files in a layer below become visible again.
    """
    for path, names in _VOLATILE_FILES.items():
        with suppress(FileNotFoundError, NotADirectoryError), opened_folder(root, path) as at:
            for name in names or os.listdir(at):  # noqa: PTH208 - a descriptor has no path
                with suppress(FileNotFoundError):
                    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
                    if stat.S_ISREG(mode) and f"{path}/{name}"[1:] not in spared:
                        os.unlink(name, dir_fd=at)


def tidy(upper: Path, layers: Sequence[Path]) -> None:
    """Turn the upper folder of an overlay into a layer that any engine shows as the build saw it.

    An opaque folder, which hides everything below it, gets a whiteout for each hidden name: the overlay of an engine
    honours no other mark at run time. Compiled Python files get the time that their source will have in the image, or
    Python would recompile at each start. Password dates are limited to that day, too.
    """
    with suppress(FileNotFoundError, NotADirectoryError), opened_folder(upper, "/etc") as etc:
        for name in ("shadow", "shadow-"):
            _date_passwords(etc, name)
    opaque: set[Path] = set()
    for folder, _, files, at in os.fwalk(upper):
        here = Path(folder)
        for name in files:
            if name.endswith(".pyc"):
                _date(at, name)
        if here.parent in opaque or _OPAQUE in _listed(here):
            opaque.add(here)
        for path in (here, *(here / name for name in files)):
            for name in _listed(path):
                if name.startswith(_OWN_XATTRS):
                    os.removexattr(path, name, follow_symlinks=False)
    if opaque and layers:  # without layers below, a script or an image set the mark, and it hides nothing
        with open_stack(layers) as image:
            for here in opaque:
                _hide(here, image.root, upper)


def hide(upper: Path, name: str, layers: Sequence[Path]) -> None:
    """Make a folder in `upper`, and each folder inside it, hide what is below it."""
    with open_stack(layers) as image:
        for folder, _, _ in os.walk(upper / name):
            _hide(Path(folder), image.root, upper)


def _hide(here: Path, below: RootFileSystem, upper: Path) -> None:
    path, names = f"/{here.relative_to(upper)}", set[str]()
    # follow no link in the path, as an overlay follows none
    if below.is_dir(path) and below.resolve(path) == os.path.normpath(path):
        names = {entry.name for entry in below.list_dir(path)}
    with _same_time(here):
        for name in names - {path.name for path in here.iterdir()}:
            os.mknod(here / name, stat.S_IFCHR, os.makedev(0, 0))


def unpack(
    root: Path, image: Path, tars: Path | None = None, *, as_user: bool = False, keeps_own: bool = False
) -> None:
    """Unpack the files of an image over a folder: they replace what has the same names, and whiteouts remove it.

    No existing file is written into, and no link is followed. Devices are not created: engines mount their own.
    `as_user`: without the powers of root, owners and attributes are lost, and everything is readable by its owner.
    `keeps_own`: the folder already has an engine's own folder, so that of the image is skipped. `tars`: where layers
    are decompressed; None: TMPDIR.
    """
    with open_image(image, None if tars is None else lambda: tars) as opened:
        made: dict[Hashable, Path] = {}
        folders = [(root, "/")]
        root.mkdir(exist_ok=True)
        for path, kind in opened.root.walk():
            if keeps_own and f"{path}/".startswith(f"{OWN}/"):
                continue
            target, identity = root / path[1:], opened.root.stat(path, follow=False).identity
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(target.lstat().st_mode):
                    target.unlink()
                elif kind is not FileKind.DIRECTORY:
                    shutil.rmtree(target)
            if kind is FileKind.DIRECTORY:
                folders.append((target, path))
            elif identity in made:
                os.link(made[identity], target, follow_symlinks=False)
                continue
            if kind is not FileKind.DEVICE:
                _copy(opened.root, path, target, as_user=as_user)
                made[identity] = target
        for folder, path in reversed(folders):  # adding names has changed their times
            _set_attributes(folder, opened.root, path, as_user=as_user)


@contextmanager
def _same_time(folder: Path) -> Iterator[None]:
    """Restore a folder's times after names in it are added or removed."""
    seen = folder.lstat()
    yield
    os.utime(folder, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _delicate(root: RootFileSystem) -> Iterator[list[str]]:
    """Yield the names of each file with several names or extended attributes, and of each folder with attributes."""
    with_attributes: set[Hashable] = set()
    found: dict[Hashable, list[str]] = {}
    for path, seen in root.stats():
        has_attributes = bool(_attributes(root, path))
        if seen.kind is not FileKind.DEVICE and (
            has_attributes or (seen.links > 1 and seen.kind is not FileKind.DIRECTORY)
        ):
            found.setdefault(seen.identity, []).append(path)
            with_attributes |= {seen.identity} if has_attributes else set()
    yield from (names for identity, names in found.items() if len(names) > 1 or identity in with_attributes)


def _copy(root: RootFileSystem, path: str, target: Path, *, as_user: bool = False) -> None:
    match root.stat(path, follow=False).kind:
        case FileKind.FILE:
            with closing(root.open(path)) as source, target.open("xb") as file:
                for offset in range(0, source.size, _CHUNK_BYTES):
                    if (chunk := source.read_at(offset, _CHUNK_BYTES)).strip(b"\0"):  # else it is a hole
                        file.seek(offset)
                        file.write(chunk)
                file.truncate(source.size)
        case FileKind.SYMLINK:
            target.symlink_to(root.readlink(path))
        case FileKind.DIRECTORY:
            target.mkdir(exist_ok=True)
        case kind:
            os.mknod(target, stat.S_IFIFO if kind is FileKind.FIFO else stat.S_IFSOCK)
    _set_attributes(target, root, path, as_user=as_user)


def _set_attributes(target: Path, root: RootFileSystem, path: str, *, as_user: bool = False) -> None:
    was = root.stat(path, follow=False)
    if not as_user:
        try:
            os.chown(target, was.uid, was.gid, follow_symlinks=False)
        except OSError as error:
            what = f"belongs to user {was.uid} and group {was.gid}: {error.strerror}"
            hint = "a user namespace has the ids that /etc/subuid and /etc/subgid give to its user"
            raise FailedError(what, where=f"{target}", hint=hint) from error
    if was.kind is not FileKind.SYMLINK:
        to_owner = stat.S_IRWXU if was.kind is FileKind.DIRECTORY else stat.S_IRUSR
        target.chmod(was.permissions | (to_owner if as_user else 0))
        wanted = _attributes(root, path) if not as_user else {}
        for name in _xattrs_of(target).keys() - wanted.keys():  # from the same folder of a layer below
            os.removexattr(target, name, follow_symlinks=False)
        for name, value in wanted.items():
            os.setxattr(target, name, value, follow_symlinks=False)
    os.utime(target, (was.mtime_s, was.mtime_s), follow_symlinks=False)


def _attributes(root: RootFileSystem, path: str) -> dict[str, bytes]:
    """Return the extended attributes to copy; none for an OCI image, as engines preserve none for a user."""
    return {os.fsdecode(name): value for name, value in (root.xattrs(path) or {}).items() if name.startswith(_COPIED)}


def _time(mtime_s: float) -> int:
    """Return the time that a file has in an image: mksquashfs writes 0 if it does not fit into 32 bits."""
    return min(int(mtime_s), EPOCH) if 0 <= mtime_s < 1 << 32 else 0


def _listed(path: str | Path) -> list[str]:
    """Return the names of extended attributes; none on a file system that does not support them."""
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []


def _xattrs_of(folder: str | Path) -> dict[str, bytes]:
    names = (os.fsencode(name) for name in _listed(folder) if not name.startswith(_OWN_XATTRS))
    found = {name: os.getxattr(folder, name, follow_symlinks=False) for name in names if name.startswith(_COPIED)}
    return {os.fsdecode(name): value for name, value in found.items()}


def listing(root: Path) -> dict[str, list[Any]]:
    """Return data that shows whether each name below a folder was touched: inode, mode, owner, times."""
    found: dict[str, list[Any]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            full = f"{folder}/{name}"
            seen = os.lstat(full)
            # only the kernel sets the change time; that of a folder also changes with the names in it
            touched: list[Any] = [seen.st_ctime_ns]
            if stat.S_ISDIR(seen.st_mode):
                touched = [_time(seen.st_mtime), repr(sorted(_xattrs_of(full).items()))]
            found[full.removeprefix(f"{root}/")] = [seen.st_ino, seen.st_mode, seen.st_uid, seen.st_gid, *touched]
    return found


def difference(root: Path, before: dict[str, list[Any]], delta: Path) -> None:
    """Make `delta`, on the same file system, the layer with the changes to a folder since `before`.

    Its files are hard links to those of the folder, so none is copied; a removed name becomes a whiteout.
    """
    drop(root, spared=before)
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
    drop(delta)
    for here, _, _ in os.walk(delta, topdown=False):  # once each folder is complete
        shutil.copystat(root / Path(here).relative_to(delta), here)


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


def _date(at: int, compiled: str) -> None:
    """Set the source time that is recorded in a .pyc in an open folder.

    Source: PEP 552; importlib._bootstrap_external.
    """
    source = f"../{compiled.partition('.')[0]}.py"
    try:
        seen = os.stat(source, dir_fd=at, follow_symlinks=False)
        with open(open_file(at, compiled, os.O_RDWR), "r+b") as file:  # noqa: PTH123 - a descriptor has no path
            magic, flags, mtime, size = _PYC.unpack(file.read(_PYC.size))
            if flags == 0 and mtime == int(seen.st_mtime) & 0xFFFFFFFF and mtime > EPOCH and stat.S_ISREG(seen.st_mode):
                file.seek(0)
                file.write(_PYC.pack(magic, flags, EPOCH, size))
    except (OSError, struct.error):
        return  # no source beside it, a link, or not ours to change: Python checks it itself


def _date_passwords(at: int, name: str) -> None:
    """Limit the password dates in a file of an open folder to the day of the image's file times."""
    try:
        with open(open_file(at, name, os.O_RDWR), "r+b") as file:  # noqa: PTH123 - a descriptor has no path
            text = file.read(_SHADOW_LIMIT_BYTES)
            dated = _SET_ON.sub(lambda hit: hit[1] + b"%d" % min(int(hit[2]), _DAY), text)
            if dated != text and not file.read(1):
                file.seek(0)
                file.write(dated)
                file.truncate()
    except OSError:
        return  # no such file, a link, or not ours to change


def main(command: str, target: str, *others: str) -> None:
    """Run one command; if it fails, exit with a one-line message."""
    paths = [Path(name) for name in others]
    try:
        match command:
            case "place":
                place(Path(target), paths[0], paths[1:])
            case "take":
                take_back(Path(target), paths[0])
                drop(Path(target))
                tidy(Path(target), paths[1:])
            case "drop":
                drop(Path(target))
            case "tidy":
                tidy(Path(target), paths)
            case "hide":
                hide(Path(target), others[0], paths[1:])
            case "list":
                paths[0].write_text(json.dumps(listing(Path(target))), encoding="utf-8")
            case "difference":
                difference(Path(target), json.loads(paths[0].read_text(encoding="utf-8")), paths[1])
            case "unpack":
                unpack(Path(target), *paths[:2], as_user="as-user" in others, keeps_own="but-own" in others)
    except (LumiimgError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
