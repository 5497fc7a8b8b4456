"""The folder of a check while its step runs: who has started, who has answered, and how long to wait for the others."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lumiimg.cluster.nodes.answers import is_answer, node_of_file
from lumiimg.cluster.nodes.node_task import is_mark

NODE_LIMIT_S = 300.0
"""From when a node was seen to start; a plugin that hangs is reported by its probe after a minute, HIP after two."""
START_LIMIT_S = 120.0
"""For a node to start, from when the first one did; and more for each node of the check:"""
START_LIMIT_PER_NODE_S = 0.05
"""All of them read Python and lumiimg off one file system at once. The project's own choice, measured nowhere."""
FIRST_LIMIT_S = 600.0
"""For the first node to start: Slurm may have to boot it."""
END_LIMIT_S = 30.0
"""For the step to end by itself when all have answered."""
RESERVE_S = 20.0
"""Before the time of the job is up: for the step to be ended, and for the answers that have come to be put together."""
_LOOK_EVERY_S = 0.5


def start_limit_s(nodes: int) -> float:
    """Return how long one of that number of nodes may take to start, from when the first one did."""
    return START_LIMIT_S + START_LIMIT_PER_NODE_S * nodes


def limit_s(nodes: int) -> float:
    """Return after how long every one of that number of nodes has answered, or had its time."""
    return FIRST_LIMIT_S + start_limit_s(nodes) + NODE_LIMIT_S


@dataclass(frozen=True, slots=True)
class Waiting:
    """How far a check is."""

    answered: int
    nodes: tuple[str, ...]
    """That have not answered, in order."""
    seconds: float
    """From now on, after which they are given up."""


class Watch:
    """Counts by its own clock alone: what clock a node has, or its file system, does not matter."""

    def __init__(
        self,
        folder: Path,
        nodes: Iterable[str],
        on_progress: Callable[[Waiting], None],
        clock: Callable[[], float] = time.monotonic,
        job_ends: float | None = None,
    ) -> None:
        """`job_ends` by the clock; None: it is not known."""
        self._folder = folder
        self._nodes = set(nodes)
        self._start_limit_s = start_limit_s(len(self._nodes))
        self._on_progress = on_progress
        self._clock = clock
        self._latest = math.inf if job_ends is None else job_ends - RESERVE_S
        self._begun = self._looked = clock()
        self._answered: dict[str, float] = {}
        self._started: dict[str, float] = {}

    @property
    def started(self) -> set[str]:
        """The nodes that were seen to start."""
        return set(self._started)

    @property
    def waiting(self) -> set[str]:
        """The nodes that have not answered."""
        return self._nodes - self._answered.keys()

    @property
    def out_of_time(self) -> bool:
        """Whether the time of the job is up, or nearly."""
        return self._clock() >= self._latest

    def is_over(self) -> bool:
        """Whether every node has answered, or had its time; looks into the folder twice a second at most."""
        now = self._clock()
        if now - self._looked < _LOOK_EVERY_S:
            return False
        self.look()
        return now > self._given_up()

    def _given_up(self) -> float:
        """Return when the last node that is waited for will have had its time."""
        if not self.waiting:
            end = max(self._answered.values()) + END_LIMIT_S
        elif not self._started:
            end = self._begun + FIRST_LIMIT_S
        else:
            start_by = min(self._started.values()) + self._start_limit_s
            end = max(
                self._started[node] + NODE_LIMIT_S if node in self._started else start_by for node in self.waiting
            )
        return min(end, self._latest)

    def look(self) -> None:
        """See what is in the folder now."""
        now = self._looked = self._clock()
        for name in os.listdir(self._folder):  # noqa: PTH208 - names of thousands of files are enough
            seen = self._answered if is_answer(name) else self._started if is_mark(name) else None
            if seen is not None and (node := node_of_file(name)) in self._nodes:
                seen.setdefault(node, now)
        self._on_progress(Waiting(len(self._answered), tuple(sorted(self.waiting)), self._given_up() - now))
