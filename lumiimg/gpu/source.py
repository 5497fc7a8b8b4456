"""What this room asks of a file, wherever it is; and its one error."""

from __future__ import annotations

from typing import Protocol

from lumiimg.errors import BadInputError


class GpuCodeError(BadInputError):
    """GPU code that cannot be read, or whose sizes contradict each other or the file."""


class ByteRanges(Protocol):
    """A file of known size that is read in ranges."""

    @property
    def size(self) -> int:
        """In bytes."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""


def read_exactly(source: ByteRanges, offset: int, size: int, what: str) -> bytes:
    """Return `size` bytes. Raises GpuCodeError where the file ends before."""
    if offset + size > source.size:
        raise GpuCodeError(f"{what}: {size} bytes at {offset}, behind the end of the file of {source.size} bytes")
    data = source.read_at(offset, size)
    if len(data) != size:
        raise GpuCodeError(f"{what}: the file became shorter while it was read")
    return data
