"""The root file system that layers make, one put on the other as an engine unpacks them (OCI image-spec `layer.md`).

A member `.wh.NAME` takes NAME of the layers below away, `.wh..wh..opq` all that they have in its directory; neither
touches what its own layer brings, whatever the order. Paths are taken inside the root, whatever dots and slashes they
begin with, and their directories are looked up through symlinks, as umoci (which Apptainer uses) does.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.image.oci.layer import Blob, Cache, Unpacking
from lumiimg.image.oci.tar import Member, TarReader, read_members
from lumiimg.image.tree import DirectoryEntry, FileKind, FileStat, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.image.byte_source import ByteSource

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_NOTES_OF_AUFS = ".wh..wh."
_MAX_MEMBERS = 5_000_000
# of Linux: PATH_MAX, NAME_MAX, and the links that one lookup follows
_MAX_PATH_CHARACTERS, _MAX_NAME_CHARACTERS, _MAX_LINKS = 4096, 255, 40
_MAX_DEPTH = 1024
# of lookups and whiteouts, all together: twenty a member, and half a minute
_MAX_STEPS = 20 * _MAX_MEMBERS


@dataclass(slots=True, eq=False)
class LayerNode:
    """One inode; the names of a directory are in it."""

    kind: FileKind
    permissions: int
    number: int
    layer: int
    """The one that brought it, or listed it last."""
    uid: int = 0
    gid: int = 0
    mtime_s: int = 0
    size_bytes: int = 0
    links: int = 1
    start: int = 0
    """Of a file: where its content is in the layer."""
    target: str = ""
    names: dict[str, LayerNode] = field(default_factory=dict)
    """Of a directory; all others share one that stays empty."""


_NO_NAMES: dict[str, LayerNode] = {}


class _MissingError(Exception):
    """A directory that is not there."""


class LayeredTree:
    """The root file system of an image."""

    def __init__(self, layers: Sequence[Blob], where: str, cache: Cache | None = None) -> None:
        """Read all layers, the lowest first, and verify them; what is compressed is unpacked in a cache.

        Raises ImageError, MissingHereError.
        """
        self._where = where
        self._tars: list[ByteSource] = []
        self._count = self._steps = 0
        self.root = self._new(FileKind.DIRECTORY, 0o755, 0)
        unpacking = Unpacking(sum(blob.source.size for blob in layers), cache)
        with ExitStack() as failing:
            failing.callback(self.close)
            for number, blob in enumerate(layers):
                tar = unpacking.open(blob)
                self._tars.append(tar)
                reader = TarReader(tar, "a layer that is cut off inside a member")
                for member in read_members(reader, blob.source.name):
                    self._add(member, number)
            failing.pop_all()

    def close(self) -> None:
        """Close the tars of layers that were unpacked."""
        for tar in self._tars:
            tar.close()

    def child(self, directory: LayerNode, name: str) -> LayerNode | None:
        return directory.names.get(name)

    def entries(self, directory: LayerNode) -> Iterator[DirectoryEntry]:
        for name, node in directory.names.items():
            yield DirectoryEntry(name, node.kind)

    def link_target(self, link: LayerNode) -> str:
        return link.target

    def stat(self, node: LayerNode) -> FileStat:
        return FileStat(
            kind=node.kind,
            permissions=node.permissions,
            uid=node.uid,
            gid=node.gid,
            size_bytes=node.size_bytes,
            mtime_s=node.mtime_s,
            links=node.links,
            identity=node.number,
        )

    def xattrs(self, node: LayerNode) -> None:
        """Return None: engines keep none of them for a user."""

    def directory_identity(self, directory: LayerNode) -> int:
        return directory.number

    def open(self, node: LayerNode) -> LayerFile:
        return LayerFile(self._tars[node.layer], node)

    def _add(self, member: Member, layer: int) -> None:
        parts = self._parts(member.name)
        if not parts:
            if member.kind is FileKind.DIRECTORY:
                self._describe(self.root, member, layer)
            return
        name = parts.pop()
        if name.startswith(_WHITEOUT):
            directory = self._find_directory(parts)
            if directory is None:
                return
            if name == _OPAQUE:
                self._empty(directory, layer)
            elif not name.startswith(_NOTES_OF_AUFS):
                self._take_away(directory, name.removeprefix(_WHITEOUT), layer)
        elif member.is_hard_link:
            self._link(self._directory(parts, layer), name, member)
        else:
            self._put(self._directory(parts, layer), name, member, layer)

    def _put(self, directory: LayerNode, name: str, member: Member, layer: int) -> None:
        known = directory.names.get(name)
        if known is None or known.kind is not FileKind.DIRECTORY or member.kind is not FileKind.DIRECTORY:
            known = self._new(member.kind, member.permissions, layer)
            self._set(directory, name, known)
        self._describe(known, member, layer)

    def _link(self, directory: LayerNode, name: str, member: Member) -> None:
        *above, last = self._parts(member.target) or [""]
        parent = self._find_directory(above)
        target = parent.names.get(last) if parent is not None else None
        if target is None or target.kind is FileKind.DIRECTORY:
            raise ImageError(
                f"the hard link {member.name} to {member.target}, which is not a file here", where=self._where
            )
        if directory.names.get(name) is not target:
            target.links += 1
            self._set(directory, name, target)

    def _find_directory(self, parts: list[str]) -> LayerNode | None:
        """Return the directory of a path, through symlinks; None where there is none."""
        try:
            return self._directory(parts, None)
        except _MissingError:
            return None

    def _directory(self, parts: list[str], layer: int | None) -> LayerNode:
        """Return the directory of a path, through symlinks; what is missing is made for a layer, as engines do."""
        nodes = [self.root]
        todo = parts[::-1]
        links = 0
        while todo:
            self._spend(1)
            name = todo.pop()
            if name == "..":
                nodes[1:] = nodes[1:-1]
                continue
            node = nodes[-1].names.get(name)
            if node is not None and node.kind is FileKind.SYMLINK:
                links += 1
                if links > _MAX_LINKS:
                    raise ImageError(f"too many symlinks in the path {'/'.join(parts)}", where=self._where)
                if node.target.startswith("/"):
                    del nodes[1:]
                todo += [part for part in node.target.split("/") if part not in ("", ".")][::-1]
                continue
            if node is None or node.kind is not FileKind.DIRECTORY:
                if layer is None:
                    raise _MissingError
                node = self._new(FileKind.DIRECTORY, 0o755, layer)
                self._set(nodes[-1], name, node)
            nodes.append(node)
            if len(nodes) > _MAX_DEPTH:
                raise ImageError(f"a path of more than {_MAX_DEPTH} directories", where=self._where)
        return nodes[-1]

    def _parts(self, path: str) -> list[str]:
        """Return the parts of a path inside the root: `..` takes one away, and at the root does nothing."""
        if len(path) > _MAX_PATH_CHARACTERS:
            raise ImageError(f"a path of {len(path)} characters", where=self._where)
        parts: list[str] = []
        for part in path.split("/"):
            if part == "..":
                del parts[-1:]
            elif len(part) > _MAX_NAME_CHARACTERS:
                raise ImageError(f"a name of {len(part)} characters", where=self._where)
            elif part not in ("", "."):
                parts.append(part)
        return parts

    def _take_away(self, directory: LayerNode, name: str, layer: int) -> None:
        """Remove what layers below the present one have under a name."""
        node = directory.names.get(name)
        if node is None:
            return
        if node.kind is FileKind.DIRECTORY:
            self._empty(node, layer)
        if node.layer < layer and not node.names:
            self._remove(directory, name)

    def _empty(self, directory: LayerNode, layer: int) -> None:
        """Remove what layers below the present one have in a directory, and keep what stands on something new."""
        pending = [directory]
        visited: list[LayerNode] = []
        while pending:
            node = pending.pop()
            visited.append(node)
            self._spend(len(node.names) + 1)
            pending += [child for child in node.names.values() if child.kind is FileKind.DIRECTORY]
        for node in reversed(visited):
            for name in [name for name, child in node.names.items() if child.layer < layer and not child.names]:
                self._remove(node, name)

    def _set(self, directory: LayerNode, name: str, node: LayerNode) -> None:
        self._remove(directory, name)
        directory.names[name] = node

    def _remove(self, directory: LayerNode, name: str) -> None:
        """Take a name away, with all below it."""
        gone = directory.names.pop(name, None)
        pending = [gone] if gone is not None else []
        while pending:
            node = pending.pop()
            node.links -= 1
            pending += node.names.values()

    def _new(self, kind: FileKind, permissions: int, layer: int) -> LayerNode:
        self._count += 1
        if self._count > _MAX_MEMBERS:
            raise ImageError(f"more than {_MAX_MEMBERS} files in the layers", where=self._where)
        names = {} if kind is FileKind.DIRECTORY else _NO_NAMES
        return LayerNode(kind, permissions, self._count, layer, names=names)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise ImageError("layers that take too many steps to put together", where=self._where)

    def _describe(self, node: LayerNode, member: Member, layer: int) -> None:
        if len(member.target) > _MAX_PATH_CHARACTERS:
            raise ImageError(f"a symlink to a path of {len(member.target)} characters", where=self._where)
        node.permissions = member.permissions
        node.uid, node.gid, node.mtime_s = member.uid, member.gid, member.mtime_s
        node.size_bytes, node.start, node.target = member.size_bytes, member.start, member.target
        node.layer = layer


class LayerFile:
    """A regular file in a layer."""

    def __init__(self, tar: ByteSource, node: LayerNode) -> None:
        self.size = node.size_bytes
        self.identity = node.number
        self._tar = tar
        self._start = node.start

    def read_at(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        return self._tar.read_at(self._start + offset, end - offset) if offset < end else b""

    def close(self) -> None:
        """Nothing is held."""
