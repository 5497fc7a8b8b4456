"""Sites: what is true of a machine, `sites/<name>.toml`; a user's own are searched first."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - schemas are made from the types of the fields
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from lumiimg.catalog.catalogue import find_file
from lumiimg.catalog.drivers import SiteDriver, read_driver
from lumiimg.catalog.folders import file_names, site_folders
from lumiimg.catalog.launch import Jobs, read_annotation, read_jobs, read_module, read_option
from lumiimg.catalog.needs import Need, read_needs
from lumiimg.catalog.toml_table import Table, read_toml
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.catalog.launch import SiteAnnotation, SiteModule, SiteOption

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_VERSION = re.compile(r"\d{1,4}(\.\d{1,5}){1,3}")
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_MOST_CORES = 4096
_ABSOLUTE = re.compile(r"/.*", re.DOTALL)
_MPI_TYPE = re.compile(r"[a-z0-9_]{1,32}")
PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
"""A name of a partition, queue or project: what can stand behind `#SBATCH` and stay one word."""
_CACHES = re.compile(r"/(?!.*\.\.)[\w+.$/-]+/[\w+.$-]*\$(SLURM_JOB_ID|PBS_JOBID)", re.ASCII)
_SCRATCH = re.compile(r"/(?!.*\.\.)[\w+./-]*(?:\$(?:SLURM_JOB_ACCOUNT|USER)\b[\w+./-]*)*", re.ASCII)
_DOMAIN = re.compile(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,9}")
SCHEDULERS = ("Slurm", "PBS")
"""That job scripts can be written for."""


@dataclass(frozen=True, slots=True)
class SiteBind:
    """A path that containers get at the same place, and why."""

    path: str
    """On the host, and in the container."""
    reason: str
    """Why."""
    source: str | None
    """None where it is that of the site."""


@dataclass(frozen=True, slots=True)
class SiteBandwidth:
    """What a test of the network gives on a machine that is well."""

    test: str
    """Name of the program: `all_reduce_perf`."""
    nodes: int
    ranks: int
    from_bytes: int
    """Size of the message from which on the network is full."""
    gb_s: float
    """Bus bandwidth, 1e9 bytes a second."""
    least_gb_s: float
    """Below this something is wrong."""
    remedy: tuple[str, ...]
    """What to look at then."""
    source: str


@dataclass(frozen=True, slots=True)
class SiteFabric:
    """The host's side of the fast network."""

    slingshot: str | None
    """Release of the Slingshot host software; this and the next are None where a node was seen, and did not tell."""
    libfabric: str | None
    """Version on the nodes."""
    glibc: str | None
    """The newest version of the C library that the host's libfabric and libcxi ask for; None where nobody has told."""
    source: str
    """Where that is from."""
    date: dt.date
    """When that was looked up, ISO 8601."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """One limit."""

    nodes: int
    """Up to this number of nodes,"""
    hours: float
    """so long."""


@dataclass(frozen=True, slots=True)
class SitePartition:
    """A queue of the site's scheduler for nodes with GPUs."""

    name: str
    """Of the scheduler."""
    nodes: int
    """The most that one job may have."""
    least_nodes: int
    """The fewest that one job may have."""
    hours: float
    """The longest that one job may run."""
    steps: tuple[TimeLimit, ...]
    """Longest times by the number of nodes, where they differ."""
    whole_nodes: bool
    """Whether a job has its nodes for itself: only then is it known which cores and GPUs it gets."""
    debug: bool
    """Whether it is for tests."""
    source: str

    @property
    def limits(self) -> str:
        """What a job may have, in words."""
        nodes = f"up to {count(self.nodes, 'node')}"
        if self.least_nodes > 1:
            nodes = f"{self.least_nodes} to {count(self.nodes, 'node')}"
        whole = ", nodes of its own" if self.whole_nodes else ""
        steps = "".join(f"; {step.hours:g} h up to {count(step.nodes, 'node')}" for step in self.steps)
        return f"{nodes}, {self.hours:g} h{whole}{steps}{'; for tests' if self.debug else ''}"

    def hours_for(self, nodes: int) -> float:
        """Return the longest time, in hours, of a job of `nodes` nodes."""
        return next((step.hours for step in self.steps if nodes <= step.nodes), self.hours)


@dataclass(frozen=True, slots=True)
class SiteBinding:
    """Which cores are near which GPU, on a node that a job has for itself."""

    cores: int
    """Of a node, without SMT."""
    group: int
    """Cores of one group, which lie together: a CCD of AMD's processors, a whole processor of Aurora's."""
    reserved: tuple[int, ...]
    """Cores that the system keeps for itself."""
    near: tuple[int, ...]
    """The group that is nearest to each GPU, by its number."""
    gpus_of_group: int
    """GPUs that share a group; each has an equal part of its cores, in their order."""
    spared: tuple[int, ...]
    """Cores that jobs of a framework leave to its helpers; what for says `spared_for`."""
    spared_for: str
    memory_gib: int | None
    """Of a node, that jobs can have; None where it is not known."""
    source: str

    def cores_near(self, gpu: int, *, sparing: bool = False) -> tuple[int, ...]:
        """Return the cores of a GPU that jobs can use, without those of its neighbours in the group.

        `sparing`: without the cores that are left to the framework's helpers, too.
        """
        taken = {*self.reserved, *(self.spared if sparing else ())}
        first = self.near[gpu] * self.group
        usable = [core for core in range(first, first + self.group) if core not in taken]
        part = len(usable) // self.gpus_of_group
        place = self.near[:gpu].count(self.near[gpu])
        return tuple(usable[place * part : (place + 1) * part])


@dataclass(frozen=True, slots=True)
class SiteMpi:
    """How the scheduler starts MPI programs: the value of `srun --mpi=`; None where it is not known to have one."""

    own: str | None
    """For an MPICH of the image's own."""
    open: str | None
    """For an Open MPI of the image's own."""
    host: str | None
    """For the machine's own MPI."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteVariable:
    """A variable of the environment for jobs there, and why."""

    name: str
    """Of the variable."""
    value: str
    """As a shell reads it; may name other variables."""
    given: tuple[Need, ...] = ()
    """Only where the image has these. As `name>=1.2`."""
    unless: tuple[Need, ...] = ()
    """Not where the image has these. As `name>=1.2`."""
    nodes: Jobs = Jobs.ANY
    """For which jobs it is."""
    ranks: bool = False
    """Whether it is only for programs whose ranks the scheduler starts, one per GPU."""
    folder: str | None = None
    """To be made before the program starts, as a shell reads it."""
    because: str
    """Why, a sentence."""
    source: str
    """Where that is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVariable:
    """A variable that was tried there, and did nothing, or harm."""

    name: str
    """Of the variable."""
    value: str | None = None
    """As it was tried; null: any."""
    effect: MeasuredEffect
    """What was seen."""
    because: str
    """What it did, and what follows."""
    source: str
    """Where that is from."""
    date: dt.date
    """When that was looked up, ISO 8601."""


@dataclass(frozen=True, slots=True)
class SiteAdvice:
    """What somebody who builds images there, or runs them, should know."""

    text: str
    """For a person."""
    job: bool
    """Whether job scripts say it, too."""
    source: str
    """Where that is from."""


@dataclass(frozen=True, slots=True)
class SiteIdentity:
    """By what a machine is known to whoever runs on it; one sign is enough."""

    variables: tuple[str, ...]
    """NAME=VALUE, as they are set there."""
    nodes: tuple[str, ...]
    """Names of its nodes, as patterns of a shell, where no other machine has such."""
    source: str
    """Where that is from."""


class MeasuredEffect(StrEnum):
    """What a variable did where it was tried."""

    INERT = "inert"
    HARMFUL = "harmful"


_STATUS: Mapping[str, Literal["documented", "run"]] = {
    "documented": "documented",
    "run": "run",
    "unproved": "documented",
    "proved": "run",
}
"""The words of a file, the last two those of 0.1.0, and what they mean."""


@dataclass(frozen=True, slots=True)
class Site:
    """One machine."""

    name: str
    """As for --site."""
    title: str
    """For a person."""
    status: Literal["documented", "run"] | None
    """`documented`: written down from what others publish; `run`: something ran there; null where it is not stated."""
    arch: str | None
    """Of its GPUs, as compilers name it: `gfx90a`; null where it is not AMD's."""
    vendor: str | None
    """Who makes its GPUs, where that is not AMD."""
    processors: str | None
    """Of its nodes, as `uname -m` says; null where it is not known."""
    identity: SiteIdentity | None
    """By what the machine is known; null where nothing certain is known."""
    driver: SiteDriver | None
    """The GPU driver of the nodes; null where it is not known."""
    fabric: SiteFabric | None
    """The fast network; null where it is not known."""
    scheduler: str | None
    """`Slurm`, `PBS`."""
    engine: str | None
    """The container engine of the nodes."""
    binds: tuple[SiteBind, ...]
    """File systems and devices to bind."""
    bandwidths: tuple[SiteBandwidth, ...]
    partitions: tuple[SitePartition, ...]
    """Partitions with GPUs."""
    binding: SiteBinding | None
    mpi: SiteMpi | None
    caches: str | None
    """A folder on each node for the caches of one job, as a shell reads it, absolute and with the job's number at its
    end: its jobs make it first, and remove it."""
    scratch: str | None
    """A folder of a user that all nodes see and that has room for models, as a shell of a job reads it."""
    variables: tuple[SiteVariable, ...]
    """Variables that jobs want."""
    modules: tuple[SiteModule, ...]
    """Modules that jobs want."""
    options: tuple[SiteOption, ...]
    """Options of the scheduler that jobs want."""
    annotations: tuple[SiteAnnotation, ...]
    """Annotations for the Container Engine."""
    domain: str | None
    """What follows a node's short name, where ranks shall meet over the fast network; null: the name does as it is."""
    measured: tuple[MeasuredVariable, ...]
    """Variables that were tried there, and did nothing, or harm."""
    advice: tuple[SiteAdvice, ...]
    """What else to know."""
    source: str
    date: dt.date

    @property
    def is_any(self) -> bool:
        """Whether it is not a machine in particular, so that nothing is judged for it."""
        return self.driver is None and self.fabric is None and self.arch is None and self.vendor is None

    def is_cache(self, value: str) -> bool:
        """Whether a path is below the folder for caches."""
        return self.caches is not None and value.startswith(f"{self.caches}/")


def read_site(path: Path) -> Site:
    """Read and validate a site. Raises CatalogError, which names the file and every wrong key."""
    table = Table(read_toml(path), path)
    site = table.fill(
        Site,
        name=path.stem,
        status=_STATUS.get(table.choice("status", _STATUS, required=False)),
        identity=table.optional("identity", _identity),
        driver=table.optional("driver", read_driver),
        fabric=table.optional("fabric", _fabric),
        binds=tuple(_bind(entry) for entry in table.tables("bind")),
        bandwidths=tuple(entry.fill(SiteBandwidth) for entry in table.tables("bandwidth")),
        partitions=tuple(_partition(entry) for entry in table.tables("partition")),
        binding=table.optional("binding", _binding),
        mpi=table.optional("mpi", _mpi),
        variables=tuple(_variable(entry) for entry in table.tables("environment")),
        modules=tuple(read_module(entry) for entry in table.tables("module")),
        options=tuple(read_option(entry) for entry in table.tables("option")),
        annotations=tuple(read_annotation(entry) for entry in table.tables("annotation")),
        measured=tuple(_measured(entry) for entry in table.tables("measured")),
        advice=tuple(entry.fill(SiteAdvice) for entry in table.tables("advice")),
    )
    if site.domain is not None and not _DOMAIN.fullmatch(site.domain):
        table.fault("domain", f"is {site.domain!r}, no domain like hsn.cm.example.org")
    if site.scheduler not in (None, *SCHEDULERS):
        table.fault("scheduler", f"is {site.scheduler!r}; allowed: {', '.join(SCHEDULERS)}")
    if site.caches is not None and not _CACHES.fullmatch(site.caches):
        table.fault("caches", f"is {site.caches!r}, no folder of one job: /tmp/$USER-$SLURM_JOB_ID")
    if site.scratch is not None and not _SCRATCH.fullmatch(site.scratch):
        table.fault("scratch", f"is {site.scratch!r}, no folder of a user: /scratch/$SLURM_JOB_ACCOUNT/$USER")
    table.finish()
    return site


def _identity(entry: Table) -> SiteIdentity:
    identity = entry.fill(SiteIdentity)
    for variable in identity.variables:
        name, equals, _ = variable.partition("=")
        if not (equals and _VARIABLE.fullmatch(name)):
            entry.fault("variables", f"has {variable!r}, no variable like SLURM_CLUSTER_NAME=lumi")
    return identity


def _fabric(entry: Table) -> SiteFabric:
    for key in ("slingshot", "libfabric", "glibc"):
        entry.match(key, _VERSION, "no version like 1.22.0")
    return entry.fill(SiteFabric, slingshot=entry.string("slingshot"), libfabric=entry.string("libfabric"))


def _bind(entry: Table) -> SiteBind:
    entry.match("path", _ABSOLUTE, "no absolute path")
    return entry.fill(SiteBind)


def _partition(entry: Table) -> SitePartition:
    steps = tuple(TimeLimit(step.whole("nodes"), step.number("hours")) for step in entry.tables("step"))
    partition = entry.fill(SitePartition, least_nodes=entry.whole("least_nodes", default=1), steps=steps)
    entry.match("name", PARTITION, "no name of a partition")
    if partition.least_nodes > partition.nodes:
        entry.fault("least_nodes", f"is {partition.least_nodes}, above the {partition.nodes} nodes that a job can have")
    if list(steps) != sorted(steps, key=lambda step: step.nodes) or any(one.nodes > partition.nodes for one in steps):
        entry.fault("step", "should go from few nodes to many, up to those that a job can have")
    return partition


def _binding(entry: Table) -> SiteBinding:
    spared = entry.optional_string("spared")
    binding = entry.fill(
        SiteBinding,
        gpus_of_group=entry.whole("gpus_of_group", default=1),
        spared=() if spared is None else _ranges(entry, "spared", spared),
        spared_for="" if spared is None else entry.string("spared_for"),
    )
    if binding.cores > _MOST_CORES:
        entry.fault("cores", f"is {binding.cores}; a node has {_MOST_CORES} at most")
        return binding
    before = len(entry.faults)
    for key, cores in (("reserved", binding.reserved), ("spared", binding.spared)):
        if wrong := [core for core in cores if core >= binding.cores]:
            entry.fault(
                key,
                f"names core {wrong[0]}, that a node with {binding.cores} does not have (the second thread of a core "
                "has no number here)",
            )
    if not binding.near:
        entry.fault("near", "is empty: the group of cores that is nearest to each GPU")
    if len(binding.near) > binding.cores:
        entry.fault("near", f"names {len(binding.near)} GPUs, more than the {binding.cores} cores of a node")
    if any((group + 1) * binding.group > binding.cores for group in binding.near):
        entry.fault("near", f"names a group that {binding.cores} cores in groups of {binding.group} do not have")
    if any(number > binding.gpus_of_group for number in Counter(binding.near).values()):
        told = "twice" if binding.gpus_of_group == 1 else f"more than {binding.gpus_of_group} times"
        entry.fault("near", f"names a group {told}: `gpus_of_group` says how many GPUs share one")
    if len(entry.faults) == before:
        left = [gpu for gpu in range(len(binding.near)) if not binding.cores_near(gpu, sparing=True)]
        if left:
            entry.fault("reserved", f"leaves no core of group {binding.near[left[0]]}, which is near GPU {left[0]}")
    return binding


def _ranges(entry: Table, key: str, text: str) -> tuple[int, ...]:
    """Return the numbers of `1-3,28-51`."""
    cores: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            entry.fault(key, f"has {part!r}, no core and no range of cores like 28-51")
        cores.extend(range(first, last + 1))
    return tuple(cores)


def _mpi(entry: Table) -> SiteMpi:
    for key in ("own", "open", "host"):
        entry.match(key, _MPI_TYPE, "no value for `srun --mpi=`")
    return entry.fill(SiteMpi)


def _variable(entry: Table) -> SiteVariable:
    entry.match("name", _VARIABLE, "no name of a variable")
    return entry.fill(
        SiteVariable, given=read_needs(entry, "given"), unless=read_needs(entry, "unless"), nodes=read_jobs(entry)
    )


def _measured(entry: Table) -> MeasuredVariable:
    entry.match("name", _VARIABLE, "no name of a variable")
    # of a wrong word the file is refused in the end
    effect = MeasuredEffect(entry.choice("effect", tuple(MeasuredEffect)) or MeasuredEffect.INERT)
    return entry.fill(MeasuredVariable, effect=effect)


def site_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of all sites, sorted; a user's own replace those of the same name."""
    return file_names(site_folders(environment))


def find_site(name: str, environment: Mapping[str, str]) -> Site:
    """Return a site by its name, or by the path of its file.

    Raises UnknownNameError, or CatalogError if it is there and wrong.
    """
    return read_site(find_file("site", name, site_folders(environment)))
