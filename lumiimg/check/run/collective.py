"""Which collective an image can run on GPUs, and the command for it: the same one, once on every node.

The image's own torch, or a small program of this project: what it brings itself says most of what its jobs will do.
Whichever it is, it must use the RCCL that is looked at: a proof for another one is none.

On several nodes a launcher starts the command, once per node, with a folder that all nodes share; the ranks find each
other by Slurm's variables of the step and through that folder. In its environment is what a job on the site would have.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.catalog.folders import shipped_layers
from lumiimg.check.probe.container import ALL_REDUCE, ProbePrograms
from lumiimg.host.container_view import TO_ENGINE, read_by
from lumiimg.joblog import Confidence, Measurement, Verdict  # noqa: TC001 - schemas are made from the types of the fields
from lumiimg.resolve.stack import same_in_all_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.catalog.launch import SiteVariable
    from lumiimg.catalog.sites import Site
    from lumiimg.check.static.process import StaticResult
    from lumiimg.engine.engine import Engine
    from lumiimg.image import Image
    from lumiimg.resolve.stack import Stack

TIMEOUT_S = 300
"""Of the ranks. Twenty rounds of 256 MiB take seconds on Slingshot, and a minute or two on TCP."""
MOUNTED = "/opt/lumiimg-run"
"""Where the folder of the run is in the container."""
LOGS = "logs"
"""In that folder: what RCCL wrote, one file per process, and what the launcher keeps of the output."""
RCCL_LOGS = "nccl.*"
"""Of them, those of RCCL."""
_MEETING = "meeting"
_SCRIPT = "torch_allreduce.py"
_VARIABLES = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    "NCCL_DEBUG_FILE": f"{MOUNTED}/{LOGS}/nccl.%h.%p",
    "FI_LOG_LEVEL": "warn",
}


class CollectiveProgram(StrEnum):
    """Whose all-reduce it is."""

    TORCH = "the image's torch"
    OWN = "lumiimg's own all-reduce"


@dataclass(frozen=True, slots=True)
class Collective:
    """An all-reduce over all GPUs of all nodes."""

    program: CollectiveProgram
    words: tuple[str, ...]
    """In the container, the same on every node."""
    gpus: int
    """Of a node; the command starts a rank for each."""
    nodes: int
    rccl: str
    """The RCCL that is looked at: its path in the container, without symlinks, as a process has it mapped."""
    without: str | None = None
    """A variable that it does not get, also where the image has it."""
    version: str | None = None
    """Of the RCCL that is looked at."""
    inconclusive: str | None = None
    """Why a plugin that does not get onto the fabric there proves nothing; None where it does."""

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.gpus * self.nodes

    @property
    def argv(self) -> list[str]:
        """What is started once on each node, in a container that has the prepared folder at `MOUNTED`."""
        unset = ["-u", self.without] if self.without else []
        setting = [f"{name}={value}" for name, value in _VARIABLES.items()]
        return ["/usr/bin/env", *unset, *setting, *self.words]


@dataclass(frozen=True, slots=True)
class CollectiveOutcome:
    """A collective that was run on GPUs."""

    program: CollectiveProgram
    """What was run."""
    nodes: int
    """That took part."""
    ranks: int
    """That took part."""
    verdict: Verdict
    """What its log says of the network: on one node RCCL selects one, and nothing crosses it."""
    confidence: Confidence
    """How well its log supports the verdict."""
    measurements: tuple[Measurement, ...]
    """Of the bandwidth."""


def prepare(folder: Path) -> None:
    """Lay out the folder of a run: once, on the first node, before anything is started."""
    (folder / LOGS).mkdir()
    (folder / _MEETING).mkdir()
    shutil.copyfile(shipped_layers() / "netprobe" / _SCRIPT, folder / _SCRIPT)


def choose(image: Image, static: StaticResult, programs: ProbePrograms, *, gpus: int, nodes: int = 1) -> Collective:
    """Return the collective for an image; `programs` have the all-reduce of this project."""
    rccl = static.path.rccl
    assert rccl is not None  # noqa: S101 - without one there is nothing to run
    resolved, job = image.root.resolve_where_possible(rccl), static.job
    # how the ranks find each other, as both programs with ranks of their own take it
    meet = ["--folder", f"{MOUNTED}/{_MEETING}", "--local", str(gpus), "--timeout", str(TIMEOUT_S)]
    meet += ["--slurm"] if nodes > 1 else []
    if job is not None and job.is_program and job.framework in {"torch", "vllm"}:
        program, words = CollectiveProgram.TORCH, [job.program, f"{MOUNTED}/{_SCRIPT}", *meet]
    else:
        program, words = CollectiveProgram.OWN, [programs.command(ALL_REDUCE), *meet, rccl]
    return Collective(program, tuple(words), gpus, nodes, resolved)


def missing_here(
    engine: Engine, stack: Stack, site: Site | None, environment: Mapping[str, str], *, nodes: int
) -> tuple[SiteVariable, ...]:
    """Return the variables of jobs on a site that are not set here: whoever has set one meant it."""
    if site is None:
        return ()
    counts = read_by(engine.family, environment)
    wanted = same_in_all_ranks(stack, site, nodes=nodes)
    return tuple(v for v in wanted if not any(f"{prefix}{v.name}" in counts for prefix in ("", *TO_ENGINE)))
