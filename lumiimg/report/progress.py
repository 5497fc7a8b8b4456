"""What a build shows while it runs: a moving line on a terminal, one line a step elsewhere (Slurm's output file)."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from lumiimg.errors import one_line
from lumiimg.report.console import console
from lumiimg.wording import duration, size

if TYPE_CHECKING:
    from rich.progress import TaskID

_ALIVE_EVERY_S = 30.0


class QuietProgress:
    """Nothing but errors."""

    def step_started(self, number: int, total: int, name: str) -> None:
        """Say nothing."""

    def line(self, text: str) -> None:
        """Say nothing."""

    def notice(self, text: str) -> None:
        """Say nothing."""

    def step_done(self, name: str, seconds: float, size_bytes: int, *, reused: bool) -> None:
        """Say nothing."""

    def stop(self) -> None:
        """Say nothing."""


class LineProgress(QuietProgress):
    """One line when a step begins and one when it is done; a sign of life each half minute."""

    def __init__(self) -> None:
        self._spoken_at = self._step_started_at = time.monotonic()
        self._name = "start"

    def step_started(self, number: int, total: int, name: str) -> None:
        """Step `number` of `total` begins."""
        self._name = name
        self._step_started_at = time.monotonic()
        self._say(f"[{number}/{total}] {name}")

    def line(self, text: str) -> None:
        """Note that the step is alive, and say so now and then with what it printed last."""
        if time.monotonic() - self._spoken_at > _ALIVE_EVERY_S:
            elapsed = duration(time.monotonic() - self._step_started_at)
            self._say(f"      {self._name}: {elapsed} so far; last line: {one_line(text.strip())[:100]}")

    def notice(self, text: str) -> None:
        """Say it."""
        self._say(f"      {one_line(text)}")

    def step_done(self, name: str, seconds: float, size_bytes: int, *, reused: bool) -> None:
        """Say how long the step took, or that it was not needed."""
        self._say(f"      {name}: {_outcome(seconds, size_bytes, reused=reused)}")

    def _say(self, text: str) -> None:
        self._spoken_at = time.monotonic()
        print(text, file=sys.stderr, flush=True)


class TerminalProgress(QuietProgress):
    """A spinner with the step, a clock that runs by itself, and the last line that was printed."""

    def __init__(self) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - 50 ms
        from rich.table import Column  # noqa: PLC0415

        self._console = console(stderr=True)
        line = TextColumn("{task.fields[line]}", markup=False, style="dim", table_column=Column(no_wrap=True, ratio=1))
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), line)
        self._progress = Progress(*columns, console=self._console, transient=True, expand=True)
        self._task: TaskID | None = None
        self._title = ""

    def step_started(self, number: int, total: int, name: str) -> None:
        """Start the spinner of a step."""
        self._title = f"[{number}/{total}] {name}"
        self._task = self._progress.add_task(self._title, total=None, line="")
        self._progress.start()

    def line(self, text: str) -> None:
        """Show the line behind the clock, cut to the terminal's width."""
        if self._task is not None:
            self._progress.update(self._task, line=one_line(text.strip()))

    def notice(self, text: str) -> None:
        """Print it above the spinner."""
        self._console.print(f"  {one_line(text)}", style="yellow", soft_wrap=True)

    def step_done(self, name: str, seconds: float, size_bytes: int, *, reused: bool) -> None:
        """Replace the spinner by the step's outcome."""
        self.stop()
        self._console.print(f"✓ {self._title}: {_outcome(seconds, size_bytes, reused=reused)}", style="green")
        self._title = name

    def stop(self) -> None:
        """Take the spinner away; the terminal is as before."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._progress.stop()


class VerboseProgress(LineProgress):
    """Every line as the engine prints it."""

    def line(self, text: str) -> None:
        """Print the line."""
        print(one_line(text), file=sys.stderr)


def _outcome(seconds: float, size_bytes: int, *, reused: bool) -> str:
    if reused:
        return f"kept from an earlier build, {size(size_bytes)}"
    return f"{duration(seconds)}, {size(size_bytes)}"
