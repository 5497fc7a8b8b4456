"""What a build shows while it runs: a list on a terminal, one line per step elsewhere (Slurm's output file)."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from lumiimg.build.progress import BuildStage, Progress
from lumiimg.errors import printable
from lumiimg.wording import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

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
        self._say(f"{_BELOW}{text}")

    def step_done(self, stage: BuildStage) -> None:
        """Say what the step took, or that it was not needed."""
        self._name = ""
        took = "" if stage.reused else f"{duration(stage.seconds)}, "
        self._say(f"{_BELOW}{stage.name}: {took}{_outcome(stage)}")

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


class VerboseProgress(LineProgress):
    """Every line as the engine prints it."""

    def line(self, text: str) -> None:
        """Print the line."""
        self._say(text)


class TerminalProgress(Progress):
    """All steps as a list: what is done and what it took, a clock beside the one that runs, and its last line."""

    def __init__(self) -> None:
        from rich.console import Console  # 50 ms, of use to a build on a terminal alone
        from rich.live import Live
        from rich.spinner import Spinner

        self._names: Sequence[str] = ()
        self._done: dict[str, BuildStage] = {}
        self._running, self._last, self._before, self._started_at = "", "", "", 0.0
        self._spinner = Spinner("dots")
        screen = Console(stderr=True, markup=False, emoji=False, highlight=False)
        self._live = Live(console=screen, get_renderable=self._list, transient=True, redirect_stdout=False)

    def begin(self, names: Sequence[str]) -> None:
        """Show the list."""
        self._names = names
        self._live.start()

    def step_started(self, name: str, last_s: float | None = None) -> None:
        """Start the clock of a step, beside what it took the last time."""
        self._running, self._last = name, ""
        self._before = "" if last_s is None else f" of {duration(last_s)} the last time"
        self._started_at = time.monotonic()

    def line(self, text: str) -> None:
        """Show the line behind the clock, cut to the terminal's width."""
        self._last = text.strip()

    def notice(self, text: str) -> None:
        """Print it above the list."""
        self._live.console.print(f"  {printable(text)}", style="yellow")

    def step_done(self, stage: BuildStage) -> None:
        """Show beside the step what it took."""
        self._done[stage.name] = stage
        self._running = ""

    def stop(self) -> None:
        """Take the list away; the terminal is as before."""
        self._live.stop()

    def _list(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        steps = Table.grid(padding=(0, 1), expand=True)
        steps.add_column(width=1)
        steps.add_column(no_wrap=True)
        steps.add_column(no_wrap=True, justify="right")
        steps.add_column(no_wrap=True, ratio=1)
        for name in self._names:
            mark: RenderableType = ""
            clock = told = ""
            if (stage := self._done.get(name)) is not None:
                mark, clock, told = Text("✓", "green"), duration(stage.seconds), _outcome(stage)
            elif name == self._running:
                mark, told = self._spinner, self._last
                clock = f"{duration(time.monotonic() - self._started_at)}{self._before}"
            steps.add_row(mark, *(Text(printable(text)) for text in (name, clock, told)))
        return steps


def _outcome(stage: BuildStage) -> str:
    if stage.reused:
        return f"kept from an earlier build, {size(stage.size_bytes)}"
    return f"cpu {duration(stage.cpu_seconds)}, {size(stage.size_bytes)}"
