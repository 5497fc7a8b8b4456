"""Writing a result: whole, or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError, FailedError

if TYPE_CHECKING:
    from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file; whoever reads meanwhile sees the old file or the new one, never a part.

    Raises BadInputError if the name is that of something other than a file, FailedError if it cannot be written.
    """
    target = path.resolve()  # a link stays a link
    if target.exists() and not target.is_file():
        raise BadInputError("is not a file", where=str(path))
    partial = target.with_name(f".{target.name[:100]}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
