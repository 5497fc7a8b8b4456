"""One attempt at a process: RCCL with its plugin, with some names taken from the host; modelled, nothing is run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.fabric.names import LIBFABRIC, PRIVATE, PROVIDER_FILE
from lumiimg.fabric.provider import cxi_provider
from lumiimg.host.job_process import JobProcess, begin

if TYPE_CHECKING:
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject, LoadOutcome
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.image import RootFileSystem

PROVIDER_NAME = f"libfabric/{PROVIDER_FILE}"
"""Where in the private folder a provider of the host is put: libfabric looks in a folder beside itself."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Which process it is about, and what is opened in it."""

    job: JobProcess
    """What is started, and what its imports open."""
    names: tuple[str, ...]
    """What it gives to dlopen, in its order; the first that is there is taken. Empty for libfabric itself."""
    accepts: tuple[int, ...] = ()
    """Versions of the net API that RCCL takes."""
    provider_path: str | None = None
    """FI_PROVIDER_PATH in the container."""


@dataclass(slots=True)
class BindPlan:
    """Which names are to be taken from the host, by which paths, and why."""

    attempt: str
    """What is tried, for a person."""
    of_host: bool = False
    """Whether it is about a libfabric of the host."""
    core: frozenset[str] = frozenset()
    """Names that are the point of the attempt."""
    paths: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    from_image: set[str] = field(default_factory=set)
    """Names for which the image's own was found to be the right one."""

    def add(self, name: str, path: str, reason: str) -> None:
        """Take a name from the host."""
        self.paths[name] = path
        self.reasons[name] = reason

    def give_back(self, name: str) -> None:
        """Leave a name to the image."""
        del self.paths[name]
        self.from_image.add(name)

    @property
    def state(self) -> tuple[frozenset[str], frozenset[str]]:
        """What distinguishes this plan from an earlier one."""
        return frozenset(self.paths), frozenset(self.from_image)


@dataclass(frozen=True, slots=True)
class BindTrial:
    """The process of one plan."""

    root: RootFileSystem
    demand: Demand
    process: Process
    outcome: LoadOutcome
    """Of the last thing that was opened; of the start, where that failed."""
    opened: bool
    """Whether there is a file by a name that is opened, loadable or not."""
    objects: tuple[LoadedObject, ...]
    """The process, with what a dlopen that failed had loaded."""
    provider: str | None
    """The file that has the cxi provider."""

    @property
    def loads(self) -> bool:
        """Whether what is opened loads, with all that it needs."""
        return self.opened and self.outcome.ok

    def host_path(self, plan: BindPlan, path: str) -> str | None:
        """Return where a file of the process lies on the host; None for one of the image."""
        return plan.paths.get(path.removeprefix(f"{PRIVATE}/")) if path.startswith(f"{PRIVATE}/") else None


def attempt(
    root: RootFileSystem, settings: LoaderSettings, demand: Demand, host: RootFileSystem, plan: BindPlan
) -> BindTrial:
    """Start the process with what a plan binds, let RCCL open its plugin, and libfabric its provider.

    Raises OSError where a target of the plan cannot be in this image.
    """
    provider_path = demand.provider_path
    if plan.paths:
        root = root.mounted([(f"{PRIVATE}/{name}", host.source(path)) for name, path in plan.paths.items()])
        settings = replace(settings, library_path=":".join(filter(None, (PRIVATE, settings.library_path))))
    if PROVIDER_NAME in plan.paths:
        provider_path = f"{PRIVATE}/libfabric"
    begun = begin(root, settings, demand.job)
    process, opener, outcome = begun.process, begun.rccl, begun.outcome
    opened = False
    if opener is not None and not outcome.errors:
        for name in demand.names or (LIBFABRIC,):
            outcome = process.dlopen(name, opener)
            opened = not outcome.finds_nothing(name)
            if opened:
                break
    objects = tuple(process.objects)
    provider = cxi_provider(process, root, provider_path) if opened and outcome.ok else None
    return BindTrial(root, demand, process, outcome, opened, tuple(process.objects) if provider else objects, provider)
