"""One attempt at a process: RCCL with its plugin, with some names taken from the host; modelled, nothing is run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from lumiimg.fabric.names import LIBFABRIC, PRIVATE, PROVIDER_FILE
from lumiimg.fabric.provider import cxi_provider
from lumiimg.host.job_process import JobProcess, begin
from lumiimg.host.manifest import Bind, Loaded

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


@dataclass(frozen=True, slots=True)
class BindPlan:
    """Which names are to be taken from the host."""

    attempt: str
    """What is tried, for a person."""
    of_host: bool = False
    """Whether it is about a libfabric of the host."""
    core: frozenset[str] = frozenset()
    """Names that are the point of the attempt."""
    binds: dict[str, Bind] = field(default_factory=dict)
    """By the name that is taken from the host."""
    from_image: frozenset[str] = frozenset()
    """Names for which the image's own was found to be the right one."""

    def adding(self, name: str, path: str, reason: str) -> Self:
        """Return the plan that takes a name from the host, too."""
        return replace(self, binds={**self.binds, name: Bind(path, f"{PRIVATE}/{name}", reason)})

    def without(self, *names: str) -> Self:
        """Return the plan that takes less from the host."""
        return replace(self, binds={name: bind for name, bind in self.binds.items() if name not in names})

    def giving_back(self, name: str) -> Self:
        """Return the plan that leaves a name to the image."""
        return replace(self.without(name), from_image=self.from_image | {name})


OWN_FILES = BindPlan("the image's own libfabric")


@dataclass(frozen=True, slots=True)
class BindTrial:
    """The process of one plan."""

    plan: BindPlan
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

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """The process, each file with its place on the host where it is bound."""
        return tuple(Loaded(item, self.host_path(item.path)) for item in self.objects)

    def host_path(self, path: str) -> str | None:
        """Return where a file of the process lies on the host; None for one of the image."""
        return next((bind.source for bind in self.plan.binds.values() if bind.target == path), None)


def attempt(
    root: RootFileSystem,
    settings: LoaderSettings,
    demand: Demand,
    host: RootFileSystem | None = None,
    plan: BindPlan = OWN_FILES,
) -> BindTrial:
    """Start the process with what a plan binds of a host, let RCCL open its plugin, and libfabric its provider.

    Raises OSError where a target of the plan cannot be in this image.
    """
    provider_path = demand.provider_path
    if host is not None and plan.binds:
        root = root.mounted([(bind.target, host.source(bind.source)) for bind in plan.binds.values()])
        settings = replace(settings, library_path=":".join(filter(None, (PRIVATE, settings.library_path))))
    if PROVIDER_NAME in plan.binds:
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
    if provider:
        objects = tuple(process.objects)
    return BindTrial(plan, root, demand, process, outcome, opened, objects, provider)
