"""A job as a Slurm script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.container import SLURM, files
from lumiimg.cluster.plan import Scope
from lumiimg.cluster.shape import duration
from lumiimg.cluster.topology import ranges
from lumiimg.cluster.words import comment, value, word
from lumiimg.errors import BadInputError
from lumiimg.host.inside import BindSpec
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.container import JobFile
    from lumiimg.cluster.plan import JobPlan

_SHELLS = {"sh": "sh", "py": "python3"}
# what a user writes is meant as it is: `$` and `\` in single quotes, quotation marks of a text
_AS_WRITTEN = "# shellcheck disable=SC1003,SC1110,SC1111,SC1112,SC2016"


def slurm_script(plan: JobPlan) -> str:
    """Return the script. Raises BadInputError for a path that no engine takes."""
    written = files(plan, SLURM)
    lines = ["#!/bin/bash", *_head(plan), *_directives(plan), "", "set -euo pipefail"]
    lines += [': "${SLURM_JOB_ID:?this is a job script: sbatch takes it}"', ""]
    lines += [_AS_WRITTEN, f"image={word(_path(plan.image))}"]
    lines += [_AS_WRITTEN, f"command=({' '.join(map(word, plan.command))})", ""]
    lines += [*_folder(), "", *_address(), "", *_variables(plan)]
    for file in written:
        lines += ["", *_heredoc(file)]
    lines += ["", *_container(plan), "", *_step(plan), "", *_run(written), "", *_log()]
    return "\n".join(lines) + "\n"


def _head(plan: JobPlan) -> Iterator[str]:
    shape = plan.shape
    how = "torchrun" if plan.torchrun else "Ray" if plan.ray else "srun"
    what = "a rank a GPU" if plan.framework.task_a_gpu else "one program"
    told = (
        f"{plan.framework.title}: {count(shape.nodes, 'node')} of {plan.site.name}, {count(shape.gpus, 'GPU')} each; "
    )
    yield from comment(f"{told}{what}, started by {how}")
    yield from comment(f"{plan.framework.because} ({plan.chosen})")
    yield from comment(
        f"Written by lumiimg {__version__} from what is known of {plan.site.name} ({plan.site.date}); never run there "
        "by the project."
    )
    for note in plan.notes:
        yield from comment(f"Note: {note}.")
    if shape.account is None:
        yield from comment("Submit it with: sbatch --account=PROJECT FILE")


def _directives(plan: JobPlan) -> Iterator[str]:
    shape = plan.shape
    if shape.partition:
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


def _folder() -> Iterator[str]:
    yield from comment("What belongs to this job: the files below, and what RCCL tells of its network")
    yield 'export LUMIIMG_JOB="$PWD/lumiimg-$SLURM_JOB_ID"'
    yield 'mkdir -p "$LUMIIMG_JOB/nccl"'


def _address() -> Iterator[str]:
    yield from comment("Where the ranks meet: the first node, asked here, as there is no scontrol in the container")
    yield 'read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
    yield "export MASTER_ADDR"
    yield from comment(
        "a port of the job's own: above those of Ray's workers (10002 to 19999), below those that the kernel gives away"
    )
    yield "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"


def _variables(plan: JobPlan) -> Iterator[str]:
    yield from comment("Only what is written below is bound: nothing of a module or a profile comes over it")
    yield "unset {SINGULARITY,APPTAINER}{_BIND,_BINDPATH,ENV_LD_LIBRARY_PATH}"
    for setting in plan.in_scope(Scope.JOB):
        yield from comment(f"{setting.because} ({setting.source})")
        yield f"export {setting.name}={value(setting.value, literal=setting.literal)}"


def _heredoc(file: JobFile) -> Iterator[str]:
    end = f"END_OF_{file.name.upper().replace('.', '_')}"
    yield from comment(file.about)
    yield f"cat >\"$LUMIIMG_JOB/{file.name}\" <<'{end}'"
    yield from file.text.splitlines()
    yield end


def _container(plan: JobPlan) -> Iterator[str]:
    yield "container=("
    yield f"    {plan.program} exec"
    yield from comment("the folder of this job", "    ")
    yield '    --bind "$LUMIIMG_JOB"'
    for bind in plan.binds:
        spec = BindSpec(bind.source, bind.target)
        if not str(spec).isprintable():
            raise BadInputError("a path with such characters cannot be bound", where=bind.source)
        yield from comment(bind.reason, "    ")
        yield f"    --bind {word(str(spec))}"
    yield '    "$image"'
    yield ")"


def _step(plan: JobPlan) -> Iterator[str]:
    """Yield the options of srun; each has its reason above it."""
    if plan.topology is not None and not plan.torchrun:
        yield from comment(f"The cores beside each GPU, a bit a core ({plan.topology.source})")
        yield "masks=("
        for place, mask in zip(plan.topology.places, plan.topology.masks, strict=True):
            yield f"    {mask}  # GPU {place.local_rank}: cores {ranges(place.cores)}"
        yield ")"
    yield "step=("
    yield from comment("one rank that dies ends the others, which would wait for it until the time is up", "    ")
    yield "    --kill-on-bad-exit=1"
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
    yield ")"


def _run(written: list[JobFile]) -> Iterator[str]:
    first = written[0].name
    yield "status=0"
    yield f'srun "${{step[@]}}" "${{container[@]}}" sh "$LUMIIMG_JOB/{first}" "${{command[@]}}" || status=$?'


def _log() -> Iterator[str]:
    yield from comment("Which network carried the traffic; the exit code of the job stays that of the program")
    yield "if command -v lumiimg >/dev/null; then"
    yield '    lumiimg log "$LUMIIMG_JOB/nccl" || true'
    yield "else"
    yield '    echo "which network it used: lumiimg log $LUMIIMG_JOB/nccl"'
    yield "fi"
    yield 'exit "$status"'


def _path(path: str) -> str:
    """Return a path that is no option."""
    return f"./{path}" if path.startswith("-") else path
