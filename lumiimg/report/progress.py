"""What a build shows while it runs: a list on a terminal, one line a step elsewhere (Slurm's output file)."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from lumiimg.build.progress import BuildStage, Progress
from lumiimg.errors import printable
from lumiimg.report.console import console, say
from lumiimg.wording import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.progress import ProgressColumn, Task, TaskID


ALIVE_EVERY_S = 30.0
_BELOW = " " * 6
_CUT = 72
"""Characters of the last line: it is a sign of life, and the log has all of it."""


class LineProgress(Progress):
    """One line when a step begins and one when it is done; a sign of life each half minute, of silent steps too."""

    def __init__(self, alive_every_s: float = ALIVE_EVERY_S) -> None:
        self._alive_every_s = alive_every_s
        self._names: Sequence[str] = ()
        self._name = ""
        self._last = ""
        self._spoken_at = self._step_started_at = time.monotonic()
        self._stopped = threading.Event()

    def begin(self, names: Sequence[str]) -> None:
        """Watch over all steps."""
        self._names = names
        threading.Thread(target=self._watch, daemon=True).start()

    def step_started(self, name: str, last_s: float | None = None) -> None:
        """Say which step begins, and what it took the last time."""
        self._step_started_at, self._last = time.monotonic(), ""
        self._name = name
        before = "" if last_s is None else f" ({duration(last_s)} the last time)"
        self._say(f"[{self._names.index(name) + 1}/{len(self._names)}] {name}{before}")

    def line(self, text: str) -> None:
        """Note the line for the next sign of life."""
        self._last = text

    def notice(self, text: str) -> None:
        """Say it."""
        self._spoken_at = time.monotonic()
        say(console(stderr=True), text, first=_BELOW)

    def step_done(self, stage: BuildStage) -> None:
        """Say what the step took, or that it was not needed."""
        self._name = ""
        self._say(f"{_BELOW}{stage.name}: {_outcome(stage)}")

    def stop(self) -> None:
        """Say nothing more."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._alive_every_s)):
            if self._name and time.monotonic() - self._spoken_at > self._alive_every_s:
                elapsed = duration(time.monotonic() - self._step_started_at)
                self._say(f"{_BELOW}{self._name}: {elapsed} so far")
                if last := printable(self._last.strip()):
                    self._say(f"{_BELOW}> {last[:_CUT]}")

    def _say(self, text: str) -> None:
        self._spoken_at = time.monotonic()
        print(printable(text), file=sys.stderr, flush=True)


class TerminalProgress(Progress):
    """All steps as a list: what is done and what it took, a clock beside the one that runs, and its last line."""

    def __init__(self) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import Progress as Tasks  # 50 ms
        from rich.progress import TextColumn
        from rich.table import Column

        told = TextColumn("{task.fields[told]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
        name = TextColumn("{task.description}", markup=False)
        columns = (_state_column(), name, _clock_column(), told)
        self._screen = RichConsole(stderr=True, markup=False, emoji=False, highlight=False)
        self._progress = Tasks(*columns, console=self._screen, transient=True, expand=True)
        self._tasks: dict[str, TaskID] = {}
        self._running: TaskID | None = None

    def begin(self, names: Sequence[str]) -> None:
        """Show the list."""
        self._tasks = {name: self._progress.add_task(name, start=False, total=1, told="", before="") for name in names}
        self._progress.start()

    def step_started(self, name: str, last_s: float | None = None) -> None:
        """Start the clock of a step, beside what it took the last time."""
        self._running = self._tasks[name]
        self._progress.update(self._running, before="" if last_s is None else f" of {duration(last_s)} the last time")
        self._progress.start_task(self._running)

    def line(self, text: str) -> None:
        """Show the line behind the clock, cut to the terminal's width."""
        if self._running is not None:
            self._progress.update(self._running, told=printable(text.strip()))

    def notice(self, text: str) -> None:
        """Print it above the list."""
        self._progress.console.print(f"  {printable(text)}", style="yellow")

    def step_done(self, stage: BuildStage) -> None:
        """Tell beside the step what it took."""
        self._progress.update(self._tasks[stage.name], completed=1, told=_outcome(stage, with_time=False))
        self._running = None

    def stop(self) -> None:
        """Take the list away; the terminal is as before."""
        self._progress.stop()


class VerboseProgress(LineProgress):
    """Every line as the engine prints it."""

    def line(self, text: str) -> None:
        """Print the line."""
        self._say(text)


def _state_column() -> ProgressColumn:
    """Return a column that shows whether a step is still to come, runs, or is done."""
    from rich.progress import SpinnerColumn
    from rich.text import Text

    class State(SpinnerColumn):
        def render(self, task: Task) -> RenderableType:
            return super().render(task) if task.started else Text(" ")

    return State(finished_text="[green]✓")


def _clock_column() -> ProgressColumn:
    """Return a column with the time of a step: nothing before it begins."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Clock(ProgressColumn):
        def render(self, task: Task) -> Text:
            elapsed = task.finished_time if task.finished else task.elapsed
            before = "" if task.finished else task.fields["before"]
            return Text("" if elapsed is None else f"{duration(elapsed)}{before}", justify="right")

    return Clock()


def _outcome(stage: BuildStage, *, with_time: bool = True) -> str:
    if stage.reused:
        return f"kept from an earlier build, {size(stage.size_bytes)}"
    took = f"{duration(stage.seconds)}, " if with_time else ""
    return f"{took}cpu {duration(stage.cpu_seconds)}, {size(stage.size_bytes)}"
