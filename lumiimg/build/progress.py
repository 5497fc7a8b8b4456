"""What is told of a build while it runs, and what each part of it took."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Of all that was run for it, as far as it was waited for."""
    size_bytes: int
    """Of what came out of it."""
    reused: bool
    """Whether it was kept from an earlier build."""


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
    """Told what happens while it happens; this one says nothing of it."""

    def begin(self, names: Sequence[str]) -> None:
        """Hear of all steps that will come, in order."""

    def step_started(self, name: str) -> None:
        """Hear that a step begins."""

    def line(self, text: str) -> None:
        """Hear a line that the engine, or a script in it, printed."""

    def notice(self, text: str) -> None:
        """Hear what a person should know while it is built."""

    def step_done(self, stage: BuildStage) -> None:
        """Hear what a step took, and that its result is kept."""

    def stop(self) -> None:
        """Hear that nothing more comes, also where a step failed."""
