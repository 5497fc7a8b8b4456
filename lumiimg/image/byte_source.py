"""A range of a host file, read with pread: the partition of a SIF, or all of a squashfs file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from lumiimg.core.access import read_exactly
from lumiimg.core.files import regular_file
from lumiimg.image.tree import ImageError


class ByteSource:
    """`size` bytes of an open file from `start`. Slices share the descriptor; only the first one closes it."""

    def __init__(self, descriptor: int, *, name: str, start: int, size: int, owns: bool = False) -> None:
        self.name = name
        self.size = size
        self._descriptor = descriptor
        self._start = start
        self._owns = owns

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a regular file for reading. Raises ImageError, also for anything else: a FIFO would be waited for."""
        try:
            descriptor = regular_file(path)
        except OSError as error:
            raise ImageError(f"cannot be opened: {error.strerror}", where=str(path)) from error
        return cls(descriptor, name=str(path), start=0, size=os.fstat(descriptor).st_size, owns=True)

    def slice(self, start: int, size: int) -> ByteSource:
        """Return a part, which must lie inside."""
        if start < 0 or size < 0 or start + size > self.size:
            raise ImageError(f"a part of {size} bytes at {start} does not fit in {self.size} bytes", where=self.name)
        return ByteSource(self._descriptor, name=self.name, start=self._start + start, size=size)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end. Raises ImageError."""
        size = max(0, min(size, self.size - offset))
        try:
            data = os.pread(self._descriptor, size, self._start + offset)
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror}", where=self.name) from error
        if len(data) != size:
            raise ImageError("the file became shorter while it was read", where=self.name)
        return data

    def read_exactly(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`. Raises ImageError where the file has fewer."""
        try:
            return read_exactly(self, offset, size)
        except EOFError as error:
            raise ImageError(str(error), where=self.name) from error

    def close(self) -> None:
        """Close the descriptor, where this is the first range of it."""
        if self._owns:
            self._owns = False
            os.close(self._descriptor)
