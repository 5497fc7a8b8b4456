"""What is known of frameworks and schedulers, by which jobs are started: facts.toml, typed."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - `decode` reads the types of the fields
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from lumiimg.catalog.launch import SiteVariable
from lumiimg.catalog.needs import Need  # noqa: TC001 - as above
from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml


class FrameworkVariable(SiteVariable, frozen=True, kw_only=True):
    """A variable that a framework wants."""

    scheduler: str | None = None
    """That it is for; None: any."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One way to start a program."""

    name: str
    """As for --framework."""
    title: str
    tasks: Literal["gpu", "node"]
    """For what the scheduler starts a task."""
    gpus: Literal["all", "own", "hip"]
    """What a task sees: `all` of the node, its `own` only, or as `hip` numbers them."""
    because: str
    source: str
    torchrun: bool = False
    ray: Literal["never", "several", "always"] = "never"
    """When it runs on a Ray cluster; `several`: on several nodes."""
    variable: tuple[FrameworkVariable, ...] = ()

    @property
    def task_a_gpu(self) -> bool:
        """Whether the scheduler starts a task for each GPU; else one for each node."""
        return self.tasks == "gpu"

    @property
    def has_helpers(self) -> bool:
        """Whether helpers of the collective library run beside the ranks; any other program has all its cores."""
        return self.name != "plain"

    def wants_ray(self, nodes: int) -> bool:
        """Whether a job of this number of nodes runs on a Ray cluster."""
        return self.ray == "always" or (self.ray == "several" and nodes > 1)


@dataclass(frozen=True, slots=True)
class FrameworkCache:
    """A folder that stays from job to job, by the variable that names it."""

    name: str
    folder: str
    """Below the one for all caches."""
    source: str
    date: dt.date
    framework: str | None = None
    """Whose it is; None: of all that have models."""


@dataclass(frozen=True, slots=True)
class VllmFeature:
    """The version from which on vLLM has something."""

    need: Need
    what: str
    source: str
    date: dt.date


@dataclass(frozen=True, slots=True)
class Scheduler:
    """What a scheduler is given, and what it calls things."""

    name: str
    submit: str
    account: str
    partition: str
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
class JobFacts:
    """All of facts.toml."""

    framework: tuple[Framework, ...]
    cache: tuple[FrameworkCache, ...]
    since: Mapping[str, VllmFeature]
    scheduler: tuple[Scheduler, ...]


@cache
def facts() -> JobFacts:
    """Return what is known."""
    return decode(package_toml(__package__, "facts.toml"), JobFacts)


def framework_named(name: str) -> Framework:
    """Return one of those that there are."""
    return next(entry for entry in facts().framework if entry.name == name)


def scheduler_of(name: str | None) -> Scheduler:
    """Return the scheduler of a site; Slurm where that is not known."""
    return next(entry for entry in facts().scheduler if entry.name == (name or "Slurm"))
