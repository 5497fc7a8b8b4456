"""The job of a trial: submitted once, found again by its name, and never longer than what is left of the trial."""

from __future__ import annotations

import itertools
import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.cluster.nodes.check import own_command
from lumiimg.cluster.nodes.slurm import slurm_program, submit_job
from lumiimg.cluster.trial.claims import HERE
from lumiimg.cluster.trial.driver import steps_left
from lumiimg.cluster.trial.plan import usual_minutes
from lumiimg.engine.process import run
from lumiimg.errors import BadInputError, FailedError, UndecidedError
from lumiimg.files import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import TrialPlan

_ASK_S = 30.0
_LEAST_MINUTES = 3
# whole nodes: others' work beside a collective would make it slow. --no-requeue: what a job has taken is counted by its
# number, and one that starts again under the same would be counted once.
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time={minutes}
#SBATCH --no-kill
#SBATCH --no-requeue
exec {command}
"""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the trial that Slurm still has."""

    number: str
    state: str
    """As squeue says: `PENDING`, `RUNNING`."""
    reason: str
    """Why it waits, in Slurm's words: `Priority`, `Resources`; where it runs, on which nodes."""


def job_name(plan: TrialPlan) -> str:
    """Return the name of a trial's jobs."""
    return f"lumiimg-trial-{plan.id}"


def queued(plan: TrialPlan, environment: Mapping[str, str]) -> tuple[QueuedJob, ...]:
    """Return the trial's jobs that Slurm still has. Raises MissingHereError without it, UndecidedError if it fails."""
    argv = [slurm_program("squeue", environment), "--noheader", f"--name={job_name(plan)}", "--format=%i %T %R"]
    done = run(argv, env=environment, timeout_s=_ASK_S)
    if not done.ok:
        raise UndecidedError(f"squeue does not say which jobs there are: {done.last_line}", hint="try again")
    lines = (line.split(maxsplit=2) for line in done.output.splitlines())
    return tuple(QueuedJob(*words) for words in lines if len(words) == 3)


def script_of(folder: TrialFolder, plan: TrialPlan, minutes: int) -> str:
    """Return the batch script of a job of this number of minutes."""
    command = shlex.join(map(str, [*own_command(), "trial", "run", folder.path.absolute()]))
    return _SCRIPT.format(name=job_name(plan), nodes=plan.nodes, minutes=minutes, command=command)


def write_script(folder: TrialFolder, plan: TrialPlan, options: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Write the script of the job that does what is left, and return it.

    It asks for what its steps take as a rule and half of that again, as far as the trial's node minutes and the
    partition go: short jobs start sooner, and what they leave the next one does.

    Raises FailedError where less time is left than a step takes.
    """
    left = plan.node_minutes - folder.spent()
    usual = usual_minutes([*steps_left(folder, plan)], plan.nodes) * 1.5
    minutes = math.floor(min(left, usual) / plan.nodes)
    longest = _longest(folder.output(HERE), [*options], environment)
    minutes = minutes if longest is None else min(minutes, longest)
    if minutes < _LEAST_MINUTES:
        spent = f"{folder.spent():.0f} of {plan.node_minutes} node minutes are taken"
        raise FailedError(spent, hint="what there is: `lumiimg trial report FOLDER`; a new trial has time of its own")
    script = folder.path / "job.sh"
    write_text(script, script_of(folder, plan, minutes))
    return script


def submit(folder: TrialFolder, plan: TrialPlan, options: Sequence[str], environment: Mapping[str, str]) -> str:
    """Submit the job that does what is left, and return its number; it is not waited for.

    Raises FailedError, MissingHereError without Slurm, UndecidedError if it refuses the job.
    """
    if any(option.startswith(("--time", "-t")) for option in options):
        raise BadInputError(
            "the trial's own limit decides the time of its job", where="--sbatch", hint="trial plan --node-minutes N"
        )
    script = write_script(folder, plan, options, environment)
    output = f"--output={folder.path.absolute()}/job-%j.out"
    return submit_job(script, [f"--chdir={folder.path.absolute()}", output, *options], environment)


def _longest(known: Mapping[str, Any], options: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Return the longest job of the partition that the job will be in, in minutes; None where it is not known."""
    name = environment.get("SBATCH_PARTITION") or known.get("default")
    for word, following in itertools.pairwise([*options, ""]):
        option, equals, value = word.partition("=")
        if option == "--partition":
            name = value if equals else following
        elif word.startswith("-p"):
            name = word[2:] or following
    hours = (known.get("partitions") or {}).get(name)
    return math.floor(hours * 60) if isinstance(hours, int | float) else None
