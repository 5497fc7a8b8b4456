"""What is shown of a build while it runs, what each part of it took, and the log: all that engine and scripts print."""

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
"""The first stage, and the last: what is not here is fetched; layers are put together."""


@dataclass(frozen=True, slots=True)
class BuildStage:
    """One part of a build, for its account."""

    name: str
    """Of the part."""
    seconds: float
    """By the clock."""
    cpu_seconds: float
    """Of all processes that were run for it and waited for."""
    size_bytes: int
    """Of what came out of it."""
    reused: bool
    """Whether it was taken from the cache."""

    @property
    def outcome(self) -> str:
        """What it came to, in words."""
        took = "kept from an earlier build" if self.reused else f"cpu {duration(self.cpu_seconds)}"
        return f"{took}, {size(self.size_bytes)}"


class StageClock:
    """Counts from where it is made."""

    def __init__(self) -> None:
        self._start, self._cpu = time.monotonic(), _cpu_of_children()

    def stage(self, name: str, size_bytes: int, *, reused: bool) -> BuildStage:
        """Return what was taken since."""
        return BuildStage(name, time.monotonic() - self._start, _cpu_of_children() - self._cpu, size_bytes, reused)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Progress:
    """Hears what happens while it happens; this one says nothing of it."""

    def begin(self, names: Sequence[str]) -> None:
        """Hear of all steps that will come, in order."""

    def step_started(self, name: str, last_s: float | None = None) -> None:
        """Hear that a step begins, and what it took the last time, where that is known."""

    def line(self, text: str) -> None:
        """Hear a line that the engine, or a script in it, printed."""

    def notice(self, text: str) -> None:
        """Hear what a person should know while it is built."""

    def step_done(self, stage: BuildStage) -> None:
        """Report what a step took; its result is in the cache."""

    def stop(self) -> None:
        """Hear that nothing more comes, also where a step failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class BuildLog(io.FileIO):
    """A new file for what is printed, without secrets; what had its name is gone, a link is not followed.

    It is written line by line, and at once. Writing raises FailedError where the disk of the log is full: an OSError
    would be taken for one of the layer that is built.
    """

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
            text = redact(data.decode("utf-8", "surrogateescape"), self._secrets)
            try:
                super().write(text.encode("utf-8", "surrogateescape"))
            except OSError as error:
                where = Path(os.fsdecode(self.name)).parent
                what = f"the log cannot be written: {error.strerror}"
                raise FailedError(what, where=str(where), hint=MOVE_OUTPUT) from error
