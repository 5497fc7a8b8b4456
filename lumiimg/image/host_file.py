"""A regular file of this machine, read with pread: a file of a sandbox, a squashfs file, the partition of a SIF."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Self

from lumiimg.core.access import read_exactly
from lumiimg.core.files import regular_file
from lumiimg.image.tree import ImageError


class HostFile:
    """An open file, or a part of one. Parts share the descriptor; only the whole closes it."""

    def __init__(self, path: Path | str, *, follow: bool = True) -> None:
        """Open a file. Raises OSError, also for anything but a regular file: a FIFO would be waited for."""
        self._descriptor = -1
        self._descriptor = regular_file(path, follow=follow)
        status = os.fstat(self._descriptor)
        self.name = str(path)
        self.identity: tuple[int, ...] = status.st_dev, status.st_ino
        """Of a part, with where it begins."""
        self.size = status.st_size
        self._start = 0
        self._whole: HostFile | None = None
        """What this is a part of; None for the whole."""

    @classmethod
    def of_image(cls, path: Path) -> Self:
        """Open the file of an image. Raises ImageError."""
        try:
            return cls(path)
        except OSError as error:
            raise ImageError(f"cannot be opened: {error.strerror}", where=str(path)) from error

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def slice(self, start: int, size: int) -> Self:
        """Return a part, which must lie inside."""
        if start < 0 or size < 0 or start + size > self.size:
            raise ImageError(f"a part of {size} bytes at {start} does not fit in {self.size} bytes", where=self.name)
        part = copy.copy(self)
        part._start, part.size, part._whole = self._start + start, size, self  # noqa: SLF001 - of this class
        part.identity = (*self.identity, start)
        return part

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; of files in /proc, which say that they are empty, too."""
        if self._whole is not None:
            size = max(0, min(size, self.size - offset))
        data = os.pread(self._descriptor, size, self._start + offset)
        # files of /sys have less in them than they say, and go on saying so
        if len(data) < min(size, self.size - offset) and os.fstat(self._descriptor).st_size < self._start + self.size:
            raise ImageError("the file became shorter while it was read", where=self.name)
        return data

    def read_exactly(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`. Raises ImageError where the file has fewer, or cannot be read."""
        try:
            return read_exactly(self, offset, size)
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror}", where=self.name) from error
        except EOFError as error:
            raise ImageError(str(error), where=self.name) from error

    def close(self) -> None:
        """Close the descriptor; a part has none of its own."""
        if self._descriptor >= 0 and self._whole is None:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()
