"""What of a job runs in the container, as small files that its script writes: set variables, bind, become the program.

What only a rank knows (its number) or what the image's own environment would come over is set there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.cluster.job.plan import RAY, JobPlan
from lumiimg.cluster.job.vllm import ServingPlace
from lumiimg.cluster.quoting import comment, filled, folded, value
from lumiimg.cluster.variables import SetIn
from lumiimg.core.errors import one_line

if TYPE_CHECKING:
    from lumiimg.cluster.variables import JobVariable

_VISIBLE = {None: "ROCR_VISIBLE_DEVICES", "NVIDIA": "CUDA_VISIBLE_DEVICES", "Intel": "ZE_AFFINITY_MASK"}
"""The variable that leaves a process one GPU, by who makes it; None is AMD."""


@dataclass(frozen=True, slots=True)
class JobWriter:
    """What writes a part of the script of a job, with reasons or without."""

    plan: JobPlan
    annotate: bool

    def why(self, text: str) -> list[str]:
        """Return a reason as comment, if there are any."""
        return comment(text) if self.annotate else []

    def filled(self, name: str, **values: str | Iterable[str]) -> str:
        """Return a file of this folder with its values, which may be lines."""
        return filled(f"job/{name}", annotate=self.annotate, **values)


class TaskWriter(JobWriter):
    """What writes the files for the container."""

    __slots__ = ()

    def files(self) -> dict[str, str]:
        """Return the files by name; each task runs the first of them, with the program as its arguments."""
        plan, scheduler = self.plan, self.plan.scheduler
        launcher = "torchrun" if plan.request.torchrun else "ray" if plan.ray else "task"
        settings = [*self._visible(), *self._folder()]
        if plan.request.torchrun:
            settings += self._exports(SetIn.NODE)
        else:
            settings = [*self._numbers(), *settings, *self._exports(SetIn.NODE, SetIn.RANK), *self._added()]
        task = self.filled(
            f"{launcher}.sh",
            SETTINGS=settings,
            NAME=scheduler.node_name,
            NODE=scheduler.node,
            NODES=scheduler.nodes,
            GPUS=str(plan.shape.gpus),
            RAY=RAY,
        )
        return {"task.sh": task} | ({"rank.py": self._rank_program()} if plan.request.torchrun else {})

    def _numbers(self) -> Iterator[str]:
        """Yield what gives a task its number among all; the one program of a node gives its own."""
        if self.plan.framework.task_a_gpu:
            of = self.plan.scheduler
            yield from self.why("who it is among the ranks")
            names = (f'RANK="${of.rank}"', f'LOCAL_RANK="${of.local_rank}"', f'WORLD_SIZE="${of.world}"')
            yield folded("export", [*names, f"LOCAL_WORLD_SIZE={self.plan.tasks}"])

    def _visible(self) -> Iterator[str]:
        """Yield what leaves a task the GPUs that are its own."""
        vendor, gpus = self.plan.site.vendor, self.plan.framework.gpus
        variable = _VISIBLE.get(vendor)
        if gpus == "own" and variable is not None:
            why = ": with srun --gpu-bind, RCCL and GPU-aware MPI lose each other (LUMI docs)"
            yield from self.why(f"the GPU of its number, by {variable}{why if vendor is None else ''}")
            yield f'export {variable}="$LOCAL_RANK"'
        elif gpus == "hip" and vendor is None:
            yield from self.why(
                "Ray and vLLM refuse ROCR_VISIBLE_DEVICES, which Slurm sets; they ask for HIP's (ray#53737)"
            )
            yield "unset ROCR_VISIBLE_DEVICES"
            yield f"export HIP_VISIBLE_DEVICES={','.join(map(str, range(self.plan.shape.gpus)))}"

    def _folder(self) -> Iterator[str]:
        """Yield what makes the folder of the job on its node."""
        if self.plan.private is not None:
            yield from self.why("a folder of this job on the node, for its user alone")
            yield f"private={value(self.plan.private)}"
            yield '(umask 077; mkdir -p "$private")'
            others = '[ -L "$private" ] || [ ! -O "$private" ]'
            yield f'if {others}; then echo "not a folder of this user: $private" >&2; exit 1; fi'

    def _exports(self, *where: SetIn) -> Iterator[str]:
        """Yield what sets variables, and makes folders for them."""
        line: list[JobVariable] = []
        folders: list[str] = []
        for item in (item for item in self.plan.variables if item.set_in in where):
            # a shell reads a line whole before it sets any
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
        """Return a value for a shell: below the folder of the job, with the variable that has its name."""
        caches = self.plan.caches
        if caches is not None and not item.literal and self.plan.site.is_cache(item.value):
            return value(f"$private{item.value.removeprefix(caches)}")
        return value(item.value, literal=item.literal)

    def _added(self) -> Iterator[str]:
        """Yield what is added to the command of a task."""
        plan, node = self.plan, self.plan.scheduler.node
        if plan.serving is ServingPlace.KEY:
            yield from self.why("a key, as all who reach the node reach its port: clients send it as a bearer token")
            yield "key=$LUMIIMG_JOB/vllm.key"
            made = 'od -An -N24 -tx1 /dev/urandom | tr -d " \\n" >"$key"'
            yield f'[ "${node}" != 0 ] || (umask 077; {made})'
            yield 'VLLM_API_KEY=$(cat "$key" 2>/dev/null); export VLLM_API_KEY'
        if plan.serving is ServingPlace.SOCKET:
            yield from self.why("on a socket in the folder of this user alone: all who reach the node reach a port")
            yield 'set -- "$@" --uds "$private/vllm"'
        if plan.connects_itself:
            yield from self.why(
                "no Ray in the image: vLLM connects the nodes itself (vLLM docs, parallelism and scaling)"
            )
            yield f'set -- "$@" --nnodes {plan.shape.nodes} --node-rank "${node}" \\'
            yield '    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
            # all but the first serve no clients
            yield f'[ "${node}" = 0 ] || set -- "$@" --headless'

    def _rank_program(self) -> str:
        """Return the program through which each rank of torchrun goes."""
        variables = [item for item in self.plan.variables if item.set_in is SetIn.RANK]
        ranks, of_site = self.plan.binding.ranks, self.plan.site.binding
        return self.filled(
            "rank.py.txt",
            VARIABLES=(line for item in variables for line in self._of_rank(item)),
            CORES=(f"    {{{', '.join(map(str, rank.cores))}}},  # GPU {rank.local_rank}" for rank in ranks),
            SOURCE=one_line(of_site.source) if of_site else "",
        )

    def _of_rank(self, item: JobVariable) -> Iterator[str]:
        yield from self.why(item.reason)
        yield f'os.environ["{item.name}"] = os.path.expandvars({item.value!r})'
        if item.folder:
            yield f"os.makedirs(os.path.expandvars({item.folder!r}), exist_ok=True)"
