"""One attempt at the process of RCCL and its plugin, with some libraries from the host; and why an attempt fails.

The process is modelled: nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from lumiimg.core.text import numbers_of
from lumiimg.fabric.path import HOST_LIB_DIR, LIBCXI, LIBFABRIC, PROVIDER_FILE
from lumiimg.fabric.process import cxi_provider
from lumiimg.host.job_process import JobProcess, begin
from lumiimg.host.manifest import Bind, Loaded, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.elf import LoadedObject, LoaderConfig, LoadResult, MissingLibrary, MissingVersion, Process
    from lumiimg.image import RootFileSystem

PROVIDER_NAME = f"libfabric/{PROVIDER_FILE}"
"""Place of a host provider in the private folder: libfabric searches a folder beside itself."""


@dataclass(frozen=True, slots=True)
class ProcessDemand:
    """The process to model, and what is opened in it."""

    job: JobProcess
    """The program that is started, and what its imports open."""
    names: tuple[str, ...]
    """Names that it passes to dlopen, in order; the first that exists is used. Empty for libfabric itself."""
    accepts: tuple[int, ...] = ()
    """Versions of the net API that RCCL accepts."""
    provider_path: str | None = None
    """FI_PROVIDER_PATH in the container."""


@dataclass(frozen=True, slots=True)
class BindPlan:
    """The libraries to take from the host, by name."""

    attempt: str
    """Description of the attempt, for messages."""
    of_host: bool = False
    """Whether it uses a libfabric of the host."""
    core: frozenset[str] = frozenset()
    """Names that the attempt is about; these are never left to the image."""
    binds: dict[str, Bind] = field(default_factory=dict)
    """Binds by library name."""
    from_image: frozenset[str] = frozenset()
    """Names for which the image's own library turned out to be the right one."""

    def adding(self, name: str, path: str, reason: str) -> Self:
        """Return the plan with one more library from the host."""
        return replace(self, binds={**self.binds, name: Bind(path, f"{HOST_LIB_DIR}/{name}", reason)})

    def without(self, *names: str) -> Self:
        """Return the plan without the binds of these names."""
        return replace(self, binds={name: bind for name, bind in self.binds.items() if name not in names})

    def using_image(self, name: str) -> Self:
        """Return the plan that uses the image's library for a name."""
        return replace(self.without(name), from_image=self.from_image | {name})

    def no_target(self, error: OSError) -> Refusal:
        """Return the refusal for an image in which the private folder cannot be created."""
        have, words = f"impossible in this image: {error.strerror}", f"{HOST_LIB_DIR}: {error.strerror}"
        return Refusal(
            self.attempt, HOST_LIB_DIR, f"the folder {HOST_LIB_DIR}", have, (HOST_LIB_DIR,), words, self.of_host
        )


OWN_FILES = BindPlan("the image's own libfabric")


@dataclass(frozen=True, slots=True)
class BindTrial:
    """The modelled process of one plan."""

    plan: BindPlan
    root: RootFileSystem
    demand: ProcessDemand
    process: Process
    outcome: LoadResult
    """Result of the last library that was opened, or of the start where that failed."""
    opened: bool
    """Whether one of the names that are opened exists as a file, loadable or not."""
    objects: tuple[LoadedObject, ...]
    """All objects of the process, including those that a failed dlopen had loaded."""
    provider: str | None
    """File that contains the cxi provider; None without one."""

    @property
    def loads(self) -> bool:
        """Whether what is opened loads with everything that it needs."""
        return self.opened and self.outcome.ok

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """All objects of the process, each bound one with its path on the host."""
        return tuple(Loaded(item, self.host_path(item.path)) for item in self.objects)

    def host_path(self, path: str) -> str | None:
        """Return the host path of a file in the process; None for a file of the image."""
        return next((bind.source for bind in self.plan.binds.values() if bind.target == path), None)

    def name_of(self, path: str) -> str:
        """Return the name by which others need a library: its soname, else its file name."""
        loaded = self.process.find(path)
        return (loaded.facts.soname if loaded else None) or path.rpartition("/")[2]

    def find_refusal(self) -> Refusal | None:
        """Return why the process does not reach the fabric; None where no reason is found."""
        if self.outcome.missing:
            return self.no_library(self.outcome.missing[0])
        if not self.loads:
            return self.cannot_load()
        return None if self.provider else self.no_provider()

    def no_library(self, lacking: MissingLibrary) -> Refusal:
        """Return the refusal for a library that neither side has."""
        have = "neither the image nor the host's closure has it" if self.plan.of_host else "the image has none"
        if lacking.name in self.plan.binds:
            have = "the host's is for another architecture"
        words = next((error for error in self.outcome.errors if lacking.name in error), lacking.name)
        return self._refusal(lacking.name, lacking.name, have, lacking.chain[:-1] or lacking.chain, words)

    def too_old(self, version: MissingVersion) -> Refusal:
        """Return the refusal for a library without a version that another one needs."""
        provider, requirer = self.process.find(version.provider), self.process.find(version.required_by)
        stem = version.version.rpartition("_")[0] + "_"
        defined = provider.facts.version_definitions if provider else ()
        newest = max((name for name in defined if name.startswith(stem)), key=numbers_of, default=None)
        of_host = self.host_path(version.provider)
        whose = f"the host's {of_host}" if of_host else f"the image's {version.provider}"
        have = f"{whose} has {f'up to {newest}' if newest else 'no version of that name'}"
        need = f"{version.version} of {self.name_of(version.provider)}"
        chain = requirer.chain if requirer else (version.required_by,)
        return self._refusal(version.required_by, need, have, chain, str(version))

    def too_many(self, rounds: int) -> Refusal:
        """Return the refusal for a host whose chains of needed libraries are longer than any real ones."""
        attempt, have = self.plan.attempt, f"after {rounds} rounds of adding missing libraries, some are still missing"
        return self._refusal(attempt, "a dependency chain that ends", have, (attempt,), self.outcome.errors[0])

    def cannot_load(self) -> Refusal:
        """Return the refusal for any other failure: the first missing version, else the loader's first error."""
        if self.outcome.missing_versions:
            return self.too_old(self.outcome.missing_versions[0])
        words = self.outcome.errors[0] if self.outcome.errors else "nothing is loaded"
        library = words.partition(":")[0]
        found = self.process.find(library)
        chain = found.chain if found else (library,)
        return self._refusal(library, "a file that ld.so accepts", f"it does not accept {library}", chain, words)

    def no_provider(self) -> Refusal:
        """Return the refusal for a process that loads, but without the cxi provider."""
        libfabric, opened = self.process.find(LIBFABRIC), self.outcome.root
        whose = libfabric.path if libfabric else (opened.path if opened else "the plugin")
        have = f"{whose} was built without it" if libfabric else f"{whose} does not use libfabric"
        chain = libfabric.chain if libfabric else (whose,)
        words = f"{whose} does not load {LIBCXI}, and no provider next to it does"
        return self._refusal(whose, "the cxi provider", have, chain, words)

    def unused_libfabric(self) -> Refusal:
        """Return the refusal for a bind that the process does not use: a DT_RPATH precedes LD_LIBRARY_PATH."""
        libfabric = self.process.find(LIBFABRIC)
        path = libfabric.path if libfabric else "another one"
        rule = f" by {libfabric.found_by.value}" if libfabric else ""
        chain = libfabric.chain if libfabric else ()
        words = f"{path} is found{rule}, which comes before LD_LIBRARY_PATH"
        return self._refusal(path, "the host's libfabric", f"the process loads {path} instead", chain, words)

    def _refusal(self, library: str, need: str, have: str, chain: Sequence[str], words: str) -> Refusal:
        bound = self.plan.binds
        marked = tuple(f"{name} (host)" if name in bound else name for name in chain)
        of_host = library in bound or any(name in bound for name in chain)
        return Refusal(self.plan.attempt, library, need, have, marked, words, of_host)


class BindRefusedError(Exception):
    """An attempt that cannot be completed; the solver catches this and tries the next."""

    def __init__(self, refusal: Refusal, loaded: tuple[Loaded, ...] = ()) -> None:
        self.refusal = refusal
        self.loaded = loaded
        super().__init__(str(refusal))


def attempt(
    root: RootFileSystem,
    settings: LoaderConfig,
    demand: ProcessDemand,
    host: RootFileSystem | None = None,
    plan: BindPlan = OWN_FILES,
) -> BindTrial:
    """Model the process with a plan's binds: start it, let RCCL open its plugin, and libfabric its provider.

    Raises OSError where a target of the plan cannot be created in this image.
    """
    provider_path = demand.provider_path
    if host is not None and plan.binds:
        root = root.mounted(host.mount(bind.source, bind.target) for bind in plan.binds.values())
        settings = replace(settings, library_path=":".join(filter(None, (HOST_LIB_DIR, settings.library_path))))
    if PROVIDER_NAME in plan.binds:
        provider_path = f"{HOST_LIB_DIR}/libfabric"
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
