"""The root file system that results from unpacking layers over each other as engines do (OCI image-spec `layer.md`).

A member `.wh.NAME` removes NAME from the layers below, `.wh..wh..opq` removes everything that they have in its
directory; neither affects entries of its own layer, nor the directories that lead to entries this layer has already
added. Paths are resolved inside the root, whatever dots and slashes they begin with, and their directories are looked
up through symlinks, as umoci (which Apptainer uses) does.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.access import BytesInMemory, read_exactly, stream_of
from lumiimg.image.oci.tar import NO_XATTRS, Member, read_members
from lumiimg.image.tree import DirectoryEntry, FileKind, FileStat, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.core.access import RandomAccess

_WHITEOUT, _OPAQUE, _AUFS_PREFIX = ".wh.", ".wh..wh..opq", ".wh..wh."
_MAX_STEPS = 100_000_000
"""Maximum number of folder lookups: at most half a minute."""
_STEPS_OF_MEMBER, _STEPS_OF_LINK, _STEPS_OF_UNLISTED = 20, 20, 200
"""Cost of a member, or of a name that a whiteout checks; of a folder in a link target on its path; and of a folder on
its path that is not a member: a member of a hostile tar may need hundreds of those.
"""
# Linux: PATH_MAX, NAME_MAX, and the number of links that one lookup follows
_MAX_PATH_CHARACTERS, _MAX_NAME_CHARACTERS, _MAX_LINKS = 4096, 255, 40
_UNLISTED = FileStat(FileKind.DIRECTORY, 0o755, uid=0, gid=0, size_bytes=0, mtime_s=0, links=1, identity=None)
"""Attributes of a directory that has entries but is not a member of any layer."""


@dataclass(slots=True, eq=False)
class LayerNode:
    """One inode."""

    stat: FileStat
    number: int
    content: tuple[RandomAccess, int]
    """For a file, its tar and its offset there."""
    target: str
    xattrs: Mapping[bytes, bytes]
    names: dict[str, LayerNode]
    """Entries of a directory; all other nodes share one empty dict."""
    links: int = 0

    @property
    def kind(self) -> FileKind:
        """File type."""
        return self.stat.kind


class LayeredTree:
    """The root file system of an image, or the files of one tar."""

    def __init__(self, tars: Iterable[RandomAccess], where: str) -> None:
        """Read the headers of all tars, the lowest first. Raises ImageError."""
        self._where = where
        self._count = self._steps = 0
        self.root = self._new(_UNLISTED)
        try:
            for tar in tars:
                self._add_layer(tar)
        except EOFError as error:
            raise ImageError(str(error), where=where) from error
        pending = [self.root]
        while pending:
            node = pending.pop()
            node.links += 1
            pending += node.names.values()

    def child(self, directory: LayerNode, name: str) -> LayerNode | None:
        return directory.names.get(name)

    def entries(self, directory: LayerNode) -> Iterator[DirectoryEntry]:
        for name, node in directory.names.items():
            yield DirectoryEntry(name, node.kind)

    def link_target(self, link: LayerNode) -> str:
        return link.target

    def stat(self, node: LayerNode) -> FileStat:
        return node.stat._replace(links=node.links, identity=node.number)

    def xattrs(self, node: LayerNode) -> Mapping[bytes, bytes]:
        return node.xattrs

    def directory_identity(self, directory: LayerNode) -> int:
        return directory.number

    def open(self, node: LayerNode) -> LayerFile:
        return LayerFile(node)

    def _add_layer(self, tar: RandomAccess) -> None:
        added: set[object] = set()
        """Entries of this layer: its folders with all folders above them; for other entries, (folder, name)."""
        for member in read_members(stream_of(tar), tar.size, self._where):
            self._spend(_STEPS_OF_MEMBER)
            whiteout = member.name.rpartition("/")[2]
            if whiteout.startswith(_WHITEOUT):
                self._apply_whiteout(member.name, whiteout, added)
            else:
                self._add(member, tar, added)

    def _apply_whiteout(self, path: str, whiteout: str, added: set[object]) -> None:
        try:
            folder = self._directory(self._parts(path)[:-1], make=False)[-1]
        except KeyError:
            return
        own = [] if whiteout.startswith(_AUFS_PREFIX) else [whiteout.removeprefix(_WHITEOUT)]
        pending = [(folder, name) for name in (folder.names if whiteout == _OPAQUE else own)]
        while pending:
            self._spend(_STEPS_OF_MEMBER)
            folder, name = pending.pop()
            node = folder.names.get(name)
            if node is None or (folder, name) in added:
                continue
            if node in added:
                pending += ((node, below) for below in node.names)
            else:
                del folder.names[name]

    def _add(self, member: Member, tar: RandomAccess, added: set[object]) -> None:
        *above, name = self._parts(member.name) or [""]
        if not name:
            if member.kind is FileKind.DIRECTORY:
                self.root.stat, self.root.xattrs = member.stat, member.xattrs
            return
        folders = self._directory(above)
        names = folders[-1].names
        known = names.get(name)
        if member.is_hard_link:
            names[name] = self._hard_link_target(member)
        elif known is not None and known.kind is member.kind is FileKind.DIRECTORY:
            known.stat, known.xattrs = member.stat, member.xattrs
        else:
            node = names[name] = self._new(member.stat)
            node.content, node.target, node.xattrs = (tar, member.start), member.target, member.xattrs
        if folders[-1] not in added:
            added.update(folders)
        added.add(names[name] if member.kind is FileKind.DIRECTORY else (folders[-1], name))

    def _hard_link_target(self, member: Member) -> LayerNode:
        """Return the target of a hard link."""
        *above, name = self._parts(member.target) or [""]
        with suppress(KeyError):
            target = self._directory(above, make=False)[-1].names[name]
            if target.kind is not FileKind.DIRECTORY:
                return target
        what = f"the hard link {member.name} points to {member.target}, which is not a file"
        raise ImageError(what, where=self._where)

    def _directory(self, path: Sequence[str], *, make: bool = True) -> list[LayerNode]:
        """Return the folders along a path, through symlinks; a missing one is made, as engines do, or is a KeyError."""
        self._spend(len(path))
        nodes = [self.root]
        todo = [*reversed(path)]
        links = 0
        while todo:
            name = todo.pop()
            node = nodes[-1].names.get(name)
            if name == "..":
                del nodes[max(1, len(nodes) - 1) :]
            elif node is not None and node.kind is FileKind.SYMLINK:
                links += 1
                target = node.target
                if links > _MAX_LINKS:
                    raise ImageError(f"too many symlinks in the path {'/'.join(path)}", where=self._where)
                if target.startswith("/"):
                    del nodes[1:]
                parts = [part for part in reversed(target.split("/")) if part not in ("", ".")]
                self._spend(_STEPS_OF_LINK * len(parts))
                todo += parts
            else:
                if node is None or node.kind is not FileKind.DIRECTORY:
                    if not make:
                        raise KeyError(name)
                    self._spend(_STEPS_OF_UNLISTED)
                    node = nodes[-1].names[name] = self._new(_UNLISTED)
                nodes.append(node)
        return nodes

    def _parts(self, path: str) -> list[str]:
        """Return the components of a path inside the root: `..` removes one, and has no effect at the root."""
        parts: list[str] = []
        for part in path.split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        if len(path) > _MAX_PATH_CHARACTERS or any(len(part) > _MAX_NAME_CHARACTERS for part in parts):
            raise ImageError(
                f"a path of {len(path)} characters: it or a name in it is longer than Linux allows", where=self._where
            )
        return parts

    def _new(self, stat: FileStat) -> LayerNode:
        self._count += 1
        names = {} if stat.kind is FileKind.DIRECTORY else _NO_NAMES
        return LayerNode(stat, self._count, _NO_CONTENT, "", NO_XATTRS, names)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise ImageError("the layers have too many files or need too many steps to merge", where=self._where)


_NO_NAMES: dict[str, LayerNode] = {}
_NO_CONTENT = (BytesInMemory(b""), 0)


class LayerFile:
    """A regular file in a layer."""

    def __init__(self, node: LayerNode) -> None:
        self.size = node.stat.size_bytes
        self.identity = node.number
        self._tar, self._start = node.content

    def read_at(self, offset: int, size: int) -> bytes:
        if (size := min(size, self.size - offset)) <= 0:
            return b""
        try:
            return read_exactly(self._tar, self._start + offset, size)
        except EOFError as error:
            raise ImageError(f"a file of a layer: {error}") from error

    def close(self) -> None:
        """Do nothing: the file has no resources of its own."""
