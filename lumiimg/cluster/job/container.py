"""What of a job runs in the container, as small files that its script writes: set variables, bind, become the program.

What only a rank knows (its number) or what the image's own environment would come over is set there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lumiimg.cluster.job.plan import RAY, VISIBLE, JobPlan, JobSetting, SettingScope
from lumiimg.cluster.job.vllm import ServingPlace
from lumiimg.cluster.shell_quote import comment, value
from lumiimg.cluster.template import filled

# a connection first: Ray itself asks for minutes where nothing answers
_ARE_HERE = (
    'import socket, sys; socket.create_connection(sys.argv[1].split(":"), 5).close(); '
    "import ray; ray.init(address=sys.argv[1], log_to_driver=False); "
    'sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]))'
)


@dataclass(frozen=True, slots=True)
class Scheduler:
    """What a scheduler is given, and what it calls the numbers of a task in its environment."""

    submit: str
    """A job for an account that the script does not name."""
    number: str
    """Of the job, in words of bash."""
    numbers: str
    """How the names of all of these begin."""
    rank: str
    local_rank: str
    world: str
    node: str
    nodes: str
    node_name: str


SLURM = Scheduler(
    submit="sbatch --account=PROJECT FILE",
    number="$SLURM_JOB_ID",
    numbers="SLURM",
    rank="SLURM_PROCID",
    local_rank="SLURM_LOCALID",
    world="SLURM_NTASKS",
    node="SLURM_NODEID",
    nodes="SLURM_JOB_NUM_NODES",
    node_name="SLURMD_NODENAME",
)
PALS = Scheduler(
    submit="qsub -A PROJECT FILE",
    number="$LUMIIMG_NUMBER${element:+-$element}",
    numbers="PALS",
    rank="PALS_RANKID",
    local_rank="PALS_LOCAL_RANKID",
    world="LUMIIMG_TASKS",
    node="PALS_NODEID",
    nodes="LUMIIMG_NODES",
    node_name="HOSTNAME",
)
"""Under PBS: what is not in PALS's environment, the script exports."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of the job."""

    name: str
    about: str
    text: str


def files(plan: JobPlan, scheduler: Scheduler) -> list[JobFile]:
    """Return the files; each task runs the first of them, with the program as its arguments."""
    if plan.torchrun:
        return _torchrun(plan, scheduler)
    if plan.ray:
        return [_ray(plan, scheduler)]
    about = "In the container, each rank: its numbers, its variables, then the program"
    lines = [*numbers(plan, scheduler), *visible(plan), *_caches(plan)]
    lines += [*_exports(plan, SettingScope.NODE), *_exports(plan, SettingScope.RANK), *started(plan, scheduler)]
    return [JobFile("rank.sh", about, _text([*lines, "", 'exec "$@"']))]


def numbers(plan: JobPlan, scheduler: Scheduler) -> Iterator[str]:
    """Yield what gives a task its number among all, as lines of a shell."""
    if not plan.framework.task_a_gpu:
        return  # the one program of a node starts its own
    yield from comment("who it is among the ranks")
    yield f'export RANK="${scheduler.rank}" LOCAL_RANK="${scheduler.local_rank}" WORLD_SIZE="${scheduler.world}"'
    yield f"export LOCAL_WORLD_SIZE={plan.tasks}"


def visible(plan: JobPlan) -> Iterator[str]:
    """Yield what leaves a task the GPUs that are its own, as lines of a shell."""
    variable = VISIBLE.get(plan.site.vendor)
    if variable is None:
        return
    if plan.framework.gpus == "own":
        why = ": with srun --gpu-bind, RCCL and GPU-aware MPI lose each other (LUMI docs)"
        yield from comment(f"the GPU of its number, by {variable}{why if plan.site.vendor is None else ''}")
        yield f'export {variable}="$LOCAL_RANK"'
    elif plan.framework.gpus == "hip" and plan.site.vendor is None:
        yield from comment("Ray and vLLM refuse ROCR_VISIBLE_DEVICES, which Slurm sets, and ask for HIP's (ray#53737)")
        yield "unset ROCR_VISIBLE_DEVICES"
        yield f"export HIP_VISIBLE_DEVICES={','.join(map(str, range(plan.shape.gpus)))}"


def started(plan: JobPlan, scheduler: Scheduler) -> Iterator[str]:
    """Yield what is added to the command of a task, as lines of a shell."""
    if plan.serving is ServingPlace.KEY:
        yield from comment("a key, as all who reach the node reach its port: clients send it as a bearer token")
        made = 'od -An -N24 -tx1 /dev/urandom | tr -d " \\n" >"$key"'
        yield f'key=$LUMIIMG_JOB/vllm.key; [ "${scheduler.node}" != 0 ] || (umask 077; {made})'
        yield 'VLLM_API_KEY=$(cat "$key" 2>/dev/null); export VLLM_API_KEY'
    more = []
    if plan.serving is ServingPlace.SOCKET:
        yield from comment("on a socket in a folder of this user alone: all who reach the node reach a port")
        if plan.caches is None:
            folder = value(plan.private)
            yield f"mkdir -p -m 700 {folder}"
            yield f'[ -O {folder} ] && [ ! -L {folder} ] || {{ echo "another user has" {folder} >&2; exit 1; }}'
        more = ["--uds", value(plan.socket)]
    if plan.connects_itself:
        yield from comment("the image has no Ray: vLLM connects the nodes itself (vLLM docs, parallelism and scaling)")
        more += ["--nnodes", str(plan.shape.nodes), "--node-rank", f'"${scheduler.node}"', "\\\n   "]
        more += ["--master-addr", '"$MASTER_ADDR"', "--master-port", '"$MASTER_PORT"']
    if more:
        yield from f'set -- "$@" {" ".join(more)}'.split("\n")
    if plan.connects_itself:  # all but the first serve no clients
        yield f'[ "${scheduler.node}" = 0 ] || set -- "$@" --headless'


def _caches(plan: JobPlan) -> Iterator[str]:
    if plan.caches is None:
        return
    folder = value(plan.caches)
    yield from comment("caches, on the node: a folder of this job, private to its user")
    yield f"mkdir -m 700 {folder} 2>/dev/null"
    yield f"if [ -L {folder} ] || ! chmod 700 {folder} 2>/dev/null; then"
    yield f'    echo "no folder for caches: it belongs to another user, or the disk is full:" {folder} >&2'
    yield "    exit 1"
    yield "fi"


def _exports(plan: JobPlan, scope: SettingScope) -> Iterator[str]:
    before = None
    for setting in plan.in_scope(scope):
        if (reason := _reason(setting)) != before:  # several in a row may have one reason
            yield from comment(reason)
        before = reason
        yield f"export {setting.name}={value(setting.value, literal=setting.literal)}"
        if setting.folder:
            yield f"mkdir -p {value(setting.folder)}"
        elif plan.site.is_cache(setting.value):
            yield f'mkdir -p "${setting.name}"'


def _reason(setting: JobSetting) -> str:
    return f"{setting.because} ({setting.source})" if setting.source else setting.because


def _torchrun(plan: JobPlan, scheduler: Scheduler) -> list[JobFile]:
    """Return node.sh, which starts torchrun, and rank.py, through which each of its ranks goes, if it has to."""
    per_rank = plan.topology is not None or plan.in_scope(SettingScope.RANK)
    rank = 'python3 "$LUMIIMG_JOB/rank.py" "$@"' if per_rank else '"$@"'
    text = filled(
        "job/torchrun.sh",
        SETTINGS="\n".join([*visible(plan), *_caches(plan), *_exports(plan, SettingScope.NODE)]),
        NODES=scheduler.nodes,
        NODE=scheduler.node,
        RANKS=str(plan.ranks),
        RANK=rank,
    )
    node = JobFile("node.sh", "In the container, once per node: variables, then torchrun, which starts the ranks", text)
    return [node, _rank_program(plan)] if per_rank else [node]


def _rank_program(plan: JobPlan) -> JobFile:
    lines = ["import os", "import sys", "", 'rank = int(os.environ["LOCAL_RANK"])']
    for setting in plan.in_scope(SettingScope.RANK):
        lines += ["", *comment(_reason(setting))]
        lines.append(f'os.environ["{setting.name}"] = os.path.expandvars({setting.value!r})')
        if setting.folder:
            lines.append(f"os.makedirs(os.path.expandvars({setting.folder!r}), exist_ok=True)")
    if plan.topology is not None:
        lines += ["", *comment(f"the cores beside each GPU ({plan.topology.binding.source})"), "cores = ["]
        for place in plan.topology.places:
            cores = ", ".join(map(str, place.cores))
            lines.append(f"    {{{cores}}},  # GPU {place.local_rank}")
        lines += ["]"]
        lines += [
            "if cores[rank] <= os.sched_getaffinity(0):",
            "    os.sched_setaffinity(0, cores[rank])",
            "else:",
            '    print(f"rank {rank} stays unbound: not all cores of {cores[rank]} are in this job", file=sys.stderr)',
        ]
    lines += ["", "os.execvp(sys.argv[1], sys.argv[1:])"]
    about = "In the container, each rank of torchrun: bind, then the program"
    return JobFile("rank.py", about, _text(lines))


def _ray(plan: JobPlan, scheduler: Scheduler) -> JobFile:
    """Return node.sh, which makes a Ray cluster of all nodes. Source: Ray docs, deploying on Slurm; `ray start`."""
    settings = [*visible(plan), *_caches(plan), *_exports(plan, SettingScope.NODE), *_exports(plan, SettingScope.RANK)]
    settings += started(plan, scheduler)
    text = filled(
        "job/ray.sh",
        SETTINGS="\n".join(settings),
        NAME=scheduler.node_name,
        NODE=scheduler.node,
        NODES=scheduler.nodes,
        GPUS=str(plan.shape.gpus),
        RAY=RAY,
        HERE=_ARE_HERE,
    )
    about = "In the container, once per node: a Ray cluster of all nodes, the program on the first"
    return JobFile("node.sh", about, text)


def _text(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n") + "\n"
