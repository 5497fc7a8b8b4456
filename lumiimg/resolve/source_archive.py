"""Text files out of a source archive (`.tar.gz`), from the front to the back: nothing is unpacked, and nothing runs."""

from __future__ import annotations

import gzip
import posixpath
import zlib
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError, one_line
from lumiimg.image import FileKind, ImageError
from lumiimg.image.oci.tar import read_members

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

_TEXT_LIMIT_BYTES = 512 * 1024
_MOST_TEXTS = 200
_MOST_MEMBERS = 500_000


def read_texts(archive: IO[bytes], is_wanted: Callable[[str], bool], limit_bytes: int, where: str) -> dict[str, str]:
    """Return text files by their paths below the top folder of an archive that unpacks to `limit_bytes` at most.

    Raises FailedError.
    """
    found: dict[str, str] = {}
    try:
        with gzip.open(archive) as unpacked:
            for member in islice(read_members(unpacked, limit_bytes, where), _MOST_MEMBERS):
                path = posixpath.normpath(member.name).partition("/")[2]
                is_text = member.kind is FileKind.FILE and member.stat.size_bytes <= _TEXT_LIMIT_BYTES
                if is_text and len(found) < _MOST_TEXTS and is_wanted(path):
                    found[path] = unpacked.read(member.stat.size_bytes).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error, ImageError) as error:
        raise FailedError(f"is not an archive that can be read: {one_line(str(error))[:200]}", where=where) from error
    return found
