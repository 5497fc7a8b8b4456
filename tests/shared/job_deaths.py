"""Deaths of jobs (tests/fixtures/job-deaths.toml): what each prints, who prints it, and the expected signature."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "fixtures/job-deaths.toml").read_text())
EXITED: list[str] = DATA["exited"]
"""What srun prints about any program that exits with an error."""
TORCHRUN: list[str] = DATA["torchrun"]
"""What torchrun prints about a rank that exits with an error."""
CASCADE: list[str] = DATA["cascade"]
"""What other ranks and Slurm print afterwards."""
NETWORKS: dict[str, list[str]] = DATA["network"]
"""What a rank prints about its network; `none`: nothing."""
FRAMES = ["Traceback (most recent call last):", '  File "/scratch/train.py", line 212, in <module>']


@dataclass(frozen=True, slots=True)
class DeathOfJob:
    """What the dying rank and then the launcher print."""

    id: str
    """Id of the signature that must be reported first."""
    rank: list[str]
    """Lines of the rank that dies."""
    launcher: list[str]
    """Lines of the launcher; `{rank}` and `{node}` are those of the rank that dies."""


def _death(ending: str, raises: str = "", rank: tuple[str, ...] = (), launcher: list[str] = EXITED) -> DeathOfJob:
    return DeathOfJob(ending, [*FRAMES, raises] if raises else [*rank], launcher)


DEATHS = {name: _death(**values) for name, values in DATA["death"].items()}


def job(network: str, *ranks: int) -> list[str]:
    """Return what these ranks print about their network, a key of NETWORKS."""
    return [
        f"{rank}: nid00510{1 + rank // 8}:{100 + rank}:1 [0] NCCL INFO {line.format(rank=rank)}"
        for rank in ranks
        for line in NETWORKS[network]
    ]


def died(name: str, rank: int, *, cascade: bool = True) -> list[str]:
    """Return what is printed when a rank dies."""
    death = DEATHS[name]
    where = {"rank": rank, "node": f"nid00510{1 + rank // 8}", "other": 15 - rank}
    after = [*death.launcher, *(CASCADE if cascade else ())]
    return [f"{rank}: {line.format(**where)}" for line in death.rank] + [line.format(**where) for line in after]
