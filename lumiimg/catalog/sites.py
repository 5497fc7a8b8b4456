"""Sites: what is true of a machine, `sites/<name>.toml`; a user's own are searched first."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - msgspec reads the types of fields
import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, structs

from lumiimg.catalog.catalogue import find_file
from lumiimg.catalog.drivers import SiteDriver  # noqa: TC001 - the same
from lumiimg.catalog.folders import file_names, site_folders
from lumiimg.catalog.launch import Jobs, SiteAnnotation, SiteModule, SiteOption
from lumiimg.catalog.needs import Need  # noqa: TC001 - the same
from lumiimg.decode import Natural, Positive, PositiveFloat, Text, matching, read_toml, refuse, text_of
from lumiimg.wording import count

_MOST_CORES = 4096
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
PARTITION = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}"
"""A name of a partition, queue or project: what can stand behind `#SBATCH` and stay one word."""
SCHEDULERS = ("Slurm", "PBS")
"""That job scripts can be written for."""
_Variable = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "a name of a variable")]
_Sign = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}=.*", "a variable with its value, SLURM_CLUSTER_NAME=lumi,")
]
_Version = Annotated[str, matching(r"[0-9]{1,4}(\.[0-9]{1,5}){1,3}", "a version like 1.22.0")]
_Absolute = Annotated[str, matching(r"/.*", "an absolute path")]
_MpiType = Annotated[str, matching(r"[a-z0-9_]{1,32}", "a value for `srun --mpi=`")]
_Partition = Annotated[str, matching(PARTITION, "a name of a partition")]
_Scheduler = Annotated[str, matching("|".join(SCHEDULERS), f"one of {', '.join(SCHEDULERS)}")]
_Domain = Annotated[str, matching(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,9}", "a domain like hsn.cm.example.org")]
_Caches = Annotated[
    str,
    matching(
        r"/(?!.*\.\.)[A-Za-z0-9_+.$/-]+/[A-Za-z0-9_+.$-]*\$(SLURM_JOB_ID|PBS_JOBID)",
        "a folder of one job, /tmp/$USER-$SLURM_JOB_ID,",
    ),
]
_Scratch = Annotated[
    str,
    matching(
        r"/(?!.*\.\.)[A-Za-z0-9_+./-]*(?:\$(?:SLURM_JOB_ACCOUNT|USER)(?![A-Za-z0-9_])[A-Za-z0-9_+./-]*)*",
        "a folder of a user, /scratch/$SLURM_JOB_ACCOUNT/$USER,",
    ),
]


class SiteBind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A path that containers get at the same place, and why."""

    path: _Absolute
    """On the host, and in the container."""
    reason: Text
    """Why."""
    source: Text | None = None
    """None where it is that of the site."""


class SiteBandwidth(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a test of the network gives on a machine that is well."""

    test: Text
    """Name of the program: `all_reduce_perf`."""
    nodes: Positive
    ranks: Positive
    from_bytes: Positive
    """Size of the message from which on the network is full."""
    gb_s: PositiveFloat
    """Bus bandwidth, 1e9 bytes a second."""
    least_gb_s: PositiveFloat
    """Below this something is wrong."""
    remedy: tuple[str, ...] = ()
    """What to look at then."""
    source: Text


class SiteFabric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The host's side of the fast network."""

    slingshot: _Version | None
    """Release of the Slingshot host software; this and the next are None where a node was seen, and did not tell."""
    libfabric: _Version | None
    """Version on the nodes."""
    glibc: _Version | None = None
    """The newest version of the C library that the host's libfabric and libcxi ask for; None where nobody has told."""
    source: Text
    """Where that is from."""
    date: dt.date
    """When that was looked up, ISO 8601."""


class TimeLimit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One limit."""

    nodes: Positive
    """Up to this number of nodes,"""
    hours: PositiveFloat
    """so long."""


class SitePartition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A queue of the site's scheduler for nodes with GPUs."""

    name: _Partition
    """Of the scheduler."""
    nodes: Positive
    """The most that one job may have."""
    least_nodes: Positive = 1
    """The fewest that one job may have."""
    hours: PositiveFloat
    """The longest that one job may run."""
    steps: tuple[TimeLimit, ...] = field(name="step", default=())
    """Longest times by the number of nodes, where they differ."""
    whole_nodes: bool = False
    """Whether a job has its nodes for itself: only then is it known which cores and GPUs it gets."""
    debug: bool = False
    """Whether it is for tests."""
    source: Text

    def __post_init__(self) -> None:
        numbers = [step.nodes for step in self.steps]
        in_order = numbers == sorted(numbers) and max(numbers, default=0) <= self.nodes
        least = f"is {self.least_nodes}, above the {self.nodes} nodes that a job can have"
        refuse(
            {
                "least_nodes": self.least_nodes > self.nodes and least,
                "step": None if in_order else "should go from few nodes to many, up to those that a job can have",
            }
        )

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


class Cores(tuple[int, ...]):
    """Numbers of cores, in a file as ranges: `1-3,28-51`."""

    __slots__ = ()

    @classmethod
    def decoded(cls, value: object) -> Cores:
        """Return the numbers. Raises ValueError."""
        cores: list[int] = []
        for part in text_of(value).split(","):
            found = _RANGE.fullmatch(part)
            first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if first > last:
                raise ValueError(f"has {part!r}, which is not a core or a range of cores like 28-51")
            cores.extend(range(first, last + 1))
        return cls(cores)


class SiteBinding(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which cores are near which GPU, on a node that a job has for itself."""

    cores: Annotated[int, Meta(gt=0, le=_MOST_CORES, description=f"a number of cores, {_MOST_CORES} at most,")]
    """Of a node, without SMT."""
    group: Positive
    """Cores of one group, which lie together: a CCD of AMD's processors, a whole processor of Aurora's."""
    reserved: tuple[Natural, ...] = ()
    """Cores that the system keeps for itself."""
    near: Annotated[tuple[Natural, ...], Meta(min_length=1, description="the group of cores nearest to each GPU")]
    """The group that is nearest to each GPU, by its number."""
    gpus_of_group: Positive = 1
    """GPUs that share a group; each has an equal part of its cores, in their order."""
    spared: Cores = Cores()
    """Cores that jobs of a framework leave to its helpers; what for says `spared_for`."""
    spared_for: str = ""
    memory_gib: Positive | None = None
    """Of a node, that jobs can have; None where it is not known."""
    source: Text

    def __post_init__(self) -> None:
        faults = {}
        for key, cores in (("reserved", self.reserved), ("spared", self.spared)):
            if wrong := [core for core in cores if core >= self.cores]:
                no_such = f"names core {wrong[0]}, that a node with {self.cores} does not have"
                faults[key] = f"{no_such} (the second thread of a core has no number here)"
        if self.spared and not self.spared_for.strip():
            faults["spared_for"] = "is missing (a string)"
        if len(self.near) > self.cores:
            faults["near"] = f"names {len(self.near)} GPUs, more than the {self.cores} cores of a node"
        elif any((group + 1) * self.group > self.cores for group in self.near):
            faults["near"] = f"names a group that {self.cores} cores in groups of {self.group} do not have"
        elif any(number > self.gpus_of_group for number in Counter(self.near).values()):
            often = "twice" if self.gpus_of_group == 1 else f"more than {self.gpus_of_group} times"
            faults["near"] = f"names a group {often}: `gpus_of_group` says how many GPUs share one"
        if not faults:
            left = [gpu for gpu in range(len(self.near)) if not self.cores_near(gpu, sparing=True)]
            if left:
                faults["reserved"] = f"leaves no core of group {self.near[left[0]]}, which is near GPU {left[0]}"
        refuse(faults)

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


class SiteMpi(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the scheduler starts MPI programs: the value of `srun --mpi=`; None where it is not known to have one."""

    own: _MpiType | None = None
    """For an MPICH of the image's own."""
    open: _MpiType | None = None
    """For an Open MPI of the image's own."""
    host: _MpiType | None = None
    """For the machine's own MPI."""
    source: Text


class SiteVariable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variable of the environment for jobs there, and why."""

    name: _Variable
    """Of the variable."""
    value: Text
    """As a shell reads it; may name other variables."""
    given: tuple[Need, ...] = ()
    """Only where the image has these. As `name>=1.2`."""
    unless: tuple[Need, ...] = ()
    """Not where the image has these. As `name>=1.2`."""
    nodes: Jobs = Jobs.ANY
    """For which jobs it is."""
    ranks: bool = False
    """Whether it is only for programs whose ranks the scheduler starts, one per GPU."""
    folder: Text | None = None
    """To be made before the program starts, as a shell reads it."""
    because: Text
    """Why, a sentence."""
    source: Text
    """Where that is from."""


class MeasuredVariable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variable that was tried there, and did nothing, or harm."""

    name: _Variable
    """Of the variable."""
    value: Text | None = None
    """As it was tried; null: any."""
    effect: MeasuredEffect
    """What was seen."""
    because: Text
    """What it did, and what follows."""
    source: Text
    """Where that is from."""
    date: dt.date
    """When that was looked up, ISO 8601."""


class SiteAdvice(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What somebody who builds images there, or runs them, should know."""

    text: Text
    """For a person."""
    job: bool = False
    """Whether job scripts say it, too."""
    source: Text
    """Where that is from."""


class SiteIdentity(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """By what a machine is known to whoever runs on it; one sign is enough."""

    variables: tuple[_Sign, ...] = ()
    """NAME=VALUE, as they are set there."""
    nodes: tuple[str, ...] = ()
    """Names of its nodes, as patterns of a shell, where no other machine has such."""
    source: Text
    """Where that is from."""


class MeasuredEffect(StrEnum):
    """What a variable did where it was tried."""

    INERT = "inert"
    HARMFUL = "harmful"


class _SiteFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`sites/<name>.toml`."""

    title: Text
    """For a person."""
    status: Literal["documented", "run"] | None = None
    """`documented`: written down from what others publish; `run`: something ran there; null where it is not stated."""
    arch: Text | None = None
    """Of its GPUs, as compilers name it: `gfx90a`; null where it is not AMD's."""
    vendor: Text | None = None
    """Who makes its GPUs, where that is not AMD."""
    processors: Text | None = None
    """Of its nodes, as `uname -m` says; null where it is not known."""
    identity: SiteIdentity | None = None
    """By what the machine is known; null where nothing certain is known."""
    driver: SiteDriver | None = None
    """The GPU driver of the nodes; null where it is not known."""
    fabric: SiteFabric | None = None
    """The fast network; null where it is not known."""
    scheduler: _Scheduler | None = None
    """`Slurm`, `PBS`."""
    engine: Text | None = None
    """The container engine of the nodes."""
    binds: tuple[SiteBind, ...] = field(name="bind", default=())
    """File systems and devices to bind."""
    bandwidths: tuple[SiteBandwidth, ...] = field(name="bandwidth", default=())
    partitions: tuple[SitePartition, ...] = field(name="partition", default=())
    """Partitions with GPUs."""
    binding: SiteBinding | None = None
    mpi: SiteMpi | None = None
    caches: _Caches | None = None
    """A folder on each node for the caches of one job, as a shell reads it, absolute and with the job's number at its
    end: its jobs make it first, and remove it."""
    scratch: _Scratch | None = None
    """A folder of a user that all nodes see and that has room for models, as a shell of a job reads it."""
    variables: tuple[SiteVariable, ...] = field(name="environment", default=())
    """Variables that jobs want."""
    modules: tuple[SiteModule, ...] = field(name="module", default=())
    """Modules that jobs want."""
    options: tuple[SiteOption, ...] = field(name="option", default=())
    """Options of the scheduler that jobs want."""
    annotations: tuple[SiteAnnotation, ...] = field(name="annotation", default=())
    """Annotations for the Container Engine."""
    domain: _Domain | None = None
    """What follows a node's short name, where ranks shall meet over the fast network; null: the name does as it is."""
    measured: tuple[MeasuredVariable, ...] = ()
    """Variables that were tried there, and did nothing, or harm."""
    advice: tuple[SiteAdvice, ...] = ()
    """What else to know."""
    source: Text
    date: dt.date


class Site(_SiteFile, frozen=True, kw_only=True):
    """One machine."""

    name: str
    """As for --site."""

    @property
    def is_any(self) -> bool:
        """Whether it is not a machine in particular, so that nothing is judged for it."""
        return self.driver is None and self.fabric is None and self.arch is None and self.vendor is None

    def is_cache(self, value: str) -> bool:
        """Whether a path is below the folder for caches."""
        return self.caches is not None and value.startswith(f"{self.caches}/")


def read_site(path: Path) -> Site:
    """Read and validate a site. Raises DecodeError, which names the file and every wrong key."""
    return Site(name=path.stem, **structs.asdict(read_toml(path, _SiteFile)))


def site_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of all sites, sorted; a user's own replace those of the same name."""
    return file_names(site_folders(environment))


def find_site(name: str, environment: Mapping[str, str]) -> Site:
    """Return a site by its name, or by the path of its file.

    Raises UnknownNameError, or DecodeError if it is there and wrong.
    """
    return read_site(find_file("site", name, site_folders(environment)))
