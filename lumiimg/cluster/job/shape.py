"""A job request, and the shape that a site gives it: nodes, GPUs, time, partition, cores of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import UnknownNameError
from lumiimg.catalog.launch import PARTITION, SitePartition
from lumiimg.cluster.nodes.slurm import duration
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.text import count

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.resolve.venv import Venv

_ASKED = "as you asked"
_DEFAULT_S = 3600


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What the user wants to run; None where the site, the image or the command decides."""

    image: str
    """Path of the image as the job will see it."""
    command: tuple[str, ...]
    """The command, word by word."""
    nodes: int = 1
    gpus: int | None = None
    """GPUs per node."""
    partition: str | None = None
    account: str | None = None
    time_s: int | None = None
    exclusive: bool = False
    """Whether to request exclusive nodes even in a partition that shares them."""
    framework: str | None = None
    torchrun: bool = False
    binds: tuple[str, ...] = ()
    """Binds on top of the site's, in engine syntax: `PATH` or `SRC:DEST[:ro]`."""
    caches: str | None = None
    """A persistent folder for models and compiled kernels; None: the site's scratch."""
    venv: Venv | None = None
    """A Python environment to bind."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The resources requested from a scheduler."""

    nodes: int
    """Number of nodes."""
    gpus: int
    """GPUs per node that the program uses."""
    node_gpus: int | None
    """GPUs that a node has; None if the site file does not say."""
    partition: str | None
    """Partition; null: the scheduler chooses."""
    account: str | None
    """Account; null: none was named."""
    time_s: int
    """Time limit in seconds."""
    whole_nodes: bool
    """Whether the job has its nodes to itself."""
    because: str
    """Why this partition; empty if the scheduler chooses."""


@dataclass(frozen=True, slots=True)
class RankCores:
    """The cores of one rank."""

    local_rank: int
    """Rank on its node, from 0, which is also the number of its GPU."""
    cores: tuple[int, ...]
    """Cores nearest to its GPU, without reserved ones, in the kernel's numbering."""
    mask: str
    """Hexadecimal mask for `srun --cpu-bind`: a bit for each core of the node, core 0 the lowest."""


@dataclass(frozen=True, slots=True)
class RankBinding:
    """The cores to which the ranks of a node are bound; the same on every node."""

    because: str
    """Why ranks are bound, or not."""
    ranks: tuple[RankCores, ...] = ()
    """Cores of each rank; empty if ranks are not bound."""


def shape_of(request: JobRequest, site: Site) -> Shape:
    """Return a shape that the site can provide.

    Raises FailedError, with the nearest possible shape, for one that it cannot; UnknownNameError for a partition that
    it does not have; BadInputError for a name that no scheduler accepts, or if the number of GPUs per node is neither
    known nor given.
    """
    for option, name in (("--partition", request.partition), ("--account", request.account)):
        if name is not None and not re.fullmatch(PARTITION, name):
            raise BadInputError("is not a name that schedulers accept", where=f"{option} {name!r}")
    node_gpus = len(site.binding.near) if site.binding else None
    gpus = request.gpus or node_gpus
    if gpus is None:
        raise BadInputError(f"the number of GPUs per node of {site.name} is not known", hint="name it: --gpus N")
    if node_gpus is not None and gpus > node_gpus:
        nodes = -(-request.nodes * gpus // node_gpus)
        what = f"a node of {site.name} has {count(node_gpus, 'GPU')}, but {gpus} were requested"
        raise FailedError(what, hint=f"the nearest: --nodes {nodes} --gpus {node_gpus}")
    partition, because = None, _ASKED if request.partition else ""
    if site.partitions:
        partition, because = _partition(request, site, whole=gpus == node_gpus or request.exclusive)
    limit_s = int(partition.hours_for(request.nodes) * 3600) if partition else _DEFAULT_S
    return Shape(
        nodes=request.nodes,
        gpus=gpus,
        node_gpus=node_gpus,
        partition=partition.name if partition else request.partition,
        account=request.account,
        time_s=request.time_s or min(_DEFAULT_S, limit_s),
        whole_nodes=request.exclusive or (partition is not None and partition.whole_nodes),
        because=because,
    )


def _partition(request: JobRequest, site: Site, *, whole: bool) -> tuple[SitePartition, str]:
    """Return the named partition, else the first that can take the job, and why.

    `whole`: prefer partitions of whole nodes, else those that share theirs. Test partitions are a last resort.
    """
    tests: list[str] = []
    if request.partition is not None:
        candidates = [partition for partition in site.partitions if partition.name == request.partition]
        if not candidates:
            raise UnknownNameError("partition", request.partition, [partition.name for partition in site.partitions])
    else:
        work = [partition for partition in site.partitions if not partition.debug] or site.partitions
        candidates = sorted(work, key=lambda partition: partition.whole_nodes != whole)
        tests = [partition.name for partition in site.partitions if partition not in candidates]
    objections = {partition.name: [*_objections(request, partition)] for partition in site.partitions}
    passed: list[str] = []
    for partition in candidates:
        if objections[partition.name]:
            passed.append(f"{partition.name} gives {' and '.join(what for what, _ in objections[partition.name])}")
            continue
        if request.partition is not None:
            return partition, _ASKED
        kind = "whole nodes" if partition.whole_nodes else "parts of nodes that other jobs share"
        are = f"{' and '.join(tests)} {'is' if len(tests) == 1 else 'are'}"
        of_tests = [f"{are} for tests, and used only with --partition"] if tests else []
        return partition, "; ".join([f"the first that gives such a job {kind}", *passed, *of_tests])
    closest = min(candidates, key=lambda partition: len(objections[partition.name])).name
    what, nearest = zip(*objections[closest], strict=True)
    fits = next((f"; or --partition {name}" for name, against in objections.items() if not against), "")
    raise FailedError(f"{closest} gives {' and '.join(what)}", hint=f"the nearest: {' '.join(nearest)}{fits}")


def _objections(request: JobRequest, partition: SitePartition) -> Iterator[tuple[str, str]]:
    """Yield each limit of a partition that the request exceeds, and the option that it would accept."""
    nodes = min(max(request.nodes, partition.least_nodes), partition.nodes)
    if nodes != request.nodes:
        bound = "most" if nodes < request.nodes else "least"
        yield f"at {bound} {count(nodes, 'node')}, not {request.nodes}", f"--nodes {nodes}"
    hours = partition.hours_for(nodes)
    limit_s = int(hours * 3600)
    if request.time_s is not None and request.time_s > limit_s:
        of = f" to jobs of {count(nodes, 'node')}" if partition.steps else ""
        yield f"at most {hours:g} h{of}, not {duration(request.time_s)}", f"--time {duration(limit_s)}"
