"""How jobs come to run on a site: partitions, cores near GPUs, modules, options of the scheduler and the engine."""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from lumiimg.decode import Natural, Positive, PositiveFloat, Text, matching, refuse, text_of
from lumiimg.wording import count

_MOST_CORES = 4096
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
PARTITION = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}"
"""A name of a partition, queue or project: what can stand behind `#SBATCH` and stay one word."""

_Module = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}", "a name of a module")]
_Option = Annotated[str, matching(r"-[A-Za-z0-9_.,:=/+@ -]{1,199}", "an option like `-l place=scatter`")]
"""What a comment of a script hands to a scheduler: a word or two, nothing that a shell or a scheduler would expand."""
_Key = Annotated[str, matching(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){1,9}", "a key like com.hooks.cxi.enabled")]
_Partition = Annotated[str, matching(PARTITION, "a name of a partition")]


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


class SiteModule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A module that job scripts load there."""

    name: _Module
    """For `module load`."""
    because: Text
    """Why."""
    source: Text
    """Where that is from."""


class SiteOption(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An option of the scheduler that jobs want there: `-l place=scatter`."""

    value: _Option
    """As the scheduler takes it."""
    nodes: Jobs
    """For which jobs it is."""
    because: Text
    """Why."""
    source: Text
    """Where that is from."""


class SiteAnnotation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an engine's file says of a container to the engine's hooks: `com.hooks.cxi.enabled = "true"`."""

    key: _Key
    """Of the environment definition file."""
    value: Text
    """Of it."""
    nodes: Jobs
    """For which jobs it is."""
    because: Text
    """Why."""
    source: Text
    """Where that is from."""


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

    def of_all(self, *, sparing: bool = False) -> tuple[tuple[int, ...], ...]:
        """Return the cores of each GPU, as `cores_near` does."""
        return tuple(self.cores_near(gpu, sparing=sparing) for gpu in range(len(self.near)))

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
