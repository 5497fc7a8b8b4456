"""Use Slurm through its own commands: list a job's nodes, run a step on them, submit a job and wait for it.

This module also provides what the nodes need from this one: the command that starts lumiimg, and a shared folder.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO

import lumiimg
from lumiimg.core.errors import BadInputError, MissingHereError, UndecidedError, one_line
from lumiimg.core.text import hostlist
from lumiimg.core.toml import package_toml
from lumiimg.engine.process import Completed, run, which
from lumiimg.engine.workspace import own_folder

_ASK_TIMEOUT_S = 30.0
_SIGNAL_BASE = 128
_JOB_ID = re.compile(r"\s*\d{1,20}(?:;\S+)?\s*")
"""Output of `sbatch --parsable`: the job number, with the cluster's name if there are several."""
_LIMIT_S = 365 * 86400
_DURATION = re.compile(
    r"(?:(?P<days>\d{1,4})-)?(?P<first>\d{1,6})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?", re.ASCII
)
OTHER_SHAPE = (
    *(f"SLURM_{name}_PER_TASK" for name in ("CPUS", "GPUS", "TRES")),
    *(f"SLURM_NTASKS_PER_{name}" for name in ("CORE", "GPU", "SOCKET", "TRES")),
    *(f"SLURM_MEM_PER_{name}" for name in ("CPU", "GPU", "NODE")),
    *(f"SLURM_{name}" for name in ("CPUS_PER_GPU", "CPU_BIND", "GPUS", "GPU_BIND", "TRES_BIND", "THREADS_PER_CORE")),
    *(f"SLURM_{name}" for name in ("DISTRIBUTION", "EXACT", "EXCLUSIVE", "HINT")),
    "SRUN_CPUS_PER_TASK",
)
"""Variables that make srun give a step's tasks another shape, or refuse the step; a job submitted from another job's
shell inherits them (srun(1), input environment variables)."""
_OF_THE_JOB = frozenset((*OTHER_SHAPE, "SLURM_LABELIO", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_STDINMODE"))
"""Variables through which a step inherits options of the job's own tasks (srun(1), input environment variables)."""
_FIRST_LOOK_S, _LATER_LOOK_S = 3.0, 30.0
"""Intervals at which Slurm is asked why a job waits."""
_FOR_SBATCH = "put the options into --sbatch: --sbatch='-p dev-g -A project_XXX --gpus-per-node=8'"
_HINT = "run this on a machine with Slurm: a login node (it submits a job), or inside an allocation (salloc, sbatch)"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes of a job."""

    job: str
    nodes: tuple[str, ...]
    """Slurm's names for the nodes, in its order."""
    ends: float | None = None
    """When its time limit is reached, by `time.monotonic`; None: not known, or no limit."""

    def of(self, names: Sequence[str]) -> Allocation:
        """Return the job restricted to these of its nodes. Raises BadInputError if it lacks one."""
        if lacking := sorted({*names} - {*self.nodes}):
            hint = f"salloc --nodelist={hostlist(names)}, or outside a job"
            raise BadInputError(f"job {self.job} does not have {hostlist(lacking)}", where="--again", hint=hint)
        return replace(self, nodes=tuple(names))


def sbatch_words(text: str) -> list[str]:
    """Return the options in the value of --sbatch. Raises BadInputError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadInputError(f"is not a valid list of options: {error}", where="--sbatch") from error


def find_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Return the job that this process is in; None outside a job.

    Raises BadInputError in one of several tasks of a step or in a heterogeneous job, MissingHereError without Slurm's
    commands, UndecidedError if they fail.
    """
    job, folded = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    # a job submitted from inside a heterogeneous job inherits its variables; salloc's shell has no list of nodes
    components = [value for name, value in environment.items() if name.startswith("SLURM_JOB_ID_HET_GROUP_")]
    parts = environment.get("SLURM_HET_SIZE", "1")
    if job and parts != "1" and job in (components or [job]):
        raise BadInputError(
            f"job {job} is heterogeneous, with {parts} components, and a step gets only the nodes of the first",
            hint="run this outside the job with --sbatch, or in a job without `#SBATCH hetjob`",
        )
    if not job or not folded:
        return None
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "SLURM_STEP_ID" in environment and tasks != "1":
        raise BadInputError(
            f"this is one of {tasks} tasks of a job step, and each would start a step of its own",
            hint="start it once: `lumiimg check …` in the batch script or in salloc's shell, without srun",
        )
    argv = [slurm_program("scontrol", environment), "show", "hostnames", folded]
    done = run(argv, env=environment, timeout_s=_ASK_TIMEOUT_S)
    nodes = tuple(done.output.split())
    if not done.ok or not nodes:
        raise UndecidedError(f"scontrol does not list the nodes of job {job}: {done.last_line or 'it printed nothing'}")
    argv = [slurm_program("squeue", environment), "--noheader", f"--jobs={job}", "--format=%L"]
    left_s = seconds(run(argv, env=environment, timeout_s=_ASK_TIMEOUT_S).last_line.strip())
    return Allocation(job, nodes, time.monotonic() + left_s if left_s is not None else None)


def run_step(
    nodes: Sequence[str],
    argv: Sequence[str | Path],
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    together: bool = False,
    log: IO[bytes] | None = None,
    give_up: Callable[[], bool] | None = None,
) -> Completed:
    """Run a program once on each node, in one step of this job that runs beside any other steps.

    `together`: a failing task ends the others, which would wait for it (without srun, Slurm does at the time limit).
    Otherwise a failing node affects no other, and each task ends on its own. `log`, `give_up`: see `process.run`.
    Raises MissingHereError without srun.
    """
    words: list[str | Path] = [slurm_program("srun", environment)]
    words += [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}"]
    # The job's own shape is for its work. Here a task is one process per node with all of the job's resources there: a
    # step gets those unless something implies --exact (--whole would request them, but is not documented everywhere).
    words += ["--overlap", "--mem=0", "--cpu-bind=none", "--gpu-bind=none", "--mpi=none"]
    words += ["--input=none", "--export=ALL", "--quit-on-interrupt"]
    if together:
        words += ["--kill-on-bad-exit=1", f"--time={math.ceil(timeout_s / 60)}"]
    else:  # no --time: Slurm may refuse a step with a longer limit than the partition's (EnforcePartLimits)
        words += ["--kill-on-bad-exit=0", "--no-kill"]
    words += ["--job-name=lumiimg", *argv]
    own = {name: value for name, value in environment.items() if name not in _OF_THE_JOB}
    return run(words, env=own, timeout_s=timeout_s, log=log, give_up=give_up)


def run_job(
    script: Path, options: Sequence[str], environment: Mapping[str, str], on_progress: Callable[[str], None]
) -> Completed:
    """Submit a batch script and wait until its job has ended, however long it queues.

    `on_progress` gets one line with the job number, and one for each reason why it waits. No job is left behind: if the
    wait ends early, even by an interrupt, the job is cancelled. Raises MissingHereError without sbatch, UndecidedError
    if Slurm refuses the script or would never start the job.
    """
    queued = _Queued(environment, on_progress)
    argv: list[str | Path] = [slurm_program("sbatch", environment), "--parsable", "--wait", *options, script]
    done: Completed | None = None
    try:
        done = run(argv, env=environment, on_line=queued.hear, give_up=queued.is_hopeless)
    finally:
        if queued.job and (done is None or done.timed_out or done.exit_code > _SIGNAL_BASE):
            cancel = [slurm_program("scancel", environment), "--quiet", queued.job]
            run(cancel, env=environment, timeout_s=_ASK_TIMEOUT_S)
    if queued.job is None:
        raise _refused(done)
    if done.timed_out:
        raise UndecidedError(f"Slurm would never start job {queued.job}: {queued.why}", hint=_FOR_SBATCH)
    return done


@dataclass(slots=True)
class _Queued:
    """A submitted job, and why it waits."""

    environment: Mapping[str, str]
    on_progress: Callable[[str], None]
    job: str | None = None
    why: str = ""
    _look_at: float = field(default=math.inf, init=False)

    def hear(self, line: str) -> None:
        """Read an output line of sbatch."""
        if self.job is None and is_job_number(line):
            self.job = line.strip().partition(";")[0]
            self._look_at = time.monotonic() + _FIRST_LOOK_S
            self.on_progress(f"job {self.job} is submitted; waiting for it (Ctrl-C cancels it)")

    def is_hopeless(self) -> bool:
        """Whether Slurm gives a reason for which the job will never start; Slurm is asked until the job has started."""
        if self.job is None or time.monotonic() < self._look_at:
            return False
        state, nodes, partition, reason = self._ask("squeue", f"--jobs={self.job}", "--format=%T %D %P %r")
        waits = state == "PENDING"
        self._look_at = time.monotonic() + _LATER_LOOK_S if waits else math.inf
        if not waits or reason == "None":
            return False
        words, never = next((known[1:] for known in _reasons() if known[0].fullmatch(reason)), ("", False))
        if reason == "PartitionNodeLimit" and "," not in partition:  # also reported when nodes are down
            total, _, at_most, _ = self._ask("sinfo", f"--partition={partition}", "--summarize", "--format=%D - %s -")
            sizes = (size for size in (total, at_most.rpartition("-")[2]) if size.isdecimal())
            never = nodes.isdecimal() and any(int(nodes) > int(size) for size in sizes)
        why = f"{words} ({reason})" if words else reason
        if why != self.why and not never:
            self.on_progress(f"job {self.job} waits: {why}")
        self.why = why
        return never

    def _ask(self, program: str, *words: str) -> list[str]:
        """Return the four words on the last line printed by a Slurm command, with empty ones for those missing."""
        argv = [slurm_program(program, self.environment), "--noheader", *words]
        line = run(argv, env=self.environment, timeout_s=_ASK_TIMEOUT_S).last_line
        return [*line.strip().split(None, 3), "", "", "", ""][:4]


@cache
def _reasons() -> tuple[tuple[re.Pattern[str], str, bool], ...]:
    known = package_toml(__package__, "reasons.toml")["reason"]
    return tuple((re.compile(entry["pattern"]), entry["words"], entry.get("never", False)) for entry in known)


def _refused(done: Completed | None) -> UndecidedError:
    return UndecidedError(
        f"sbatch refuses the job: {_said(done) if done else 'it was ended'}",
        hint=_FOR_SBATCH,
    )


def is_job_number(line: str) -> bool:
    """Whether a line of sbatch contains only the job number."""
    return _JOB_ID.fullmatch(line) is not None


def _said(done: Completed) -> str:
    """Return the error message of a Slurm command, without the command's name before each line."""
    lines = [re.sub(r"^\w+: (error: )?", "", line) for line in done.output.splitlines() if line.strip()]
    return one_line("; ".join(dict.fromkeys(lines))[:500]) or "it printed nothing"


def slurm_program(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a Slurm command. Raises MissingHereError."""
    found = which(name, environment.get("PATH"))
    if found is None:
        raise MissingHereError(f"no Slurm here: {name} is not on PATH", hint=_HINT)
    return found


def own_command() -> list[str]:
    """Return the command that starts this program on another node with the same files, even from a checkout.

    It imports nothing from the current folder (-P) and sets no PYTHONPATH, which would reach the container. If lumiimg
    runs from a zip file, the command runs that file: unpacked files exist only on this node.
    """
    if lumiimg.archive is not None:
        return [sys.executable, lumiimg.archive]
    home = str(Path(lumiimg.__file__).parent.parent)
    code = f"import sys; sys.path.append({home!r}); from lumiimg.cli.main import run; run()"
    return [sys.executable, "-P", "-c", code]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Make a temporary folder for a check in the current folder, which all nodes usually share.

    Folders left there by killed checks of this machine are removed.

    Raises BadInputError if the folder cannot be made.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder(Path.cwd(), ".lumiimg-check-"))
        except OSError as error:
            raise BadInputError(
                f"the nodes' answers cannot be written here: {error.strerror}",
                where=str(Path.cwd()),
                hint="start the check in a writable folder that all nodes share",
            ) from error
        yield folder


# -- times as Slurm writes them --


def seconds(text: str) -> int | None:
    """Parse a time as Slurm does: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS; None for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, *rest = (int(match[name]) if match[name] else None for name in ("days", "first", "second", "third"))
    first, second, third = rest[0] or 0, rest[1], rest[2]
    if days is not None or third is not None:
        found = ((days or 0) * 24 + first) * 3600 + (second or 0) * 60 + (third or 0)
    else:
        found = first * 60 + (second or 0)
    return found if 0 < found <= _LIMIT_S else None


def duration(time_s: int) -> str:
    """Return a time as `HH:MM:SS`, or as `D-HH:MM:SS` from two days on."""
    days = time_s // 86400 if time_s >= 2 * 86400 else 0
    hours, rest = divmod(time_s - days * 86400, 3600)
    clock = f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
