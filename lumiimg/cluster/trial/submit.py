"""The job of a trial: submitted once, found again by its name, and never longer than what is left of the trial."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lumiimg.cluster.nodes.slurm import own_command, slurm_program, submit_job
from lumiimg.cluster.trial.case import SlurmFacts
from lumiimg.cluster.trial.claims import HERE
from lumiimg.cluster.trial.driver import steps_left
from lumiimg.cluster.trial.folder import BEGAN
from lumiimg.cluster.trial.plan import job_name, usual_minutes
from lumiimg.core.decode import DecodeError, decode
from lumiimg.core.errors import BadInputError, FailedError, UndecidedError
from lumiimg.core.files import write_text
from lumiimg.engine.process import run, which

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import TrialPlan

_ASK_S = 30.0
_LEAST_MINUTES = 3
# whole nodes: others' work beside a collective would make it slow. --no-requeue: what a job has taken is counted by its
# number, and one that starts again under the same would be counted once. singleton: one job of this name at a time.
_SCRIPT = """\
#!/bin/bash
{bounds}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
echo {asked} >{jobs}/"$SLURM_JOB_ID"{BEGAN}
exec {command}
"""
_DECIDED = ("--time", "--nodes", "--array", "--job-name", "--clusters", "--dependency", "--requeue")
_DECIDED_SHORT = re.compile(r"-[HhIkOQsuvVWX]*[tNaJMd]")
"""The same in one letter, also behind those that take no value (sbatch(1))."""
_OTHER_JOB = frozenset({"SBATCH_ARRAY_INX", "SBATCH_CLUSTERS", "SLURM_CLUSTERS"})
"""Variables of sbatch that make more jobs, or put them where squeue does not look."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the trial that Slurm still has."""

    number: str
    state: str
    """As squeue says: `PENDING`, `RUNNING`."""
    reason: str
    """Why it waits, in Slurm's words: `Priority`, `Resources`; where it runs, on which nodes."""


def queued(plan: TrialPlan, environment: Mapping[str, str]) -> tuple[QueuedJob, ...]:
    """Return the trial's jobs that Slurm still has. Raises MissingHereError without it, UndecidedError if it fails."""
    words = ["--noheader", "--me", f"--name={job_name(plan)}", "--format=%i %T %R"]
    # a user's SQUEUE_PARTITION or SQUEUE_STATES would hide the job
    own = {name: value for name, value in environment.items() if not name.startswith("SQUEUE_")}
    done = run([slurm_program("squeue", environment), *words], env=_here(own), timeout_s=_ASK_S)
    if not done.ok:
        raise UndecidedError(f"squeue does not say which jobs there are: {done.last_line}", hint="try again")
    lines = (line.split(maxsplit=2) for line in done.output.splitlines())
    return tuple(QueuedJob(*words) for words in lines if len(words) == 3)


def write_job(
    folder: TrialFolder, plan: TrialPlan, options: Sequence[str], environment: Mapping[str, str]
) -> tuple[str | Path, ...]:
    """Write the script of the job that does what is left, and return the words that sbatch takes for it.

    It asks for what its steps take as a rule and half of that again, as far as the trial's node minutes and the
    partition go: short jobs start sooner, and what they leave the next one does. What bounds the job stands last:
    there it wins over the user's options and variables.

    Raises FailedError where less time is left than a step takes, BadInputError for options that the trial decides.
    """
    if (wrong := next(filter(_is_decided, options), None)) is not None:
        raise BadInputError(
            f"has {wrong}, which the trial decides", where="--sbatch", hint="trial plan --nodes N --node-minutes N"
        )
    _settle(folder, plan, environment)
    left = plan.node_minutes - folder.spent()
    usual = usual_minutes([*steps_left(folder, plan)], plan.nodes) * 1.5
    minutes = math.floor(min(left, usual) / plan.nodes)
    longest = _longest(folder.output(HERE), [*options], environment)
    minutes = minutes if longest is None else min(minutes, longest)
    if minutes < _LEAST_MINUTES:
        spent = f"{folder.spent():.0f} of {plan.node_minutes} node minutes are taken"
        raise FailedError(spent, hint="what there is: `lumiimg trial report FOLDER`; a new trial has time of its own")
    place = folder.path.absolute()
    if "%" in str(place) or "\\" in str(place):
        hint = "plan the trial in another folder"
        raise BadInputError("has a % or a \\, which Slurm reads as more than that", where=str(place), hint=hint)
    command = shlex.join(map(str, [*own_command(), "trial", "run", place]))
    bounds = [f"--job-name={job_name(plan)}", f"--nodes={plan.nodes}", f"--time={minutes}"]
    bounds += ["--no-requeue", "--dependency=singleton"]
    lines = "\n".join(f"#SBATCH {bound}" for bound in bounds)
    asked, jobs = f"{plan.nodes} {minutes}", shlex.quote(str(place / folder.jobs.name))
    script = _SCRIPT.format(bounds=lines, command=command, asked=asked, jobs=jobs, BEGAN=BEGAN)
    write_text(place / "job.sh", script)
    return (f"--chdir={place}", "--output=job-%j.out", *options, *bounds, place / "job.sh")


def submit(folder: TrialFolder, plan: TrialPlan, options: Sequence[str], environment: Mapping[str, str]) -> str:
    """Submit the job that does what is left, and return its number; it is not waited for.

    Raises FailedError, MissingHereError without Slurm, UndecidedError if it refuses the job.
    """
    return submit_job(write_job(folder, plan, options, environment), _here(environment))


def _settle(folder: TrialFolder, plan: TrialPlan, environment: Mapping[str, str]) -> None:
    """Take from Slurm's accounting what the trial's own jobs took, where it has one (sacct(1)).

    A job that hung before or between its steps took more than it could note, one that was killed in a step less.
    """
    program = which("sacct", environment.get("PATH"))
    noted = {one.job: one for one in folder.job_times()}
    if program is None or not noted:
        return
    words = ["--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,ElapsedRaw,AllocNodes"]
    words += [f"--name={job_name(plan)}", f"--jobs={','.join(noted)}"]
    own = {name: value for name, value in environment.items() if not name.startswith("SACCT_")}
    done = run([program, *words], env=_here(own), timeout_s=_ASK_S)
    for line in done.output.splitlines() if done.ok else ():
        job, _, rest = line.partition("|")
        elapsed, _, nodes = rest.partition("|")
        if job in noted and elapsed.isdecimal() and nodes.isdecimal():
            one = noted[job]
            folder.note(replace(one, nodes=int(nodes), until=one.began + int(elapsed)))


def _here(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OTHER_JOB}


def _is_decided(option: str) -> bool:
    """Whether an option is one that bounds the job, also cut short, as sbatch takes it."""
    name = option.partition("=")[0]
    cut = len(name) > 2 and any(one.startswith(name) for one in _DECIDED)
    return cut or option == ":" or _DECIDED_SHORT.match(option) is not None


def _longest(output: Mapping[str, Any], options: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Return the longest job of the partition that the job will be in, in minutes; None where it is not known."""
    try:
        known = decode(output, SlurmFacts)
    except DecodeError:
        return None
    name = environment.get("SBATCH_PARTITION") or known.default
    for word, following in itertools.pairwise([*options, ""]):
        option, equals, value = word.partition("=")
        if option == "--partition":
            name = value if equals else following
        elif word.startswith("-p"):
            name = word[2:] or following
    hours = known.partitions.get(name) if name is not None else None
    return math.floor(hours * 60) if hours is not None and math.isfinite(hours) else None
