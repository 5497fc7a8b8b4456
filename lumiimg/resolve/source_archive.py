"""Text files out of a source archive (`.tar.gz`), from the front to the back: nothing is unpacked, and nothing runs."""

from __future__ import annotations

import gzip
import posixpath
import zlib
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError, one_line
from lumiimg.image.oci.tar import read_members
from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

_TEXT_LIMIT_BYTES = 512 * 1024
_MOST_TEXTS = 200
_MOST_MEMBERS = 500_000
_BLOCK_BYTES = 128 * 1024


def read_texts(archive: IO[bytes], is_wanted: Callable[[str], bool], limit_bytes: int, where: str) -> dict[str, str]:
    """Return text files by their paths below the top folder of an archive that unpacks to `limit_bytes` at most.

    Raises FailedError.
    """
    found: dict[str, str] = {}
    try:
        with gzip.open(archive) as unpacked:
            reader = _UnpackedStream(unpacked, limit_bytes)
            for member in islice(read_members(reader, where), _MOST_MEMBERS):
                path = posixpath.normpath(member.name).partition("/")[2]
                is_text = member.kind is FileKind.FILE and member.size_bytes <= _TEXT_LIMIT_BYTES
                if is_text and len(found) < _MOST_TEXTS and is_wanted(path):
                    found[path] = reader.take(member.size_bytes).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error, ImageError) as error:
        raise FailedError(f"is not an archive that can be read: {one_line(str(error))[:200]}", where=where) from error
    return found


class _UnpackedStream:
    """What a gzip file holds, from the front to the back, as far as it may go."""

    def __init__(self, stream: gzip.GzipFile, limit_bytes: int) -> None:
        self._stream = stream
        self._limit_bytes = limit_bytes
        self.position = 0

    def take(self, size: int) -> bytes:
        self.position += size
        if self.position > self._limit_bytes:
            raise ImageError(f"unpacks to more than {self._limit_bytes} bytes")
        return self._stream.read(size)

    def skip(self, size: int) -> None:
        while size > 0:
            piece = self.take(min(size, _BLOCK_BYTES))
            if not piece:
                raise ImageError("ends early")
            size -= len(piece)
