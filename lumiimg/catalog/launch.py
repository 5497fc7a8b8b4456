"""How jobs come to run on a site: partitions, cores near GPUs, and what job scripts set, load and ask for."""

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

_MOST_CORES, _MOST_GPUS = 4096, 256
"""Of a node."""
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
PARTITION = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}"
"""A name of a partition, queue or project: what can stand behind `#SBATCH` and stay one word."""
_Partition = Annotated[str, matching(PARTITION, "a name of a partition")]
_Variable = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "a name of a variable")]
_MpiType = Annotated[str, matching(r"[a-z0-9_]{1,32}", "a value for `srun --mpi=`")]
ModuleName = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}", "a name of a module")]
_Option = Annotated[str, matching(r"-[A-Za-z0-9_.,:=/+@ -]{1,199}", "an option like `-l place=scatter`")]
"""What a comment of a script hands to a scheduler: a word or two, nothing that a shell or a scheduler would expand."""


class Jobs(StrEnum):
    """For which jobs something is."""

    ANY = "any"
    ONE = "one"
    """Those on one node."""
    SEVERAL = "several"
    """Those on several nodes."""

    @property
    def note(self) -> str:
        """For which jobs, as a comment of a shell behind a line; nothing where it is for all."""
        return {Jobs.ONE: "  # on one node", Jobs.SEVERAL: "  # on several nodes"}.get(self, "")

    def fit(self, nodes: int) -> bool:
        """Whether a job on this number of nodes is one of them."""
        return self is not (Jobs.SEVERAL if nodes == 1 else Jobs.ONE)


class _Reasoned(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    because: Text
    """Why, and what follows."""
    source: Text
    """Where that is from."""


class SiteModule(_Reasoned, frozen=True, kw_only=True):
    """A module that job scripts load there."""

    name: ModuleName
    """For `module load`."""


class SiteOption(_Reasoned, frozen=True, kw_only=True):
    """An option of the scheduler that jobs want there: `-l place=scatter`."""

    value: _Option
    """As the scheduler takes it."""
    nodes: Jobs
    """For which jobs it is."""


class SiteVariable(_Reasoned, frozen=True, kw_only=True):
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


class MeasuredVariable(_Reasoned, frozen=True, kw_only=True):
    """A variable that was tried there, and did nothing, or harm."""

    name: _Variable
    """Of the variable."""
    value: Text | None = None
    """As it was tried; null: any."""
    effect: Literal["inert", "harmful"]
    """What was seen."""
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


class SiteMpi(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the scheduler starts MPI programs: the value of `srun --mpi=`; None where it is not known to have one."""

    own: _MpiType | None = None
    """For an MPICH of the image's own."""
    open: _MpiType | None = None
    """For an Open MPI of the image's own."""
    host: _MpiType | None = None
    """For the machine's own MPI."""
    source: Text


class TimeLimit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time limit of jobs by their size."""

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
        is_ordered = numbers == sorted(numbers) and max(numbers, default=0) <= self.nodes
        least = f"is {self.least_nodes}, above the limit of {self.nodes} nodes per job"
        steps = "should go from few nodes to many, up to the limit per job"
        refuse({"least_nodes": self.least_nodes > self.nodes and least, "step": not is_ordered and steps})

    @property
    def limits(self) -> str:
        """What a job may have, in words."""
        least = f"{self.least_nodes} to" if self.least_nodes > 1 else "up to"
        whole = ", whole nodes" if self.whole_nodes else ""
        steps = "".join(f"; {step.hours:g} h up to {count(step.nodes, 'node')}" for step in self.steps)
        return (
            f"{least} {count(self.nodes, 'node')}, {self.hours:g} h{whole}{steps}{'; for tests' if self.debug else ''}"
        )

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
    near: Annotated[
        tuple[Natural, ...],
        Meta(min_length=1, max_length=_MOST_GPUS, description="the group of cores nearest to each GPU"),
    ]
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

        `sparing`: without the cores that are left to the framework's helpers, too.
        """
        taken = {*self.reserved, *(self.spared if sparing else ())}
        first = self.near[gpu] * self.group
        usable = [core for core in range(first, first + self.group) if core not in taken]
        part = len(usable) // self.gpus_of_group
        place = self.near[:gpu].count(self.near[gpu])
        return tuple(usable[place * part : (place + 1) * part])
