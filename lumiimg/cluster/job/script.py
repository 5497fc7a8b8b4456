"""A job as a script of Slurm, or of PBS, whose tasks are started by mpiexec of PALS, as on Cray EX without Slurm.

Source for PBS: argonne-lcf/user-guides, docs/aurora/running-jobs-aurora.md; qsub(1B) of OpenPBS.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.binds import spec
from lumiimg.cluster.job.container import PALS, SLURM, JobFile, files
from lumiimg.cluster.job.plan import JobPlan, SettingScope
from lumiimg.cluster.nodes.slurm import OTHER_SHAPE, duration
from lumiimg.cluster.shell_quote import comment, value
from lumiimg.cluster.template import filled
from lumiimg.core.errors import BadInputError
from lumiimg.core.text import count, ranges, shell_quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.host.manifest import Bind

# what a user writes is meant as it is: `$` and `\` in single quotes, quotation marks of a text
AS_WRITTEN = "# shellcheck disable=SC1003,SC1110,SC1111,SC1112,SC2016"
"""Before lines with words of a user's."""
_OF_MASKS = '$(IFS=, && echo "${masks[*]}")'
_LOGS = 2048
"""Ranks whose logs are read while all nodes of the job wait for it: 3 s (1.2 ms of CPU for the 7 KB of a rank)."""


def job_script(plan: JobPlan) -> str:
    """Return the script. Raises BadInputError for a path that no engine takes."""
    scheduler, ranks_log = (PALS, plan.site.vendor == "Intel") if plan.by_pbs else (SLURM, False)
    written = files(plan, scheduler)
    parts = {
        "HEAD": _head(plan, scheduler.submit),
        "MODULES": _modules(plan),
        "PROGRAM": _program(plan),
    }
    if plan.by_pbs:
        parts |= {"DIRECTIVES": _pbs_directives(plan), "ADDRESS": _address(plan), "CLEAR": _clear(plan)}
        parts |= {"CORES": _cores(plan), "STEP": _mpiexec_options(plan)}
    else:
        parts |= {
            "DIRECTIVES": slurm_directives(plan),
            "MASKS": _masks(plan),
            "STEP": srun_options(plan, _OF_MASKS),
        }
        parts |= {"SWEEP": _sweep(plan), "OTHER": _other_shape()}
    return filled(
        "job/pbs.sh" if plan.by_pbs else "job/slurm.sh",
        FOLDER=filled("job/folder.sh", NUMBER=scheduler.number),
        CONTAINER=filled(
            "job/container.sh",
            NUMBERS=scheduler.numbers,
            VARIABLES="\n".join(_variables(plan)),
            FILES="\n\n".join(map(_heredoc, written)),
            ENGINE=plan.program,
            BINDS="\n".join(_binds(plan)),
        ),
        FIRST=written[0].name,
        TASKS=str(plan.tasks),
        LOG=filled(
            "job/log.sh",
            LOG="$LUMIIMG_JOB/ranks.log" if ranks_log else "$LUMIIMG_JOB/nccl",
            NODES=scheduler.nodes,
            MOST=str(_LOGS // plan.shape.gpus),
        ),
        **{key: "\n".join(lines) for key, lines in parts.items()},
    )


def _head(plan: JobPlan, submit: str) -> Iterator[str]:
    shape, site = plan.shape, plan.site
    how = "torchrun" if plan.torchrun else "Ray" if plan.ray else plan.starter
    what = "one rank per GPU" if plan.framework.task_a_gpu else "one program"
    told = f"{plan.framework.title}: {count(shape.nodes, 'node')} of {site.name}, {count(shape.gpus, 'GPU')} each; "
    yield from comment(f"{told}{what}, started by {how}")
    because = "vLLM starts its workers and connects the nodes itself, as the image has no Ray"
    yield from comment(f"{because if plan.connects_itself else plan.framework.because} ({plan.chosen})")
    never = f"; never run on {site.name} by the project" if site.status == "documented" else ""
    yield from comment(f"Written by lumiimg {__version__} from what is known of {site.name} ({site.date}){never}.")
    for note in plan.notes:
        yield from comment(f"Note: {note}.")
    for advice in site.advice:
        if advice.job:
            yield from comment(f"{site.name}: {advice.text} ({advice.source}).")
    if shape.account is None:
        yield from comment(f"Submit it with: {submit}")


def _options(plan: JobPlan, directive: str) -> Iterator[str]:
    """Yield what the site wants the scheduler to know of such a job."""
    for option in plan.site.options:
        if option.nodes.fit(plan.shape.nodes):
            yield from comment(f"{option.because} ({option.source})")
            yield f"{directive} {option.value}"


def _modules(plan: JobPlan) -> Iterator[str]:
    """Yield what makes the engine be there. Before `set -u`: modules are written without it in mind."""
    for module in plan.site.modules:
        yield from comment(f"{module.because} ({module.source})")
        yield f"module load {shell_quote(module.name)}"


def _program(plan: JobPlan) -> Iterator[str]:
    yield from (AS_WRITTEN, f"image={image_word(plan)}")
    yield from (AS_WRITTEN, f"command=({' '.join(map(shell_quote, plan.command))})")


def _variables(plan: JobPlan) -> Iterator[str]:
    if any("$USER" in text for text in (*(setting.value for setting in plan.settings), *plan.leftovers)):
        yield from comment("folders are named by it, and a job that was submitted with few variables has none")
        yield 'export USER="${USER:-$(id -un)}"'
    for setting in plan.in_scope(SettingScope.JOB):
        yield from comment(f"{setting.because} ({setting.source})")
        yield f"export {setting.name}={value(setting.value, literal=setting.literal)}"


def _heredoc(file: JobFile) -> str:
    end = f"END_OF_{file.name.upper().replace('.', '_')}"
    about = "\n".join(comment(file.about))
    return f"{about}\ncat >\"$LUMIIMG_JOB/{file.name}\" <<'{end}'\n{file.text}{end}"


def refuse_unprintable(binds: Iterable[Bind]) -> None:
    """Raise BadInputError for a path that no engine takes."""
    for bind in binds:
        if not spec(bind).isprintable():
            raise BadInputError("a path with such characters cannot be bound", where=bind.source)


def _binds(plan: JobPlan) -> Iterator[str]:
    refuse_unprintable(plan.binds)
    for bind in plan.binds:
        yield from comment(bind.reason, "    ")
        yield f"    --bind {shell_quote(spec(bind))}"


def _leftovers(plan: JobPlan) -> str:
    return " ".join(map(value, plan.leftovers))


def image_word(plan: JobPlan) -> str:
    """Return the image as a word of bash that is not an option."""
    return shell_quote(f"./{plan.image}" if plan.image.startswith("-") else plan.image)


# -- what Slurm takes --


def slurm_directives(plan: JobPlan) -> Iterator[str]:
    """Yield what Slurm is asked for, with reasons."""
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
    yield from _options(plan, "#SBATCH")


def _masks(plan: JobPlan) -> Iterator[str]:
    if plan.topology is not None and not plan.torchrun:
        yield from comment(f"The cores beside each GPU, one bit per core ({plan.topology.binding.source})")
        yield "masks=("
        for place in plan.topology.places:
            yield f"    {place.mask}  # GPU {place.local_rank}: cores {ranges(place.cores)}"
        yield ")"


def srun_options(plan: JobPlan, masks: str) -> Iterator[str]:
    """Yield the options of the step that bind, with reasons; `masks` are those of the ranks, as a shell reads them."""
    yield from comment(plan.binding, "    ")
    if plan.topology is not None and not plan.torchrun:
        yield f'    --cpu-bind="mask_cpu:{masks}"'
    elif plan.shape.whole_nodes:
        yield "    --cpu-bind=none"
    elif plan.cores:
        yield f"    --cpus-per-task={plan.cores * plan.shape.gpus // plan.tasks}"
    if plan.mpi is not None:
        yield from comment(plan.mpi.because, "    ")
        yield f"    --mpi={plan.mpi.value}"


def _other_shape() -> Iterator[str]:
    """Yield the names of variables that another job may have left, as one line of bash."""
    yield " \\\n    ".join(textwrap.wrap(" ".join(OTHER_SHAPE), 90))


def _sweep(plan: JobPlan) -> Iterator[str]:
    """Yield what removes the folders of the job on its nodes, however it ends."""
    if plan.leftovers:
        yield filled("job/sweep.sh", FOLDERS=_leftovers(plan))


# -- what PBS takes --


def _pbs_directives(plan: JobPlan) -> Iterator[str]:
    shape = plan.shape
    hours, rest = divmod(shape.time_s, 3600)
    if shape.account:
        yield f"#PBS -A {shape.account}"
    if shape.partition:
        yield from comment(f"{shape.partition}: {shape.because}")
        yield f"#PBS -q {shape.partition}"
    yield f"#PBS -l select={shape.nodes}"
    yield f"#PBS -l walltime={hours:02}:{rest // 60:02}:{rest % 60:02}"
    yield from _options(plan, "#PBS")


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


def _mpiexec_options(plan: JobPlan) -> Iterator[str]:
    """Yield the option of mpiexec that binds, with its reason above it."""
    bound = plan.topology is not None and not plan.torchrun
    yield from comment(plan.binding, "    ")
    yield '    --cpu-bind="list:$(IFS=: && echo "${cores[*]}")"' if bound else "    --cpu-bind=none"


def _clear(plan: JobPlan) -> Iterator[str]:
    """Yield the removal of what the job has left on its nodes."""
    if plan.leftovers:
        yield from comment("what the job has in /tmp goes with it, on every node; that of a job that is killed stays")
        yield f'mpiexec -n "$LUMIIMG_NODES" -ppn 1 rm -rf {_leftovers(plan)} || true'
