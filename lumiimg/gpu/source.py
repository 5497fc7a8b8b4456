"""What this room asks of a file, wherever it is; and its one error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.core import access
from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess


class GpuCodeError(BadInputError):
    """GPU code that cannot be read, or whose sizes contradict each other or the file."""


def read_exactly(source: RandomAccess, offset: int, size: int, what: str) -> bytes:
    """Return `size` bytes. Raises GpuCodeError, with `what` they are, where the file ends before."""
    try:
        return access.read_exactly(source, offset, size)
    except EOFError as error:
        raise GpuCodeError(f"{what}: {error}") from error
