"""What the GPUs of a node are for the runtime in an image, as `gpuprobe` prints it."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.context import open_for_check
from lumiimg.check.probe.container import GPU_PROBE, read_run
from lumiimg.check.probe.task import make_task
from lumiimg.check.static.files import check_files
from lumiimg.cluster.nodes.slurm import find_allocation, run_step, shared_folder
from lumiimg.cluster.trial.model import Measured
from lumiimg.cluster.trial.node_facts import snapshot_in
from lumiimg.core.errors import MissingHereError
from lumiimg.core.text import count
from lumiimg.engine.engine import find_engine
from lumiimg.host.snapshot import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.catalog.sites import Site
    from lumiimg.check.probe.container import ProbeRun

LIMIT_S = 120.0
"""Of the look at the GPUs; it takes seconds."""
_ENDS = {11: "its RCCL has no HSA among its dependencies", 20: "HSA finds no GPU"}
"""What gpuprobe ends with."""
_NO_GPU = 20
_ISA = "amdgcn-amd-amdhsa--"
"""What names of instruction sets begin with (LLVM AMDGPUUsage.rst, "Target Triples")."""
_TARGET = re.compile(r"[\w:+-]{1,80}", re.ASCII)
_SAID = 200
"""Characters of what a program says."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What the runtime in the container says of the GPUs of a node."""

    targets: tuple[str, ...] = ()
    """Of each: `gfx90a:sramecc+:xnack-`, as rocminfo prints it."""
    why: str = ""
    """Why there are none."""
    no_gpu: bool = False
    """Whether HSA has none: a job that was granted some may show more."""
    xnack: str | None = None
    """HSA_XNACK in the container, which changes the modes; None where it is not set."""


def gpus_of(path: Path, site: Site, nodes: Path, environment: Mapping[str, str]) -> GpuFacts:
    """Return what the GPUs of this job's first node are in an image.

    `nodes`: the folder in which the nodes have put what they show.

    Raises BadInputError for what is not an image, MissingHereError without a job, an engine or the program.
    """
    if (job := find_allocation(environment)) is None:
        raise MissingHereError("this is not in a job", hint="lumiimg trial run FOLDER")
    engine, found = find_engine(environment), snapshot_in(nodes)
    snapshot = read_snapshot(found) if found is not None else None
    with (
        open_for_check(path, environment, snapshot, site) as context,
        shared_folder() as folder,
        tempfile.TemporaryDirectory(dir=folder) as scratch,
    ):
        files = check_files(context)
        if (rccl := files.static.path.rccl) is None:
            raise MissingHereError("the image has no RCCL", where=str(path))
        task = make_task(engine, context, files, Path(scratch), programs=[GPU_PROBE])
        container = task.container(engine, environment)
        words = container.words([task.tools.command(GPU_PROBE), "--timeout", f"{LIMIT_S:.0f}", rccl])
        done = run_step(job.nodes[:1], words, container.environment, timeout_s=LIMIT_S + 60)
        container.require_start(done)
        return facts_of(read_run(GPU_PROBE, done))


def facts_of(probe: ProbeRun) -> GpuFacts:
    """Return what the program has printed."""
    names = (name for values in probe.all("isa") if (name := values.get("name")))
    why = next((text for event in probe.events if (text := event.get("error"))), "")
    if ended := probe.first("timeout") or probe.first("signal"):
        how = f"died of signal {ended['number']}" if "number" in ended else "ran out of time"
        why = f"it {how} in: {ended.get('during', '')}"
    elif not why and probe.exit_code != 0:
        why = _ENDS.get(probe.exit_code) or (probe.tail or ("it said nothing",))[-1]
    return GpuFacts(
        targets=tuple(name.removeprefix(_ISA) for name in names),
        why=why,
        no_gpu=probe.exit_code == _NO_GPU,
        xnack=probe.first("xnack").get("value"),
    )


def gpu_targets(facts: GpuFacts) -> Measured:
    """Return what the GPUs are for HSA in the container, beside what is predicted."""
    targets = Counter(filter(_TARGET.fullmatch, facts.targets))
    seen = "; ".join(f"{name} of {count(number, 'GPU')}" for name, number in sorted(targets.items()))
    if not targets:
        return Measured(None, facts.why[:_SAID] or "HSA shows no GPU in the container")
    if facts.xnack is not None:
        return Measured(None, f"HSA_XNACK={facts.xnack[:_SAID]} is set, and changes it: {seen}")
    if len(targets) > 1:
        return Measured(seen, "the GPUs of one node differ", same=False)
    return Measured(next(iter(targets)))
