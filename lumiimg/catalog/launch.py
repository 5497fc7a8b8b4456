"""How jobs run on a site: partitions, cores near GPUs, and what job scripts set, load and request."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from lumiimg.catalog.needs import Need
from lumiimg.core.decode import Natural, Positive, PositiveFloat, Text, matching, refuse, text_of
from lumiimg.core.text import count

_MAX_CORES, _MAX_GPUS = 4096, 256
"""Limits per node."""
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
PARTITION = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}"
"""Pattern of the name of a partition, queue or project that stays one word after `#SBATCH`."""
_Partition = Annotated[str, matching(PARTITION, "a name of a partition")]
_Variable = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "a name of a variable")]
_MpiType = Annotated[str, matching(r"[a-z0-9_]{1,32}", "a value for `srun --mpi=`")]
ModuleName = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}", "a name of a module")]
_Option = Annotated[str, matching(r"-[A-Za-z0-9_.,:=/+@ -]{1,199}", "an option like `-l place=scatter`")]
"""An option that a comment in a script passes to a scheduler: a word or two that neither it nor a shell expands."""


class Jobs(StrEnum):
    """The jobs that something applies to."""

    ANY = "any"
    ONE = "one"
    """Jobs on one node."""
    SEVERAL = "several"
    """Jobs on several nodes."""

    @property
    def note(self) -> str:
        """The jobs as a comment at the end of a shell line; empty if it applies to all."""
        return {Jobs.ONE: "  # on one node", Jobs.SEVERAL: "  # on several nodes"}.get(self, "")

    def fit(self, nodes: int) -> bool:
        """Return whether it applies to a job on this number of nodes."""
        return self is not (Jobs.SEVERAL if nodes == 1 else Jobs.ONE)


class _Reasoned(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    because: Text
    """The reason, and the consequences."""
    source: Text
    """Where that comes from."""


class SiteModule(_Reasoned, frozen=True, kw_only=True):
    """A module that job scripts load there."""

    name: ModuleName
    """Name for `module load`."""


class SiteOption(_Reasoned, frozen=True, kw_only=True):
    """A scheduler option that jobs there should use: `-l place=scatter`."""

    value: _Option
    """The option as the scheduler accepts it."""
    nodes: Jobs
    """Jobs that it applies to."""


class SiteVariable(_Reasoned, frozen=True, kw_only=True):
    """An environment variable for jobs there, and the reason."""

    name: _Variable
    """Name of the variable."""
    value: Text
    """Value as a shell reads it; may refer to other variables."""
    given: tuple[Need, ...] = ()
    """Only if the image has these. As `name>=1.2`."""
    unless: tuple[Need, ...] = ()
    """Not if the image has these. As `name>=1.2`."""
    nodes: Jobs = Jobs.ANY
    """Jobs that it applies to."""
    ranks: bool = False
    """Whether it is only for programs whose ranks the scheduler starts, one per GPU."""
    folder: Text | None = None
    """Folder to create before the program starts, as a shell reads it."""


class MeasuredVariable(_Reasoned, frozen=True, kw_only=True):
    """A variable that was tried there and had no effect, or a harmful one."""

    name: _Variable
    """Name of the variable."""
    value: Text | None = None
    """Value that was tried; null: any."""
    effect: Literal["inert", "harmful"]
    """Observed effect."""
    date: dt.date
    """When that was looked up, ISO 8601."""


class SiteAdvice(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What anyone who builds or runs images there should know."""

    text: Text
    """Text for users."""
    job: bool = False
    """Whether job scripts include it, too."""
    source: Text
    """Where that comes from."""


class SiteMpi(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the scheduler starts MPI programs: the value of `srun --mpi=`; None if no value is known."""

    own: _MpiType | None = None
    """Value for the image's own MPICH."""
    open: _MpiType | None = None
    """Value for the image's own Open MPI."""
    host: _MpiType | None = None
    """Value for the machine's own MPI."""
    source: Text


class TimeLimit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time limit of jobs by their size."""

    nodes: Positive
    """The largest number of nodes for which it applies."""
    hours: PositiveFloat
    """The longest that such a job may run."""


class SitePartition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A queue of the site's scheduler for nodes with GPUs."""

    name: _Partition
    """Name in the scheduler."""
    nodes: Positive
    """The maximum number of nodes per job."""
    least_nodes: Positive = 1
    """The minimum number of nodes per job."""
    hours: PositiveFloat
    """The longest that a job may run."""
    steps: tuple[TimeLimit, ...] = field(name="step", default=())
    """Time limits by number of nodes, if they differ."""
    whole_nodes: bool = False
    """Whether a job has its nodes to itself: only then is it known which cores and GPUs it gets."""
    debug: bool = False
    """Whether it is for tests."""
    source: Text

    def __post_init__(self) -> None:
        numbers = [step.nodes for step in self.steps]
        is_ordered = numbers == sorted(numbers) and max(numbers, default=0) <= self.nodes
        least = f"is {self.least_nodes}, above the limit of {self.nodes} nodes per job"
        steps = "should go from few nodes to many, up to the limit per job"
        refuse({"least_nodes": self.least_nodes > self.nodes and least, "step": not is_ordered and steps})

    @property
    def limits(self) -> str:
        """Limits of a job, in words."""
        least = f"{self.least_nodes} to" if self.least_nodes > 1 else "up to"
        whole = ", whole nodes" if self.whole_nodes else ""
        steps = "".join(f"; {step.hours:g} h up to {count(step.nodes, 'node')}" for step in self.steps)
        return (
            f"{least} {count(self.nodes, 'node')}, {self.hours:g} h{whole}{steps}{'; for tests' if self.debug else ''}"
        )

    def hours_for(self, nodes: int) -> float:
        """Return the time limit, in hours, of a job on `nodes` nodes."""
        return next((step.hours for step in self.steps if nodes <= step.nodes), self.hours)


class Cores(tuple[int, ...]):
    """Numbers of cores, in a file as ranges: `1-3,28-51`."""

    __slots__ = ()

    @classmethod
    def decoded(cls, value: object) -> Cores:
        """Parse the numbers. Raises ValueError."""
        cores: list[int] = []
        for part in text_of(value).split(","):
            found = _RANGE.fullmatch(part)
            first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if first > last:
                raise ValueError(f"has {part!r}, which is not a core or a range of cores like 28-51")
            cores.extend(range(first, last + 1))
        return cls(cores)


class SiteBinding(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which cores are near which GPU, on a node that a job has to itself."""

    cores: Annotated[int, Meta(gt=0, le=_MAX_CORES, description=f"a number of cores, {_MAX_CORES} at most,")]
    """Cores of a node, without SMT."""
    group: Positive
    """Number of adjacent cores that form a group: a CCD of AMD's processors, a whole processor of Aurora's."""
    reserved: tuple[Natural, ...] = ()
    """Cores reserved for the system."""
    near: Annotated[
        tuple[Natural, ...],
        Meta(min_length=1, max_length=_MAX_GPUS, description="the group of cores nearest to each GPU"),
    ]
    """Number of the group nearest to each GPU."""
    gpus_of_group: Positive = 1
    """Number of GPUs that share a group; each has an equal part of its cores, in their order."""
    spared: Cores = Cores()
    """Cores that jobs of a framework leave to its helpers; `spared_for` says for what."""
    spared_for: str = ""
    memory_gib: Positive | None = None
    """Memory of a node that jobs can have; None if it is not known."""
    source: Text

    def __post_init__(self) -> None:
        beyond = (
            f"names a core that a node with {self.cores} does not have (a second thread of a core has no number here)"
        )
        groups = f"names a group that {self.cores} cores in groups of {self.group} do not have"
        often = (
            f"names a group more than {count(self.gpus_of_group, 'time')}: `gpus_of_group` is how many GPUs share one"
        )
        refuse(
            {
                "reserved": max(self.reserved, default=0) >= self.cores and beyond,
                "spared": max(self.spared, default=0) >= self.cores and beyond,
                "spared_for": bool(self.spared) and not self.spared_for.strip() and "is missing (a string)",
                "near": ((max(self.near) + 1) * self.group > self.cores and groups)
                or (max(Counter(self.near).values()) > self.gpus_of_group and often),
            }
        )
        if bare := [gpu for gpu in range(len(self.near)) if not self.cores_near(gpu, sparing=True)]:
            refuse({"reserved": f"leaves no core of group {self.near[bare[0]]}, which is near GPU {bare[0]}"})

    def cores_near(self, gpu: int, *, sparing: bool = False) -> tuple[int, ...]:
        """Return the cores of a GPU that jobs can use, without those of its neighbours in the group.

        `sparing`: also without the cores that are left to the framework's helpers.
        """
        taken = {*self.reserved, *(self.spared if sparing else ())}
        first = self.near[gpu] * self.group
        usable = [core for core in range(first, first + self.group) if core not in taken]
        part = len(usable) // self.gpus_of_group
        place = self.near[:gpu].count(self.near[gpu])
        return tuple(usable[place * part : (place + 1) * part])
