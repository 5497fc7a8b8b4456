"""Find the fewest host files to bind so that an image can use the fabric, by trials in the loader's model.

Host libraries are bound one file at a time into a private folder at the front of LD_LIBRARY_PATH: never a folder of
libraries, and never a part of the C library, which must be of the same build as the image's ld.so. Attempts without
two copies of a library in one process are preferred. docs/architecture.md lists the attempts in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.elf import MissingVersion, duplicate_libraries, is_glibc_part
from lumiimg.fabric.path import HOST_LIB_DIR, LIBCXI, LIBFABRIC, Fabric, net_symbol
from lumiimg.fabric.process import PROVIDER_PATH
from lumiimg.host.bind_trial import (
    OWN_FILES,
    PROVIDER_NAME,
    BindPlan,
    BindRefusedError,
    BindTrial,
    ProcessDemand,
    attempt,
)
from lumiimg.host.container_view import ENGINE_LIBRARIES
from lumiimg.host.manifest import BindManifest, Loaded, Refusal, Variable
from lumiimg.host.snapshot import HostFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lumiimg.elf import LoaderConfig
    from lumiimg.host.snapshot import FoundLibrary, Snapshot
    from lumiimg.image import RootFileSystem

    HostOffer = Callable[[str], str | None]

_MAX_ROUNDS = 50
"""Each round adds everything that is missing at that point, so a chain of N libraries takes N rounds."""
_MAX_FABRICS = 20


@dataclass(frozen=True, slots=True)
class SolvedManifest(BindManifest):
    """A manifest and the modelled process that it was found with."""

    loaded: tuple[Loaded, ...] = ()
    """Objects in the process of RCCL and its plugin, in load order; where nothing loads, those of the last attempt
    that loaded any."""
    host_has_fabric: bool = True
    """Whether the snapshot has a libfabric with the cxi provider at all."""
    trial: BindTrial | None = None
    """The process itself, for further queries; None where nothing loads."""

    def without_process(self) -> BindManifest:
        """Return the plain manifest, as an image carries it."""
        return BindManifest(self.fabric, self.machine, self.binds, self.variables, self.refusals, self.notes)


def solve(root: RootFileSystem, settings: LoaderConfig, demand: ProcessDemand, snapshot: Snapshot) -> SolvedManifest:
    """Return the manifest for a root with the loader settings of its processes, on the node of a snapshot."""
    return _Solver(root, settings, demand, snapshot).solve()


class _Solver:
    def __init__(self, root: RootFileSystem, settings: LoaderConfig, demand: ProcessDemand, snapshot: Snapshot) -> None:
        self._root = root
        self._settings = settings
        self._demand = demand
        self._snapshot = snapshot
        self._files = HostFiles(snapshot)
        self._notes: tuple[str, ...] = ()
        self._own_trial = self._try(OWN_FILES)
        self._plugin = None if self._own_trial.opened else self._host_plugin()
        if not self._own_trial.opened and self._plugin is None:
            lacking = "no net plugin that RCCL would open" if demand.names else "no RCCL that opens a net plugin"
            self._notes = (f"{lacking} was found: this covers libfabric only",)
            self._demand = replace(demand, names=(), accepts=())

    def solve(self) -> SolvedManifest:
        refused: list[Refusal] = []
        second_best: SolvedManifest | None = None
        furthest: tuple[Loaded, ...] = ()
        for plan, offer in self._attempts():
            try:
                trial = self._reduce(self._complete(plan, offer))
            except BindRefusedError as error:
                refused.append(error.refusal)
                furthest = error.loaded or furthest
                continue
            manifest = self._manifest(trial, tuple(refused))
            if not duplicate_libraries(trial.objects):
                return manifest
            second_best = second_best or manifest
        if second_best is not None:
            return second_best
        offered = next(self._fabrics(), None) is not None
        machine = self._snapshot.machine
        return SolvedManifest(Fabric.NONE, machine, refusals=tuple(refused), loaded=furthest, host_has_fabric=offered)

    def _try(self, plan: BindPlan) -> BindTrial:
        return attempt(self._root, self._settings, self._demand, self._files.root, plan)

    # -- the attempts --

    def _attempts(self) -> Iterator[tuple[BindPlan, HostOffer]]:
        """Yield each plan to try, with a lookup of the host libraries for it."""
        yield self._with_plugin(OWN_FILES), self._offer(without=LIBFABRIC)
        for entry, provider in islice(self._fabrics(), _MAX_FABRICS):
            offer = self._offer(entry.closure, provider.closure if provider else {})
            core, why = frozenset({LIBFABRIC, LIBCXI, PROVIDER_NAME}), "it has the cxi provider of this machine"
            if provider is not None:
                why = "this machine's cxi provider was built with it"
            plan = BindPlan(f"the host's {entry.path}", of_host=True, core=core).adding(LIBFABRIC, entry.path, why)
            plan = plan.adding(LIBCXI, str(offer(LIBCXI)), "it belongs to the driver of this machine's NIC")
            if provider is not None:
                plan = plan.adding(PROVIDER_NAME, provider.path, "it is the cxi provider of this machine")
            yield self._with_plugin(plan), offer

    def _offer(self, *first: Mapping[str, str | None], without: str | None = None) -> HostOffer:
        """Return a lookup from name to host path; the first closure with a path that may be bound wins."""
        entries = self._snapshot.entries
        direct = [{LIBCXI: entry.path} for entry in entries if entry.role == "libcxi"]
        closures = (*first, *direct, *(entry.closure for entry in entries))

        @cache
        def find(name: str) -> str | None:
            paths = (closure.get(name) for closure in closures if name != without)
            return next((path for path in paths if path is not None and self._may_be_bound(path)), None)

        return find

    def _fabrics(self) -> Iterator[tuple[FoundLibrary, FoundLibrary | None]]:
        """Yield each host libfabric that reaches Slingshot, with its provider if that is a separate file."""
        return self._files.fabrics() if self._offer()(LIBCXI) else iter(())

    def _with_plugin(self, plan: BindPlan) -> BindPlan:
        if self._plugin is None:
            return plan
        name, path = self._plugin
        plan = plan.adding(name, path, "the image has no net plugin; the host's fits its RCCL")
        return replace(plan, core=plan.core | {name})

    def _host_plugin(self) -> tuple[str, str] | None:
        """Return (name, path) of a host net plugin for an image that has none."""
        symbols = {net_symbol(version) for version in self._demand.accepts}
        for entry in self._snapshot.entries:
            library = self._files.library(entry.path)
            if entry.role == "net-plugin" and library is not None and symbols & set(library.net_symbols):
                return self._demand.names[0], entry.path
        return None

    def _may_be_bound(self, path: str) -> bool:
        """Whether a host library is recorded and does not belong to the C library."""
        library = self._files.library(path)
        return library is not None and not is_glibc_part(library.facts)

    # -- from a plan to a process that loads --

    def _complete(self, plan: BindPlan, offer: HostOffer) -> BindTrial:
        """Bind what a plan still lacks until its process loads. Raises BindRefusedError."""
        for _ in range(_MAX_ROUNDS + 1):
            try:
                trial = self._try(plan)
            except OSError as error:
                raise BindRefusedError(plan.no_target(error)) from error
            if trial.loads:
                if trial.provider is None:
                    raise BindRefusedError(trial.no_provider(), trial.loaded)
                return trial
            plan = self._next_plan(trial, offer)
        raise BindRefusedError(trial.too_many(_MAX_ROUNDS), trial.loaded)

    def _next_plan(self, trial: BindTrial, offer: HostOffer) -> BindPlan:
        """Return the plan with missing libraries, else one missing version, resolved. Raises BindRefusedError."""
        plan = trial.plan
        # several libraries may need the same missing one: the first of them is the reason
        for lacking in {lacking.name: lacking for lacking in reversed(trial.outcome.missing)}.values():
            path = offer(lacking.name)
            if path is None or lacking.name in plan.binds or lacking.name in plan.from_image:
                raise BindRefusedError(trial.no_library(lacking), trial.loaded)
            needs = lacking.chain[-2] if len(lacking.chain) > 1 else "the program"
            plan = plan.adding(lacking.name, path, f"{needs} needs it, and the image has none")
        if trial.outcome.missing:
            return plan
        versions = trial.outcome.missing_versions
        if not versions:
            raise BindRefusedError(trial.cannot_load(), trial.loaded)
        # versions missing from the C library come first: if these cannot be resolved, the rest does not matter
        return self._swap_copy(trial, offer, min(versions, key=lambda version: not _is_in_c_library(trial, version)))

    def _swap_copy(self, trial: BindTrial, offer: HostOffer, version: MissingVersion) -> BindPlan:
        """Swap a library for the other side's copy, which may define the version or not need it."""
        plan = trial.plan
        name, asking = trial.name_of(version.provider), trial.name_of(version.required_by)
        of_host = version.provider.startswith(f"{HOST_LIB_DIR}/")
        if not _is_in_c_library(trial, version):
            path = offer(name)
            if not of_host and path is not None and name not in plan.from_image and name not in plan.binds:
                return plan.adding(name, path, f"{version.required_by} needs {version.version}; the image's is too old")
            if of_host and name not in plan.core and name not in plan.from_image and self._image_has(name):
                return plan.using_image(name)
        if asking in plan.binds and asking not in plan.core and self._image_has(asking):
            return plan.using_image(asking)
        raise BindRefusedError(trial.too_old(version), trial.loaded)

    def _image_has(self, name: str) -> bool:
        process = self._own_trial.process
        return process.find(name) is not None or process.dlopen(name).root is not None

    def _reduce(self, trial: BindTrial) -> BindTrial:
        """Drop binds that nothing loads, and those that the process loads without. Raises BindRefusedError."""
        used = {item.path for item in trial.objects}
        unused = [name for name, bind in trial.plan.binds.items() if bind.target not in used]
        if LIBFABRIC in unused:
            raise BindRefusedError(trial.unused_libfabric(), trial.loaded)
        plan = trial.plan.without(*unused)
        trial = replace(trial, plan=plan)
        # a library that the image lacks was added because it was missing: only a swapped one may turn out unneeded
        exchanged = [name for name in reversed(plan.binds) if name not in plan.core and self._image_has(name)]
        for name in exchanged[:_MAX_ROUNDS]:
            without = self._try(trial.plan.without(name))
            if without.loads and without.provider is not None:
                trial = without
        return trial

    # -- the result --

    def _manifest(self, trial: BindTrial, refused: tuple[Refusal, ...]) -> SolvedManifest:
        plan = trial.plan
        notes = [
            f"{len(paths)} copies of {stem} in one process: {', '.join(paths)}; symbols without versions may be mixed"
            for stem, paths in duplicate_libraries(trial.objects).items()
        ]
        if not plan.of_host and LIBCXI not in plan.binds:
            notes.append("libcxi is the image's own: only a run shows whether it fits the driver of this machine")
        found = {name: trial.process.find(name) or trial.process.find(plan.binds[name].target) for name in plan.binds}
        return SolvedManifest(
            fabric=Fabric.HOST if plan.binds else Fabric.BUNDLED,
            machine=self._snapshot.machine,
            binds=tuple(
                replace(bind, chain=loaded.chain if (loaded := found[name]) else ())
                for name, bind in plan.binds.items()
            ),
            variables=tuple(self._variables(plan)),
            loaded=trial.loaded,
            refusals=refused,
            notes=(*self._notes, *notes),
            trial=trial,
        )

    def _variables(self, plan: BindPlan) -> Iterator[Variable]:
        if not plan.binds:
            return
        parts = (self._settings.library_path or "").split(":")
        own = [part for part in parts if part not in {"", ENGINE_LIBRARIES, HOST_LIB_DIR}]
        reason = "the host's libraries come first; the rest is the container's own value"
        yield Variable("LD_LIBRARY_PATH", ":".join([HOST_LIB_DIR, *own]), reason)
        if PROVIDER_NAME in plan.binds:
            yield Variable(PROVIDER_PATH, f"{HOST_LIB_DIR}/libfabric", "libfabric looks for its providers there")


def _is_in_c_library(trial: BindTrial, version: MissingVersion) -> bool:
    provider = trial.process.find(version.provider)
    return provider is not None and is_glibc_part(provider.facts)


# -- binds that were made for an earlier state of a host, tried on its current state --


def try_saved(
    manifest: SolvedManifest, root: RootFileSystem, settings: LoaderConfig, now: Snapshot
) -> tuple[tuple[str, ...], Refusal | None]:
    """Return (host files that are gone, why the rest fails) for an earlier manifest; `root` is the image's."""
    if manifest.fabric is not Fabric.HOST or manifest.trial is None:
        return (), None
    files, saved = HostFiles(now), manifest.trial.plan
    gone = {name: bind.source for name, bind in saved.binds.items() if files.library(bind.source) is None}
    plan = BindPlan("the binds made before", of_host=LIBFABRIC in saved.binds.keys() - gone, binds=saved.binds)
    trial = attempt(root, settings, manifest.trial.demand, files.root, plan.without(*gone))
    refusal = trial.find_refusal()
    if refusal is not None and trial.outcome.missing:
        refusal = replace(refusal, have="neither the image nor the list has it")
    return tuple(gone.values()), refusal
