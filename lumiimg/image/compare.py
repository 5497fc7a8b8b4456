"""In which files two images differ."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.tree import FileKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.image.root import RootFileSystem

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileDifference:
    """One path that is not the same in both."""

    path: str
    what: str
    """`only in the first`, `only in the second`, `kind`, `mode`, `owner`, `link`, `content`, `time`."""


def compare(first: RootFileSystem, second: RootFileSystem) -> Iterator[FileDifference]:
    """Yield the paths in which two file systems differ, in order, each with what differs first."""
    kinds = [{entry.path: entry.kind for entry in root.walk()} for root in (first, second)]
    for path in sorted({*kinds[0], *kinds[1]}):
        if path not in kinds[1]:
            yield FileDifference(path, "only in the first")
        elif path not in kinds[0]:
            yield FileDifference(path, "only in the second")
        elif what := _difference(path, first, second):
            yield FileDifference(path, what)


def _difference(path: str, first: RootFileSystem, second: RootFileSystem) -> str:
    one, other = first.stat(path, follow=False), second.stat(path, follow=False)
    if one.kind != other.kind:
        return "kind"
    if one.kind is FileKind.SYMLINK and first.readlink(path) != second.readlink(path):
        return "link"
    if one.permissions != other.permissions:
        return "mode"
    if (one.uid, one.gid) != (other.uid, other.gid):
        return "owner"
    if one.kind is FileKind.FILE and (
        one.size_bytes != other.size_bytes or _digest(first, path) != _digest(second, path)
    ):
        return "content"
    return "time" if one.mtime_s != other.mtime_s else ""


def _digest(root: RootFileSystem, path: str) -> bytes:
    digest = hashlib.sha256()
    with contextlib.closing(root.open(path)) as file:
        offset = 0
        while chunk := file.read_at(offset, _CHUNK_BYTES):
            digest.update(chunk)
            offset += len(chunk)
    return digest.digest()
