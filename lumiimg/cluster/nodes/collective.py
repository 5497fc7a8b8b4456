"""A collective over all nodes of a job: what RCCL really uses between them, and how fast it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.run.execution import LIMIT_S, Launcher
from lumiimg.cluster.nodes.slurm import run_step
from lumiimg.errors import MissingHereError
from lumiimg.nccl.node_names import folded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from lumiimg.check.run.collective import Collective
    from lumiimg.cluster.nodes.groups import FingerprintGroup
    from lumiimg.engine.process import Completed

TOGETHER_LIMIT_S = LIMIT_S + 60.0
"""Of the step; a minute is for Slurm to start it."""
_ASK = "ask Slurm for all GPUs of each node: salloc --gpus-per-node=8, or --sbatch='--gpus-per-node=8'"


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
        why = next((group.no_gpu for group in groups if group.no_gpu), None)
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


def step_on(nodes: Sequence[str]) -> Launcher:
    """Return what starts a collective once on each of these nodes; this may be a login node."""

    def start(
        collective: Collective, words: Sequence[str | Path], environment: Mapping[str, str], log: BinaryIO
    ) -> Completed:
        mpi = "pmi2" if collective.needs_mpi else "none"
        return run_step(nodes, words, environment, timeout_s=TOGETHER_LIMIT_S, together=True, mpi=mpi, log=log)

    return start
