"""What Slurm and PBS are asked for, and what they call the numbers of a task: schedulers.toml, typed."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - `decode` reads the types of the fields
from dataclasses import dataclass
from functools import cache

from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One of schedulers.toml, which says what each field is."""

    name: str
    submit: str
    account: str
    directive: str
    starter: str
    number: str
    numbers: str
    rank: str
    local_rank: str
    world: str
    node: str
    nodes: str
    node_name: str
    source: str
    date: dt.date


@dataclass(frozen=True, slots=True)
class _Schedulers:
    scheduler: tuple[Scheduler, ...]


@cache
def _schedulers() -> dict[str, Scheduler]:
    found = decode(package_toml(__package__, "schedulers.toml"), _Schedulers)
    return {entry.name: entry for entry in found.scheduler}


def scheduler_of(name: str | None) -> Scheduler:
    """Return the scheduler of a site; Slurm where that is not known."""
    return _schedulers()[name or "Slurm"]
