"""The least that must be bound from a host for an image to use its fabric, found by trying it in the loader's model.

Three attempts are made, cheapest first: the libfabric that the image itself has, then each libfabric with the cxi
provider that the host offers. A host library goes into a folder of its own in front of LD_LIBRARY_PATH, one file at a
time: never a folder of libraries, and never the C library, which has to be the one that the image's ld.so belongs to.
What an attempt still lacks is taken from the host where the host has it; where an image's library is too old, the
host's is tried in its place, and the other way round. At the end every bind that is not needed is taken out again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.elf.copies import second_copies
from lumiimg.elf.files import Files
from lumiimg.elf.loader import Process
from lumiimg.host.inside import ENGINE_LIBRARIES
from lumiimg.host.manifest import PRIVATE, Bind, Fabric, Loaded, Manifest, Refusal, Variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.elf.objects import LoadedObject, LoadOutcome, MissingLibrary, MissingVersion
    from lumiimg.elf.rules import Settings
    from lumiimg.host.snapshot import Entry, Snapshot
    from lumiimg.image import RootFileSystem

_LIBFABRIC, _LIBCXI = "libfabric.so.1", "libcxi.so.1"
# One build of glibc: they use each other's private symbols (GLIBC_PRIVATE), so none of them can be exchanged alone.
_C_LIBRARY = ("ld-linux", "libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.", "libresolv.so.")
_MAX_STEPS = 200


@dataclass(frozen=True, slots=True)
class Demand:
    """Which process it is about, and what is opened in it."""

    start: str
    """Path of the file that the process is started with: RCCL, a library of torch that brings it, or any other."""
    opener: str
    """Path of the object of that process whose code calls dlopen: RCCL."""
    names: tuple[str, ...]
    """What it gives to dlopen, in its order; the first that is there is taken. Empty for libfabric itself."""
    accepts: tuple[int, ...] = ()
    """Versions of the net API that RCCL takes."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """One process in the model."""

    process: Process
    outcome: LoadOutcome
    opened: bool
    """Whether there is a file by a name that is opened, loadable or not."""

    @property
    def loads(self) -> bool:
        return self.opened and self.outcome.ok

    @property
    def has_cxi(self) -> bool:
        libfabric = self.process.find(_LIBFABRIC)
        return libfabric is not None and self.process.find(_LIBCXI) is not None


@dataclass(slots=True)
class _Plan:
    """Which names are to be taken from the host, by which paths, and why."""

    attempt: str
    core: frozenset[str] = frozenset()
    """Names that are the point of the attempt."""
    paths: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    from_image: set[str] = field(default_factory=set)
    """Names for which the image's own was found to be the right one."""

    def add(self, name: str, path: str, reason: str) -> None:
        self.paths[name] = path
        self.reasons[name] = reason


class _Refused(Exception):  # noqa: N818 - it carries a Refusal
    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(str(refusal))


def solve(
    root: RootFileSystem, settings: Settings, demand: Demand, snapshot: Snapshot, host: RootFileSystem
) -> Manifest:
    """Return the manifest for a root and the settings of its processes; `host` shows the files of the snapshot."""
    return _Solver(root, settings, demand, snapshot, host).solve()


class _Solver:
    def __init__(
        self, root: RootFileSystem, settings: Settings, demand: Demand, snapshot: Snapshot, host: RootFileSystem
    ) -> None:
        self._root = root
        self._settings = settings
        self._demand = demand
        self._snapshot = snapshot
        self._host = host
        self._files: Files | None = None
        # the cxi provider links libcxi; without it a libfabric of the host is no better than the image's
        self._fabrics = [e for e in snapshot.entries if e.role == "libfabric" and _LIBCXI in e.closure]
        self._plugin = self._host_plugin()
        self._names = demand.names if self._plugin or self._trial(_Plan("")).opened else (_LIBFABRIC,)

    def solve(self) -> Manifest:
        refusals: list[Refusal] = []
        for plan, offer in self._attempts():
            try:
                trial = self._complete(plan, offer)
            except _Refused as refused:
                refusals.append(refused.refusal)
                continue
            if not trial.has_cxi:
                refusals.append(self._no_provider(plan, trial))
                continue
            if plan.paths:
                trial = self._reduce(plan, trial)
            return self._manifest(plan, trial, refusals)
        return Manifest(Fabric.NONE, refusals=tuple(refusals), host_has_fabric=bool(self._fabrics))

    def _attempts(self) -> Sequence[tuple[_Plan, Mapping[str, str]]]:
        """Return what to try, each with the names that the host offers for it."""
        entries = self._snapshot.entries
        attempts: list[tuple[_Plan, Mapping[str, str]]] = [(_Plan("the image's own libfabric"), {})]
        for entry in self._fabrics:
            offer = {name: path for name, path in _offer(entry, entries).items() if self._host.exists(path)}
            plan = _Plan(f"the host's {entry.path}", frozenset({_LIBFABRIC, _LIBCXI}))
            plan.add(_LIBFABRIC, entry.path, "it has the cxi provider of this machine")
            if _LIBCXI in offer:
                plan.add(_LIBCXI, offer[_LIBCXI], "it belongs to the driver of this machine's NIC")
            if self._plugin is not None:
                plan.add(*self._plugin)
                plan.core |= {self._plugin[0]}
            attempts.append((plan, offer))
        return attempts

    def _host_plugin(self) -> tuple[str, str, str] | None:
        """Return (name, path, reason) of a net plugin of the host for an image that has none."""
        self._names = self._demand.names
        if not self._names or self._trial(_Plan("")).opened:
            return None
        libraries = {library.path: library for library in self._snapshot.libraries}
        for entry in (entry for entry in self._snapshot.entries if entry.role == "net-plugin"):
            library = libraries.get(self._host.resolve(entry.path))
            symbols = {f"ncclNetPlugin_v{version}" for version in self._demand.accepts}
            if library is not None and symbols & set(library.net_symbols):
                return self._demand.names[0], entry.path, "the image has no net plugin; the host's fits its RCCL"
        return None

    def _trial(self, plan: _Plan) -> _Trial:
        """Start the process with what a plan binds, and let RCCL open its plugin."""
        if plan.paths:
            mounts = [(f"{PRIVATE}/{name}", self._host.source(path)) for name, path in plan.paths.items()]
            root, files = self._root.mounted(mounts), None
            path = ":".join(filter(None, (PRIVATE, self._settings.library_path)))
            settings = replace(self._settings, library_path=path)
        else:
            self._files = self._files or Files(self._root)
            root, files, settings = self._root, self._files, self._settings
        process = Process(root, settings, files=files)
        started = process.start(self._demand.start)
        opener = process.find(self._demand.opener)
        if opener is None or started.errors:
            return _Trial(process, started, opened=False)
        outcome = started
        for name in self._names:
            outcome = process.dlopen(name, opener)
            if outcome.root is not None or _is_broken(outcome, name):
                return _Trial(process, outcome, opened=True)
        return _Trial(process, outcome, opened=False)

    def _complete(self, plan: _Plan, offer: Mapping[str, str]) -> _Trial:
        """Bind what a plan still lacks until its process loads. Raises _Refused."""
        seen: set[frozenset[str]] = set()
        while True:
            trial = self._trial(plan)
            if trial.loads:
                return trial
            state = frozenset(plan.paths)
            if state in seen or len(seen) > _MAX_STEPS:
                raise _Refused(self._refusal(plan, trial, "libraries that fit each other", "they do not fit"))
            seen.add(state)
            self._advance(plan, offer, trial)

    def _advance(self, plan: _Plan, offer: Mapping[str, str], trial: _Trial) -> None:
        """Change a plan by what its trial met first. Raises _Refused where nothing can be changed."""
        for missing in trial.outcome.missing:
            if missing.name not in offer or missing.name in plan.paths or missing.name.startswith(_C_LIBRARY):
                raise _Refused(self._missing(plan, trial, missing))
            needs = missing.chain[-2] if len(missing.chain) > 1 else "the program"
            plan.add(missing.name, offer[missing.name], f"{needs} needs it, and the image has none")
        if trial.outcome.missing:
            return
        # what the C library lacks first: where nothing can be done about that, the rest does not matter
        for version in sorted(trial.outcome.missing_versions, key=lambda v: not _of_c_library(v.provider)):
            self._mend(plan, offer, trial, version)
            return
        raise _Refused(self._refusal(plan, trial, "a file that ld.so takes", "it does not take this one"))

    def _mend(self, plan: _Plan, offer: Mapping[str, str], trial: _Trial, version: MissingVersion) -> None:
        """Exchange a library for the other side's copy, where that may define, or not need, a version."""
        provider, requirer = trial.process.find(version.provider), trial.process.find(version.required_by)
        name = _name_of(version.provider, provider)
        of_host = version.provider.startswith(f"{PRIVATE}/")
        if not name.startswith(_C_LIBRARY):
            if not of_host and name in offer and name not in plan.from_image:
                plan.add(name, offer[name], f"{version.required_by} needs {version.version}; the image's is too old")
                return
            if of_host and name not in plan.core and name not in plan.from_image and self._image_has(name):
                del plan.paths[name]
                plan.from_image.add(name)
                return
        asking = _name_of(version.required_by, requirer)
        if asking in plan.paths and asking not in plan.core and self._image_has(asking):
            del plan.paths[asking]
            plan.from_image.add(asking)
            return
        raise _Refused(self._too_old(plan, trial, version, requirer))

    def _image_has(self, name: str) -> bool:
        process = self._trial(_Plan("")).process
        return process.find(name) is not None or process.dlopen(name).root is not None

    def _reduce(self, plan: _Plan, trial: _Trial) -> _Trial:
        """Take out what the process loads without."""
        for name in [name for name in reversed(plan.paths) if name not in plan.core]:
            path = plan.paths.pop(name)
            without = self._trial(plan)
            if without.loads and without.has_cxi:
                trial = without
            else:
                plan.paths[name] = path
        return trial

    # -- what comes out --

    def _manifest(self, plan: _Plan, trial: _Trial, refusals: Sequence[Refusal]) -> Manifest:
        loaded = tuple(
            Loaded(item, plan.paths.get(item.path.removeprefix(f"{PRIVATE}/")) if _is_bound(item.path) else None)
            for item in trial.process.objects
        )
        notes = tuple(
            f"{len(paths)} copies of {stem} in one process: {', '.join(paths)}; symbols without versions may be mixed"
            for stem, paths in second_copies(trial.process.objects).items()
        )
        if self._names == (_LIBFABRIC,):
            notes = ("no net plugin that RCCL would open: what is bound is there for libfabric alone", *notes)
        if not plan.paths:
            return Manifest(Fabric.BUNDLED, loaded=loaded, notes=notes)
        objects = {name: trial.process.find(name) for name in plan.paths}
        binds = tuple(
            Bind(path, f"{PRIVATE}/{name}", plan.reasons[name], found.chain if found else ())
            for name, path in plan.paths.items()
            for found in [objects[name]]
        )
        own = [part for part in (self._settings.library_path or "").split(":") if part != ENGINE_LIBRARIES]
        reason = "the host's libraries are found first; the rest is what the image has there already"
        variables = (Variable("LD_LIBRARY_PATH", ":".join([PRIVATE, *filter(None, own)]), reason),)
        return Manifest(Fabric.HOST, binds, variables, loaded, tuple(refusals), notes=notes)

    def _missing(self, plan: _Plan, trial: _Trial, missing: MissingLibrary) -> Refusal:
        have = "neither the image nor the host's closure has it" if plan.paths else "the image has none"
        words = next((error for error in trial.outcome.errors if missing.name in error), missing.name)
        return Refusal(plan.attempt, missing.name, missing.name, have, self._marked(plan, missing.chain), words)

    def _too_old(self, plan: _Plan, trial: _Trial, version: MissingVersion, requirer: LoadedObject | None) -> Refusal:
        provider = trial.process.find(version.provider)
        defined = provider.facts.version_definitions if provider else ()
        stem = version.version.rpartition("_")[0] + "_"
        newest = max((name for name in defined if name.startswith(stem)), key=_by_number, default=None)
        of_host = plan.paths.get(version.provider.removeprefix(f"{PRIVATE}/")) if _is_bound(version.provider) else None
        whose = f"the host's {of_host}" if of_host else f"the image's {version.provider}"
        have = f"{whose} has {f'up to {newest}' if newest else 'no version of that name'}"
        chain = self._marked(plan, requirer.chain if requirer else (version.required_by,))
        need = f"{version.version} of {_name_of(version.provider, provider)}"
        return Refusal(plan.attempt, version.required_by, need, have, chain, str(version))

    def _refusal(self, plan: _Plan, trial: _Trial, need: str, have: str) -> Refusal:
        words = trial.outcome.errors[0] if trial.outcome.errors else "nothing is loaded"
        library = words.partition(":")[0]
        found = trial.process.find(library)
        return Refusal(
            plan.attempt, library, need, have, self._marked(plan, found.chain if found else (library,)), words
        )

    def _no_provider(self, plan: _Plan, trial: _Trial) -> Refusal:
        libfabric = trial.process.find(_LIBFABRIC)
        opened = trial.outcome.root
        whose = libfabric.path if libfabric else (opened.path if opened else self._names[0])
        have = "it was built without it: it does not need libcxi.so.1" if libfabric else "it uses no libfabric"
        chain = self._marked(plan, libfabric.chain if libfabric else (whose,))
        return Refusal(plan.attempt, whose, "the cxi provider", have, chain, f"{whose} does not load {_LIBCXI}")

    @staticmethod
    def _marked(plan: _Plan, chain: Sequence[str]) -> tuple[str, ...]:
        """Return a chain that says of each bound library that it is the host's."""
        return tuple(f"{name} (host)" if name in plan.paths else name for name in chain)


def _offer(entry: Entry, entries: Sequence[Entry]) -> dict[str, str]:
    """Return the paths that the host has for names: those of a libfabric's closure first, then of the other entries."""
    offer = {name: path for name, path in entry.closure.items() if path is not None}
    for other in entries:
        if other.role != "libfabric":
            for name, path in other.closure.items():
                if path is not None:
                    offer.setdefault(name, path)
        if other.role == "libcxi":
            offer.setdefault(_LIBCXI, other.path)
    return offer


def _of_c_library(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_C_LIBRARY)


def _is_broken(outcome: LoadOutcome, name: str) -> bool:
    """Whether a file was found for a name, and is none that can be loaded."""
    return not all(error.startswith(f"{name}: cannot open shared object file: No such") for error in outcome.errors)


def _is_bound(path: str) -> bool:
    return path.startswith(f"{PRIVATE}/")


def _name_of(path: str, loaded: LoadedObject | None) -> str:
    return (loaded.facts.soname if loaded else None) or path.rpartition("/")[2]


def _by_number(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in version.rpartition("_")[2].split("."))
