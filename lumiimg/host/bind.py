"""The least that must be bound from a host for an image to use its fabric, found by trying it in the loader's model.

The attempts, cheapest first: the libfabric that the image has, with what it lacks taken from the host; then each
libfabric with the cxi provider that the host offers. A host library goes into a folder of its own in front of
LD_LIBRARY_PATH, one file at a time: never a folder of libraries, and never a part of the C library, which has to be of
one build with the image's ld.so. What an attempt still lacks is taken from the host where the host has it; where an
image's library is too old, the host's is tried in its place, and the other way round. At the end every bind that
nothing loads, or that nothing needs, is taken out again. An attempt without two copies of a library in one process is
preferred.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.elf.c_library import of_c_library
from lumiimg.elf.objects import MissingVersion, second_copies
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, PRIVATE, net_symbol
from lumiimg.fabric.path import Fabric
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.host import refusals
from lumiimg.host.bind_trial import PROVIDER_NAME, BindPlan, BindTrial, Demand, attempt
from lumiimg.host.container_view import ENGINE_LIBRARIES
from lumiimg.host.manifest import Bind, Loaded, Refusal, SolvedManifest, Variable
from lumiimg.host.refusals import BindRefusedError, name_of
from lumiimg.host.snapshot_tree import HostFiles, host_native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.host.snapshot import FoundLibrary, Snapshot
    from lumiimg.image import RootFileSystem

    HostOffer = Callable[[str], str | None]

OWN_LIBCXI = "libcxi is the image's own: only a run shows whether it fits the driver of this machine"
_MAX_ROUNDS = 50
"""A round adds all that is missing then: as many as a chain of libraries is long, each below the one before."""
_MAX_FABRICS = 20


def solve(root: RootFileSystem, settings: LoaderSettings, demand: Demand, snapshot: Snapshot) -> SolvedManifest:
    """Return the manifest for a root and the settings of its processes, on the node of a snapshot."""
    return _Solver(root, settings, demand, snapshot).solve()


class _Solver:
    def __init__(self, root: RootFileSystem, settings: LoaderSettings, demand: Demand, snapshot: Snapshot) -> None:
        self._root = root
        self._settings = settings
        self._demand = demand
        self._snapshot = snapshot
        self._files = HostFiles(snapshot)
        self._host = self._files.root
        direct: list[Mapping[str, str | None]] = [{LIBCXI: e.path} for e in snapshot.entries if e.role == "libcxi"]
        self._offered = [*direct, *(entry.closure for entry in snapshot.entries)]
        self._alone = self._try(BindPlan("the image's own files"))
        self._plugin = None if self._alone.opened else self._host_plugin()
        self._about_libfabric: str | None = None
        if not self._alone.opened and self._plugin is None:
            lacking = "no net plugin that RCCL would open" if demand.names else "no RCCL that opens a net plugin"
            self._about_libfabric = f"{lacking} was found: this is about libfabric alone"
            self._demand = Demand(demand.job, (), provider_path=demand.provider_path)

    def solve(self) -> SolvedManifest:
        refused: list[Refusal] = []
        second_best: SolvedManifest | None = None
        furthest: tuple[Loaded, ...] = ()
        for plan, offer in self._attempts():
            try:
                trial = self._complete(plan, offer)
                trial = self._reduce(plan, trial)
            except BindRefusedError as error:
                refused.append(error.refusal)
                furthest = error.loaded or furthest
                continue
            manifest = self._manifest(plan, trial, refused)
            if not second_copies(trial.objects):
                return manifest
            second_best = second_best or manifest
        if second_best is not None:
            return second_best
        offered = any(True for _ in self._fabrics())
        return SolvedManifest(
            Fabric.NONE,
            self._snapshot.machine,
            loaded=furthest,
            refusals=tuple(refused),
            host_has_fabric=offered,
        )

    def _try(self, plan: BindPlan) -> BindTrial:
        return attempt(self._root, self._settings, self._demand, self._host, plan)

    # -- what there is to try --

    def _attempts(self) -> Iterator[tuple[BindPlan, HostOffer]]:
        """Yield what to try, each with what the host offers for it."""
        yield self._with_plugin(BindPlan("the image's own libfabric")), self._offer(without=LIBFABRIC)
        for entry, provider in islice(self._fabrics(), _MAX_FABRICS):
            offer = self._offer(entry.closure, provider.closure if provider else {})
            plan = BindPlan(
                f"the host's {entry.path}", of_host=True, core=frozenset({LIBFABRIC, LIBCXI, PROVIDER_NAME})
            )
            plan.add(LIBFABRIC, entry.path, "it has the cxi provider of this machine")
            plan.add(LIBCXI, str(offer(LIBCXI)), "it belongs to the driver of this machine's NIC")
            if provider is not None:
                plan.reasons[LIBFABRIC] = "it is the one that this machine's cxi provider was built with"
                plan.add(PROVIDER_NAME, provider.path, "it is the cxi provider of this machine")
            yield self._with_plugin(plan), offer

    def _offer(self, *first: Mapping[str, str | None], without: str | None = None) -> HostOffer:
        """Return what finds the path that a host has for a name; of two for one name, that of the first closure."""
        closures = (*first, *self._offered)

        @cache
        def find(name: str) -> str | None:
            paths = (closure.get(name) for closure in closures if name != without)
            return next((path for path in paths if path is not None and self._may_be_bound(path)), None)

        return find

    def _fabrics(self) -> Iterator[tuple[FoundLibrary, FoundLibrary | None]]:
        """Yield each libfabric of the host that leads to Slingshot, with the provider's file if that is one."""
        return self._files.fabrics() if self._offer()(LIBCXI) else iter(())

    def _with_plugin(self, plan: BindPlan) -> BindPlan:
        if self._plugin is not None:
            plan.add(*self._plugin)
            plan.core |= {self._plugin[0]}
        return plan

    def _host_plugin(self) -> tuple[str, str, str] | None:
        """Return (name, path, reason) of a net plugin of the host for an image that has none."""
        symbols = {net_symbol(version) for version in self._demand.accepts}
        for entry in self._snapshot.entries:
            library = self._files.library(entry.path)
            if entry.role == "net-plugin" and library is not None and symbols & set(library.net_symbols):
                return self._demand.names[0], entry.path, "the image has no net plugin; the host's fits its RCCL"
        return None

    def _may_be_bound(self, path: str) -> bool:
        """Whether a library of the host is recorded, and no part of the C library."""
        library = self._files.library(path)
        return library is not None and not of_c_library(library.facts)

    # -- how a plan becomes one that loads --

    def _complete(self, plan: BindPlan, offer: HostOffer) -> BindTrial:
        """Bind what a plan still lacks until its process loads. Raises BindRefusedError."""
        refusals.check_machine(self._root, self._demand.job.program, host_native(self._snapshot), plan)
        seen: set[object] = set()
        while True:
            try:
                trial = self._try(plan)
            except OSError as error:
                raise refusals.no_target(plan, error) from error
            if trial.loads:
                if trial.provider is None:
                    raise refusals.no_provider(plan, trial)
                return trial
            if plan.state in seen:
                raise refusals.cannot_load(plan, trial)
            if len(seen) == _MAX_ROUNDS:
                raise refusals.too_many(plan, trial, _MAX_ROUNDS)
            seen.add(plan.state)
            self._advance(plan, offer, trial)

    def _advance(self, plan: BindPlan, offer: HostOffer, trial: BindTrial) -> None:
        """Change a plan by what its trial met first. Raises BindRefusedError where nothing can be changed."""
        # several libraries may lack the same one: the first of them is the reason
        for missing in {missing.name: missing for missing in reversed(trial.outcome.missing)}.values():
            path = offer(missing.name)
            if path is None or missing.name in plan.paths or missing.name in plan.from_image:
                raise refusals.missing(plan, trial, missing)
            needs = missing.chain[-2] if len(missing.chain) > 1 else "the program"
            plan.add(missing.name, path, f"{needs} needs it, and the image has none")
        if trial.outcome.missing:
            return
        versions = trial.outcome.missing_versions
        if not versions:
            raise refusals.cannot_load(plan, trial)
        # what the C library lacks first: where nothing can be done about that, the rest does not matter
        self._mend(plan, offer, trial, min(versions, key=lambda v: not _is_private(trial, v)))

    def _mend(self, plan: BindPlan, offer: HostOffer, trial: BindTrial, version: MissingVersion) -> None:
        """Exchange a library for the other side's copy, where that may define, or not need, a version."""
        provider, requirer = trial.process.find(version.provider), trial.process.find(version.required_by)
        name, asking = name_of(version.provider, provider), name_of(version.required_by, requirer)
        of_host = version.provider.startswith(f"{PRIVATE}/")
        if not _is_private(trial, version):
            path = offer(name)
            if not of_host and path is not None and name not in plan.from_image and name not in plan.paths:
                plan.add(name, path, f"{version.required_by} needs {version.version}; the image's is too old")
                return
            if of_host and name not in plan.core and name not in plan.from_image and self._image_has(name):
                plan.give_back(name)
                return
        if asking in plan.paths and asking not in plan.core and self._image_has(asking):
            plan.give_back(asking)
            return
        raise refusals.too_old(plan, trial, version)

    def _image_has(self, name: str) -> bool:
        process = self._alone.process
        return process.find(name) is not None or process.dlopen(name).root is not None

    def _reduce(self, plan: BindPlan, trial: BindTrial) -> BindTrial:
        """Take out what nothing loads, and what the process loads without. Raises BindRefusedError."""
        used = {item.path for item in trial.objects}
        for name in [name for name in plan.paths if f"{PRIVATE}/{name}" not in used]:
            if name == LIBFABRIC:
                raise refusals.passed_over(plan, trial)
            del plan.paths[name]
        # what the image has not was added because it was missing: only what was exchanged may not be needed after all
        exchanged = [name for name in reversed(plan.paths) if name not in plan.core and self._image_has(name)]
        for name in exchanged[:_MAX_ROUNDS]:
            path = plan.paths.pop(name)
            without = self._try(plan)
            if without.loads and without.provider is not None:
                trial = without
            else:
                plan.paths[name] = path
        return trial

    # -- what comes out --

    def _manifest(self, plan: BindPlan, trial: BindTrial, refused: Sequence[Refusal]) -> SolvedManifest:
        notes = [
            f"{len(paths)} copies of {stem} in one process: {', '.join(paths)}; symbols without versions may be mixed"
            for stem, paths in second_copies(trial.objects).items()
        ]
        if self._about_libfabric is not None:
            notes.insert(0, self._about_libfabric)
        if not plan.of_host and LIBCXI not in plan.paths:
            notes.append(OWN_LIBCXI)
        binds = []
        for name, path in plan.paths.items():
            found = trial.process.find(name) or trial.process.find(f"{PRIVATE}/{name}")
            binds.append(Bind(path, f"{PRIVATE}/{name}", plan.reasons[name], found.chain if found else ()))
        return SolvedManifest(
            fabric=Fabric.HOST if plan.paths else Fabric.BUNDLED,
            machine=self._snapshot.machine,
            binds=tuple(binds),
            variables=tuple(self._variables(plan)),
            loaded=tuple(Loaded(item, trial.host_path(plan, item.path)) for item in trial.objects),
            refusals=tuple(refused),
            notes=tuple(notes),
            trial=trial,
        )

    def _variables(self, plan: BindPlan) -> Iterator[Variable]:
        if not plan.paths:
            return
        parts = (self._settings.library_path or "").split(":")
        own = [part for part in parts if part not in {"", ENGINE_LIBRARIES, PRIVATE}]
        reason = "the host's libraries are found first; the rest is what the container has there already"
        yield Variable("LD_LIBRARY_PATH", ":".join([PRIVATE, *own]), reason)
        if PROVIDER_NAME in plan.paths:
            yield Variable(PROVIDER_PATH, f"{PRIVATE}/libfabric", "libfabric looks for its providers there")


def _is_private(trial: BindTrial, version: MissingVersion) -> bool:
    provider = trial.process.find(version.provider)
    return provider is not None and of_c_library(provider.facts)


# -- a list of binds that was made for a host as it was, tried with the host as it is --


def try_saved(
    manifest: SolvedManifest, root: RootFileSystem, settings: LoaderSettings, now: Snapshot
) -> tuple[tuple[str, ...], Refusal | None]:
    """Return what a manifest for an earlier host comes to; `root` is the image's."""
    if manifest.fabric is not Fabric.HOST or manifest.trial is None:
        return (), None
    files, saved = HostFiles(now), manifest.libraries
    gone = tuple(path for path in saved.values() if files.library(path) is None)
    plan = BindPlan("the binds made before", of_host=saved.get(LIBFABRIC) not in {None, *gone})
    for name, path in saved.items():
        if path not in gone:
            plan.add(name, path, "it was bound before")
    trial = attempt(root, settings, manifest.trial.demand, files.root, plan)
    refusal = refusals.why_not(plan, trial)
    if refusal is not None and trial.outcome.missing:
        refusal = replace(refusal, have="neither the image nor the list has it")
    return gone, refusal
