"""Writing a result: whole, or not at all."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError, FailedError

if TYPE_CHECKING:
    from pathlib import Path

_NAME_BYTES = 100


def write_text(path: Path, text: str) -> None:
    """Write a file; whoever reads meanwhile sees the old file or the new one, never a part.

    It is written under a name that nobody could put something under before, as others may write to the folder.

    Raises BadInputError if the name is that of something other than a file, FailedError if it cannot be written.
    """
    target = path.resolve()  # a link stays a link
    if target.exists() and not target.is_file():
        raise BadInputError("is not a file", where=str(path))
    name = os.fsdecode(os.fsencode(target.name)[:_NAME_BYTES])
    partial = target.with_name(f".{name}.{secrets.token_hex(8)}")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(target)
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
