"""What `job` says beside the script: what to know of the job, and how it is submitted."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.core.findings import Advice, Severity
from lumiimg.report.document import Document, Item, Section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.cluster.job.plan import JobPlan


def written_document(plan: JobPlan, script: Path) -> Document:
    """Return what is said where the script is in a file."""
    command = f"{plan.scheduler.submit} {shlex.quote(str(script))}"
    is_slurm = plan.scheduler.name == "Slurm"
    where = "with your project in SBATCH_ACCOUNT" if is_slurm else "with -A and your project"
    return Document(
        command="job",
        subject=plan.request.image,
        sentence=f"wrote {script}",
        advice=Advice(None, command, None if plan.shape.account else where),
        sections=(Section("Notes", notes(plan)),),
    )


def notes(plan: JobPlan) -> Iterator[Item]:
    """Yield what to know of the job."""
    for note in plan.notes:
        yield Item(Severity.UNKNOWN, note)
