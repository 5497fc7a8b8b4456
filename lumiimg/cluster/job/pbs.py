"""A job as a script of PBS, whose tasks are started by mpiexec of PALS, as on HPE Cray EX machines without Slurm.

Source: argonne-lcf/user-guides, docs/aurora/running-jobs-aurora.md; qsub(1B) of OpenPBS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.cluster.job import script
from lumiimg.cluster.job.container import PALS
from lumiimg.cluster.job.topology import ranges
from lumiimg.cluster.shell_quote import comment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.job.plan import JobPlan


def pbs_script(plan: JobPlan) -> str:
    """Return the script. Raises BadInputError for a path that no engine takes."""
    return script.render(
        "job/pbs.sh",
        plan,
        PALS,
        submit="qsub -A PROJECT FILE",
        number="$LUMIIMG_NUMBER${element:+-$element}",
        log="$LUMIIMG_JOB/ranks.log" if plan.site.vendor == "Intel" else "$LUMIIMG_JOB/nccl",
        once='mpiexec -n "$LUMIIMG_NODES" -ppn 1',
        DIRECTIVES=_directives(plan),
        ADDRESS=_address(plan),
        CORES=_cores(plan),
        STEP=_step(plan),
    )


def _directives(plan: JobPlan) -> Iterator[str]:
    shape = plan.shape
    hours, rest = divmod(shape.time_s, 3600)
    if shape.account:
        yield f"#PBS -A {shape.account}"
    if shape.partition:
        yield from comment(f"{shape.partition}: {shape.because}")
        yield f"#PBS -q {shape.partition}"
    yield f"#PBS -l select={shape.nodes}"
    yield f"#PBS -l walltime={hours:02}:{rest // 60:02}:{rest % 60:02}"
    for option in script.options(plan):
        yield from comment(f"{option.because} ({option.source})")
        yield f"#PBS {option.value}"


def _address(plan: JobPlan) -> Iterator[str]:
    domain = plan.site.domain
    over = ", by its name on the fast network" if domain else ""
    yield from comment(f"Where the ranks meet: the first node{over}")
    yield 'read -r first <"$PBS_NODEFILE"'
    yield f'export MASTER_ADDR="${{first%%.*}}.{domain}"' if domain else 'export MASTER_ADDR="$first"'


def _cores(plan: JobPlan) -> Iterator[str]:
    if plan.topology is not None and not plan.torchrun:
        yield from comment(f"The cores of each rank ({plan.topology.binding.source})")
        if plan.topology.spared:
            yield from comment(f"left to {plan.topology.binding.spared_for}: {ranges(plan.topology.spared)}")
        yield "cores=("
        for place in plan.topology.places:
            yield f"    {ranges(place.cores)}  # GPU {place.local_rank}"
        yield ")"


def _step(plan: JobPlan) -> Iterator[str]:
    """Yield the option of mpiexec that binds, with its reason above it."""
    bound = plan.topology is not None and not plan.torchrun
    yield from comment(plan.binding, "    ")
    yield '    --cpu-bind="list:$(IFS=: && echo "${cores[*]}")"' if bound else "    --cpu-bind=none"
