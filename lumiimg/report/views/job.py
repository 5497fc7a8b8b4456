"""What `job` says beside the script: what to know of the job, and how the cores of each rank are found."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.core.findings import Advice, Severity
from lumiimg.core.text import count, ranges
from lumiimg.report.document import Document, Item, Lines, Paragraph, Section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.catalog.launch import SiteBinding
    from lumiimg.cluster.job.plan import JobPlan
    from lumiimg.cluster.job.topology import RankCores


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


def cores_document(plan: JobPlan) -> Document:
    """Return what `job --explain` says: how the cores of each rank are found, or why none is bound."""
    shape, binding = plan.shape, plan.binding
    where = f"{shape.partition} of {plan.site.name}" if shape.partition else plan.site.name
    nodes = "nodes of its own" if shape.whole_nodes else "nodes that others may share"
    because = [f"{shape.partition}: {shape.because}"] if shape.partition else []
    of_site = plan.site.binding if binding.ranks else None
    return Document(
        command="job --explain",
        subject=plan.request.image,
        sentence=f"{count(shape.nodes, 'node')} of {where}, {count(shape.gpus, 'GPU')} each: {nodes}",
        is_list=True,
        summary=(*because, binding.because, *([_source(plan, of_site)] if of_site else [])),
        sections=tuple(_sections(plan, of_site)) if of_site else (),
    )


def _source(plan: JobPlan, of_site: SiteBinding) -> str:
    parts = [f"{of_site.cores} cores in groups of {of_site.group}"]
    parts.append(f"kept for the system: {ranges(of_site.reserved) or 'none'}")
    if plan.helper_cores:
        parts.append(f"left to {of_site.spared_for}: {ranges(plan.helper_cores)}")
    return f"{'; '.join(parts)} ({of_site.source})"


def _sections(plan: JobPlan, of_site: SiteBinding) -> Iterator[Section]:
    by_list = plan.scheduler.name == "PBS"
    for rank in plan.binding.ranks:
        lines = tuple(_arithmetic(plan, of_site, rank, by_mask=not by_list))
        yield Section(f"GPU {rank.local_rank}: group {rank.group}", (Lines(lines),), is_headed=True)
    legend = "Core 0 is on the left, and the lowest bit of a mask: # of the rank, x kept, . other."
    cores = f"list:{':'.join(ranges(rank.cores) for rank in plan.binding.ranks)}"
    of_mpiexec = [Lines((cores,))] if by_list else []
    yield Section("All ranks", (*of_mpiexec, Paragraph(legend, quiet=True)))


def _arithmetic(plan: JobPlan, of_site: SiteBinding, rank: RankCores, *, by_mask: bool) -> Iterator[str]:
    kept = {*of_site.reserved, *plan.helper_cores}
    first = rank.group * of_site.group
    whole = range(first, first + of_site.group)
    left_out = kept.intersection(whole)
    without = f", without {ranges(left_out)}" if left_out else ""
    if of_site.gpus_of_group > 1:
        of_group = [other.local_rank for other in plan.binding.ranks if other.group == rank.group]
        part = of_group.index(rank.local_rank) + 1
        without += f"; part {part} of {of_site.gpus_of_group}, as {of_site.gpus_of_group} GPUs share it"
    sum_of = f"cores {rank.group} x {of_site.group} .. + {of_site.group} = {ranges(whole)}{without}"
    yield f"{sum_of}: {ranges(rank.cores)}"
    if by_mask:
        powers = " + ".join(f"2^{core}" for core in rank.cores[:2])
        more = f" + … + 2^{rank.cores[-1]}" if len(rank.cores) > 2 else ""
        yield f"{powers}{more} = {rank.mask}"
    # core 0 on the left, so it runs against the digits of the mask
    signs = "".join("#" if core in rank.cores else "x" if core in kept else "." for core in range(of_site.cores))
    yield " ".join(signs[start : start + of_site.group] for start in range(0, of_site.cores, of_site.group))
