"""The log of a build: all that engine and scripts print, but for secrets."""

from __future__ import annotations

import io
import os
from collections.abc import Collection
from pathlib import Path

from lumiimg.secret import hidden

_LINE_LIMIT_BYTES = 64 * 1024


class BuildLog(io.FileIO):
    """A new file; what had its name is gone, a link is not followed. It is written line by line, and at once."""

    def __init__(self, path: Path, secrets: Collection[str] = ()) -> None:
        """Raise OSError where the folder cannot be written. `secrets` are texts that are not to be in it."""
        path.unlink(missing_ok=True)
        super().__init__(os.fspath(path), "xb")
        self._secrets = secrets
        self._rest = b""

    def write(self, data: bytes) -> int:  # type: ignore[override]  # nobody gives it another buffer
        """Write whole lines; the beginning of one waits for its end, in which the rest of a secret may be."""
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        self._put(lines + newline)
        if len(self._rest) > _LINE_LIMIT_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write what waits, too."""
        rest, self._rest = self._rest, b""
        self._put(rest)

    def _put(self, data: bytes) -> None:
        if data:
            text = hidden(data.decode("utf-8", "surrogateescape"), self._secrets)
            super().write(text.encode("utf-8", "surrogateescape"))
