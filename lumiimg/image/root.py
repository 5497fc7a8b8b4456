"""One read-only root file system: paths, symlinks and `..` as a process in the container would see them.

Paths are looked up component by component inside the tree: an absolute symlink starts again at the image's root, `..`
at the root stays there, and a lookup follows 40 links at most (path_resolution(7)). Failures are the OSErrors of
Linux with their errno (ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EISDIR, EACCES): they are facts about the image, and the
model of the loader lives on the difference. Bytes that make no sense are an ImageError.

Modes count in a container: who starts it is neither owner nor in a group of what root has built, and the kernel says
EACCES. Measured with Apptainer 1.4.5 as an ordinary user, of a folder, of squashfs files and of a SIF, which has root
for the owner of all: a file 0600 and a folder 0700 are closed, a folder 0711 can be passed through, the mode of the
root folder of a squashfs does not count. With --fakeroot, --unsquash, or a squashfuse_ll that takes `-o uid=`
(apptainer `internal/pkg/image/driver/fuseapps.go`), the user is the owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.image.mounts import Mount, MountTable, Place
from lumiimg.image.tree import READ, SEARCH, DirectoryEntry, FileKind, FileStat, ImageError, Tree

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile

_MAX_LINKS = 40
_MAX_PATH_BYTES = 4095
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 1024
_MAX_WALKED = 20_000_000
_MAX_WALKED_DEPTH = 256
"""Of folders in each other; the kernel's own limit, of a path, would let a look at each take minutes."""


class Obstacle(NamedTuple):
    """A file or folder that is closed to others."""

    path: str
    permissions: int
    is_for_some: bool
    """Whether an owner or a group that is not root's may use it; else only root may."""


class WalkedEntry(NamedTuple):
    """One name below the start of a walk."""

    path: str
    kind: FileKind


class RootFileSystem:
    """The files of one image."""

    def __init__(
        self,
        tree: Tree,
        *,
        hidden: Collection[str] = (),
        mounts: MountTable | None = None,
        is_for_users: bool = False,
    ) -> None:
        """Take a tree, and what is mounted over it.

        `hidden` are absolute paths that a walk does not enter: what an engine mounts over in any case. `is_for_users`:
        as `for_users` returns it.
        """
        self.tree = tree
        self._root = Place("", tree, tree.root)
        self._hidden = frozenset(hidden)
        self._mounts = mounts or MountTable({})
        self._is_for_users = is_for_users
        self._searchable: set[str] = set()
        """Folders that were found to let users through."""

    def for_users(self) -> RootFileSystem:
        """Return this root as it is for users who are not root: what only root may open, list or enter is EACCES.

        What an owner who is not root, or a group of such people, may use is there: whether a user is one of them is not
        known (`FileStat.is_for_all`). What is mounted over the tree is not judged.
        """
        if self._is_for_users:
            return self
        return RootFileSystem(self.tree, hidden=self._hidden, mounts=self._mounts, is_for_users=True)

    def for_root(self) -> RootFileSystem:
        """Return this root with the rights of root: all files."""
        return RootFileSystem(self.tree, hidden=self._hidden, mounts=self._mounts)

    def open(self, path: str) -> OpenFile:
        """Open a regular file; of anything else an OSError: EISDIR, or ENXIO for devices, FIFOs and sockets."""
        return self._open(path, READ)

    def open_exec(self, path: str) -> OpenFile:
        """Open a file as the kernel does to run it: who may run it need not be allowed to read it (execve(2))."""
        return self._open(path, SEARCH)

    def _open(self, path: str, right: int) -> OpenFile:
        found = self._lookup(path)
        self._require(found, right)
        if found.kind is FileKind.DIRECTORY or found.tree is None:
            raise _os_error(errno.EISDIR, path)
        if found.kind is not FileKind.FILE:
            raise _os_error(errno.ENXIO, path)
        return found.tree.open(found.node)

    def read_bytes(self, path: str, limit_bytes: int) -> bytes:
        """Return all of a file. Raises ImageError for one of more than `limit_bytes`."""
        with contextlib.closing(self.open(path)) as file:
            if file.size > limit_bytes:
                raise ImageError(f"a file of {file.size} bytes where {limit_bytes} are the limit", where=path)
            return file.read_at(0, file.size)

    def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Return what is known of a path; without `follow`, of the symlink itself."""
        return self._lookup(path, follow=follow).stat()

    def xattrs(self, path: str) -> Mapping[bytes, bytes] | None:
        """Return the extended attributes of a path, of a symlink its own; None where they are not recorded."""
        return self._lookup(path, follow=False).xattrs()

    def exists(self, path: str) -> bool:
        """Tell whether a path leads to anything; False for whatever cannot be looked up."""
        return self._kind(path) is not None

    def is_dir(self, path: str) -> bool:
        """Tell whether a path leads to a directory; False for whatever cannot be looked up."""
        return self._kind(path) is FileKind.DIRECTORY

    def is_file(self, path: str) -> bool:
        """Tell whether a path leads to a regular file; False for whatever cannot be looked up."""
        return self._kind(path) is FileKind.FILE

    def _kind(self, path: str) -> FileKind | None:
        try:
            return self._lookup(path).kind
        except (OSError, ImageError):
            return None

    def resolve(self, path: str) -> str:
        """Return the path without symlinks and dots, as realpath(3) inside the image."""
        return self._lookup(path).path or "/"

    def resolve_where_possible(self, path: str) -> str:
        """Return the same; of what leads out of the image, or nowhere, the path as it is."""
        try:
            return self.resolve(path)
        except OSError:
            return path

    def readlink(self, path: str) -> str:
        """Return the text of a symlink; EINVAL for anything else."""
        found = self._lookup(path, follow=False)
        if found.kind is not FileKind.SYMLINK or found.tree is None:
            raise _os_error(errno.EINVAL, path)
        return found.tree.link_target(found.node)

    def link_loop(self, path: str) -> tuple[str, ...]:
        """Return the links along a path that lead to each other, the first one again at the end; none elsewhere."""
        passed: list[Place] = []
        try:
            self._lookup(path, passed=passed)
        except (OSError, ImageError) as error:
            links = [found.path for found in passed if found.kind is FileKind.SYMLINK]
            if isinstance(error, OSError) and error.errno == errno.ELOOP and links.count(links[-1]) > 1:
                first = len(links) - 2 - links[-2::-1].index(links[-1])
                return tuple(links[first:])
        return ()

    def list_dir(self, path: str) -> tuple[DirectoryEntry, ...]:
        """Return the names in a directory, sorted."""
        names = self._entries(self._directory(path))
        return tuple(DirectoryEntry(*item) for item in sorted(names.items()))

    def walk(self, path: str = "/") -> Iterator[WalkedEntry]:
        """Yield every name below a directory, a directory before what is in it; symlinks are not followed.

        A directory that may not be read is yielded and not entered; the root is an OSError. Raises ImageError where
        directories contain themselves or each other, or are deeper than any image has them.
        """
        for folder, name, kind in self._walk(path):
            yield WalkedEntry(f"{folder.path}/{name}", kind)

    def stats(self) -> Iterator[tuple[str, FileStat]]:
        """Yield what is known of each name. Raises ImageError as `walk` does."""
        for folder, name, _ in self._walk("/"):
            if (found := self._child(folder, name)) is not None:
                yield found.path, found.stat()

    def open_all(self, *, but: tuple[str, ...]) -> Iterator[tuple[str, OpenFile]]:
        """Yield every regular file, open, but for names that end in one way; the caller closes it.

        Those that cannot be opened are left out. Raises ImageError as `walk` does.
        """
        for folder, name, kind in self._walk("/"):
            if kind is not FileKind.FILE or name.endswith(but):
                continue
            try:
                found = self._child(folder, name)
                if found is None or found.tree is None:
                    continue
                self._require(found, READ)
                file = found.tree.open(found.node)
            except (OSError, ImageError):
                continue
            yield f"{folder.path}/{name}", file

    def _walk(self, path: str) -> Iterator[tuple[Place, str, FileKind]]:
        """Yield (directory, name, kind) of every name below a directory."""
        start = self._directory(path)
        count = 0
        entered = {self._identity(start)}
        pending = [start]
        while pending:
            folder = pending.pop()
            try:
                names = sorted(self._entries(folder).items())
            except OSError:
                if not folder.path:
                    raise  # an image of which nothing can be read is not one without files
                continue
            below: list[Place] = []
            for name, kind in names:
                count += 1
                if count > _MAX_WALKED:
                    raise ImageError(f"more than {_MAX_WALKED} names in one image")
                yield folder, name, kind
                inner = f"{folder.path}/{name}"
                if kind is not FileKind.DIRECTORY or inner in self._hidden:
                    continue
                if inner.count("/") > _MAX_WALKED_DEPTH:
                    raise ImageError(f"has folders nested more than {_MAX_WALKED_DEPTH} deep")
                try:
                    found = self._child(folder, name)
                except OSError:
                    if not folder.path:
                        raise
                    continue  # it may be listed, and not be entered
                if found is None:
                    continue  # gone since it was listed
                identity = self._identity(found)
                if identity is not None and identity in entered:
                    raise ImageError("a directory that is in two places, or inside itself", where=inner)
                entered.add(identity)
                below.append(found)
            pending.extend(reversed(below))

    def _identity(self, folder: Place) -> Hashable:
        """Return None too for what is not of the image: a folder may be mounted in two places."""
        is_own = folder.tree is self.tree and folder.path not in self._mounts.places
        return self.tree.directory_identity(folder.node) if is_own else None

    def find(self, names: Collection[str] | re.Pattern[str], path: str = "/") -> Iterator[str]:
        """Yield the paths of files and symlinks whose last name is one of `names`, or matches all of a pattern."""
        matches = names.fullmatch if isinstance(names, re.Pattern) else frozenset(names).__contains__
        for found, kind in self.walk(path):
            if kind is not FileKind.DIRECTORY and matches(found.rpartition("/")[2]):
                yield found

    def obstacle(self, path: str, right: int = READ) -> Obstacle | None:
        """Return what keeps out who is neither an owner nor in a group: what is at a path, or a folder on the way.

        None where everybody has the `right` there, nothing is there, or it is not the image's own; and of a root that
        is not `for_users`.
        """
        passed: list[Place] = []
        rights: dict[Place, int] = {}
        try:
            rights[self.for_root()._lookup(path, passed=passed)] = right  # noqa: SLF001 - of this class
        except PermissionError:
            pass  # who asks may not enter, too
        except (OSError, ImageError):
            return None
        for found in passed if self._is_for_users else ():
            status = found.stat()
            wanted = rights.get(found, SEARCH if found.kind is FileKind.DIRECTORY else 0)
            if found.tree is self.tree and not status.is_for_all(wanted):
                return Obstacle(found.path, status.permissions, status.gives(wanted))
        return None

    def lookup_steps(self, path: str) -> list[tuple[str, FileStat]]:
        """Return (path, inode) of each directory and link below the root that a lookup goes through, and what it finds.

        Where the lookup fails, there is what it came through. Raises ImageError for damaged attributes.
        """
        passed: list[Place] = []
        with contextlib.suppress(OSError, ImageError):
            self._lookup(path, passed=passed)
        return [(found.path, found.stat()) for found in passed]

    def mount(self, path: str, target: str) -> Mount:
        """Return what is at a path, to be mounted over a path of another root; OSError where nothing is."""
        found = self._lookup(path)
        return Mount(target, found.tree, found.node)

    def mounted(self, mounts: Iterable[Mount]) -> RootFileSystem:
        """Return this root with other trees mounted over it, in this order.

        A target whose symlinks lead in a circle, or through a file, is an OSError: no engine starts with that.
        """
        table = MountTable(self._mounts.places)
        root = RootFileSystem(self.tree, hidden=self._hidden, mounts=table, is_for_users=self._is_for_users)
        for mount in mounts:
            table.add(root.mount_point(mount.target), mount)
        return root

    def mount_point(self, path: str) -> str:
        """Return where a mount at a path lands; what of it is not there is taken as written. OSError as `mounted`."""
        there, missing = path.rstrip("/") or "/", list[str]()
        while True:
            try:
                return "/".join([self._lookup(there).path, *reversed(missing)])
            except FileNotFoundError:
                above, _, name = there.rpartition("/")
                there = above or "/"
                missing.append(name)

    def _directory(self, path: str) -> Place:
        found = self._lookup(path)
        if found.kind is not FileKind.DIRECTORY:
            raise _os_error(errno.ENOTDIR, path)
        return found

    def _lookup(self, path: str, *, follow: bool = True, passed: list[Place] | None = None) -> Place:
        """Walk a path; a relative one starts at the root. What is met on the way is `passed`."""
        longest_bytes = _path_bytes(path)
        if not longest_bytes:
            raise _os_error(errno.ENOENT, path)
        if longest_bytes > _MAX_PATH_BYTES:
            raise _os_error(errno.ENAMETOOLONG, path)
        places = [self._root]
        kind = self._root.kind
        todo = _components(path)
        links = 0
        while todo:
            name = todo.pop()
            if kind is not FileKind.DIRECTORY:
                raise _os_error(errno.ENOTDIR, path)
            if name in ("", "."):
                continue
            if name == "..":
                self._enter(places[-1])
                if len(places) > 1:
                    places.pop()
                continue
            # in a short path no name is long
            if longest_bytes > _MAX_NAME_BYTES and len(os.fsencode(name)) > _MAX_NAME_BYTES:
                raise _os_error(errno.ENAMETOOLONG, path)
            found = self._child(places[-1], name)
            if found is None:
                raise _os_error(errno.ENOENT, path)
            if passed is not None:
                passed.append(found)
            kind = found.kind
            if kind is FileKind.SYMLINK and (follow or todo):
                links += 1
                if links > _MAX_LINKS:
                    raise _os_error(errno.ELOOP, path)
                target = self._link_target(found, path)
                longest_bytes = max(longest_bytes, len(os.fsencode(target)))
                if target.startswith("/"):
                    del places[1:]
                todo.extend(_components(target))
                kind = FileKind.DIRECTORY
                continue
            places.append(found)
            if len(places) > _MAX_DEPTH:
                raise _os_error(errno.ENAMETOOLONG, path)
        return places[-1]

    def _child(self, folder: Place, name: str) -> Place | None:
        self._enter(folder)
        return self._mounts.child(folder, name)

    def _entries(self, folder: Place) -> dict[str, FileKind]:
        self._require(folder, READ)
        return self._mounts.entries(folder)

    def _enter(self, folder: Place) -> None:
        if self._is_for_users and folder.path not in self._searchable:
            self._require(folder, SEARCH)
            self._searchable.add(folder.path)

    def _require(self, place: Place, right: int) -> None:
        """Raise PermissionError where users do not have a right to what is the image's own."""
        if self._is_for_users and place.path and place.tree is self.tree and not place.stat().gives(right):
            raise _os_error(errno.EACCES, place.path)

    def _link_target(self, link: Place, path: str) -> str:
        """Return where a link leads, which was met on the way along a path."""
        target = link.tree.link_target(link.node) if link.tree is not None else ""
        if not target:
            raise _os_error(errno.ENOENT, path)
        if len(os.fsencode(target)) > _MAX_PATH_BYTES:
            raise _os_error(errno.ENAMETOOLONG, path)
        return target


def _components(path: str) -> list[str]:
    """Return the parts of a path, last first; a slash at the end leaves a `.`, which only a directory can have."""
    parts = [part for part in path.split("/") if part]
    if path.endswith("/"):
        parts.append(".")
    return parts[::-1]


def _path_bytes(path: str) -> int:
    """Return the length of a path as the kernel gets it; 0 for text that cannot be given to it: it names no file."""
    try:
        return 0 if "\0" in path else len(os.fsencode(path))
    except UnicodeEncodeError:
        return 0


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
