"""A job as a script of its scheduler: one form, with its reasons where they are wanted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.binds import spec
from lumiimg.cluster.job.task import JobWriter, TaskWriter
from lumiimg.cluster.nodes.slurm import duration
from lumiimg.cluster.quoting import comment, folded, value
from lumiimg.cluster.variables import SetIn
from lumiimg.core.text import as_operand, count, ranges, shell_quote

if TYPE_CHECKING:
    from lumiimg.cluster.job.plan import JobPlan

_LOGS = 2048
"""Ranks whose logs are read while all nodes of the job wait for it: 3 s (1.2 ms of CPU for the 7 KB of a rank)."""


@dataclass(frozen=True, slots=True)
class JobScript:
    """A job script with its arithmetic."""

    plan: JobPlan
    script: str
    """The script."""


def script_of(plan: JobPlan, *, robust: bool, annotate: bool) -> JobScript:
    """Return a job with its script.

    `robust`: nothing of modules and profiles reaches the container; `annotate`: each choice has its reason.
    """
    return JobScript(plan, _ScriptWriter(plan, annotate).text(robust=robust))


class _ScriptWriter(JobWriter):
    __slots__ = ()

    def text(self, *, robust: bool) -> str:
        plan, scheduler = self.plan, self.plan.scheduler
        domain, is_pbs = plan.site.domain, scheduler.name == "PBS"
        clean = not is_pbs and plan.temporary_folders
        return self.filled(
            "job.sh",
            LOGIN=" -l" if is_pbs else "",
            HEAD=self._head(),
            DIRECTIVES=self._directives(),
            MODULES=self._modules(),
            START=self.filled(
                "pbs.sh" if is_pbs else "slurm.sh",
                TASKS=str(plan.tasks),
                ADDRESS=f'"${{first%%.*}}.{domain}"' if domain else '"$first"',
            ),
            ROBUST=self.filled("robust.sh", NUMBERS=scheduler.numbers) if robust else "",
            NUMBER=scheduler.number,
            END=shlex.quote("; ".join(self._end())),
            VARIABLES=self._variables(),
            CLEANUP=self.filled("cleanup.sh", FOLDERS=self._folders()) if clean else "",
            FILES="\n\n".join(self._files()),
            STEP=self._step(),
        )

    def _head(self) -> Iterator[str]:
        plan, shape, site = self.plan, self.plan.shape, self.plan.site
        what = "one rank per GPU" if plan.framework.task_a_gpu else "one program per node"
        where = f"{count(shape.nodes, 'node')} of {site.name}, {count(shape.gpus, 'GPU')} each"
        yield from comment(f"{plan.framework.title}: {where}; {what}, started by {plan.launch}")
        submit = f"{plan.scheduler.submit} {plan.scheduler.account}PROJECT FILE"
        to_submit = f"; submit it with: {submit}" if shape.account is None else ""
        reasons = "" if self.annotate else "; --annotate adds the reasons"
        yield from comment(f"Written by lumiimg {__version__}{reasons}{to_submit}")
        because = "vLLM starts its workers and connects the nodes itself, as the image has no Ray"
        yield from self.why(f"{because if plan.connects_itself else plan.framework.because} ({plan.chosen})")
        never = f"; never run on {site.name} by the project" if site.status == "documented" else ""
        yield from self.why(f"What is known of {site.name} is of {site.date}{never}.")
        for note in plan.notes:
            yield from self.why(f"Note: {note}.")
        for advice in site.advice:
            if advice.job:
                yield from self.why(f"{site.name}: {advice.text} ({advice.source}).")

    def _directives(self) -> Iterator[str]:
        """Yield what the scheduler is asked for."""
        plan, prefix = self.plan, self.plan.scheduler.directive
        for reason, option in _pbs_options(plan) if plan.scheduler.name == "PBS" else _slurm_options(plan):
            yield from self.why(reason)
            yield f"{prefix} {option}"
        for wanted in plan.site.options:
            if wanted.nodes.fit(plan.shape.nodes):
                yield from self.why(f"{wanted.because} ({wanted.source})")
                yield f"{prefix} {wanted.value}"

    def _modules(self) -> Iterator[str]:
        """Yield what makes the engine be there. Before `set -u`: modules are written without it in mind."""
        for module in self.plan.site.modules:
            yield from self.why(f"{module.because} ({module.source})")
            yield f"module load {shell_quote(module.name)}"

    def _variables(self) -> Iterator[str]:
        for item in self.plan.variables:
            if item.set_in is SetIn.BATCH:
                yield from self.why(item.reason)
                yield f"export {item.name}={value(item.value, literal=item.literal)}"

    def _end(self) -> Iterator[str]:
        """Yield what is done at the end, whatever ended the job."""
        plan, shape = self.plan, self.plan.shape
        log = "$LUMIIMG_JOB/ranks.log" if plan.site.vendor == "Intel" else "$LUMIIMG_JOB/nccl"
        # all nodes wait for it, so those of a large job are let go first
        is_small = shape.nodes * shape.gpus <= _LOGS
        yield f'lumiimg log "{log}" || true' if is_small else f'echo "which network it used: lumiimg log {log}"'
        if plan.scheduler.name == "PBS" and plan.temporary_folders:  # of a job that is killed they stay
            yield f'mpiexec -n "$LUMIIMG_NODES" -ppn 1 rm -rf {self._folders()} || true'

    def _folders(self) -> str:
        return " ".join(map(value, self.plan.temporary_folders))

    def _files(self) -> Iterator[str]:
        for name, text in TaskWriter(self.plan, self.annotate).files().items():
            end = f"END_OF_{name.upper().replace('.', '_')}"
            yield f"cat >\"$LUMIIMG_JOB/{name}\" <<'{end}'\n{text}{end}"

    def _step(self) -> Iterator[str]:
        """Yield what starts the tasks."""
        plan, binding = self.plan, self.plan.binding
        is_pbs = plan.scheduler.name == "PBS"
        yield from self.why(binding.because)
        for rank in binding.ranks:
            yield from self.why(f"    GPU {rank.local_rank}: cores {ranges(rank.cores)}, {rank.mask}")
        if binding.ranks and plan.site.binding is not None:
            yield from self.why(f"These are the cores beside each GPU ({plan.site.binding.source})")
            if plan.helper_cores:
                yield from self.why(f"Left to {plan.site.binding.spared_for}: {ranges(plan.helper_cores)}")
        if plan.mpi is not None:
            yield from self.why(f"--mpi: {plan.mpi.because} ({plan.mpi.source})")
        for bind in plan.binds:
            yield from self.why(f"{bind.source}: {bind.reason}")
        if is_pbs:
            yield from self.why(
                "The ranks find each other by PMIx, as oneCCL is set to; node and rank before each line"
            )
            yield folded('mpiexec -n "$LUMIIMG_TASKS"', self._mpiexec_options()) + " \\"
        else:
            yield from self.why("One rank that dies ends the others, which would wait for it until the time is up")
            yield folded("srun --kill-on-bad-exit=1", self._srun_options()) + " \\"
        binds = [f"--bind {text}" for text in ('"$LUMIIMG_JOB"', *(shell_quote(spec(bind)) for bind in plan.binds))]
        yield folded(f"    {plan.program} exec", binds) + " \\"
        words = ['sh "$LUMIIMG_JOB/task.sh"', *map(shell_quote, plan.command)]
        to_log = ' 2>&1 | tee "$LUMIIMG_JOB/ranks.log"' if is_pbs else ""
        yield folded(f"    {shell_quote(as_operand(plan.request.image))}", words) + to_log

    def _srun_options(self) -> Iterator[str]:
        plan = self.plan
        if plan.binding.ranks and not plan.request.torchrun:
            yield f"--cpu-bind=mask_cpu:{plan.binding.masks}"
        elif plan.shape.whole_nodes:
            yield "--cpu-bind=none"
        elif plan.cores:
            yield f"--cpus-per-task={plan.cores_of_a_task}"
        if plan.mpi is not None:
            yield f"--mpi={plan.mpi.value}"

    def _mpiexec_options(self) -> Iterator[str]:
        yield from (f"-ppn {self.plan.tasks}", "--pmi=pmix", "--envall", "-l --line-buffer")
        lists = ":".join(ranges(rank.cores) for rank in self.plan.binding.ranks)
        yield f"--cpu-bind=list:{lists}" if lists and not self.plan.request.torchrun else "--cpu-bind=none"


def _slurm_options(plan: JobPlan) -> Iterator[tuple[str, str]]:
    shape = plan.shape
    if shape.partition:
        yield f"{shape.partition}: {shape.because}", f"--partition={shape.partition}"
    if shape.account:
        yield "", f"--account={shape.account}"
    yield "", f"--nodes={shape.nodes}"
    yield "", f"--ntasks-per-node={plan.tasks}"
    # of three GPUs that Slurm picks nobody would know which they are
    yield "", f"--gpus-per-node={shape.node_gpus if shape.whole_nodes and shape.node_gpus else shape.gpus}"
    if shape.whole_nodes:
        yield "", "--exclusive"
    elif plan.cores:
        yield "", f"--cpus-per-task={plan.cores_of_a_task}"
    if plan.memory_gib:
        memory_gib = plan.memory_gib * (shape.node_gpus or 1)
        yield "", f"--mem={memory_gib}G" if shape.whole_nodes else f"--mem-per-gpu={plan.memory_gib}G"
    yield "", f"--time={duration(shape.time_s)}"


def _pbs_options(plan: JobPlan) -> Iterator[tuple[str, str]]:
    shape = plan.shape
    hours, rest_s = divmod(shape.time_s, 3600)
    if shape.account:
        yield "", f"-A {shape.account}"
    if shape.partition:
        yield f"{shape.partition}: {shape.because}", f"-q {shape.partition}"
    yield "", f"-l select={shape.nodes}"
    yield "", f"-l walltime={hours:02}:{rest_s // 60:02}:{rest_s % 60:02}"
