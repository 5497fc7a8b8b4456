"""The progress of a build, the cost of each part, and the log with all output of the engine and the scripts."""

from __future__ import annotations

import io
import os
import resource
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lumiimg.core.errors import FailedError
from lumiimg.core.redact import redact
from lumiimg.core.text import duration, size
from lumiimg.engine.workspace import MOVE_OUTPUT

_LINE_LIMIT_BYTES = 64 * 1024
DOWNLOADS, IMAGE = "downloads", "image"
"""The first stage fetches missing sources, the last merges the layers."""


@dataclass(frozen=True, slots=True)
class BuildStage:
    """The account of one part of a build."""

    name: str
    """Name of the part."""
    seconds: float
    """Elapsed time."""
    cpu_seconds: float
    """CPU time of all child processes that were waited for."""
    size_bytes: int
    """Size of its result."""
    reused: bool
    """Whether it was taken from the cache."""

    @property
    def outcome(self) -> str:
        """The result in words."""
        took = "reused from an earlier build" if self.reused else f"cpu {duration(self.cpu_seconds)}"
        return f"{took}, {size(self.size_bytes)}"


class StageClock:
    """Measures elapsed and CPU time from its creation."""

    def __init__(self) -> None:
        self._start, self._cpu = time.monotonic(), _cpu_of_children()

    def stage(self, name: str, size_bytes: int, *, reused: bool) -> BuildStage:
        """Return the stage that has lasted since then."""
        return BuildStage(name, time.monotonic() - self._start, _cpu_of_children() - self._cpu, size_bytes, reused)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Progress:
    """Receives events during a build; this base class shows nothing."""

    def begin(self, names: Sequence[str]) -> None:
        """Receive the names of all steps, in order."""

    def step_started(self, name: str, last_s: float | None = None) -> None:
        """Receive the start of a step, with its last duration if known."""

    def line(self, text: str) -> None:
        """Receive a line of output from the engine or a script in it."""

    def notice(self, text: str) -> None:
        """Receive a message that the user should see during the build."""

    def step_done(self, stage: BuildStage) -> None:
        """Receive the account of a step, whose result is available."""

    def stop(self) -> None:
        """End the display, also after a failed step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class BuildLog(io.FileIO):
    """A new log file without secrets; it replaces an existing file, and a link is not followed.

    Lines are written whole and at once. Writing raises FailedError if the disk of the log is full: an OSError would be
    blamed on the layer being built.
    """

    def __init__(self, path: Path, secrets: Collection[str] = ()) -> None:
        """Create the log; raise OSError if its folder is not writable. `secrets`: texts that must not appear in it."""
        path.unlink(missing_ok=True)
        super().__init__(os.fspath(path), "xb")
        self._secrets = secrets
        self._rest = b""

    def write(self, data: bytes) -> int:  # type: ignore[override]  # nobody gives it another buffer
        """Write whole lines; the start of a line is buffered until its end, which may complete a secret."""
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        self._put(lines + newline)
        if len(self._rest) > _LINE_LIMIT_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write the buffered start of a line."""
        rest, self._rest = self._rest, b""
        self._put(rest)

    def _put(self, data: bytes) -> None:
        if data:
            text = redact(data.decode("utf-8", "surrogateescape"), self._secrets)
            try:
                super().write(text.encode("utf-8", "surrogateescape"))
            except OSError as error:
                where = Path(os.fsdecode(self.name)).parent
                what = f"the log cannot be written: {error.strerror}"
                raise FailedError(what, where=str(where), hint=MOVE_OUTPUT) from error
