"""Progress of a build: one line on a terminal, one line per step elsewhere (Slurm's output file)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from lumiimg.build.progress import BuildStage, Progress
from lumiimg.core.errors import one_safe_line, say
from lumiimg.core.text import duration
from lumiimg.report.read_progress import write_over

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIVE_EVERY_S = 30.0
_BELOW = " " * 6
_CUT = 72
"""Maximum number of characters of the last line: it is only a sign of life, and the log has all of it."""


class LineProgress(Progress):
    """Print a line when a step begins and when it is done, and a sign of life every half minute, even if silent."""

    def __init__(self, alive_every_s: float = _ALIVE_EVERY_S) -> None:
        self._alive_every_s = alive_every_s
        self._names: Sequence[str] = ()
        self._name = self._last = self._before = ""
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._spoken_at = self._step_started_at = time.monotonic()
        self._stopped = threading.Event()

    def begin(self, names: Sequence[str]) -> None:
        """Start watching the steps."""
        self._names = names
        self._watching.start()

    def step_started(self, name: str, last_s: float | None = None) -> None:
        """Print which step begins, and how long it took the last time."""
        self._step_started_at, self._last = time.monotonic(), ""
        self._name = name
        self._before = "" if last_s is None else f" ({duration(last_s)} the last time)"
        self._say(self._where())

    def line(self, text: str) -> None:
        """Store the line for the next sign of life."""
        self._last = text

    def notice(self, text: str) -> None:
        """Print a notice."""
        self._say(f"{_BELOW}{text}")

    def step_done(self, stage: BuildStage) -> None:
        """Print how long the step took, or that it was not needed."""
        self._name = ""
        took = "" if stage.reused else f"{duration(stage.seconds)}, "
        self._say(f"{_BELOW}{stage.name}: {took}{stage.outcome}")

    def stop(self) -> None:
        """Stop printing."""
        self._stopped.set()
        if self._watching.is_alive():
            self._watching.join()

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._alive_every_s)):
            if self._name and time.monotonic() - self._spoken_at > self._alive_every_s:
                self._show_alive(duration(time.monotonic() - self._step_started_at))

    def _where(self) -> str:
        return f"[{self._names.index(self._name) + 1}/{len(self._names)}] {self._name}{self._before}"

    def _show_alive(self, clock: str) -> None:
        self._say(f"{_BELOW}{self._name}: {clock} so far")
        if last := one_safe_line(self._last.strip()):
            self._say(f"{_BELOW}> {last[:_CUT]}")

    def _say(self, text: str) -> None:
        self._spoken_at = time.monotonic()
        say(text)


class VerboseProgress(LineProgress):
    """Print every line that the engine prints."""

    def line(self, text: str) -> None:
        """Print the line."""
        self._say(text)


class TerminalProgress(LineProgress):
    """Overwrite a single line: the step, its clock, the time it took the last time, and its last line."""

    def __init__(self) -> None:
        super().__init__(alive_every_s=0.2)

    def notice(self, text: str) -> None:
        """Print a notice above the line."""
        write_over(f"  {text}", stays=True)

    def stop(self) -> None:
        """Remove the line; the answer shows how long each step took."""
        super().stop()
        write_over()

    def _show_alive(self, clock: str) -> None:
        write_over(f"{self._where()} {clock}  {self._last.strip()}")

    def _say(self, text: str) -> None:
        """Print nothing: steps leave no lines behind."""
