"""What the steps of a trial have left, read back as what it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.report import NodesReport
from lumiimg.cluster.trial.claims import HERE, NODES
from lumiimg.cluster.trial.gpu_targets import GpuFacts
from lumiimg.cluster.trial.look import looks_in
from lumiimg.core.decode import DecodeError, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import Look, Record, TrialPlan


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    """What Slurm says of itself."""

    partitions: dict[str, float | None] = field(default_factory=dict)
    """The longest job of each in hours; None: there is no limit."""
    default: str | None = None
    """The partition of jobs that name none."""
    mpi: tuple[str, ...] = ()
    """What `srun --mpi=` takes."""


@dataclass(frozen=True, slots=True)
class TrialCase:
    """All that there is to judge claims by."""

    plan: TrialPlan
    records: Mapping[str, Record]
    looks: tuple[Look, ...] = ()
    slurm: SlurmFacts | None = None
    reports: Mapping[str, NodesReport] = field(default_factory=dict)
    """Of the steps that are a check on nodes, by their names."""
    gpus: Mapping[str, GpuFacts] = field(default_factory=dict)
    """Of the steps that look at GPUs."""
    unread: frozenset[str] = frozenset()
    """Steps whose output is not what they print."""


def read_case(folder: TrialFolder, plan: TrialPlan) -> TrialCase:
    """Read what there is; output that cannot be read is named. Raises BadInputError for a record that is none."""
    records = {step.name: record for step in plan.steps if (record := folder.record(step.name)) is not None}
    slurm, reports, gpus, unread = None, {}, {}, set()
    for step in plan.steps:
        if step.name not in records or step.name == NODES or not (output := folder.output(step.name)):
            continue
        try:
            if step.name == HERE:
                slurm = decode(output, SlurmFacts)
            elif step.words[0] == "check":
                reports[step.name] = decode(output, NodesReport)
            elif "--gpus-in" in step.words:
                gpus[step.name] = decode(output, GpuFacts)
        except DecodeError:
            unread.add(step.name)
    looks = looks_in(folder.looks)
    return TrialCase(plan, records, looks, slurm, reports, gpus, frozenset(unread))
