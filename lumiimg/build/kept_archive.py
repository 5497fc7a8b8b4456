"""A tar of the cache, read as it lies there: also one that somebody else wrote."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from lumiimg.files import open_regular
from lumiimg.image.oci.tar import Member, read_members
from lumiimg.image.tree import ImageError

_CHUNK_BYTES = 1 << 20


class TarFile:
    """A tar that others may have made, as it lies there: nothing packed, nothing sparse, no name without end."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._file = open_regular(source)
        self._size_bytes = source.stat().st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        return self._file.tell()

    def take(self, size: int) -> bytes:
        return self._file.read(size)

    def skip(self, size: int) -> None:
        if self._file.seek(size, os.SEEK_CUR) > self._size_bytes:
            raise ImageError("ends within a member", where=str(self._source))

    def members(self) -> Iterator[Member]:
        """Yield the members. Raises ImageError for what is not a tar, also where one is cut off."""
        if not self._size_bytes:
            raise ImageError("is empty", where=str(self._source))
        return read_members(self, str(self._source))

    def copy(self, member: Member, target: Path) -> Path:
        """Write the content of a member that was just yielded. Raises ImageError where it is cut off, OSError."""
        left = member.size_bytes
        with target.open("wb") as file:
            while chunk := self._file.read(min(left, _CHUNK_BYTES)):
                file.write(chunk)
                left -= len(chunk)
        if left:
            raise ImageError("ends within a member", where=str(self._source))
        with contextlib.suppress(OSError, OverflowError):  # of a day that no file system knows
            os.utime(target, (member.mtime_s, member.mtime_s))
        return target
