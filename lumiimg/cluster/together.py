"""A collective over all nodes of a job: what RCCL really uses between them, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.check.run import LOGS
from lumiimg.check.running import LIMIT_S, OUTPUT, judge, set_up
from lumiimg.check.task import with_manifest
from lumiimg.cluster.slurm import run_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.evidence import StaticResult
    from lumiimg.check.running import RunResult
    from lumiimg.engine.engine import Engine
    from lumiimg.host.manifest import Manifest
    from lumiimg.image import Image

_STEP_S = 60.0
"""For Slurm to start the step."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the collective's table says."""

    name: str
    """`all_reduce_perf`, `lumiimg-allreduce`, …"""
    best_gb_s: float | None
    """Bus bandwidth, 1e9 bytes a second."""


@dataclass(frozen=True, slots=True)
class Together:
    """What a collective over several nodes came to; the findings say what it means."""

    program: str
    nodes: int
    ranks: int
    verdict: str
    confidence: str
    measurements: tuple[Measured, ...]


def run_together(
    engine: Engine,
    path: Path,
    image: Image,
    static: StaticResult,
    manifest: Manifest | None,
    environment: Mapping[str, str],
    nodes: Sequence[str],
    folder: Path,
    *,
    version: str | None,
    site: Site | None,
) -> RunResult:
    """Run the collective once on each of these nodes, of which this is one; `folder` is empty, and seen by all of them.

    `version`: of the RCCL that is looked at. Raises MissingHereError where HIP finds no GPU here.
    """
    binds, told = with_manifest(engine, environment, manifest)
    collective = set_up(engine, path, image, static, told, binds, folder, nodes=len(nodes))
    with (folder / LOGS / OUTPUT).open("wb") as log:
        ended = run_step(
            nodes,
            collective.command(engine, path, folder),
            told,
            timeout_s=LIMIT_S + _STEP_S,
            together=True,
            mpi="pmi2" if collective.needs_mpi else "none",
            log=log,
        )
    return judge(folder / LOGS, ended, collective, version, site=site, excuse=None)


def told_of(result: RunResult) -> Together:
    """Return a result for a report."""
    collective, report = result.collective, result.report
    return Together(
        program=collective.program.value,
        nodes=collective.nodes,
        ranks=collective.ranks,
        verdict=report.verdict.value,
        confidence=report.confidence.value,
        measurements=tuple(Measured(m.name, m.best_gb_s) for m in report.measurements),
    )
