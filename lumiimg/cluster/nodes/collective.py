"""A collective over all nodes of a job: what RCCL really uses between them, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.check.run.collective import LOGS, CollectiveProgram, choose, missing_here, prepare, tell, with_variables
from lumiimg.check.run.execution import LIMIT_S, OUTPUT, RunResult, judge
from lumiimg.cluster.nodes.slurm import run_step
from lumiimg.errors import MissingHereError
from lumiimg.nccl.node_names import folded
from lumiimg.nccl.report import Confidence, Verdict  # noqa: TC001 - schemas are made from the types of the fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.check.probe.tools import Tools
    from lumiimg.check.static.evidence import StaticResult
    from lumiimg.cluster.nodes.groups import FingerprintGroup
    from lumiimg.cluster.nodes.request import NodesRequest
    from lumiimg.engine.engine import Engine
    from lumiimg.image import Image

TOGETHER_LIMIT_S = LIMIT_S + 60.0
"""Of the step; a minute is for Slurm to start it."""
_ASK = "ask Slurm for all GPUs of each node: salloc --gpus-per-node=8, or --sbatch='--gpus-per-node=8'"


@dataclass(frozen=True, slots=True)
class CollectiveBandwidth:
    """What the collective's table says."""

    name: str
    """`all_reduce_perf`, `lumiimg-allreduce`, …"""
    best_gb_s: float | None
    """Bus bandwidth, 1e9 bytes a second."""


@dataclass(frozen=True, slots=True)
class NodesCollective:
    """A collective that was run over all nodes."""

    program: CollectiveProgram
    """What was run."""
    nodes: int
    """That took part."""
    ranks: int
    """That took part."""
    verdict: Verdict
    """Which network carried it."""
    confidence: Confidence
    """How well its log supports the verdict."""
    measurements: tuple[CollectiveBandwidth, ...]
    """Of the bandwidth."""


def shared_gpus(groups: Sequence[FingerprintGroup]) -> int:
    """Return how many GPUs each node of these groups has, as HIP says on the nodes themselves.

    Raises MissingHereError where they have none, or some have other than the rest.
    """
    if not groups:
        raise MissingHereError("no node could be probed")
    nodes_by_gpus: dict[int, list[str]] = {}
    for group in groups:
        nodes_by_gpus.setdefault(group.fingerprint.gpus or 0, []).extend(group.nodes)
    if nodes_by_gpus.keys() == {0}:
        why = next((group.details.no_gpu for group in groups if group.details.no_gpu), None)
        raise MissingHereError(why or "HIP finds no GPU in the container", hint=_ASK)
    if len(nodes_by_gpus) != 1:
        counts = (f"{gpus} on {folded(sorted(nodes))}" for gpus, nodes in sorted(nodes_by_gpus.items()))
        raise MissingHereError(f"the nodes have different numbers of GPUs: {', '.join(counts)}", hint=_ASK)
    return next(iter(nodes_by_gpus))


def without_nic(groups: Sequence[FingerprintGroup]) -> str | None:
    """Return why a collective over these nodes proves nothing of the image; None where each has a NIC to use."""
    of_groups = (g.nodes for g in groups if all(nic.link_is_up is False for nic in g.fingerprint.nics))
    nodes = sorted(node for nodes in of_groups for node in nodes)
    return f"no Slingshot NIC whose link is up on {folded(nodes)}" if nodes else None


def run_together(
    engine: Engine,
    request: NodesRequest,
    image: Image,
    static: StaticResult,
    environment: Mapping[str, str],
    tools: Tools,
    nodes: Sequence[str],
    folder: Path,
    *,
    gpus: int,
    version: str | None,
    excuse: str | None,
) -> RunResult:
    """Run the collective once on each of these nodes, with this number of GPUs each; this may be a login node.

    It has what a job on the site would set, but for `request.without`. `tools`: of `provide_all_reduce`. `folder` is
    seen by all nodes. `version`: of the RCCL that is looked at. `excuse`: why a plugin that does not get onto the
    fabric there proves nothing.
    """
    prepare(folder)
    collective = choose(image, static, environment, tools, gpus=gpus, nodes=len(nodes))
    collective = replace(collective, without=request.without)
    site, path = request.site, request.image
    wanted = missing_here(engine, image, site, environment, nodes=len(nodes))
    variables = tuple(variable for variable in wanted if variable.name != request.without)
    own = with_variables(engine, environment, variables)
    with (folder / LOGS / OUTPUT).open("wb") as log:
        ended = run_step(
            nodes,
            collective.command(engine, path, folder),
            own,
            timeout_s=TOGETHER_LIMIT_S,
            together=True,
            mpi="pmi2" if collective.needs_mpi else "none",
            log=log,
        )
    result = judge(folder / LOGS, ended, collective, version, site=site, excuse=excuse)
    tell(result.findings, site, variables)
    return result


def told_of(result: RunResult) -> NodesCollective:
    """Return a result for a report."""
    collective, report = result.collective, result.report
    return NodesCollective(
        program=collective.program,
        nodes=collective.nodes,
        ranks=collective.ranks,
        verdict=report.verdict,
        confidence=report.confidence,
        measurements=tuple(CollectiveBandwidth(m.name, m.best_gb_s) for m in report.measurements),
    )
