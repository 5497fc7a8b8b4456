"""What GPUs are for the runtime in an image, and what is beside each: memory and NICs, by measured bandwidth."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.opening import opened
from lumiimg.check.pipeline import check_files
from lumiimg.check.probe.container import read_run, require_start, tail
from lumiimg.check.probe.tools import ALL_REDUCE, GPU_PROBE, provide_tools
from lumiimg.check.run.collective import missing_here, own_collective, prepare, with_variables
from lumiimg.cluster.nodes.check import shared_folder
from lumiimg.cluster.nodes.collective import run_collective
from lumiimg.cluster.nodes.slurm import find_allocation, run_step
from lumiimg.cluster.trial.look import looks_in, snapshot_in
from lumiimg.engine.engine import exec_words, find_engine
from lumiimg.errors import MissingHereError
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.nccl.report import FAST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.catalog.sites import Site
    from lumiimg.check.probe.container import ProbeRun
    from lumiimg.check.probe.tools import Tools
    from lumiimg.check.run.execution import RunResult
    from lumiimg.cluster.nodes.slurm import Allocation
    from lumiimg.cluster.trial.values import Look
    from lumiimg.engine.engine import Engine
    from lumiimg.image import Image

_LIMIT_S = 240.0
_PAIR_S = 60
"""Of one all-reduce over one GPU and one NIC of each node; it takes seconds."""
_ALL_S = 600.0
"""After which no other pair is begun."""
_MOST = 4
"""GPUs, and NICs, that are tried with each other."""
_ISA = "amdgcn-amd-amdhsa--"
"""What names of instruction sets begin with (LLVM AMDGPUUsage.rst, "Target Triples")."""
_DEVICE = "FI_CXI_DEVICE_NAME"
"""The NICs that libfabric uses, of all (fi_cxi(7))."""


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """A copy to a GPU, from memory of one NUMA node."""

    gpu: int
    """Its number for HIP."""
    cores: str
    """Of the NUMA node, as the kernel lists them: `48-63,112-127`."""
    gb_s: float
    """1e9 bytes a second."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What the runtime in the container says of the GPUs of a node."""

    targets: tuple[str, ...] = ()
    """Of each: `gfx90a:sramecc+:xnack-`, as rocminfo prints it."""
    copies: tuple[MemoryCopy, ...] = ()
    """To each from each NUMA node."""
    why: str = ""
    """What failed."""


@dataclass(frozen=True, slots=True)
class NicRun:
    """An all-reduce of two nodes over one GPU and one NIC of each."""

    gpu: int
    """Its number for HIP."""
    nic: str
    """`cxi0`."""
    gb_s: float | None
    """Bus bandwidth, 1e9 bytes a second; None where the NIC did not carry it."""
    why: str = ""
    """Why there is none."""


@dataclass(frozen=True, slots=True)
class NicFacts:
    """Each of some GPUs over each of some NICs."""

    runs: tuple[NicRun, ...] = ()
    """Those that were made."""
    why: str = ""
    """Why there are no more."""


def gpus_of(path: Path, site: Site, looks: Path, environment: Mapping[str, str]) -> GpuFacts:
    """Return what the GPUs of this job's first node are in an image, and from where memory reaches them fastest.

    `looks`: the folder in which the nodes have put what they show.

    Raises BadInputError for what is not an image, MissingHereError without a job, an engine or the program.
    """
    with _ready(path, site, looks, environment) as ready, tempfile.TemporaryDirectory(dir=ready.folder) as scratch:
        tools = provide_tools(ready.engine, path, ready.image, ready.environment, Path(scratch), [GPU_PROBE])
        argv = [tools.command(GPU_PROBE), "--timeout", f"{_LIMIT_S:.0f}", ready.rccl]
        words = exec_words(ready.engine, path, argv, binds=(*tools.binds, *ready.binds))
        done = run_step(ready.nodes[:1], words, ready.environment, timeout_s=_LIMIT_S + 60)
        require_start(ready.engine, path, ready.environment, done)
        return facts_of(read_run(GPU_PROBE, done))


def facts_of(told: ProbeRun) -> GpuFacts:
    """Return what the program has printed; a line that is not as it prints them is passed over."""
    copies = []
    for values in told.all("copy"):
        gpu, mb_s = values.get("gpu", ""), values.get("mb_s", "")
        if gpu.isdecimal() and mb_s.isdecimal():
            copies.append(MemoryCopy(int(gpu), values.get("cores", ""), int(mb_s) / 1000))
    names = (name for values in told.all("isa") if (name := values.get("name")))
    failed = next((event.values["error"] for event in told.events if event.values.get("error")), "")
    if not failed and told.exit_code != 0:
        failed = (tail(told) or ("it said nothing",))[-1]
    return GpuFacts(tuple(name.removeprefix(_ISA) for name in names), tuple(copies), failed)


def nics_of(path: Path, site: Site, looks: Path, environment: Mapping[str, str]) -> NicFacts:
    """Return how fast each of some GPUs of two nodes is over each of their NICs alone.

    One GPU is tried of those that have the same cores beside them. `looks`: as of `gpus_of`.

    Raises BadInputError for what is not an image, MissingHereError without a job of two nodes, an engine, a compiler.
    """
    seen = looks_in(looks)
    if not seen:
        raise MissingHereError("no node has shown its NICs yet")
    nics, gpus = sorted(set.intersection(*(set(look.nics) for look in seen)))[:_MOST], gpus_to_try(seen[0])
    if len(nics) < 2:
        return NicFacts(
            why=f"the nodes have {len(nics)} of Slingshot's NICs with a link in common: two can be compared"
        )
    runs: list[NicRun] = []
    with _ready(path, site, looks, environment) as ready:
        if len(ready.nodes) < 2:
            raise MissingHereError("the job has one node, and a network is used from two on")
        programs = ready.folder / "programs"
        programs.mkdir()
        tools = provide_tools(ready.engine, path, ready.image, ready.environment, programs, [ALL_REDUCE])
        tools = replace(tools, binds=(*tools.binds, *ready.binds))
        start = time.monotonic()
        for gpu in gpus:
            for nic in nics:
                if time.monotonic() - start > _ALL_S:
                    return NicFacts(tuple(runs), f"{len(runs)} of {len(gpus) * len(nics)} were tried in ten minutes")
                runs.append(_over(ready, path, site, tools, gpu, nic))
    return NicFacts(tuple(runs))


def gpus_to_try(look: Look) -> tuple[int, ...]:
    """Return a GPU of each of the NUMA nodes beside some; where the kernel does not say, the first GPUs."""
    first = {cores: gpu for gpu, cores in reversed([*enumerate(look.near)]) if cores}
    return tuple(sorted(first.values()))[:_MOST] or tuple(range(max(1, min(len(look.gpus), _MOST))))


@dataclass(frozen=True, slots=True)
class _Ready:
    """An image on the nodes of a job, as a check has it there."""

    engine: Engine
    image: Image
    rccl: str
    environment: dict[str, str]
    binds: tuple[tuple[str, str], ...]
    nodes: tuple[str, ...]
    folder: Path


@contextlib.contextmanager
def _ready(path: Path, site: Site, looks: Path, environment: Mapping[str, str]) -> Iterator[_Ready]:
    job = _job(environment)
    engine, found = find_engine(environment), snapshot_in(looks)
    snapshot = read_snapshot(found) if found is not None else None
    with opened(path, environment, snapshot) as image, shared_folder() as folder:
        boundary = check_files(path, image, environment, snapshot, None, site)
        if (rccl := boundary.static.path.rccl) is None:
            raise MissingHereError("the image has no RCCL", where=str(path))
        manifest = boundary.manifest
        binds = tuple((bind.source, bind.target) for bind in (manifest.binds if manifest else ()))
        told = {f"{engine.prefix}ENV_{item.name}": item.value for item in (manifest.variables if manifest else ())}
        yield _Ready(engine, image, rccl, {**environment, **told}, binds, job.nodes, folder)


def _job(environment: Mapping[str, str]) -> Allocation:
    job = find_allocation(environment)
    if job is None:
        raise MissingHereError("this is not in a job", hint="lumiimg trial run FOLDER")
    return job


def _over(ready: _Ready, path: Path, site: Site, tools: Tools, gpu: int, nic: str) -> NicRun:
    """Run an all-reduce of one GPU of each node over one NIC."""
    engine, rccl = ready.engine, ready.rccl
    together = own_collective(ready.image, rccl, tools, gpus=1, nodes=2, device=gpu, timeout_s=_PAIR_S)
    variables = missing_here(engine, ready.image, site, ready.environment, nodes=2)
    environment = with_variables(engine, ready.environment, variables) | {f"{engine.prefix}ENV_{_DEVICE}": nic}
    with tempfile.TemporaryDirectory(dir=ready.folder) as name:
        prepare(Path(name))
        nodes, limit_s = ready.nodes[:2], _PAIR_S + 60.0
        result = run_collective(engine, path, together, environment, nodes, Path(name), limit_s=limit_s, site=site)
    return _told(result, gpu, nic)


def _told(result: RunResult, gpu: int, nic: str) -> NicRun:
    best = max((one.best_gb_s for one in result.report.measurements if one.best_gb_s), default=None)
    if best is None:
        failed = next((finding.summary for finding in result.findings.found), "it gave no result")
        return NicRun(gpu, nic, None, failed)
    if result.report.verdict not in FAST:
        return NicRun(gpu, nic, None, f"it went over {result.report.verdict}")
    return NicRun(gpu, nic, best)
