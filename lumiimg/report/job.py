"""What `lumiimg job` says beside the script: the arithmetic of cores and masks, and what to know of the job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.job.topology import RankCores, Topology, picture, ranges
from lumiimg.report.console import INDENT, Console, console, detail, headline, proposal, say, verbatim
from lumiimg.wording import count

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.cluster.job.plan import JobPlan


def print_job(plan: JobPlan, written: Path | None) -> None:
    """Say on standard error what to know of the job, and what comes next."""
    out = console(stderr=True)
    for note in plan.notes:
        say(out, f"note: {note}", style="yellow")
    if written is not None:
        where = "with -A and your project" if plan.by_pbs else "with your project in SBATCH_ACCOUNT"
        headline(out, f"wrote {written}")
        command = f"{'qsub' if plan.by_pbs else 'sbatch'} {shlex.quote(str(written))}"
        proposal(out, command, word="next" if plan.shape.account else f"next, {where}")


def explain_job(plan: JobPlan, *, stderr: bool) -> None:
    """Show how the cores of each rank are found, or why none is bound."""
    out = console(stderr=stderr)
    shape = plan.shape
    where = f"{shape.partition} of {plan.site.name}" if shape.partition else plan.site.name
    nodes = "nodes of its own" if shape.whole_nodes else "nodes that others may share"
    headline(out, f"{count(shape.nodes, 'node')} of {where}, {count(shape.gpus, 'GPU')} each: {nodes}")
    if shape.partition:
        detail(out, f"{shape.partition}: {shape.because}", style="dim")
    detail(out, plan.binding)
    if plan.topology is None:
        return
    topology, binding = plan.topology, plan.topology.binding
    reserved = ranges(binding.reserved) or "none"
    source = f"{binding.cores} cores in groups of {binding.group}; kept for the system: {reserved}"
    if topology.spared:
        source += f"; left to {binding.spared_for}: {ranges(topology.spared)}"
    detail(out, f"{source} ({binding.source})", style="dim")
    for place in topology.places:
        _print_place(out, topology, place, by_mask=not plan.by_pbs)
    out.print()
    if plan.by_pbs:
        verbatim(out, f"{INDENT}list:{':'.join(ranges(place.cores) for place in topology.places)}")
    say(out, "core 0 is on the left, and the lowest bit of a mask: # of the rank, x kept, . other", style="dim")


def _print_place(out: Console, topology: Topology, place: RankCores, *, by_mask: bool) -> None:
    binding = topology.binding
    first = place.group * binding.group
    whole = range(first, first + binding.group)
    kept = [core for core in whole if core in topology.kept]
    without = f", without {ranges(kept)}" if kept else ""
    if binding.gpus_of_group > 1:
        of_group = [other.local_rank for other in topology.places if other.group == place.group]
        part = of_group.index(place.local_rank) + 1
        without += f"; part {part} of {binding.gpus_of_group}, as {binding.gpus_of_group} GPUs share it"
    out.print(f"\nGPU {place.local_rank}: group {place.group}", style="bold")
    sum_of = f"cores {place.group} x {binding.group} .. + {binding.group} = {ranges(whole)}{without}"
    detail(out, f"{sum_of}: {ranges(place.cores)}")
    powers = " + ".join(f"2^{core}" for core in place.cores[:2])
    more = f" + … + 2^{place.cores[-1]}" if len(place.cores) > 2 else ""
    if by_mask:
        detail(out, f"{powers}{more} = {topology.mask(place)}")
    verbatim(out, f"{INDENT}{picture(topology, place.cores)}")
