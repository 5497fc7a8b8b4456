"""The boundary between an image and a machine: what comes from where, which versions meet there, what margin is left.

Nothing is run: the process of RCCL and its plugin is modelled with the files of the image and, where a host snapshot is
given, with what `lumiimg.host.bind` would bind into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.check.opening import opened
from lumiimg.check.static import check_static
from lumiimg.elf.loader import Process
from lumiimg.elf.system import glibc_version
from lumiimg.errors import ExitCode
from lumiimg.host.bind import Demand, solve
from lumiimg.host.inside import Cpu, see_inside
from lumiimg.host.manifest import Fabric, Loaded
from lumiimg.host.tree import SnapshotTree
from lumiimg.image import RootFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.check.evidence import StaticResult
    from lumiimg.elf.rules import Settings
    from lumiimg.host.manifest import Manifest, Refusal
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image

_LIBFABRIC, _LIBCXI = "libfabric.so.1", "libcxi.so.1"
_TORCH = re.compile(r"torch-([0-9][^-/]*)\.dist-info")
_PACKAGES = re.compile(r"(.*/(?:site|dist)-packages)/torch/")
_VERSION_SOURCE = "glibc elf/dl-version.c: names of versions are compared before any code runs"


@dataclass(frozen=True, slots=True)
class Rule:
    """One comparison of what a side needs with what the other has."""

    id: str
    outcome: str
    """`ok`, `refused`, `unknown`."""
    need: str
    have: str
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Margin:
    """Of one family of versions between two libraries: the newest that is needed, and the newest that is there."""

    library: str
    """Name of the one that needs."""
    of_host: bool
    provider: str
    provider_of_host: bool
    family: str
    """`GLIBC`, `FABRIC`."""
    need: str
    have: str
    """Both without the family: `2.38`."""

    @property
    def crosses(self) -> bool:
        """Whether one side is the host's and the other the image's."""
        return self.of_host != self.provider_of_host


@dataclass(frozen=True, slots=True)
class Boundary:
    """The account of one image, on one machine or without any."""

    image: str
    host: str | None
    static: StaticResult
    glibc: str | None
    host_glibc: str | None
    torch: str | None
    manifest: Manifest | None
    """None without a host, or without a process to look at."""
    loaded: tuple[Loaded, ...]
    missing: tuple[str, ...]
    """Without a host: names that the image does not have."""
    rules: tuple[Rule, ...]
    margins: tuple[Margin, ...]

    @property
    def fabric(self) -> Fabric:
        """Where the fabric's libraries come from."""
        return self.manifest.fabric if self.manifest else Fabric.NONE

    @property
    def exit_code(self) -> ExitCode:
        """0 where everything loads, 1 where something stands against it, 3 where a host snapshot would decide."""
        if any(rule.outcome == "refused" for rule in self.rules):
            return ExitCode.NO
        if self.manifest is None or any(rule.outcome == "unknown" for rule in self.rules):
            return ExitCode.UNDECIDED
        return ExitCode.GOOD


def study(path: Path, environment: Mapping[str, str], snapshot: Snapshot | None) -> Boundary:
    """Return the account of an image; `environment` is the user's, variables of it reach the container.

    Raises BadInputError for what is no image.
    """
    with opened(path) as image:
        return study_open(str(path), image, environment, snapshot, check_static(image, environment))


def study_open(
    path: str, image: Image, environment: Mapping[str, str], snapshot: Snapshot | None, static: StaticResult
) -> Boundary:
    """Return the account of an image whose files are checked already."""
    cpu = Cpu(snapshot.hwcaps, snapshot.intel) if snapshot else Cpu()
    settings = see_inside(image, environment, cpu=cpu).settings
    manifest: Manifest | None = None
    loaded: tuple[Loaded, ...] = ()
    missing: tuple[str, ...] = ()
    demand = demand_of(image, settings, static)
    if demand is not None and snapshot is not None:
        manifest = solve(image.root, settings, demand, snapshot, RootFileSystem(SnapshotTree(snapshot)))
        loaded = manifest.loaded
    if demand is not None and manifest is None:
        loaded, missing = _alone(image.root, settings, demand)
    margins = tuple(_margins(loaded))
    return Boundary(
        image=path,
        host=snapshot.host if snapshot else None,
        static=static,
        glibc=glibc_version(image.root),
        host_glibc=snapshot.glibc if snapshot else None,
        torch=_torch(image, static.path.rccl, demand),
        manifest=manifest,
        loaded=loaded,
        missing=missing,
        rules=tuple(_rules(static, manifest, loaded, missing)),
        margins=margins,
    )


def demand_of(image: Image, settings: Settings, static: StaticResult) -> Demand | None:
    """Return the process to look at: RCCL's, or without a loadable RCCL one that has nothing but the loader.

    None where the image has no loader that is modelled.
    """
    if static.start is not None and static.path.rccl is not None:
        return Demand(static.start, static.path.rccl, static.path.plugin_files, static.path.accepts)
    process = Process(image.root, settings)
    for shell in ("/bin/sh", "/usr/bin/env", "/bin/ls"):
        if process.start(shell).root is not None and process.system.glibc_minor is not None:
            loader = process.system.loader
            return Demand(loader, loader, ())
    return None


def _alone(root: RootFileSystem, settings: Settings, demand: Demand) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """Return (what the process has with the image's files alone, names that it lacks)."""
    process = Process(root, settings)
    missing = [item.name for item in process.start(demand.start).missing]
    opener = process.find(demand.opener)
    for name in demand.names or (_LIBFABRIC,):
        outcome = process.dlopen(name, opener) if opener is not None else None
        if outcome is not None and outcome.root is not None:
            missing += [item.name for item in outcome.missing]
            break
    else:
        missing += (demand.names or (_LIBFABRIC,))[:1]
    return tuple(Loaded(item, None) for item in process.objects), tuple(dict.fromkeys(missing))


def _torch(image: Image, rccl: str | None, demand: Demand | None) -> str | None:
    """Return the version of torch whose folder RCCL's process was started in, from its metadata's name."""
    for path in filter(None, (demand.start if demand else None, rccl)):
        packages = _PACKAGES.match(path)
        if packages is not None:
            for name, _ in image.root.list_dir(packages[1]):
                found = _TORCH.fullmatch(name)
                if found is not None:
                    return found[1]
    return None


# -- rules --


def _rules(
    static: StaticResult, manifest: Manifest | None, loaded: Sequence[Loaded], missing: Sequence[str]
) -> Iterator[Rule]:
    fabric = static.path
    if fabric.rccl is not None and fabric.plugin_files:
        plugin = next((item for item in loaded if item.object.name in fabric.plugin_files), None)
        have = _whose(plugin) if plugin else (f"{fabric.plugin} of the image" if fabric.plugin else "there is none")
        yield Rule(
            "plugin-name",
            "ok" if plugin or fabric.plugin else "refused",
            f"a file called {' or '.join(fabric.plugin_files)}",
            have,
            f"RCCL {fabric.rccl_version or ''} gives these names to dlopen".replace("  ", " "),
            "strings in RCCL; src/net.cc",
        )
        if fabric.plugin is not None and fabric.accepts:
            yield Rule(
                "plugin-api",
                "ok" if fabric.plugin_api else "refused",
                f"net API v{', v'.join(map(str, fabric.accepts))}",
                f"v{fabric.plugin_api}" if fabric.plugin_api else "none of these is exported",
                "RCCL asks the plugin for one symbol a version, in this order",
                "strings in RCCL; exported symbols of the plugin",
            )
    if manifest is not None and manifest.fabric is Fabric.NONE:
        for refusal in manifest.refusals:
            yield _rule_of(refusal, "refused" if manifest.host_has_fabric else "unknown")
        if not manifest.host_has_fabric:
            yield Rule(
                "host-fabric",
                "unknown",
                "a libfabric with the cxi provider",
                "the snapshot of the host has none",
                "was it taken on a compute node, with the modules of the job loaded?",
                "libfabric prov/cxi/configure.m4: the provider links libcxi",
            )
        return
    by_name = {item.object.facts.soname or item.object.name: item for item in loaded}
    libfabric = by_name.get(_LIBFABRIC)
    if manifest is None:
        for name in missing:
            because = "the image does not have it; whether a host can give it, a snapshot tells"
            yield Rule("library", "unknown", name, "nothing", because, "glibc elf/dl-load.c")
    if libfabric is not None:
        has_cxi = _LIBCXI in libfabric.object.facts.needed
        yield Rule(
            "cxi-provider",
            "ok" if has_cxi else ("unknown" if manifest is None else "refused"),
            "a libfabric that needs libcxi.so.1",
            _whose(libfabric),
            "the provider is built into libfabric, and links libcxi",
            "libfabric prov/cxi/configure.m4",
        )
    yield from (_rule_of_margin(margin) for margin in _margins(loaded) if margin.crosses)


def _rule_of(refusal: Refusal, outcome: str) -> Rule:
    family = "glibc-gate" if "GLIBC_" in refusal.need else "library"
    because = f"{refusal.attempt}: {' -> '.join(refusal.chain)}; ld.so: {refusal.words}"
    return Rule(family, outcome, refusal.need, refusal.have, because, _VERSION_SOURCE)


def _rule_of_margin(margin: Margin) -> Rule:
    family = {"GLIBC": "glibc-gate", "FABRIC": "libfabric-api", "LIBCXI": "libcxi"}.get(margin.family, "versions")
    sides = [f"{name} ({'host' if host else 'image'})" for name, host in _sides(margin)]
    return Rule(
        family,
        "ok",
        f"{margin.family}_{margin.need} of {sides[1]}",
        f"up to {margin.family}_{margin.have}",
        f"{sides[0]} needs it",
        _VERSION_SOURCE,
    )


def _sides(margin: Margin) -> tuple[tuple[str, bool], tuple[str, bool]]:
    return (margin.library, margin.of_host), (margin.provider, margin.provider_of_host)


def _whose(item: Loaded) -> str:
    return f"{item.host_path} of the host" if item.host_path else f"{item.object.path} of the image"


def _margins(loaded: Sequence[Loaded]) -> Iterator[Margin]:
    """Yield, for each pair of libraries and each family of versions between them, what is needed and what is there."""
    providers: dict[str, Loaded] = {}
    for item in loaded:
        for name in (item.object.name, item.object.facts.soname):
            if name:
                providers.setdefault(name, item)
    for item in loaded:
        needs: dict[tuple[str, str], str] = {}
        for need in item.object.facts.version_needs:
            family, _, number = need.name.rpartition("_")
            key = (need.file, family)
            if by_number(number) and by_number(number) > by_number(needs.get(key, "")):
                needs[key] = number
        for (file, family), number in needs.items():
            provider = providers.get(file)
            if provider is None:
                continue
            defined = [name.rpartition("_") for name in provider.object.facts.version_definitions]
            newest = max((n for f, _, n in defined if f == family), key=by_number, default="")
            if newest:
                yield Margin(
                    library=item.object.facts.soname or item.object.name,
                    of_host=item.host_path is not None,
                    provider=file,
                    provider_of_host=provider.host_path is not None,
                    family=family,
                    need=number,
                    have=newest,
                )


def by_number(version: str) -> tuple[int, ...]:
    """Return the parts of a dotted number; nothing for anything else (`PRIVATE`)."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()
