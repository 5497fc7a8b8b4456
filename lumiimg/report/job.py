"""What `lumiimg job` says beside the script: the arithmetic of cores and masks, and what to know of the job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from lumiimg.cluster.topology import picture, ranges
from lumiimg.errors import one_line
from lumiimg.report.console import console, wrapped
from lumiimg.wording import count

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from lumiimg.cluster.plan import JobPlan
    from lumiimg.cluster.topology import Place, Topology

SCHEMA = 1
_INDENT = "    "


def to_json(plan: JobPlan, script: str) -> dict[str, Any]:
    """Return the job as JSON data (schema 1)."""
    shape, topology = plan.shape, plan.topology
    return {
        "schema": SCHEMA,
        "image": plan.image,
        "site": plan.site.name,
        "shape": {
            "nodes": shape.nodes,
            "gpus": shape.gpus,
            "partition": shape.partition,
            "account": shape.account,
            "time_s": shape.time_s,
            "whole_nodes": shape.whole_nodes,
        },
        "framework": plan.framework.name,
        "launch": "torchrun" if plan.torchrun else "ray" if plan.ray else "srun",
        "ranks_per_node": plan.ranks,
        "command": list(plan.command),
        "binding": {
            "because": plan.binding,
            "ranks": [
                {"local_rank": place.local_rank, "group": place.group, "cores": list(place.cores), "mask": mask}
                for place, mask in zip(topology.places, topology.masks, strict=True)
            ]
            if topology
            else [],
        },
        "mpi": plan.mpi and {"value": plan.mpi.value, "because": plan.mpi.because},
        "environment": [
            {
                "name": setting.name,
                "value": setting.value,
                "scope": setting.scope.value,
                "because": setting.because,
                "source": setting.source,
            }
            for setting in plan.settings
        ],
        "binds": [{"source": bind.source, "target": bind.target, "reason": bind.reason} for bind in plan.binds],
        "notes": list(plan.notes),
        "script": script,
    }


def print_job(plan: JobPlan, written: Path | None) -> None:
    """Say on standard error what to know of the job, and what comes next."""
    out = console(stderr=True)
    for note in plan.notes:
        out.print(wrapped(out, one_line(f"note: {note}")), style="yellow")
    if written is not None:
        account = "" if plan.shape.account else "--account=PROJECT "
        out.print(one_line(f"written; next: sbatch {account}{shlex.quote(str(written))}"), soft_wrap=True)


def explain_job(plan: JobPlan, *, stderr: bool) -> None:
    """Show how the cores of each rank are found, or why none is bound."""
    out = console(stderr=stderr)
    shape = plan.shape
    where = f"{shape.partition} of {plan.site.name}" if shape.partition else plan.site.name
    nodes = "nodes of its own" if shape.whole_nodes else "nodes that others may share"
    told = f"{count(shape.nodes, 'node')} of {where}, {count(shape.gpus, 'GPU')} each: {nodes}"
    out.print(one_line(told), style="bold", soft_wrap=True)
    out.print(wrapped(out, one_line(plan.binding), first=_INDENT, rest=_INDENT))
    if plan.topology is None:
        return
    topology = plan.topology
    source = f"{topology.cores} cores in groups of {topology.group}; kept for the system: {ranges(topology.reserved)}"
    out.print(wrapped(out, one_line(f"{source} ({topology.source})"), first=_INDENT, rest=_INDENT), style="dim")
    for place in topology.places:
        _print_place(out, topology, place)
    out.print()
    legend = "core 0 is on the left, and the lowest bit of the mask: # in the mask, x kept for the system, . other"
    out.print(wrapped(out, legend), style="dim")


def _print_place(out: Console, topology: Topology, place: Place) -> None:
    first = place.group * topology.group
    whole = range(first, first + topology.group)
    kept = [core for core in whole if core in topology.reserved]
    without = f", without {ranges(kept)}" if kept else ""
    out.print(f"\nGPU {place.local_rank}: group {place.group}", style="bold")
    out.print(
        f"{_INDENT}cores {place.group} x {topology.group} .. + {topology.group} = {ranges(whole)}{without}: "
        f"{ranges(place.cores)}",
        soft_wrap=True,
    )
    powers = " + ".join(f"2^{core}" for core in place.cores[:2])
    more = f" + … + 2^{place.cores[-1]}" if len(place.cores) > 2 else ""
    out.print(f"{_INDENT}{powers}{more} = {topology.hex_of(place.mask)}", soft_wrap=True)
    out.print(f"{_INDENT}{picture(topology, place.cores)}", soft_wrap=True)
