"""What somebody wants to run, and the shape that a site gives it: nodes, GPUs, time, partition; what comes nearest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import UnknownNameError
from lumiimg.catalog.launch import PARTITION, SitePartition
from lumiimg.cluster.nodes.slurm import duration
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.text import count
from lumiimg.host.manifest import Bind

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.resolve.venv import Venv

_ASKED = "as you asked"
_DEFAULT_S = 3600
_BIND_FORM = "--bind PATH, or SRC:DEST, or SRC:DEST:ro"


class ShapeError(FailedError):
    """A site cannot give a job of this shape; the hint is the nearest that it can."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What somebody wants to run; None where the site, the image or the command decides."""

    image: str
    """By the path that the job will see."""
    command: tuple[str, ...]
    """Word by word."""
    nodes: int = 1
    gpus: int | None = None
    """Of each node."""
    partition: str | None = None
    account: str | None = None
    time_s: int | None = None
    exclusive: bool = False
    """Nodes for the job alone, also in a partition that shares them."""
    framework: str | None = None
    torchrun: bool = False
    binds: tuple[str, ...] = ()
    """On top of the site's: `PATH` or `SRC:DEST[:ro]`."""
    caches: str | None = None
    """A folder that stays, for models and compiled kernels; None: the site's scratch."""
    venv: Venv | None = None
    """A Python environment to be bound."""


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


def shape_of(request: JobRequest, site: Site) -> Shape:
    """Return a shape that the site can give.

    Raises ShapeError for one that it cannot, UnknownNameError for a partition that it does not have, BadInputError for
    a name that no scheduler takes, or where the GPUs of a node are not known and were not named.
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
        what = f"a node of {site.name} has {count(node_gpus, 'GPU')}, {gpus} were asked for"
        raise ShapeError(what, hint=f"the nearest: --nodes {nodes} --gpus {node_gpus}")
    partition, because = None, _ASKED if request.partition else ""
    if site.partitions:
        partition, because = _partition(request, site, full=gpus == node_gpus)
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


def _partition(request: JobRequest, site: Site, *, full: bool) -> tuple[SitePartition, str]:
    """Return the partition that was named, else the first that can give it, and why.

    Whole nodes come first for all GPUs of a node, a partition that shares its nodes for fewer; one for tests never.
    """
    if request.partition is not None:
        candidates = [partition for partition in site.partitions if partition.name == request.partition]
        if not candidates:
            raise UnknownNameError("partition", request.partition, [partition.name for partition in site.partitions])
    else:
        whole = full or request.exclusive
        work = [partition for partition in site.partitions if not partition.debug] or site.partitions
        candidates = sorted(work, key=lambda partition: partition.whole_nodes != whole)
    objections = {partition.name: [*_objections(request, partition)] for partition in site.partitions}
    passed: list[str] = []
    for partition in candidates:
        if not objections[partition.name]:
            tests = [other.name for other in site.partitions if other.debug and other not in candidates]
            return partition, _ASKED if request.partition else _why(partition, passed, tests)
        passed.append(f"{partition.name} gives {' and '.join(what for what, _ in objections[partition.name])}")
    closest = min(candidates, key=lambda partition: len(objections[partition.name])).name
    what, nearest = zip(*objections[closest], strict=True)
    fits = next((f"; or --partition {name}" for name, against in objections.items() if not against), "")
    raise ShapeError(f"{closest} gives {' and '.join(what)}", hint=f"the nearest: {' '.join(nearest)}{fits}")


def _why(partition: SitePartition, passed: Sequence[str], tests: Sequence[str]) -> str:
    kind = "whole nodes" if partition.whole_nodes else "a part of nodes that others share"
    words = [f"the first that gives such a job, {kind}", *passed]
    if tests:
        words.append(
            f"{' and '.join(tests)} {'is' if len(tests) == 1 else 'are'} for tests, taken by --partition alone"
        )
    return "; ".join(words)


def _objections(request: JobRequest, partition: SitePartition) -> Iterator[tuple[str, str]]:
    """Yield what a partition does not give of the request, and the option that it would take."""
    if request.nodes > partition.nodes:
        yield f"at most {count(partition.nodes, 'node')}, not {request.nodes}", f"--nodes {partition.nodes}"
    if request.nodes < partition.least_nodes:
        yield (
            f"at least {count(partition.least_nodes, 'node')}, not {request.nodes}",
            f"--nodes {partition.least_nodes}",
        )
    nodes = min(max(request.nodes, partition.least_nodes), partition.nodes)
    hours = partition.hours_for(nodes)
    limit_s = int(hours * 3600)
    if request.time_s is not None and request.time_s > limit_s:
        limit = duration(limit_s)
        of = f" to jobs of {count(nodes, 'node')}" if partition.steps else ""
        yield f"at most {hours:g} h{of}, not {duration(request.time_s)}", f"--time {limit}"


def with_own(binds: Sequence[Bind], own: Iterable[str]) -> tuple[Bind, ...]:
    """Return the binds of a site with those of a user, who comes first where both have one target.

    Raises BadInputError for what is no `PATH` or `SRC:DEST[:ro]`, and for two with one target.
    """
    wanted: dict[str, Bind] = {}
    for text in own:
        bind = _read_bind(text)
        if wanted.setdefault(bind.target, bind) != bind:
            raise BadInputError("another bind has this target", where=f"--bind {text}", hint="name each target once")
    if not wanted:
        return tuple(binds)
    both = (*(bind for bind in binds if bind.target not in wanted), *wanted.values())
    # a folder before what is bound below it, which it would hide
    return tuple(sorted(both, key=lambda bind: bind.target.count("/")))


def _read_bind(text: str) -> Bind:
    source, *rest = text.split(":")
    target, flags = rest[0] if rest else source, rest[1:]
    faults = {
        "no path with a comma or a control character can be bound": "," in text or not text.isprintable(),
        "is more than a source, a target and `ro`": flags not in ([], ["ro"], ["rw"]),
        "is not an absolute path": not (source.startswith("/") and target.startswith("/")),
        "would hide the whole image": not target.strip("/"),
    }
    for fault, is_so in faults.items():
        if is_so:
            raise BadInputError(fault, where=f"--bind {text}", hint=_BIND_FORM)
    return Bind(source.rstrip("/") or "/", target.rstrip("/"), "as you asked (--bind)", read_only=flags == ["ro"])
