"""The shape of a job: nodes, GPUs, time, partition; what a site can give of it, and what comes nearest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import UnknownNameError
from lumiimg.catalog.launch import PARTITION, SitePartition
from lumiimg.cluster.nodes.slurm import duration
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.text import count

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site

_ASKED = "as you asked"
_DEFAULT_S = 3600


class ShapeError(FailedError):
    """A site cannot give a job of this shape; the hint is the nearest that it can."""


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """What somebody asks for; None where the site decides."""

    nodes: int = 1
    gpus: int | None = None
    """Of each node."""
    partition: str | None = None
    account: str | None = None
    time_s: int | None = None
    exclusive: bool = False
    """Nodes for the job alone, also in a partition that shares them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a scheduler is asked for."""

    nodes: int
    """Of the job."""
    gpus: int
    """Of each node, that the program uses."""
    node_gpus: int | None
    """That a node has; None where the site's file does not say."""
    partition: str | None
    """Null: the scheduler chooses."""
    account: str | None
    """Null: none was named."""
    time_s: int
    """Limit, in seconds."""
    whole_nodes: bool
    """Whether the job has its nodes for itself."""
    because: str
    """Why this partition; empty where the scheduler chooses."""


def shape_of(wish: ShapeRequest, site: Site) -> Shape:
    """Return a shape that the site can give.

    Raises ShapeError for one that it cannot, UnknownNameError for a partition that it does not have, BadInputError for
    a name that no scheduler takes, or where the GPUs of a node are not known and were not named.
    """
    for option, name in (("--partition", wish.partition), ("--account", wish.account)):
        if name is not None and not re.fullmatch(PARTITION, name):
            raise BadInputError("is not a name that schedulers accept", where=f"{option} {name!r}")
    node_gpus = len(site.binding.near) if site.binding else None
    gpus = wish.gpus or node_gpus
    if gpus is None:
        raise BadInputError(f"the number of GPUs per node of {site.name} is not known", hint="name it: --gpus N")
    if node_gpus is not None and gpus > node_gpus:
        nodes = -(-wish.nodes * gpus // node_gpus)
        what = f"a node of {site.name} has {count(node_gpus, 'GPU')}, {gpus} were asked for"
        raise ShapeError(what, hint=f"the nearest: --nodes {nodes} --gpus {node_gpus}")
    partition, because = None, _ASKED if wish.partition else ""
    if site.partitions:
        partition, because = _partition(wish, site, full=gpus == node_gpus)
    limit_s = int(partition.hours_for(wish.nodes) * 3600) if partition else _DEFAULT_S
    return Shape(
        nodes=wish.nodes,
        gpus=gpus,
        node_gpus=node_gpus,
        partition=partition.name if partition else wish.partition,
        account=wish.account,
        time_s=wish.time_s or min(_DEFAULT_S, limit_s),
        whole_nodes=wish.exclusive or (partition is not None and partition.whole_nodes),
        because=because,
    )


def _partition(wish: ShapeRequest, site: Site, *, full: bool) -> tuple[SitePartition, str]:
    """Return the partition that was named, else the first that can give it, and why.

    Whole nodes come first for all GPUs of a node, a partition that shares its nodes for fewer; one for tests never.
    """
    if wish.partition is not None:
        candidates = [partition for partition in site.partitions if partition.name == wish.partition]
        if not candidates:
            raise UnknownNameError("partition", wish.partition, [partition.name for partition in site.partitions])
    else:
        whole = full or wish.exclusive
        work = [partition for partition in site.partitions if not partition.debug] or site.partitions
        candidates = sorted(work, key=lambda partition: partition.whole_nodes != whole)
    passed: list[str] = []
    for partition in candidates:
        against = [what for what, _ in _against(wish, partition)]
        if not against:
            tests = [other.name for other in site.partitions if other.debug and other not in candidates]
            return partition, _ASKED if wish.partition else _why(partition, passed, tests)
        passed.append(f"{partition.name} gives {' and '.join(against)}")
    closest = min(candidates, key=lambda partition: len(list(_against(wish, partition))))
    what, nearest = zip(*_against(wish, closest), strict=True)
    hint = f"the nearest: {' '.join(nearest)}"
    if other := next((entry for entry in site.partitions if not list(_against(wish, entry))), None):
        hint += f"; or --partition {other.name}"
    raise ShapeError(f"{closest.name} gives {' and '.join(what)}", hint=hint)


def _why(partition: SitePartition, passed: Sequence[str], tests: Sequence[str]) -> str:
    kind = "whole nodes" if partition.whole_nodes else "a part of nodes that others share"
    told = [f"the first that gives such a job, {kind}", *passed]
    if tests:
        told.append(f"{' and '.join(tests)} {'is' if len(tests) == 1 else 'are'} for tests, taken by --partition alone")
    return "; ".join(told)


def _against(wish: ShapeRequest, partition: SitePartition) -> Iterator[tuple[str, str]]:
    """Yield what a partition does not give of the wish, and the option that it would take."""
    if wish.nodes > partition.nodes:
        yield f"at most {count(partition.nodes, 'node')}, not {wish.nodes}", f"--nodes {partition.nodes}"
    if wish.nodes < partition.least_nodes:
        yield f"at least {count(partition.least_nodes, 'node')}, not {wish.nodes}", f"--nodes {partition.least_nodes}"
    nodes = min(max(wish.nodes, partition.least_nodes), partition.nodes)
    hours = partition.hours_for(nodes)
    limit_s = int(hours * 3600)
    if wish.time_s is not None and wish.time_s > limit_s:
        limit = duration(limit_s)
        of = f" to jobs of {count(nodes, 'node')}" if partition.steps else ""
        yield f"at most {hours:g} h{of}, not {duration(wish.time_s)}", f"--time {limit}"
