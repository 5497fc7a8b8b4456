"""What an image wants of a machine's fabric: read from its files, or planned, and settled with what is known there."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from lumiimg.catalog.age import age_of
from lumiimg.catalog.sites import Site, find_site
from lumiimg.elf.c_library import of_c_library
from lumiimg.elf.system import glibc_version
from lumiimg.elf.versions import numbers_of
from lumiimg.errors import BadInputError
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.host.bind import solve
from lumiimg.host.bind_trial import BindPlan, BindTrial, attempt
from lumiimg.host.carried_manifest import (
    Basis,
    CarriedManifest,
    NeededDevice,
    NeededVariable,
    SettledBy,
    WantedLibrary,
)
from lumiimg.host.container_view import LoaderMachine, see_inside
from lumiimg.host.engine_mounts import as_run
from lumiimg.host.ldd import refusal
from lumiimg.host.margins import Margin, margins_of, newest_needs
from lumiimg.host.rccl_process import demands_of
from lumiimg.host.snapshot import fabric_entry
from lumiimg.host.snapshot_file import read_snapshot, to_text
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import Image, RootFileSystem
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from lumiimg.host.manifest import BindManifest
    from lumiimg.host.snapshot import Snapshot

_PRIVATE_FIRST = "the host's libraries are found first; what the container has there already follows"
_OF_DRIVER = "the cxi provider of libfabric links it, and it belongs to the driver of the machine's NICs"
_LIBC = "libc.so.6"


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """What is known of the machine that an image is for."""

    snapshot: Snapshot | None = None
    """Of one of its nodes: that counts."""
    site: Site | None = None

    @property
    def text(self) -> bytes:
        """All of it that a manifest depends on: the same for the same manifest of an image."""
        fabric = self.site.fabric if self.site else None
        site = [self.site.name, f"{fabric}"] if self.site and fabric else None
        return json.dumps([site, to_text(replace(self.snapshot, taken="")) if self.snapshot else None]).encode()


def known_machine(
    site: str | None, host: Path | None, environment: Mapping[str, str], on_gone: Callable[[str], None] | None = None
) -> KnownMachine:
    """Return what is known of the machine that an image is for. Raises BadInputError.

    A snapshot that is not there any more is left out, and `on_gone` hears of it, where that is given.
    """
    if on_gone is not None and host is not None and not host.is_file():
        on_gone(f"{host}, which the lock names, is not here: the bind manifest is settled without it")
        host = None
    return KnownMachine(read_snapshot(host) if host else None, find_site(site, environment) if site else None)


def wanted_by(image: Image, machine: KnownMachine) -> CarriedManifest:
    """Return the manifest of a finished image, by its files; one that says why, where they cannot be read."""
    try:
        return _wanted_by(image, machine)
    except (OSError, BadInputError) as error:
        return CarriedManifest(Fabric.NONE, f"what it wants cannot be read from its files: {error}", Basis.IMAGE)


def _wanted_by(image: Image, machine: KnownMachine) -> CarriedManifest:
    snapshot = machine.snapshot
    image = as_run(image, {}, snapshot)
    root = image.root
    settings = see_inside(image, {}, machine=LoaderMachine.of(snapshot) if snapshot else LoaderMachine()).settings
    demands = demands_of(image, settings) if (no_model := refusal(root)) is None else ()
    found = [(one, by_itself(attempt(root, settings, one, root, BindPlan("the image's own files")))) for one in demands]
    if not found:
        return CarriedManifest(Fabric.NONE, no_model or "the image has no loader that is known here", Basis.IMAGE)
    demand, alone = next((each for each in found if each[1].fabric is Fabric.HOST), found[0])
    if snapshot is None:
        return _with_needs(_with_site(alone, machine.site, glibc_version(root)))
    node = RootFileSystem(SnapshotTree(snapshot))
    return _with_needs(settled(solve(root, settings, demand, snapshot, node), snapshot, alone))


def planned(fabric: Fabric, machine: KnownMachine) -> CarriedManifest:
    """Return what can be said before an image is built: by the fabric that its layers are chosen for."""
    plan = CarriedManifest(fabric, _PLANNED[fabric], Basis.PLAN)
    if fabric is Fabric.HOST:
        plan = replace(plan, libraries=tuple(_of_fabric("libfabric is left to the machine", (LIBFABRIC,))))
        if machine.snapshot is not None:
            plan = _planned_on(plan, machine.snapshot)
    open_now = "planned before the build: which of them the finished image wants, and in which versions, its files show"
    site = machine.site if machine.snapshot is None else None
    return replace(_with_needs(_with_site(plan, site, None)), doubts=(open_now,))


def _planned_on(plan: CarriedManifest, snapshot: Snapshot) -> CarriedManifest:
    """Return a plan with all that the libfabric of a node links there, but the C library."""
    entry = fabric_entry(snapshot)
    if entry is None:
        return plan
    paths = {LIBFABRIC: entry.path, LIBCXI: entry.closure.get(LIBCXI)}
    libraries = [replace(one, host_path=paths[one.soname]) for one in plan.libraries if one.soname in paths]
    host = RootFileSystem(SnapshotTree(snapshot))
    for name, path in entry.closure.items():
        found = snapshot.library(host.resolve(path)) if path else None
        if name != LIBCXI and found is not None and not of_c_library(found.facts):
            reason = "it or a library that it links needs it; only where the image has none"
            libraries.append(replace(_library(name, f"{LIBFABRIC}: {reason}", (LIBFABRIC, name)), host_path=path))
    return replace(plan, libraries=tuple(libraries), settled_by=SettledBy.HOST, machine=_node(snapshot))


def _node(snapshot: Snapshot) -> str:
    glibc = f"glibc {snapshot.glibc}" if snapshot.glibc else ""
    return f"{snapshot.host}: {', '.join(filter(None, (snapshot.os.name, glibc)))}"


_PLANNED = {
    Fabric.HOST: "the layers leave libfabric with the cxi provider, and libcxi, to the machine",
    Fabric.BUNDLED: "none is wanted, because a layer builds libfabric with the cxi provider and libcxi into it",
    Fabric.NONE: "none is wanted, because no layer uses the fabric of a machine",
}


def settled(manifest: BindManifest, snapshot: Snapshot, alone: CarriedManifest | None = None) -> CarriedManifest:
    """Return the manifest of an image that is settled with a node; `alone` is what its files say by themselves."""
    private = [bind for bind in manifest.binds if bind.target.startswith(f"{PRIVATE}/")]
    libraries = tuple(
        WantedLibrary(bind.target.removeprefix(f"{PRIVATE}/"), bind.target, bind.reason, bind.chain, bind.source)
        for bind in private
    )
    found = alone or CarriedManifest(manifest.fabric, "", Basis.IMAGE)
    because = found.because
    if manifest.fabric is Fabric.NONE:
        refused = f": {manifest.refusals[-1]}" if manifest.refusals else ""
        because, libraries = f"no set of binds of {snapshot.host} loads{refused}", found.libraries
    elif manifest.fabric is Fabric.HOST and found.fabric is not Fabric.HOST:
        because = f"libfabric with the cxi provider of {snapshot.host} loads in it"
    return replace(
        found,
        fabric=manifest.fabric,
        because=because,
        settled_by=SettledBy.HOST,
        machine=_node(snapshot),
        libraries=libraries,
        versions=tuple(margin for margin in margins_of(manifest.loaded) if margin.crosses),
        variables=tuple(NeededVariable(item.name, item.reason, item.value) for item in manifest.variables),
        doubts=manifest.notes,
    )


def by_itself(trial: BindTrial) -> CarriedManifest:
    """Return what the files say without any machine: which libraries are missing, and who asks for them."""
    demand, outcome = trial.demand, trial.outcome
    libfabric = next((item for item in trial.objects if item.name == LIBFABRIC), None)
    if not trial.opened:
        what = f"RCCL finds no net plugin ({' or '.join(demand.names)})" if demand.names else "nothing opens libfabric"
        return CarriedManifest(Fabric.NONE, f"none is wanted, because {what} in the image", Basis.IMAGE)
    if trial.loads and trial.provider is not None:
        why = f"none is wanted, because {trial.provider} of the image has the cxi provider, and libcxi is beside it"
        own = "libcxi is the image's own: only a run shows whether it fits the driver of a machine"
        return CarriedManifest(Fabric.BUNDLED, why, Basis.IMAGE, doubts=(own,))
    old = {version: trial.process.find(version.provider) for version in outcome.missing_versions}
    hopeless = [str(version) for version, provider in old.items() if provider and of_c_library(provider.facts)]
    if hopeless or (outcome.errors and not outcome.missing and not old):
        return CarriedManifest(Fabric.NONE, f"it cannot be loaded: {(hopeless or outcome.errors)[0]}", Basis.IMAGE)
    if libfabric is None and not outcome.missing and not old:
        why = f"none is wanted, because {outcome.root.path if outcome.root else 'the plugin'} does not use libfabric"
        return CarriedManifest(Fabric.NONE, why, Basis.IMAGE)
    wanted: dict[str, WantedLibrary] = {}
    if libfabric is not None and trial.provider is None and LIBCXI not in libfabric.facts.needed:
        why, chain = f"the image's {libfabric.path} has no cxi provider", libfabric.chain
        wanted = {library.soname: library for library in _of_fabric(why, chain)}
    for lacking in outcome.missing:
        needs = lacking.chain[-2] if len(lacking.chain) > 1 else "the program"
        why = f"{needs} needs it, and the image has none"
        if lacking.name == LIBFABRIC:
            wanted |= {library.soname: library for library in _of_fabric(why, lacking.chain)}
        else:
            wanted.setdefault(lacking.name, _library(lacking.name, why, lacking.chain))
    for version, provider in old.items():
        name, chain = (provider.facts.soname or provider.name, provider.chain) if provider else (version.provider, ())
        why = f"{version.required_by} needs {version.version}; the image's is too old"
        for library in _of_fabric(why, chain) if name == LIBFABRIC else [_library(name, why, chain)]:
            wanted.setdefault(library.soname, library)
    for name in _links().values():  # which a host's library links: only where the image has none
        if name in wanted and trial.process.dlopen(name).root is not None:
            del wanted[name]
    versions = [
        Margin(item.facts.soname or item.name, False, file, True, family, number, "")
        for item in trial.objects
        for (file, family), number in newest_needs(item.facts).items()
        if file in wanted and (item.facts.soname or item.name) not in wanted
    ]
    first = wanted.get(LIBFABRIC) or next(iter(wanted.values()))
    what = "libfabric with the cxi provider" if LIBFABRIC in wanted else " and ".join(wanted)
    why = f"{what} must come from the machine: {first.reason}"
    return CarriedManifest(Fabric.HOST, why, Basis.IMAGE, libraries=(*wanted.values(),), versions=(*versions,))


def _of_fabric(reason: str, chain: tuple[str, ...]) -> Iterator[WantedLibrary]:
    """Yield libfabric of a machine, and what it brings along."""
    yield _library(LIBFABRIC, reason, chain)
    yield _library(LIBCXI, _OF_DRIVER, chain := (*chain, LIBCXI))
    for name in (need for of, need in _links().items() if of == LIBCXI):
        yield _library(name, f"{LIBCXI} links it; only where the image has none", (*chain, name))


def _library(name: str, reason: str, chain: tuple[str, ...]) -> WantedLibrary:
    return WantedLibrary(name, f"{PRIVATE}/{name}", reason, chain)


def _with_site(manifest: CarriedManifest, site: Site | None, glibc: str | None) -> CarriedManifest:
    """Return a manifest with what is published of a site; `glibc` is the image's, where it is known."""
    fabric = site.fabric if site else None
    if site is None or fabric is None:
        return replace(manifest, doubts=(*manifest.doubts, *_unsure(manifest)))
    parts = [f"libfabric {fabric.libfabric}"] if fabric.libfabric else []
    parts += [f"needs GLIBC_{fabric.glibc}"] if fabric.glibc else []
    parts += [f"Slingshot {fabric.slingshot}"] if fabric.slingshot else []
    machine = f"{site.name}: {', '.join(parts) or 'no versions are known'} ({fabric.date})"
    manifest = replace(manifest, settled_by=SettledBy.SITE, machine=machine)
    if manifest.fabric is not Fabric.HOST:
        return manifest
    doubts = [*manifest.doubts, *_unsure(manifest)]
    if old := age_of(fabric.date, site.date):
        doubts.append(f"what is known of the network of {site.name} is {old}: a snapshot of a node decides")
    versions = list(manifest.versions)
    if fabric.glibc:
        library = f"{LIBFABRIC}, {LIBCXI}"
        versions.append(Margin(library, True, _LIBC, False, "GLIBC", fabric.glibc, glibc or ""))
        if glibc and numbers_of(glibc) < numbers_of(fabric.glibc):
            doubts.insert(
                0,
                f"the libraries of {site.name} ask for GLIBC_{fabric.glibc}, and the image has {glibc}: they are "
                "unlikely to load in it; --fabric bundled builds its own",
            )
    return replace(manifest, versions=tuple(versions), doubts=tuple(doubts))


def _unsure(manifest: CarriedManifest) -> Iterator[str]:
    if manifest.fabric is Fabric.HOST:
        names = " and ".join(_data()["unsure"]["libraries"])
        yield (
            f"the host's libraries may link more, such as {names}: a snapshot of a node shows it "
            "(`lumiimg host scan` there, then --host FILE)"
        )


def _with_needs(manifest: CarriedManifest) -> CarriedManifest:
    """Return a manifest with the devices and variables that a process on the fabric needs."""
    if manifest.fabric is Fabric.NONE:
        return manifest
    variables = list(manifest.variables)
    if manifest.fabric is Fabric.HOST and not variables:
        variables.append(NeededVariable("LD_LIBRARY_PATH", f"{PRIVATE} comes first in it: {_PRIVATE_FIRST}"))
    return replace(
        manifest,
        devices=tuple(NeededDevice(**entry) for entry in _data()["device"]),
        variables=(*variables, *(NeededVariable(**entry) for entry in _data()["variable"])),
    )


def _links() -> dict[str, str]:
    """Return what a library of the host links, whatever its version: a name to a name."""
    return {entry["of"]: entry["library"] for entry in _data()["link"]}


@cache
def _data() -> dict[str, Any]:
    return own_table(__package__, "fabric_needs.toml")
