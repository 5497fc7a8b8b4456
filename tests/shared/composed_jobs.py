"""Jobs composed from known parts: launcher, version, fault, the nodes that have it, and quotations.

The right verdict on each follows from its construction, not from a reader.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tests.shared.nccl_wordings import FAMILIES, outcomes, written

LAUNCHERS: dict[str, Callable[[int, str], str]] = {
    "none": lambda _, line: line,
    "srun -l": lambda rank, line: f"{rank:>3}: {line}",
    "Open MPI": lambda rank, line: f"[1,{rank}]<stderr>:{line}",
    "Open MPI 5": lambda rank, line: f"[prterun-n1-7@1,{rank}]<stderr>: {line}",
    "torchrun": lambda rank, line: f"[default{rank}]:{line}",
    "Ray": lambda rank, line: f"(RayWorkerWrapper pid=74{rank}, ip=10.0.0.{rank}) {line}",
    "Ray in colour": lambda rank, line: f"\x1b[36m(RayWorkerWrapper pid=74{rank})\x1b[0m {line}",
    "vLLM": lambda rank, line: f"(EngineCore_0 pid=638) (Worker_TP{rank} pid=72{rank}) {line}",
    "PALS": lambda rank, line: f"x3005c0s13b0n0.hsn {rank}: {line}",
    "pdsh": lambda rank, line: f"node{rank}: {line}",
    "pdsh by address": lambda rank, line: f"10.0.0.{rank}: {line}",
    "red": lambda _, line: f"\x1b[31m{line}\x1b[0m",
    "CRLF": lambda _, line: f"{line}\r",
    "time": lambda _, line: f"2026-05-22T14:26:33.405Z {line}",
    "logging": lambda _, line: f"2026-05-22 14:26:33,405 - {line}",
    "stern": lambda rank, line: f"train-{rank} pytorch {line}",
    "CloudWatch": lambda _, line: f"  | 2026-05-22T14:26:33.405-07:00 | {line}",
    "kubectl": lambda rank, line: f"[pod/train-{rank}/pytorch] {line}",
    "compose": lambda rank, line: f"worker-{rank}  | {line}",
    "CRI": lambda _, line: f"2026-05-22T14:26:33.405123456Z stderr F {line}",
    "journal": lambda rank, line: f"Nov 24 05:31:08 n{rank} train[4242]: {line}",
    "Docker": lambda _, line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026"}).replace(">", "\\u003e"),
    "journald": lambda _, line: json.dumps({"PRIORITY": "6", "MESSAGE": line, "_PID": "42"}).replace("<", "\\u003c"),
}  # fmt: skip
_DATA: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "fixtures/quotes.toml").read_text())
QUOTES: list[str] = _DATA["quotes"]
"""Lines in which a job quotes messages of another job."""
QUOTED: dict[str, list[str]] = _DATA["network"]
TRANSPORTS = ("cxi", "tcp", "efa", "absent", "dependency", "init", "ib")
"""Outcomes that may occur together in a job, on different nodes."""
NODES = (2, 3, 8)


@dataclass(frozen=True, slots=True)
class ComposedJob:
    """A job and the result expected from reading it."""

    launcher: str
    version: str
    outcome: str
    elsewhere: str | None
    """The outcome of the last node, if different."""
    lines: tuple[str, ...]
    verdict: str
    confidence: str | None
    """None if it differs between versions."""

    def with_quotes(self, seed: int) -> tuple[str, ...]:
        """Return its lines, mixed with quotations of another job as its launcher prefixes them."""
        chance = random.Random(seed)  # noqa: S311 - an order that can be repeated
        lines = list(self.lines)
        reported = [*QUOTED["tcp" if self.verdict in {"ofi-cxi", "none"} else "cxi"], *_DATA["deaths"]]
        for quote in QUOTES:
            for message in reported:
                line = quote.format(line=f"nid009999:7:7 [0] NCCL INFO {message}", message=message)
                lines.insert(chance.randrange(len(lines) + 1), LAUNCHERS[self.launcher](0, line))
        return tuple(lines)


def recipes() -> Iterator[Callable[[], ComposedJob]]:
    """Yield a function for each job that composes it, so that only the jobs in use are composed."""
    for launcher, (version, family) in product(LAUNCHERS, FAMILIES.items()):
        kinds = outcomes(family)
        yield from (partial(_of_one_kind, launcher, version, name) for name in kinds)
        of_transport = {name: kinds[name] for name in kinds if name in TRANSPORTS}
        for nodes, (name, outcome) in zip(NODES * len(of_transport), of_transport.items(), strict=False):
            for other_name, other in of_transport.items():
                if other.verdict != outcome.verdict:
                    yield partial(_of_two_kinds, launcher, version, nodes, name, other_name)


def _of_one_kind(launcher: str, version: str, name: str) -> ComposedJob:
    family = FAMILIES[version]
    outcome = outcomes(family)[name]
    lines = tuple(_tagged(launcher, rank, line) for rank, line in _ranks(written(family, outcome)))
    return ComposedJob(launcher, version, name, None, lines, outcome.verdict, outcome.confidence)


def _of_two_kinds(launcher: str, version: str, nodes: int, name: str, other: str) -> ComposedJob:
    family = FAMILIES[version]
    kinds = outcomes(family)
    lines = [
        _tagged(launcher, node, line.replace("nid005101", f"nid00510{node}"))
        for node in range(nodes)
        for line in written(family, kinds[other if node == nodes - 1 else name])
        if "nid005102" not in line
    ]
    return ComposedJob(launcher, version, name, other, tuple(lines), "mixed", None)


def _ranks(lines: list[str]) -> Iterator[tuple[int, str]]:
    for line in lines:
        yield 8 if "nid005102" in line or ":4243:" in line else 0, line


def _tagged(launcher: str, rank: int, line: str) -> str:
    return LAUNCHERS[launcher](rank, line)
