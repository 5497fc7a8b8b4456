"""The folder of a trial: its plan, the result of each step, facts from the nodes, and the time used by its jobs.

All nodes share it. Files are written atomically; a step that a killed process left unfinished is repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from lumiimg.cluster.nodes.report import NodesReport
from lumiimg.cluster.nodes.slurm import own_command
from lumiimg.cluster.trial.model import (
    SCHEMA,
    Ending,
    JobTime,
    StepKind,
    StepResult,
    TrialPlan,
    TrialStep,
    usual_minutes,
)
from lumiimg.cluster.trial.node_facts import recorded_nodes
from lumiimg.cluster.trial.readings import Printed, SlurmFacts, TrialResults
from lumiimg.core.decode import DecodeError, decode_json, encode, read_whole, to_json
from lumiimg.core.errors import BadInputError, FailedError, UndecidedError
from lumiimg.core.files import write_text

T = TypeVar("T")
PLAN = "plan.json"
_NAME = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
_MAX_BYTES = 16 << 20
_PRINTED: dict[StepKind, type[Printed]] = {"slurm": SlurmFacts, "check": NodesReport}
"""The type of a step's output."""


_MIN_MINUTES, _MAX_MINUTES = 3, 60
"""Limits of a job: short jobs start sooner and fit test partitions, and the next job does the remaining steps."""
# Whole nodes: other jobs beside a collective would slow it down. --no-requeue: time is counted per job number, so a job
# that restarts under the same number would be counted only once. singleton: one job of this name at a time. The full
# time limit counts as used from the beginning: the job may hang before it can record less.
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time={minutes}
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --dependency=singleton
cd {folder} || exit
echo '{{"nodes": {nodes}, "minutes": {minutes}}}' >jobs/.begun && mv jobs/.begun "jobs/$SLURM_JOB_ID.json"
exec {command}
"""


class TrialFolder:
    """One trial on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps, self.nodes, self.jobs = path / "steps", path / "nodes", path / "jobs"

    def make(self, plan: TrialPlan) -> None:
        """Write the plan into a new folder. Raises BadInputError if the folder cannot be made, FailedError."""
        if os.path.lexists(self.path):
            raise BadInputError("exists already, but is not a trial", where=str(self.path), hint="name a new folder")
        try:
            self.path.mkdir(parents=True)
            for folder in (self.steps, self.nodes, self.jobs):
                folder.mkdir()
        except OSError as error:
            raise BadInputError(f"cannot be made: {error.strerror}", where=str(self.path)) from error
        write_text(self.path / PLAN, json.dumps(encode(plan), indent=1))

    def write_job(self, plan: TrialPlan) -> Path:
        """Write the script of a Slurm job for the remaining steps, and return its path.

        The job requests one and a half times the usual time of its steps, within the trial's node minutes.

        Raises FailedError if less time is left than a job needs.
        """
        spent = self.spent()
        usual = usual_minutes([*self.remaining_steps(plan)], plan.nodes) * 1.5
        minutes = min(math.floor(min(plan.node_minutes - spent, usual) / plan.nodes), _MAX_MINUTES)
        if minutes < _MIN_MINUTES:
            hint = "the results so far: `lumiimg trial report FOLDER`; a new trial has its own time"
            raise FailedError(f"{spent:.0f} of {plan.node_minutes} node minutes are used", hint=hint)
        place = self.path.absolute()
        command = shlex.join(map(str, [*own_command(), "trial", "run", place]))
        words = {"nodes": plan.nodes, "minutes": minutes, "folder": shlex.quote(str(place)), "command": command}
        write_text(place / "job.sh", _SCRIPT.format(name=plan.job_name, **words))
        return place / "job.sh"

    def remaining_steps(self, plan: TrialPlan) -> Iterator[TrialStep]:
        """Yield the remaining steps, in order."""
        for step in plan.steps:
            result = self.result(step.name)
            if result is None or result.ending in {Ending.PENDING, Ending.BEGUN}:
                yield step

    def plan(self) -> TrialPlan:
        """Read the plan. Raises BadInputError."""
        plan = _read(self.path / PLAN, TrialPlan)
        if plan is None:
            hint = "`lumiimg trial run FOLDER IMAGE` makes one"
            raise BadInputError("is not the folder of a trial", where=str(self.path), hint=hint)
        names = (plan.id, *(step.name for step in plan.steps))
        if plan.nodes < 1 or plan.schema != SCHEMA or not all(map(_NAME.fullmatch, names)):
            raise BadInputError("was not written by a trial of this lumiimg", where=str(self.path / PLAN))
        return plan

    def refuse_others(self) -> None:
        """Raise BadInputError for a trial of another user: its steps are commands, and would run as the caller."""
        # check the folder, too, and refuse a symlink to the caller's plan: the script to be submitted is in this folder
        if {self.path.stat().st_uid, (self.path / PLAN).lstat().st_uid} != {os.getuid()}:
            hint = "run one of your own in another folder"
            raise BadInputError("is the trial of another user", where=str(self.path), hint=hint)

    def result(self, step: str) -> StepResult | None:
        """Return the result of a step; None if it was not begun."""
        return _read(self.steps / f"{step}.json", StepResult)

    def keep(self, result: StepResult) -> None:
        """Store the result of a step. Raises FailedError."""
        write_text(self.steps / f"{result.step}.json", to_json(result))

    def output_file(self, step: str) -> Path:
        """Return the path of a step's complete output."""
        return self.steps / f"{step}.out"

    def printed(self, step: TrialStep, path: Path | None = None) -> Printed | None:
        """Return the output of a step, from its usual path or `path`; None if it is missing or invalid."""
        try:
            return _read(path or self.output_file(step.name), _PRINTED[step.kind])
        except (KeyError, BadInputError):
            return None

    def results(self, plan: TrialPlan) -> TrialResults:
        """Read all results so far. Raises BadInputError for a result that no trial has written."""
        steps = {step.name: result for step in plan.steps if (result := self.result(step.name)) is not None}
        printed = {step.name: found for step in plan.steps if (found := self.printed(step)) is not None}
        return TrialResults(plan, steps, recorded_nodes(self.nodes), printed)

    def note(self, key: str, taken: JobTime) -> None:
        """Record a job's time; `key`: its number, with a time if it may run the trial again. Raises FailedError."""
        write_text(self.jobs / f"{key}.json", to_json(taken))

    def job_times(self, without: str = "") -> Iterator[JobTime]:
        """Yield the time of each job except the one with key `without`; for a killed job, the most it can have used."""
        for path in sorted(self.jobs.glob("*.json")):
            if path.stem != without and (taken := _read(path, JobTime)) is not None:
                yield taken

    def spent(self, without: str = "") -> float:
        """Return the node minutes used by the jobs."""
        return sum(one.nodes * one.minutes for one in self.job_times(without))


def _read(path: Path, kind: type[T]) -> T | None:
    if not path.is_file():
        return None
    try:
        return decode_json(read_whole(path, _MAX_BYTES), kind, where=str(path))
    except DecodeError as error:
        raise BadInputError(f"was not written by a trial: {error.what}", where=str(path)) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a trial for this process.

    The kernel releases the lock when the process ends, however it ends (flock(2)). The lock is valid on all nodes if
    their file system is mounted for that (Lustre: `-o flock`), otherwise only on this one.

    Raises UndecidedError if another process holds the lock, FailedError if the file system has no locks.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UndecidedError("another process runs this trial", where=str(folder)) from error
        except OSError as error:
            hint = "run the trial in a folder on a file system with locks"
            raise FailedError(f"cannot be locked: {error.strerror}", where=str(folder), hint=hint) from error
        yield
