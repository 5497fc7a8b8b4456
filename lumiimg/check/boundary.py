"""The boundary between an image and a machine: what comes from where, which versions meet there, what margin is left.

Nothing is run: the process of RCCL and its plugin is modelled with the files of the image and, where a host snapshot is
given, with what `lumiimg.host.bind` would bind into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.check.binding import with_host
from lumiimg.check.opening import opened
from lumiimg.check.remedies import remedies
from lumiimg.check.static import check_static
from lumiimg.elf.loader import Process
from lumiimg.elf.system import glibc_version, libc_kind, loader_of
from lumiimg.elf.version_check import numbers_of
from lumiimg.errors import ExitCode
from lumiimg.findings import Severity
from lumiimg.host.advice import complete
from lumiimg.host.attempt import Demand
from lumiimg.host.bind import solve
from lumiimg.host.inside import Cpu, see_inside, variable_of
from lumiimg.host.manifest import PRIVATE, Fabric, Loaded
from lumiimg.host.provider import LIBFABRIC, PROVIDER_PATH
from lumiimg.host.tree import SnapshotTree
from lumiimg.image import RootFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.evidence import StaticResult
    from lumiimg.elf.rules import Settings
    from lumiimg.host.manifest import Manifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image

_TORCH = re.compile(r"torch-([0-9][^-/]*)\.dist-info")
_PACKAGES = re.compile(r"(.*/(?:site|dist)-packages)/torch/")
_PROVIDER_SOURCE = "libfabric prov/cxi/configure.m4: the built-in provider links libcxi"
_LOADER_SOURCE = "glibc elf/dl-load.c, elf/dl-version.c, modelled"
_VERSION_SOURCE = "glibc elf/dl-version.c: names of versions are compared before any code runs"


class Outcome(StrEnum):
    """Of one comparison, and of all together."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> ExitCode:
        """What the process says to its caller."""
        return {Outcome.OK: ExitCode.GOOD, Outcome.REFUSED: ExitCode.NO, Outcome.UNKNOWN: ExitCode.UNDECIDED}[self]


@dataclass(frozen=True, slots=True)
class Rule:
    """One comparison of what a side needs with what the other has."""

    id: str
    outcome: Outcome
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
    def library_side(self) -> str:
        """The one that needs, and whose it is."""
        return f"{self.library} ({'host' if self.of_host else 'image'})"

    @property
    def provider_side(self) -> str:
        """The one that it is needed of, and whose that is."""
        return f"{self.provider} ({'host' if self.provider_of_host else 'image'})"

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
    def decision(self) -> Outcome:
        """Whether everything on the way from RCCL to the NIC loads; unknown where a host snapshot would decide."""
        outcomes = {rule.outcome for rule in self.rules}
        if Outcome.REFUSED in outcomes:
            return Outcome.REFUSED
        return Outcome.UNKNOWN if self.manifest is None or Outcome.UNKNOWN in outcomes else Outcome.OK

    @property
    def remedies(self) -> tuple[str, ...]:
        """What to do; nothing where nothing is wrong."""
        refused = {rule.id for rule in self.rules if rule.outcome is Outcome.REFUSED}
        found: list[str] = []
        if self.manifest is not None and self.manifest.fabric is Fabric.NONE and refused:
            found += remedies(self.manifest.refusals)
        for finding in self.static.findings.found:
            is_told = finding.severity is Severity.PROBLEM and finding.id != "bind.refused"
            if is_told or finding.id == "plugin.symbols":
                found += finding.remedy
        if self.decision is Outcome.UNKNOWN and (self.manifest is None or not self.manifest.host_has_fabric):
            found.append(
                "on a compute node, with the job's modules: `lumiimg host scan -o host.json`; then --host host.json"
            )
        return tuple(dict.fromkeys(found))


def study(path: Path, environment: Mapping[str, str], snapshot: Snapshot | None, site: Site | None = None) -> Boundary:
    """Return the account of an image; `environment` is the user's, variables of it reach the container.

    The manifest in it has what the engine of the host and a site need on top.

    Raises BadInputError for what is no image.
    """
    environment = without_ours(environment)
    with opened(path) as image:
        return study_open(str(path), image, environment, snapshot, check_static(image, environment), site)


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out a search path that an earlier manifest, perhaps of another image, has put into the user's shell."""
    return {
        name: value
        for name, value in environment.items()
        if not (name.endswith("ENV_LD_LIBRARY_PATH") and value.split(":")[0] == PRIVATE)
    }


def study_open(
    path: str,
    image: Image,
    environment: Mapping[str, str],
    snapshot: Snapshot | None,
    static: StaticResult,
    site: Site | None = None,
) -> Boundary:
    """Return the account of an image whose files are checked already."""
    cpu = Cpu(snapshot.hwcaps, snapshot.intel) if snapshot else Cpu()
    settings = see_inside(image, environment, cpu=cpu).settings
    manifest: Manifest | None = None
    loaded: tuple[Loaded, ...] = ()
    missing: tuple[str, ...] = ()
    demand = demand_of(image, static, static.provider_path or variable_of(PROVIDER_PATH, image, environment))
    if demand is not None and snapshot is not None:
        manifest = solve(image.root, settings, demand, snapshot, RootFileSystem(SnapshotTree(snapshot)))
        manifest = complete(manifest, snapshot, image.root, site)
        loaded = manifest.loaded
        static = with_host(static, manifest, image=path, host=snapshot.host)
    if demand is not None and manifest is None:
        loaded, missing = _alone(image.root, settings, demand)
    margins = tuple(margins_of(loaded))
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
        rules=tuple(_rules(static, manifest, loaded, missing, margins)),
        margins=margins,
    )


def demand_of(image: Image, static: StaticResult, provider_path: str | None) -> Demand | None:
    """Return the process to look at: RCCL's, or without a loadable RCCL one that has nothing but the loader.

    None where the image has no loader that is modelled.
    """
    if static.start is not None and static.path.rccl is not None:
        return Demand(static.start, static.path.rccl, static.path.plugin_files, static.path.accepts, provider_path)
    loader = loader_of(image.root) if libc_kind(image.root) == "glibc" else None
    return Demand(loader, loader, (), provider_path=provider_path) if loader else None


def _alone(root: RootFileSystem, settings: Settings, demand: Demand) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """Return (what the process has with the image's files alone, names that it lacks)."""
    process = Process(root, settings)
    missing = [item.name for item in process.start(demand.start).missing]
    opener = process.find(demand.opener)
    for name in demand.names or (LIBFABRIC,):
        outcome = process.dlopen(name, opener) if opener is not None else None
        if outcome is not None and outcome.root is not None:
            missing += [item.name for item in outcome.missing]
            break
    else:
        missing += (demand.names or (LIBFABRIC,))[:1]
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
    static: StaticResult,
    manifest: Manifest | None,
    loaded: Sequence[Loaded],
    missing: Sequence[str],
    margins: Sequence[Margin],
) -> Iterator[Rule]:
    yield from _rules_of_rccl(static)
    for finding in static.findings.found:
        if finding.id == "image.partly-read":
            because = "variables and files that are not seen may lead the loader elsewhere"
            yield Rule("image", Outcome.UNKNOWN, "an image that is read whole", finding.summary, because, "lumiimg")
        elif finding.id == "plugin.symbols":
            have = "; ".join(finding.evidence)
            because = "RCCL opens its plugin with RTLD_NOW: every symbol has to be there at once"
            yield Rule("symbols", Outcome.UNKNOWN, "every symbol of the plugin", have, because, _LOADER_SOURCE)
    if manifest is None:
        for name in missing:
            because = "the image does not have it; whether a host can give it, a snapshot tells"
            yield Rule("library", Outcome.UNKNOWN, name, "nothing", because, "glibc elf/dl-load.c")
    elif manifest.fabric is Fabric.NONE:
        outcome = Outcome.REFUSED if manifest.host_has_fabric else Outcome.UNKNOWN
        for refusal in manifest.refusals:
            family = "glibc-gate" if refusal.need.startswith("GLIBC_") else "library"
            because = f"{refusal.attempt}: {' -> '.join(refusal.chain)}; {refusal.words}"
            yield Rule(family, outcome, refusal.need, refusal.have, because, _LOADER_SOURCE)
        if not manifest.host_has_fabric:
            yield Rule(
                "host-fabric",
                Outcome.UNKNOWN,
                "a libfabric with the cxi provider",
                "the snapshot of the host has none",
                "was it taken on a compute node, with the modules of the job loaded?",
                _PROVIDER_SOURCE,
            )
        return
    provider = manifest.trial.provider if manifest is not None and manifest.trial is not None else None
    if provider is not None:
        item = next((item for item in loaded if item.object.path == provider), None)
        have = _whose(item) if item is not None else provider
        yield Rule("cxi-provider", Outcome.OK, "the cxi provider of libfabric", have, "it loads", _PROVIDER_SOURCE)
    yield from (_rule_of_margin(margin) for margin in margins if margin.crosses)


def _rules_of_rccl(static: StaticResult) -> Iterator[Rule]:
    """Yield what RCCL asks of the plugin; that it is not there, or not loaded, is a rule of its own."""
    fabric = static.path
    for finding in static.findings.found:
        if finding.id.startswith("rccl.") and finding.severity is Severity.PROBLEM:
            have = finding.evidence[0] if finding.evidence else "there is none"
            yield Rule("rccl", Outcome.REFUSED, "an RCCL that loads", have, finding.summary, "glibc elf/dl-load.c")
    if fabric.rccl is None or not fabric.plugin_files:
        return
    yield Rule(
        "plugin-name",
        Outcome.OK if fabric.plugin else Outcome.REFUSED,
        f"a file called {' or '.join(fabric.plugin_files)}",
        fabric.plugin or "there is none that the loader finds",
        f"RCCL {fabric.rccl_version or '(unknown version)'} gives these names to dlopen",
        "strings in RCCL; src/net.cc",
    )
    if fabric.plugin is not None and fabric.accepts:
        yield Rule(
            "plugin-api",
            Outcome.OK if fabric.plugin_api else Outcome.REFUSED,
            f"net API v{', v'.join(map(str, fabric.accepts))}",
            f"v{fabric.plugin_api}" if fabric.plugin_api else "none of these is exported",
            "RCCL asks the plugin for one symbol a version, in this order",
            "strings in RCCL; exported symbols of the plugin",
        )


def _rule_of_margin(margin: Margin) -> Rule:
    family = {"GLIBC": "glibc-gate", "FABRIC": "libfabric-api", "LIBCXI": "libcxi"}.get(margin.family, "versions")
    return Rule(
        family,
        Outcome.OK,
        f"{margin.family}_{margin.need} of {margin.provider_side}",
        f"up to {margin.family}_{margin.have}",
        f"{margin.library_side} needs it",
        _VERSION_SOURCE,
    )


def _whose(item: Loaded) -> str:
    return f"{item.host_path} of the host" if item.host_path else f"{item.object.path} of the image"


def margins_of(loaded: Sequence[Loaded]) -> Iterator[Margin]:
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
            if numbers_of(number) > numbers_of(needs.get(key, "")):
                needs[key] = number
        for (file, family), number in needs.items():
            provider = providers.get(file)
            if provider is None:
                continue
            defined = [name.rpartition("_") for name in provider.object.facts.version_definitions]
            newest = max((n for f, _, n in defined if f == family), key=numbers_of, default="")
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
