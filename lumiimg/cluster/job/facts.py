"""Facts about the frameworks and schedulers that start jobs: facts.toml, typed."""

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
    """A variable that a framework requires."""

    scheduler: str | None = None
    """The scheduler that it is for; None: any."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One way to start a program."""

    name: str
    """Name as in --framework."""
    title: str
    tasks: Literal["gpu", "node"]
    """Whether the scheduler starts a task for each GPU or for each node."""
    gpus: Literal["all", "own", "hip"]
    """The GPUs that a task sees: `all` of the node, only its `own`, or as `hip` numbers them."""
    because: str
    source: str
    torchrun: bool = False
    ray: Literal["never", "several", "always"] = "never"
    """When the program runs on a Ray cluster; `several`: if the job has several nodes."""
    variable: tuple[FrameworkVariable, ...] = ()

    @property
    def task_a_gpu(self) -> bool:
        """Whether the scheduler starts one task per GPU rather than one per node."""
        return self.tasks == "gpu"

    @property
    def has_helpers(self) -> bool:
        """Whether helpers of the collective library run beside the ranks; a plain program has all its cores."""
        return self.name != "plain"

    def wants_ray(self, nodes: int) -> bool:
        """Whether a job of this number of nodes runs on a Ray cluster."""
        return self.ray == "always" or (self.ray == "several" and nodes > 1)


@dataclass(frozen=True, slots=True)
class FrameworkCache:
    """A folder that outlives the job, with the variable that names it."""

    name: str
    folder: str
    """Path below the folder for all caches."""
    source: str
    date: dt.date
    framework: str | None = None
    """The framework that uses it; None: all that have models."""


@dataclass(frozen=True, slots=True)
class VllmFeature:
    """A feature of vLLM, with the version that introduced it."""

    need: Need
    what: str
    source: str
    date: dt.date


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler's options and variable names."""

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
    """The contents of facts.toml."""

    framework: tuple[Framework, ...]
    cache: tuple[FrameworkCache, ...]
    since: Mapping[str, VllmFeature]
    scheduler: tuple[Scheduler, ...]


@cache
def facts() -> JobFacts:
    """Return the facts."""
    return decode(package_toml(__package__, "facts.toml"), JobFacts)


def framework_named(name: str) -> Framework:
    """Return the framework with a known name."""
    return next(entry for entry in facts().framework if entry.name == name)


def scheduler_of(name: str | None) -> Scheduler:
    """Return the scheduler with this name; Slurm if the site has none that is known."""
    return next(entry for entry in facts().scheduler if entry.name == (name or "Slurm"))
