"""Write a job as a script for its scheduler, optionally with reasons, and the small files that the script writes.

These run in the container: they set variables, bind the rank and exec the program. Only they set values that only a
rank knows (its number) or that the image's own environment would override.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.binds import SetIn, spec, variables_of_engine
from lumiimg.cluster.job.command import ServingPlace
from lumiimg.cluster.job.plan import RAY, JobPlan
from lumiimg.cluster.nodes.slurm import duration
from lumiimg.cluster.quoting import comment, filled, folded, value
from lumiimg.core.text import as_operand, count, ranges, shell_quote

if TYPE_CHECKING:
    from lumiimg.cluster.binds import JobVariable

_LOGS_KIB = 32_768
"""Size limit on disk for logs read at the end while all nodes wait: files of at most 4,096 ranks, 3 to 6 s."""
_VISIBLE = {None: "ROCR_VISIBLE_DEVICES", "NVIDIA": "CUDA_VISIBLE_DEVICES", "Intel": "ZE_AFFINITY_MASK"}
"""The variable that restricts a process to one GPU, by vendor; None is AMD."""


@dataclass(frozen=True, slots=True)
class JobScript:
    """A job script with the plan that it was computed from."""

    plan: JobPlan
    script: str
    """The text of the script."""


def script_of(plan: JobPlan, *, robust: bool, annotate: bool) -> JobScript:
    """Return a job plan with its script.

    `robust`: no settings of modules or profiles reach the container; `annotate`: each choice gets its reason.
    """
    return JobScript(plan, _Writer(plan, annotate).script(robust=robust))


@dataclass(frozen=True, slots=True)
class _Writer:
    plan: JobPlan
    annotate: bool

    def why(self, text: str) -> list[str]:
        """Return a reason as comment lines, or nothing if reasons are off."""
        return comment(text) if self.annotate else []

    def filled(self, name: str, **values: str | Iterable[str]) -> str:
        """Return a template of this folder, filled with values, which may be lines."""
        return filled(f"job/{name}", annotate=self.annotate, **values)

    def script(self, *, robust: bool) -> str:
        plan, scheduler = self.plan, self.plan.scheduler
        domain, is_pbs = plan.site.domain, scheduler.name == "PBS"
        folders = " ".join(map(value, plan.temporary_folders))
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
            END=shlex.quote("; ".join(self._end(folders))),
            VARIABLES=self._variables(),
            CLEANUP=self._cleanup(folders) if folders and not is_pbs else "",
            TASK=self._task(),
            STEP=[*self._clients(), *self._step()],
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
        if plan.scheduler.name == "PBS":
            yield from comment("Untried under PBS: in this project's tests a stand-in for mpiexec starts the ranks")
        because = "vLLM starts its workers and connects the nodes itself, as the image has no Ray"
        yield from self.why(f"{because if plan.connects_itself else plan.framework.because} ({plan.chosen})")
        never = f"; this project has never run a job on {site.name}" if site.status == "documented" else ""
        yield from self.why(f"The facts about {site.name} are from {site.date}{never}.")
        for note in plan.notes:
            yield from self.why(f"Note: {note}.")
        for advice in site.advice:
            if advice.job:
                yield from self.why(f"{site.name}: {advice.text} ({advice.source}).")

    def _directives(self) -> Iterator[str]:
        """Yield the directives for the scheduler."""
        plan, shape, scheduler = self.plan, self.plan.shape, self.plan.scheduler
        if shape.partition:
            yield from self.why(f"{shape.partition}: {shape.because}")
            yield f"{scheduler.directive} {scheduler.partition}{shape.partition}"
        if shape.account:
            yield f"{scheduler.directive} {scheduler.account}{shape.account}"
        for option in _pbs_options(plan) if scheduler.name == "PBS" else _slurm_options(plan):
            yield f"{scheduler.directive} {option}"
        for wanted in plan.site.options:
            if wanted.nodes.fit(shape.nodes):
                yield from self.why(f"{wanted.because} ({wanted.source})")
                yield f"{scheduler.directive} {wanted.value}"

    def _modules(self) -> Iterator[str]:
        """Yield commands that load the engine. They come before `set -u`, which modules may not be written for."""
        for module in self.plan.site.modules:
            yield from self.why(f"{module.because} ({module.source})")
            yield f"module load {shell_quote(module.name)}"

    def _variables(self) -> Iterator[str]:
        for item in self.plan.variables:
            if item.set_in is SetIn.BATCH:
                yield from self.why(item.reason)
                yield f"export {item.name}={value(item.value, literal=item.literal)}"

    def _end(self, folders: str) -> Iterator[str]:
        """Yield commands that run at the end, however the job ended."""
        plan = self.plan
        log = "$LUMIIMG_JOB/ranks.log" if plan.site.vendor == "Intel" else "$LUMIIMG_JOB/nccl"
        later = f'echo "which network it used: lumiimg log {log}"'
        is_long = f'[ "$(du -sk "{log}" | cut -f1)" -gt {_LOGS_KIB} ]'
        yield f'if {is_long}; then {later}; else lumiimg log "{log}" || true; fi'
        if folders and plan.scheduler.name == "PBS":  # if the job is killed, they stay
            yield f'mpiexec -n "$LUMIIMG_NODES" -ppn 1 rm -rf {folders} || true'

    def _cleanup(self, folders: str) -> str:
        """Return the code that removes the job's folders from its nodes."""
        if not self.plan.has_epilog:
            return self.filled("cleanup.sh", FOLDERS=folders)
        names = [" %q-*" if self._is_unique(folder) else " %q" for folder in self.plan.temporary_folders]
        return self.filled("epilog.sh", NAMES="".join(names), FOLDERS=folders)

    def _is_unique(self, folder: str) -> bool:
        """Whether each task makes its own folder, whose name begins with this one, as no client has to know it."""
        plan = self.plan
        return folder == plan.private and plan.has_epilog and plan.serving is not ServingPlace.SOCKET

    def _clients(self) -> Iterator[str]:
        if self.plan.clients:
            yield from self.why("How a client reaches the server, at the top of the output")
        for client in self.plan.clients:
            yield f"echo {value(client)}"

    def _step(self) -> Iterator[str]:
        """Yield the command that starts the tasks."""
        plan, binding, of_site = self.plan, self.plan.binding, self.plan.site.binding
        is_pbs = plan.scheduler.name == "PBS"
        yield from self.why(binding.because)
        for rank in binding.ranks:
            yield from self.why(f"    GPU {rank.local_rank}: cores {ranges(rank.cores)}, {rank.mask}")
        if binding.ranks and of_site is not None:
            yield from self.why(f"These are the cores next to each GPU ({of_site.source})")
            if of_site.spared and plan.framework.has_helpers:
                yield from self.why(f"Left to {of_site.spared_for}: {ranges(of_site.spared)}")
        if plan.mpi is not None:
            yield from self.why(f"--mpi: {plan.mpi.because} ({plan.mpi.source})")
        for bind in plan.image.binds:
            yield from self.why(f"{bind.source}: {bind.reason}")
        if is_pbs:
            yield from self.why(
                "The ranks find each other through PMIx, as oneCCL is set to; each line begins with node and rank"
            )
            starts = folded('mpiexec -n "$LUMIIMG_TASKS"', self._mpiexec_options())
        else:
            yield from self.why("If a rank dies, the others are ended: they would wait for it until the time limit")
            starts = folded("srun --kill-on-bad-exit=1", self._srun_options())
        engine = variables_of_engine(None, plan.site).lower()
        yield f"{starts} {engine} exec \\"
        first, *binds = (f"-B {text}" for text in ('"$LUMIIMG_JOB"', *(shell_quote(spec(b)) for b in plan.image.binds)))
        yield folded(f"    {first}", binds) + " \\"
        words = ['sh "$LUMIIMG_JOB/task.sh"', *map(shell_quote, plan.command)]
        to_log = ' 2>&1 | tee "$LUMIIMG_JOB/ranks.log"' if is_pbs else ""
        yield folded(f"    {shell_quote(as_operand(plan.request.image))}", words) + to_log

    def _srun_options(self) -> Iterator[str]:
        plan = self.plan
        if plan.binding.ranks and not plan.request.torchrun:
            yield f"--cpu-bind=mask_cpu:{','.join(rank.mask for rank in plan.binding.ranks)}"
        elif plan.shape.whole_nodes:
            yield "--cpu-bind=none"
        elif plan.cores:
            yield from _cores_of_a_task(plan.cores, plan)
        if plan.mpi is not None:
            yield f"--mpi={plan.mpi.value}"
        if plan.has_epilog and plan.temporary_folders:
            yield '--task-epilog="$LUMIIMG_JOB/epilog.sh"'

    def _mpiexec_options(self) -> Iterator[str]:
        yield from (f"-ppn {self.plan.tasks}", "--pmi=pmix", "--envall", "-l --line-buffer")
        lists = ":".join(ranges(rank.cores) for rank in self.plan.binding.ranks)
        yield f"--cpu-bind=list:{lists}" if lists and not self.plan.request.torchrun else "--cpu-bind=none"

    # -- in the container --

    def _task(self) -> str:
        """Return the script that each task runs, with the program as its arguments."""
        plan, scheduler = self.plan, self.plan.scheduler
        settings = [*self._visible(), *self._folder()]
        if plan.request.torchrun:
            settings += self.exports(SetIn.NODE)
            settings += self._of_ranks()
        else:
            settings = [*self._numbers(), *settings, *self.exports(SetIn.NODE, SetIn.RANK), *self._added()]
        return self.filled(
            f"{plan.launch if plan.launch in ('ray', 'torchrun') else 'task'}.sh",
            SETTINGS=settings,
            NAME=scheduler.node_name,
            NODE=scheduler.node,
            NODES=scheduler.nodes,
            GPUS=str(plan.shape.gpus),
            RANK=f"sh -c {shlex.quote(self._rank())} sh " if self._has_rank else "",
            RAY=RAY,
        )

    def _numbers(self) -> Iterator[str]:
        """Yield code that gives a task its global rank; a framework's single program per node numbers its own."""
        if self.plan.framework.task_a_gpu:
            of = self.plan.scheduler
            yield from self.why("the numbers of this rank")
            names = (f'RANK="${of.rank}"', f'LOCAL_RANK="${of.local_rank}"', f'WORLD_SIZE="${of.world}"')
            yield folded("export", [*names, f"LOCAL_WORLD_SIZE={self.plan.tasks}"])

    def _visible(self) -> Iterator[str]:
        """Yield code that restricts a task to its own GPUs."""
        vendor, gpus = self.plan.site.vendor, self.plan.framework.gpus
        variable = _VISIBLE.get(vendor)
        if gpus == "own" and variable is not None:
            why = ": with srun --gpu-bind, RCCL and GPU-aware MPI lose each other (LUMI docs)"
            yield from self.why(f"the GPU with the rank's number, through {variable}{why if vendor is None else ''}")
            yield f'export {variable}="$LOCAL_RANK"'
        elif gpus == "hip" and vendor is None:
            yield from self.why(
                "Ray and vLLM refuse ROCR_VISIBLE_DEVICES, which Slurm sets; they require HIP's (ray#53737)"
            )
            yield "unset ROCR_VISIBLE_DEVICES"
            yield f"export HIP_VISIBLE_DEVICES={','.join(map(str, range(self.plan.shape.gpus)))}"

    def _folder(self) -> Iterator[str]:
        """Yield code that makes the job's folder on its node."""
        private = self.plan.private
        if private is None:
            return
        yield from self.why("a folder of this job on the node, which only its user can access")
        if self._is_unique(private):
            yield f"private=$(mktemp -d {value(f'{private}-XXXXXX')}) || exit 1"
            return
        yield f"private={value(private)}"
        yield '(umask 077; mkdir -p "$private")'
        others = '[ -L "$private" ] || [ ! -O "$private" ]'
        yield f'if {others}; then echo "not a folder of this user: $private" >&2; exit 1; fi'

    def exports(self, *where: SetIn) -> Iterator[str]:
        """Yield code that sets variables and makes folders for them."""
        line: list[JobVariable] = []
        folders: list[str] = []
        for item in (item for item in self.plan.variables if item.set_in in where):
            # a shell expands the whole line before it sets any variable
            if line and (self.annotate or item.names & {other.name for other in line}):
                yield self._export(line)
                line = []
            yield from self.why(item.reason)
            line.append(item)
            if item.folder:
                folders.append(value(item.folder))
            elif self.plan.site.is_cache(item.value):
                folders.append(self._value(item))
        if line:
            yield self._export(line)
        if folders:
            yield folded("mkdir -p", dict.fromkeys(folders))

    def _export(self, items: Sequence[JobVariable]) -> str:
        return folded("export", [f"{item.name}={self._value(item)}" for item in items])

    def _value(self, item: JobVariable) -> str:
        """Return a value in shell syntax; a path in the job's folder is written with the variable for that folder."""
        site = self.plan.site
        if not item.literal and site.is_cache(item.value):
            return value(f"$private{item.value.removeprefix(site.caches or '')}")
        return value(item.value, literal=item.literal)

    def _added(self) -> Iterator[str]:
        """Yield code that adds options to the command of a task."""
        plan, node = self.plan, self.plan.scheduler.node
        if plan.serving is ServingPlace.KEY:
            yield from self.why(
                "a key, as all who reach the node reach its port, too: clients send it as a bearer token"
            )
            yield "key=$LUMIIMG_JOB/vllm.key"
            made = 'od -An -N24 -tx1 /dev/urandom | tr -d " \\n" >"$key"'
            yield f'[ "${node}" != 0 ] || (umask 077; {made})'
            yield 'VLLM_API_KEY=$(cat "$key" 2>/dev/null); export VLLM_API_KEY'
        if plan.serving is ServingPlace.SOCKET:
            yield from self.why("on a socket in a folder that only this user can access: others could reach a port")
            yield 'set -- "$@" --uds "$private/vllm"'
        if plan.connects_itself:
            yield from self.why(
                "no Ray in the image: vLLM connects the nodes itself (vLLM docs, parallelism and scaling)"
            )
            yield f'set -- "$@" --nnodes {plan.shape.nodes} --node-rank "${node}" \\'
            yield '    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
            # all but the first serve no clients
            yield f'[ "${node}" = 0 ] || set -- "$@" --headless'

    @property
    def _has_rank(self) -> bool:
        """Whether torchrun's ranks must run something before the program."""
        of_rank = any(item.set_in is SetIn.RANK for item in self.plan.variables)
        return self.plan.request.torchrun and (of_rank or bool(self.plan.binding.ranks))

    def _of_ranks(self) -> Iterator[str]:
        """Yield the reasons for what each torchrun rank does, and code that exports what it needs."""
        variables = [item for item in self.plan.variables if item.set_in is SetIn.RANK]
        for item in variables:
            yield from self.why(f"{item.name}, in each rank: {item.reason}")
        if self.plan.private is not None and variables:
            yield "export private"
        if self.plan.binding.ranks:
            yield from self.why("each rank binds itself to the cores beside its GPU")

    def _rank(self) -> str:
        """Return the script that each torchrun rank runs, with the program as its arguments."""
        lines, bound = [*replace(self, annotate=False).exports(SetIn.RANK)], ""
        if self.plan.binding.ranks:
            cores = " ".join(ranges(rank.cores) for rank in self.plan.binding.ranks)
            bound = f'taskset -c "$(echo {cores} | cut -d " " -f $((LOCAL_RANK + 1)))" '
        return "".join(f"\n    {line}" for line in [*lines, f'exec {bound}"$@"'])


def _cores_of_a_task(cores: int, plan: JobPlan) -> Iterator[str]:
    yield f"--cpus-per-task={cores * plan.shape.gpus // plan.tasks}"
    # otherwise CPUs may be hardware threads, two per core: half as many cores (LUMI course of 2026-04, 201-Slurm)
    yield "--hint=nomultithread"


def _slurm_options(plan: JobPlan) -> Iterator[str]:
    shape, of_site = plan.shape, plan.site.binding
    yield f"--nodes={shape.nodes}"
    yield f"--ntasks-per-node={plan.tasks}"
    # if Slurm picked three GPUs, nobody would know which ones
    yield f"--gpus-per-node={shape.node_gpus if shape.whole_nodes and shape.node_gpus else shape.gpus}"
    if shape.whole_nodes:
        yield "--exclusive"
    elif plan.cores:
        yield from _cores_of_a_task(plan.cores, plan)
    if of_site and of_site.memory_gib:
        of_gpu = of_site.memory_gib // len(of_site.near)
        yield f"--mem={of_gpu * len(of_site.near)}G" if shape.whole_nodes else f"--mem-per-gpu={of_gpu}G"
    yield f"--time={duration(shape.time_s)}"


def _pbs_options(plan: JobPlan) -> Iterator[str]:
    hours, rest_s = divmod(plan.shape.time_s, 3600)
    yield f"-l select={plan.shape.nodes}"
    yield f"-l walltime={hours:02}:{rest_s // 60:02}:{rest_s % 60:02}"
