"""Which collective an image can run on GPUs, and its command, which is the same on every node.

It is run by the image's own torch, or by a small program of this project: the former is closest to what jobs will do.
Either must use the RCCL that is checked: a result for another one proves nothing.

On several nodes a launcher starts the command, once per node, with a folder that all nodes share; the ranks find each
other by Slurm's variables of the step and through that folder. Its environment is that of a job on the site.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.catalog.folders import shipped_layers
from lumiimg.check.probe.container import ALL_REDUCE, ProbePrograms
from lumiimg.host.container_view import TO_ENGINE, engine_env
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
"""Timeout of the ranks. Twenty rounds of 256 MiB take seconds on Slingshot, and a minute or two on TCP."""
MOUNTED = "/opt/lumiimg-run"
"""Where the folder of the run is in the container."""
LOGS = "logs"
"""Subfolder with what RCCL wrote, one file per process, and with the output that the launcher stored."""
RCCL_LOGS = "nccl.*"
"""Pattern of RCCL's files in it."""
_MEETING = "meeting"
_SCRIPT = "torch_allreduce.py"
_VARIABLES = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    "NCCL_DEBUG_FILE": f"{MOUNTED}/{LOGS}/nccl.%h.%p",
    "FI_LOG_LEVEL": "warn",
}


class CollectiveProgram(StrEnum):
    """Origin of the all-reduce."""

    TORCH = "the image's torch"
    OWN = "lumiimg's own all-reduce"


@dataclass(frozen=True, slots=True)
class Collective:
    """An all-reduce over all GPUs of all nodes."""

    program: CollectiveProgram
    words: tuple[str, ...]
    """Command in the container, the same on every node."""
    gpus: int
    """GPUs per node; the command starts one rank for each."""
    nodes: int
    rccl: str
    """The RCCL that is checked: its path in the container, without symlinks, as a process has it mapped."""
    without: str | None = None
    """A variable that it does not get, even if the image sets it."""
    version: str | None = None
    """Version of the RCCL that is checked."""
    inconclusive: str | None = None
    """Why a plugin that does not reach the fabric there proves nothing; None if it does."""

    @property
    def ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.gpus * self.nodes

    @property
    def argv(self) -> list[str]:
        """The command to start once on each node, in a container that has the prepared folder at `MOUNTED`."""
        unset = ["-u", self.without] if self.without else []
        setting = [f"{name}={value}" for name, value in _VARIABLES.items()]
        return ["/usr/bin/env", *unset, *setting, *self.words]


@dataclass(frozen=True, slots=True)
class CollectiveOutcome:
    """A collective that was run on GPUs."""

    program: CollectiveProgram
    """The program that was run."""
    nodes: int
    """Number of nodes that took part."""
    ranks: int
    """Number of ranks that took part."""
    verdict: Verdict
    """What its log says about the network: on one node RCCL selects one, but nothing crosses it."""
    confidence: Confidence
    """How well its log supports the verdict."""
    measurements: tuple[Measurement, ...]
    """Measurements of the bandwidth."""


def prepare(folder: Path) -> None:
    """Prepare the folder of a run: once, on the first node, before anything is started."""
    (folder / LOGS).mkdir()
    (folder / _MEETING).mkdir()
    shutil.copyfile(shipped_layers() / "netprobe" / _SCRIPT, folder / _SCRIPT)


def choose(image: Image, static: StaticResult, programs: ProbePrograms, *, gpus: int, nodes: int = 1) -> Collective:
    """Return the collective for an image; `programs` contain this project's all-reduce."""
    rccl = static.path.rccl
    assert rccl is not None  # noqa: S101 - without one there is nothing to run
    resolved, job = image.root.resolve_where_possible(rccl), static.job
    # how the ranks find each other, as options that both programs accept
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
    """Return the variables of jobs on a site that are not set here: a value that the user set is intended."""
    if site is None:
        return ()
    counts = engine_env(engine.family, environment)
    wanted = same_in_all_ranks(stack, site, nodes=nodes)
    return tuple(v for v in wanted if not any(f"{prefix}{v.name}" in counts for prefix in ("", *TO_ENGINE)))
