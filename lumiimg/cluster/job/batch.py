"""A job as a Slurm script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.cluster.job import script
from lumiimg.cluster.job.container import SLURM
from lumiimg.cluster.job.shape import duration
from lumiimg.cluster.job.topology import ranges
from lumiimg.cluster.shell_quote import comment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.job.plan import JobPlan


def slurm_script(plan: JobPlan) -> str:
    """Return the script. Raises BadInputError for a path that no engine takes."""
    return script.render(
        "job/slurm.sh",
        plan,
        SLURM,
        submit="sbatch --account=PROJECT FILE",
        number="$SLURM_JOB_ID",
        log="$LUMIIMG_JOB/nccl",
        once='srun --overlap --time=2 --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1',
        DIRECTIVES=_directives(plan),
        MASKS=_masks(plan),
        STEP=_step(plan),
    )


def _directives(plan: JobPlan) -> Iterator[str]:
    shape = plan.shape
    if shape.partition:
        yield from comment(f"{shape.partition}: {shape.because}")
        yield f"#SBATCH --partition={shape.partition}"
    if shape.account:
        yield f"#SBATCH --account={shape.account}"
    yield f"#SBATCH --nodes={shape.nodes}"
    yield f"#SBATCH --ntasks-per-node={plan.tasks}"
    yield f"#SBATCH --gpus-per-node={plan.request_gpus}"
    if shape.whole_nodes:
        yield "#SBATCH --exclusive"
        if plan.memory_gib and plan.shape.node_gpus:
            yield f"#SBATCH --mem={plan.memory_gib * plan.shape.node_gpus}G"
    else:
        if plan.cores:
            yield f"#SBATCH --cpus-per-task={plan.cores * shape.gpus // plan.tasks}"
        if plan.memory_gib:
            yield f"#SBATCH --mem-per-gpu={plan.memory_gib}G"
    yield f"#SBATCH --time={duration(shape.time_s)}"
    for option in script.options(plan):
        yield from comment(f"{option.because} ({option.source})")
        yield f"#SBATCH {option.value}"


def _masks(plan: JobPlan) -> Iterator[str]:
    if plan.topology is not None and not plan.torchrun:
        yield from comment(f"The cores beside each GPU, a bit a core ({plan.topology.binding.source})")
        yield "masks=("
        for place in plan.topology.places:
            yield f"    {plan.topology.mask(place)}  # GPU {place.local_rank}: cores {ranges(place.cores)}"
        yield ")"


def _step(plan: JobPlan) -> Iterator[str]:
    """Yield the options of srun; each has its reason above it."""
    yield from comment(plan.binding, "    ")
    if plan.topology is not None and not plan.torchrun:
        yield '    --cpu-bind="mask_cpu:$(IFS=, && echo "${masks[*]}")"'
    elif plan.shape.whole_nodes:
        yield "    --cpu-bind=none"
    elif plan.cores:
        yield f"    --cpus-per-task={plan.cores * plan.shape.gpus // plan.tasks}"
    if plan.mpi is not None:
        yield from comment(plan.mpi.because, "    ")
        yield f"    --mpi={plan.mpi.value}"
