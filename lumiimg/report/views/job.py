"""What `job` says beside the script: what to know of the job, and how the cores of each rank are found."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.job.topology import RankCores, Topology, picture
from lumiimg.core.findings import Advice, Severity
from lumiimg.core.text import count, ranges
from lumiimg.report.document import Document, Item, Lines, Paragraph, Section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.cluster.job.plan import JobPlan


def written_document(plan: JobPlan, script: Path) -> Document:
    """Return what is said where the script is in a file."""
    command = f"{'qsub' if plan.by_pbs else 'sbatch'} {shlex.quote(str(script))}"
    where = "with -A and your project" if plan.by_pbs else "with your project in SBATCH_ACCOUNT"
    return Document(
        command="job",
        subject=plan.image,
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
    shape = plan.shape
    where = f"{shape.partition} of {plan.site.name}" if shape.partition else plan.site.name
    nodes = "nodes of its own" if shape.whole_nodes else "nodes that others may share"
    because = [f"{shape.partition}: {shape.because}"] if shape.partition else []
    return Document(
        command="job --explain",
        subject=plan.image,
        sentence=f"{count(shape.nodes, 'node')} of {where}, {count(shape.gpus, 'GPU')} each: {nodes}",
        is_list=True,
        summary=(*because, plan.binding, *([] if plan.topology is None else [_source(plan.topology)])),
        sections=() if plan.topology is None else tuple(_sections(plan, plan.topology)),
    )


def _source(topology: Topology) -> str:
    binding = topology.binding
    parts = [f"{binding.cores} cores in groups of {binding.group}"]
    parts.append(f"kept for the system: {ranges(binding.reserved) or 'none'}")
    if topology.spared:
        parts.append(f"left to {binding.spared_for}: {ranges(topology.spared)}")
    return f"{'; '.join(parts)} ({binding.source})"


def _sections(plan: JobPlan, topology: Topology) -> Iterator[Section]:
    for place in topology.places:
        lines = tuple(_arithmetic(topology, place, by_mask=not plan.by_pbs))
        yield Section(f"GPU {place.local_rank}: group {place.group}", (Lines(lines),), is_headed=True)
    legend = "Core 0 is on the left, and the lowest bit of a mask: # of the rank, x kept, . other."
    cores = f"list:{':'.join(ranges(place.cores) for place in topology.places)}"
    of_mpiexec = [Lines((cores,))] if plan.by_pbs else []
    yield Section("All ranks", (*of_mpiexec, Paragraph(legend, quiet=True)))


def _arithmetic(topology: Topology, place: RankCores, *, by_mask: bool) -> Iterator[str]:
    binding = topology.binding
    first = place.group * binding.group
    whole = range(first, first + binding.group)
    kept = [core for core in whole if core in topology.kept]
    without = f", without {ranges(kept)}" if kept else ""
    if binding.gpus_of_group > 1:
        of_group = [other.local_rank for other in topology.places if other.group == place.group]
        part = of_group.index(place.local_rank) + 1
        without += f"; part {part} of {binding.gpus_of_group}, as {binding.gpus_of_group} GPUs share it"
    sum_of = f"cores {place.group} x {binding.group} .. + {binding.group} = {ranges(whole)}{without}"
    yield f"{sum_of}: {ranges(place.cores)}"
    if by_mask:
        powers = " + ".join(f"2^{core}" for core in place.cores[:2])
        more = f" + … + 2^{place.cores[-1]}" if len(place.cores) > 2 else ""
        yield f"{powers}{more} = {place.mask}"
    yield picture(topology, place.cores)
