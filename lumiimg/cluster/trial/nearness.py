"""What GPUs are for the runtime in an image, and what is beside each: memory and NICs, by measured bandwidth."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.opening import opened
from lumiimg.check.pipeline import check_files
from lumiimg.check.probe.container import read_events, read_run, require_start, tail
from lumiimg.check.probe.tools import ALL_REDUCE, GPU_PROBE, provide_tools
from lumiimg.check.run.collective import LOGS, missing_here, own_collective, prepare, with_variables
from lumiimg.check.run.execution import OUTPUT
from lumiimg.cluster.nodes.check import shared_folder
from lumiimg.cluster.nodes.collective import run_collective
from lumiimg.cluster.nodes.slurm import find_allocation, run_step
from lumiimg.cluster.trial.look import looks_in, snapshot_in
from lumiimg.engine.engine import exec_words, find_engine
from lumiimg.errors import MissingHereError
from lumiimg.files import read_beginning
from lumiimg.findings import Code
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.nccl.report import FAST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.catalog.sites import Site
    from lumiimg.check.probe.container import Event, ProbeRun
    from lumiimg.check.probe.tools import Tools
    from lumiimg.check.run.execution import RunResult
    from lumiimg.cluster.trial.values import Look
    from lumiimg.engine.engine import Engine
    from lumiimg.image import Image

_LIMIT_S = 120.0
"""Of the look at the GPUs; it takes seconds."""
_PAIR_S = 60
"""Of one all-reduce over one GPU and one NIC of each node; it takes seconds."""
_ALL_S = 540.0
"""After which no other pair is begun: the last one, and what is compiled first, fit into the limit of the step."""
_FAILURES = 2
"""After which no other pair is begun: those that are left would fail too, each at its limit."""
_MAX_OUTPUT = 1 << 20
_NO_HIP, _NO_GPU = 11, 20
"""What gpuprobe ends with."""
_GPU_NUMBER, _SPEED = re.compile(r"\d{1,4}", re.ASCII), re.compile(r"\d{1,9}", re.ASCII)
_MOST = 4
"""GPUs, and NICs, that are tried with each other."""
_ISA = "amdgcn-amd-amdhsa--"
"""What names of instruction sets begin with (LLVM AMDGPUUsage.rst, "Target Triples")."""
_OF_NICS = (ALL_REDUCE, GPU_PROBE)
"""The second one is not started: an image without it has an all-reduce of before `--device`."""
_BROKEN = frozenset({Code.RUN_HANG, Code.RUN_FAILED, Code.RUN_DATA_ERRORS})
"""An all-reduce that did not come to its end, or to the right sums."""
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
    """Why there are no more copies."""
    no_targets: str = ""
    """Why HSA names nothing."""
    no_gpu: bool = False
    """Whether HIP has none: a job that was granted some may show more."""
    variables: dict[str, str] = field(default_factory=dict)
    """Those in the container that number GPUs otherwise (ROCR_VISIBLE_DEVICES, …), or change their modes."""


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
    """Those that were made; some twice, where the first was not as predicted."""
    why: str = ""
    """Why there are no more."""
    variables: dict[str, str] = field(default_factory=dict)
    """As of the GPUs."""


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
        if _GPU_NUMBER.fullmatch(gpu) and _SPEED.fullmatch(mb_s):
            copies.append(MemoryCopy(int(gpu), values.get("cores", ""), int(mb_s) / 1000))
    names = (name for values in told.all("isa") if (name := values.get("name")))
    return GpuFacts(
        targets=tuple(name.removeprefix(_ISA) for name in names),
        copies=tuple(copies),
        why=_stopped_by(told),
        no_targets=(told.first("hsa") or {}).get("error", ""),
        no_gpu=told.exit_code == _NO_GPU,
        variables=_variables(told.events),
    )


def _stopped_by(told: ProbeRun) -> str:
    """Return what kept the program from all of its copies."""
    if (ended := told.first("timeout") or told.first("signal")) is not None:
        how = f"died of signal {ended['number']}" if "number" in ended else "ran out of time"
        return f"it {how} in: {ended.get('during', '')}"
    if (error := _failure(event for event in told.events if event.topic != "hsa")) or told.exit_code == 0:
        return error
    known = {_NO_HIP: "its RCCL has no HIP among its dependencies", _NO_GPU: "HIP finds no GPU"}
    return known.get(told.exit_code) or (tail(told) or ("it said nothing",))[-1]


def _failure(events: Iterable[Event]) -> str:
    """Return what failed first, with the function of HIP that did; nothing where nothing did."""
    for event in events:
        code = event.values.get("rc", "0")
        if text := event.values.get("error") or (f"it returned {code}" if code != "0" else ""):
            return f"{event.topic}: {text}" if event.topic.startswith("hip") else text
    return ""


def _variables(events: Iterable[Event]) -> dict[str, str]:
    """Return the variables that programs have seen, of those that change what GPUs are; all values, if they differ."""
    found: dict[str, set[str]] = {}
    for event in events:
        if event.topic == "set" and (name := event.values.get("name")):
            found.setdefault(name, set()).add(event.values.get("value", ""))
    return {name: " and ".join(sorted(values)) for name, values in found.items()}


def nics_of(path: Path, site: Site, looks: Path, environment: Mapping[str, str]) -> NicFacts:
    """Return how fast each of some GPUs of two nodes is over each of their NICs alone.

    One GPU is tried of those that have the same cores beside them. `looks`: as of `gpus_of`.

    Raises BadInputError for what is not an image, MissingHereError without a job of two nodes, an engine, a compiler.
    """
    start = time.monotonic()
    seen = looks_in(looks)
    if not seen:
        raise MissingHereError("no node has shown its NICs yet")
    gpus = gpus_to_try(seen[0])
    nics = nics_to_try(seen, gpus)
    if len(nics) < 2:
        return NicFacts(why=f"the nodes have {len(nics)} of Slingshot's NICs in common whose link is up: it takes two")
    runs: list[NicRun] = []
    told: list[Event] = []
    why = ""
    with _ready(path, site, looks, environment) as ready:
        if len(ready.nodes) < 2:
            raise MissingHereError("the job has one node, and a network is used from two on")
        programs = ready.folder / "programs"
        programs.mkdir()
        tools = provide_tools(ready.engine, path, ready.image, ready.environment, programs, _OF_NICS)
        tools = replace(tools, binds=(*tools.binds, *ready.binds))
        for gpu, nic in _pairs(gpus, nics, seen[0], runs):
            if time.monotonic() - start > _ALL_S:
                why = f"{len(runs)} were tried in {_ALL_S / 60:.0f} minutes"
            elif sum(run.gb_s is None for run in runs) >= _FAILURES:
                why = f"after {_FAILURES} that failed no other was tried"
            else:
                runs.append(_over(ready, path, site, tools, gpu, nic, told))
                continue
            break
    return NicFacts(tuple(runs), why, _variables(told))


def _pairs(gpus: Iterable[int], nics: Iterable[str], look: Look, runs: Iterable[NicRun]) -> Iterator[tuple[int, str]]:
    """Yield each GPU with each NIC; then, where another NIC than its own was faster, both again: that may be noise.

    `runs`: those that were made so far, which grow with what this yields.
    """
    yield from ((gpu, nic) for gpu in gpus for nic in nics)
    for gpu in gpus:
        speeds = {run.nic: run.gb_s for run in runs if run.gpu == gpu and run.gb_s is not None}
        own = own_nics(look, gpu) & speeds.keys()
        fastest = max(speeds, key=lambda nic: speeds[nic], default="")
        if own and fastest not in own:
            yield gpu, fastest
            yield gpu, max(own, key=lambda nic: speeds[nic])


def gpus_to_try(look: Look) -> tuple[int, ...]:
    """Return a GPU of each of the NUMA nodes beside some; where the kernel does not say, the first GPUs."""
    first = {cores: gpu for gpu, cores in reversed([*enumerate(look.near)]) if cores}
    return tuple(sorted(first.values()))[:_MOST] or tuple(range(max(1, min(len(look.gpus), _MOST))))


def nics_to_try(looks: Iterable[Look], gpus: Iterable[int]) -> list[str]:
    """Return NICs that all nodes have: first those in the NUMA nodes of these GPUs."""
    common = set.intersection(*(set(look.nics) for look in looks))
    own = {nic for look in looks for gpu in gpus for nic in own_nics(look, gpu)}
    return sorted(common, key=lambda nic: (nic not in own, len(nic), nic))[:_MOST]


def own_nics(look: Look, gpu: int) -> set[str]:
    """Return the NICs that the kernel has in the NUMA node of a GPU; none where it names no cores for it."""
    cores = look.near[gpu] if gpu < len(look.near) else ""
    return {nic for nic, beside in look.nics.items() if cores and beside == cores}


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
    if (job := find_allocation(environment)) is None:
        raise MissingHereError("this is not in a job", hint="lumiimg trial run FOLDER")
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


def _over(ready: _Ready, path: Path, site: Site, tools: Tools, gpu: int, nic: str, told: list[Event]) -> NicRun:
    """Run an all-reduce of one GPU of each node over one NIC; `told` gets what its ranks print for us."""
    engine, rccl = ready.engine, ready.rccl
    together = own_collective(ready.image, rccl, tools, gpus=1, nodes=2, device=gpu, timeout_s=_PAIR_S)
    set_there = missing_here(engine, ready.image, site, ready.environment, nodes=2)
    environment = with_variables(engine, ready.environment, set_there) | {f"{engine.prefix}ENV_{_DEVICE}": nic}
    with tempfile.TemporaryDirectory(dir=ready.folder) as name:
        prepare(Path(name))
        nodes, limit_s = ready.nodes[:2], _PAIR_S + 60.0
        result = run_collective(engine, path, together, environment, nodes, Path(name), limit_s=limit_s, site=site)
        printed = read_beginning(Path(name) / LOGS / OUTPUT, _MAX_OUTPUT).decode(errors="replace")
    events = read_events(printed)
    told += events
    run = _told(result, gpu, nic)
    return replace(run, why=_failure(events) or run.why) if run.gb_s is None else run


def _told(result: RunResult, gpu: int, nic: str) -> NicRun:
    best = max((one.best_gb_s for one in result.report.measurements if one.best_gb_s), default=None)
    broken = next((finding.summary for finding in result.findings.found if finding.id in _BROKEN), None)
    if best is None or broken is not None:  # what came before it broke is the bandwidth of small messages
        return NicRun(gpu, nic, None, broken or "it gave no result")
    if result.report.verdict not in FAST:
        return NicRun(gpu, nic, None, f"it went over {result.report.verdict}")
    if (nics := result.report.transport.nics) not in {None, 1}:
        return NicRun(gpu, nic, None, f"RCCL had {nics} NICs in spite of {_DEVICE}={nic}")
    return NicRun(gpu, nic, best)
