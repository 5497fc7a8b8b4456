"""A job as a script of PBS, whose tasks are started by mpiexec of PALS, as on HPE Cray EX machines without Slurm.

Source: argonne-lcf/user-guides, docs/aurora/running-jobs-aurora.md; qsub(1B) of OpenPBS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.cluster.job import script
from lumiimg.cluster.job.container import PALS, files
from lumiimg.cluster.job.topology import ranges
from lumiimg.cluster.shell_quote import comment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.job.plan import JobPlan

_RANKS_LOG = "$LUMIIMG_JOB/ranks.log"


def pbs_script(plan: JobPlan) -> str:
    """Return the script. Raises BadInputError for a path that no engine takes."""
    written = files(plan, PALS)
    # a login shell: `module` is not there in another one
    lines = ["#!/bin/bash -l", *script.head(plan, "qsub -A PROJECT FILE"), *_directives(plan), ""]
    lines += [*script.modules(plan), "set -euo pipefail"]
    lines += [': "${PBS_NODEFILE:?this is a job script: qsub takes it}"', 'cd "$PBS_O_WORKDIR"', ""]
    lines += [
        *script.program(plan),
        "",
        *_numbers(plan),
        "",
        *script.folder("$LUMIIMG_NUMBER${element:+-$element}"),
        "",
        *_address(plan),
    ]
    lines += ["", *script.variables(plan)]
    for file in written:
        lines += ["", *script.heredoc(file)]
    lines += ["", *script.container(plan), "", *_step(plan), "", *_run(written[0].name)]
    lines += ["", *script.log(_RANKS_LOG if plan.site.vendor == "Intel" else "$LUMIIMG_JOB/nccl")]
    lines += [*script.clear(plan, 'mpiexec -n "$LUMIIMG_NODES" -ppn 1'), 'exit "$status"']
    return "\n".join(lines) + "\n"


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


def _numbers(plan: JobPlan) -> Iterator[str]:
    yield from comment(
        "What PALS does not tell its tasks; of `123.server` the job's number, of `123[4].server` that too, and 4"
    )
    yield 'LUMIIMG_NODES=$(sort -u "$PBS_NODEFILE" | wc -l)'
    yield f"export LUMIIMG_NODES LUMIIMG_TASKS=$((LUMIIMG_NODES * {plan.tasks}))"
    yield 'export LUMIIMG_NUMBER="${PBS_JOBID%%[!0-9]*}"'
    yield 'element="${PBS_JOBID%%.*}"'
    yield 'element="${element#"$LUMIIMG_NUMBER"}" element="${element//[!0-9]/}"'


def _address(plan: JobPlan) -> Iterator[str]:
    domain = plan.site.domain
    over = ", by its name on the fast network" if domain else ""
    yield from comment(f"Where the ranks meet: the first node{over}")
    yield 'read -r first <"$PBS_NODEFILE"'
    yield f'export MASTER_ADDR="${{first%%.*}}.{domain}"' if domain else 'export MASTER_ADDR="$first"'
    yield from comment("a port of its own for the job, and for each element of an array, below those of the kernel")
    yield "export MASTER_PORT=$((20000 + (LUMIIMG_NUMBER + ${element:-0}) % 5000 * 2))"


def _step(plan: JobPlan) -> Iterator[str]:
    """Yield the options of mpiexec; each has its reason above it."""
    bound = plan.topology is not None and not plan.torchrun
    if plan.topology is not None and bound:
        yield from comment(f"The cores of each rank ({plan.topology.source})")
        if plan.topology.spared:
            yield from comment(f"left to {plan.topology.spared_for}: {ranges(plan.topology.spared)}")
        yield "cores=("
        for place, cores in zip(plan.topology.places, plan.topology.lists, strict=True):
            yield f"    {cores}  # GPU {place.local_rank}"
        yield ")"
    yield "step=("
    yield f'    -n "$LUMIIMG_TASKS" -ppn {plan.tasks}'
    yield from comment("the ranks find each other by PMIx, as oneCCL is told to", "    ")
    yield "    --pmi=pmix"
    yield from comment("each task gets the variables of this script", "    ")
    yield "    --envall"
    yield from comment("node and rank before each line: oneCCL's lines tell neither", "    ")
    yield "    -l --line-buffer"
    yield from comment(plan.binding, "    ")
    yield '    --cpu-bind="list:$(IFS=: && echo "${cores[*]}")"' if bound else "    --cpu-bind=none"
    yield ")"


def _run(first: str) -> Iterator[str]:
    yield "status=0"
    yield f'mpiexec "${{step[@]}}" "${{container[@]}}" sh "$LUMIIMG_JOB/{first}" "${{command[@]}}" 2>&1 |'
    yield f'    tee "{_RANKS_LOG}" || status=$?'
