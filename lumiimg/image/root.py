"""One read-only root file system: paths, symlinks and `..` as a process in the container would see them.

Paths are looked up component by component inside the tree: an absolute symlink restarts at the image's root, `..` at
the root stays there, and a lookup follows at most 40 links (path_resolution(7)). Failures are the OSErrors of Linux
with their errno (ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EISDIR, EACCES): they are facts about the image, and the model
of the loader depends on which one it gets. Malformed bytes raise ImageError.

File modes matter in a container: the user who starts it neither owns the files that root has built nor is in their
group, and the kernel returns EACCES. Measured with Apptainer 1.4.5 as an ordinary user, with a folder, squashfs files
and a SIF, in which root owns everything: a file 0600 and a folder 0700 are closed, a folder 0711 can be traversed, and
the mode of the root folder of a squashfs does not matter. With --fakeroot, --unsquash, or a squashfuse_ll that accepts
`-o uid=` (apptainer `internal/pkg/image/driver/fuseapps.go`), the user is the owner.
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
"""Maximum depth of nested folders; with only the kernel's limit on the path, visiting each could take minutes."""


class Obstacle(NamedTuple):
    """A file or folder that others may not access."""

    path: str
    permissions: int
    is_for_some: bool
    """Whether a non-root owner or group may use it; otherwise only root may."""


class WalkedEntry(NamedTuple):
    """One entry below the start of a walk."""

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
        """Take a tree and the mounts over it.

        `hidden` are absolute paths that a walk does not enter, because engines always mount over them. `is_for_users`:
        see `for_users`.
        """
        self.tree = tree
        self._root = Place("", tree, tree.root)
        self._hidden = frozenset(hidden)
        self._mounts = mounts or MountTable({})
        self._is_for_users = is_for_users
        self._searchable: set[str] = set()
        """Folders already known to be searchable by users."""

    def for_users(self) -> RootFileSystem:
        """Return this root as non-root users see it: EACCES for what only root may open, list or enter.

        What a non-root owner or group may use is accessible, because it is not known whether the user is one of them
        (`FileStat.is_for_all`). Rights are not checked for what is mounted over the tree.
        """
        if self._is_for_users:
            return self
        return RootFileSystem(self.tree, hidden=self._hidden, mounts=self._mounts, is_for_users=True)

    def for_root(self) -> RootFileSystem:
        """Return this root with root's rights, which cover all files."""
        return RootFileSystem(self.tree, hidden=self._hidden, mounts=self._mounts)

    def open(self, path: str) -> OpenFile:
        """Open a regular file; for anything else, raise OSError: EISDIR, or ENXIO for devices, FIFOs and sockets."""
        return self._open(path, READ)

    def open_exec(self, path: str) -> OpenFile:
        """Open a file as the kernel does to run it: this requires the right to run, not to read it (execve(2))."""
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
        """Return the content of a file. Raises ImageError if it is longer than `limit_bytes`."""
        with contextlib.closing(self.open(path)) as file:
            if file.size > limit_bytes:
                raise ImageError(f"a file of {file.size} bytes; the limit is {limit_bytes}", where=path)
            return file.read_at(0, file.size)

    def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Return the attributes of a path; without `follow`, of the symlink itself."""
        return self._lookup(path, follow=follow).stat()

    def xattrs(self, path: str) -> Mapping[bytes, bytes] | None:
        """Return the extended attributes of a path (for a symlink, its own); None if they are not recorded."""
        return self._lookup(path, follow=False).xattrs()

    def exists(self, path: str) -> bool:
        """Return whether a path exists; False for a path that cannot be looked up."""
        return self._kind(path) is not None

    def is_dir(self, path: str) -> bool:
        """Return whether a path leads to a directory; False for a path that cannot be looked up."""
        return self._kind(path) is FileKind.DIRECTORY

    def is_file(self, path: str) -> bool:
        """Return whether a path leads to a regular file; False for a path that cannot be looked up."""
        return self._kind(path) is FileKind.FILE

    def _kind(self, path: str) -> FileKind | None:
        try:
            return self._lookup(path).kind
        except (OSError, ImageError):
            return None

    def resolve(self, path: str) -> str:
        """Return the path without symlinks and dots, like realpath(3) inside the image."""
        return self._lookup(path).path or "/"

    def resolve_where_possible(self, path: str) -> str:
        """Return the resolved path, or the path unchanged if it cannot be resolved."""
        try:
            return self.resolve(path)
        except OSError:
            return path

    def readlink(self, path: str) -> str:
        """Return the target of a symlink; EINVAL for anything else."""
        found = self._lookup(path, follow=False)
        if found.kind is not FileKind.SYMLINK or found.tree is None:
            raise _os_error(errno.EINVAL, path)
        return found.tree.link_target(found.node)

    def link_loop(self, path: str) -> tuple[str, ...]:
        """Return the links along a path that form a loop, with the first one repeated at the end; empty without one."""
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
        """Yield every entry below a directory, a directory before its content; symlinks are not followed.

        An unreadable directory is yielded but not entered; an unreadable root raises OSError. Raises ImageError if
        directories contain themselves or each other, or are nested deeper than in any real image.
        """
        for folder, name, kind in self._walk(path):
            yield WalkedEntry(f"{folder.path}/{name}", kind)

    def stats(self) -> Iterator[tuple[str, FileStat]]:
        """Yield (path, attributes) of each entry. Raises ImageError as `walk` does."""
        for folder, name, _ in self._walk("/"):
            if (found := self._child(folder, name)) is not None:
                yield found.path, found.stat()

    def open_all(self, *, but: tuple[str, ...]) -> Iterator[tuple[str, OpenFile]]:
        """Yield every regular file, opened, except names with one of the endings `but`; the caller closes the files.

        Files that cannot be opened are skipped. Raises ImageError as `walk` does.
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
        """Yield (directory, name, kind) of every entry below a directory."""
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
                    raise  # an unreadable image must not look like an empty one
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
                    continue  # a user may be able to list a directory without being able to enter it
                if found is None:
                    continue  # removed since it was listed
                identity = self._identity(found)
                if identity is not None and identity in entered:
                    raise ImageError("a directory that is in two places, or inside itself", where=inner)
                entered.add(identity)
                below.append(found)
            pending.extend(reversed(below))

    def _identity(self, folder: Place) -> Hashable:
        """Return the identity of a folder; None for one that is mounted: it may be mounted in two places."""
        is_own = folder.tree is self.tree and folder.path not in self._mounts.places
        return self.tree.directory_identity(folder.node) if is_own else None

    def find(self, names: Collection[str] | re.Pattern[str], path: str = "/") -> Iterator[str]:
        """Yield the paths of files and symlinks whose file name is one of `names`, or fully matches the pattern."""
        matches = names.fullmatch if isinstance(names, re.Pattern) else frozenset(names).__contains__
        for found, kind in self.walk(path):
            if kind is not FileKind.DIRECTORY and matches(found.rpartition("/")[2]):
                yield found

    def obstacle(self, path: str, right: int = READ) -> Obstacle | None:
        """Return what denies access to a user who is neither owner nor in a group: the path or a folder on the way.

        None if everybody has the `right`, if nothing exists there, or if it is not the image's own; and for a root that
        is not `for_users`.
        """
        passed: list[Place] = []
        rights: dict[Place, int] = {}
        try:
            rights[self.for_root()._lookup(path, passed=passed)] = right  # noqa: SLF001 - of this class
        except PermissionError:
            pass  # this process may not enter, either
        except (OSError, ImageError):
            return None
        for found in passed if self._is_for_users else ():
            status = found.stat()
            wanted = rights.get(found, SEARCH if found.kind is FileKind.DIRECTORY else 0)
            if found.tree is self.tree and not status.is_for_all(wanted):
                return Obstacle(found.path, status.permissions, status.gives(wanted))
        return None

    def lookup_steps(self, path: str) -> list[tuple[str, FileStat]]:
        """Return (path, attributes) of each directory and link that a lookup passes below the root, and of the result.

        If the lookup fails, return what it passed until then. Raises ImageError for damaged attributes.
        """
        passed: list[Place] = []
        with contextlib.suppress(OSError, ImageError):
            self._lookup(path, passed=passed)
        return [(found.path, found.stat()) for found in passed]

    def mount(self, path: str, target: str) -> Mount:
        """Return a mount of a path over a path of another root. Raises OSError if the path does not exist."""
        found = self._lookup(path)
        return Mount(target, found.tree, found.node)

    def mounted(self, mounts: Iterable[Mount]) -> RootFileSystem:
        """Return this root with other trees mounted over it, in this order.

        Raises OSError for a target with a symlink loop, or with a file on the way: no engine starts with that.
        """
        table = MountTable(self._mounts.places)
        root = RootFileSystem(self.tree, hidden=self._hidden, mounts=table, is_for_users=self._is_for_users)
        for mount in mounts:
            table.add(root.mount_point(mount.target), mount)
        return root

    def mount_point(self, path: str) -> str:
        """Return where a mount at a path lands; missing parts stay as written. Raises OSError as `mounted` does."""
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
        """Look up a path; a relative one starts at the root. The components on the way are added to `passed`."""
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
            # a short path has no long names
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
        """Raise PermissionError if users lack a right to one of the image's own files."""
        if self._is_for_users and place.path and place.tree is self.tree and not place.stat().gives(right):
            raise _os_error(errno.EACCES, place.path)

    def _link_target(self, link: Place, path: str) -> str:
        """Return the target of a link that is part of a path."""
        target = link.tree.link_target(link.node) if link.tree is not None else ""
        if not target:
            raise _os_error(errno.ENOENT, path)
        if len(os.fsencode(target)) > _MAX_PATH_BYTES:
            raise _os_error(errno.ENAMETOOLONG, path)
        return target


def _components(path: str) -> list[str]:
    """Return the components of a path, last first; a trailing slash adds a `.`, which only a directory can have."""
    parts = [part for part in path.split("/") if part]
    if path.endswith("/"):
        parts.append(".")
    return parts[::-1]


def _path_bytes(path: str) -> int:
    """Return the length of a path as the kernel sees it; 0 for text that cannot be a path."""
    try:
        return 0 if "\0" in path else len(os.fsencode(path))
    except UnicodeEncodeError:
        return 0


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
