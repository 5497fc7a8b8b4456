"""Run the steps of a trial one by one inside a job; the result of each is written before the next begins."""

from __future__ import annotations

import datetime as dt
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.report import NodesReport
from lumiimg.cluster.nodes.slurm import own_command, run_step, seconds, slurm_program
from lumiimg.cluster.trial.model import THERE, Ending, JobTime, StepResult
from lumiimg.cluster.trial.node_facts import clear_node_facts, recorded_nodes, snapshot_in
from lumiimg.cluster.trial.plan import FOLDER, content
from lumiimg.cluster.trial.readings import SlurmFacts
from lumiimg.core.decode import to_json
from lumiimg.core.errors import BadInputError, MissingHereError, one_line
from lumiimg.core.files import write_text
from lumiimg.engine.process import run
from lumiimg.host.container_view import TO_ENGINE, as_engine_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lumiimg.cluster.nodes.slurm import Allocation
    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.model import TrialPlan, TrialStep
    from lumiimg.engine.process import Completed

_LINES, _SAID = 4, 300
"""Limits on a step's messages: number of lines, and length of a line."""
_GRACE_S = 20.0
"""Time reserved at the end of a job."""
_TRIES = 3
"""Number of tries: a job that dies in a step may have had another problem; after three, the step is left out."""
_SILENT = "no node answered"
"""The job may be ending, or its nodes may be faulty."""
_MPI = re.compile(r"[a-z0-9_]{1,32}")


def run_in_job(
    folder: TrialFolder,
    plan: TrialPlan,
    allocation: Allocation,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Run the remaining steps, within the time of this job and the node minutes of the trial.

    Raises FailedError if a result cannot be written.
    """
    start = time.monotonic()
    # the trial's own job runs it once; salloc's shell may run it repeatedly
    is_own = environment.get("SLURM_JOB_NAME") == plan.job_name
    key = allocation.job if is_own else f"{allocation.job}-{time.time():.0f}"
    # all nodes of the job count, even those that no step uses
    room_s = (plan.node_minutes - folder.spent(without=key)) * 60 / len(allocation.nodes)
    ends = start + max(room_s - _GRACE_S, 0)
    if allocation.ends is not None:
        ends = min(ends, allocation.ends - _GRACE_S)
    account = environment.get("SLURM_JOB_ACCOUNT", "")

    def note(until: float) -> None:
        minutes = max(until - start, 0) / 60
        folder.note(key, JobTime(nodes=len(allocation.nodes), minutes=minutes, hosts=allocation.nodes, account=account))

    steps = _JobSteps(folder, plan, allocation, _without_tried(plan, environment), say)
    note(ends)  # the job may be killed before it can record less
    try:
        for step in folder.remaining_steps(plan):
            steps.do(step, ends - time.monotonic())
    finally:
        note(time.monotonic())


@dataclass(frozen=True, slots=True)
class _JobSteps:
    """The steps of a trial in one job."""

    folder: TrialFolder
    plan: TrialPlan
    allocation: Allocation
    environment: Mapping[str, str]
    say: Callable[[str], None]

    def do(self, step: TrialStep, left_s: float) -> None:
        """Run a step within that time, or record why it was not run."""
        before, nodes = self.folder.result(step.name), len(self.allocation.nodes)
        began, tries = dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), before.tries if before else 0

        def keep(ending: Ending, *said: str, tries: int = tries) -> None:
            job = self.allocation.job
            self.folder.keep(StepResult(step=step.name, ending=ending, job=job, began=began, said=said, tries=tries))

        if nodes < step.nodes:
            keep(Ending.PENDING, f"the job has {nodes} of {step.nodes} nodes")
        elif step.after in {one.name for one in self.folder.remaining_steps(self.plan)}:
            return
        elif (reason := self._shows_nothing(step)) is not None:
            keep(Ending.FAILED, f"left out: {reason}")
        elif left_s < step.minutes * 60:
            self.say(f"{step.about}: not started, {left_s / 60:.0f} min are left and it needs {step.minutes}")
        elif tries >= _TRIES:
            keep(Ending.FAILED, "each time, the job died in it or no node answered")
        else:
            keep(Ending.BEGUN, tries=tries + 1)
            self.say(step.about)
            try:
                ending, *said = self._come_to(step, min(step.limit * 60.0, left_s))
            except BaseException:  # a signal: the job was cancelled or reached its time limit
                keep(Ending.PENDING, "the job was stopped during it")
                raise
            keep(ending, *said, tries=tries + (said == [_SILENT]))

    def _shows_nothing(self, step: TrialStep) -> str | None:
        """Return why a step would show nothing; None if it may."""
        plan = self.plan
        if step.after is not None:
            first = next((self.folder.printed(one) for one in plan.steps if one.name == step.after), None)
            if not isinstance(first, NodesReport) or first.collective is None:
                return f"{step.after} had no collective"
        if not 0 < step.image <= len(plan.images):
            return None
        try:
            changed = content(Path(plan.paths[step.image - 1])) != plan.images[step.image - 1].content
        except BadInputError as error:
            return f"the image {error.what}"
        return "the image has changed since the claims were written" if changed else None

    def _come_to(self, step: TrialStep, limit_s: float) -> tuple[Ending, *tuple[str, ...]]:
        """Run a step, and return how it ended and its messages; what a better job could do is left for that job."""
        folder = self.folder
        if step.kind == "slurm":
            write_text(folder.output_file(step.name), to_json(_slurm(self.environment)))
            return (Ending.DONE,)
        if step.kind == "nodes":
            clear_node_facts(folder.nodes)  # from an earlier job, on other nodes and at another time
            nodes = self.allocation.nodes[: self.plan.nodes]
            done = run_step(nodes, _words(folder, step), self.environment, timeout_s=limit_s)
            return (Ending.DONE, *_said(done)) if recorded_nodes(folder.nodes) else (Ending.PENDING, _SILENT)
        done = _command(folder, step, self.environment, limit_s)
        printed = folder.printed(step)
        if done.timed_out and limit_s < step.limit * 60:
            return Ending.PENDING, "the job's time limit was reached"
        if done.timed_out:
            return Ending.FAILED, f"ended at its limit, after {step.limit} min"
        if not isinstance(printed, NodesReport):
            return Ending.FAILED, *(_said(done) or (f"ended with exit code {done.exit_code}, without output",))
        if not printed.groups:
            return Ending.PENDING, _SILENT
        if (why := printed.levels.get("run", "")).startswith("skipped: "):
            return Ending.PENDING, one_line(why)[:_SAID]
        return Ending.DONE, *_said(done)


def _command(folder: TrialFolder, step: TrialStep, environment: Mapping[str, str], limit_s: float) -> Completed:
    """Run a command of lumiimg; its JSON output is moved to its final path if it is complete."""
    place = folder.output_file(step.name)
    part = place.with_suffix(".part")
    for left in (place, part):  # from a killed try
        left.unlink(missing_ok=True)
    # keeps JSON apart from messages for people: the function that runs all programs reads both streams together. -C:
    # write only to a new file, never through a link that somebody else made
    argv = ["/bin/sh", "-C", "-c", 'exec "$@" >"$0"', str(part), *_words(folder, step)]
    # by the engine's names too: the image's own settings would override plain ones
    done = run(argv, env={**environment, **step.sets, **as_engine_variables(step.sets)}, timeout_s=limit_s)
    if not done.timed_out and folder.printed(step, part) is not None:
        part.replace(place)
    part.unlink(missing_ok=True)
    return done


def _words(folder: TrialFolder, step: TrialStep) -> list[str]:
    """Return the command of a step; `check` gets the snapshot of a node, if there is one."""
    snapshot = snapshot_in(folder.nodes) if step.kind == "check" else None
    words = [word.replace(FOLDER, str(folder.path)) if word.startswith(FOLDER) else word for word in step.words]
    return [*own_command(), *words, *(["--host", str(snapshot)] if snapshot is not None else [])]


def _without_tried(plan: TrialPlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables that the trial sets or leaves out: the user's would affect every run."""
    tried = {name for step in plan.steps for name in (*step.sets, step.name.partition(".without.")[2])}
    names = {f"{prefix}{name}" for name in tried for prefix in ("", *TO_ENGINE)}
    return {name: value for name, value in environment.items() if name not in names}


def _slurm(environment: Mapping[str, str]) -> SlurmFacts:
    """Return Slurm's partitions with their longest jobs, and the kinds of `srun --mpi=`; empty without Slurm."""

    def ask(*argv: str) -> str:
        with suppress(MissingHereError):
            return run([slurm_program(argv[0], environment), *argv[1:]], env=environment, timeout_s=30).output
        return ""

    partitions: dict[str, str] = {}
    # --all: also partitions hidden from users without access; one line per partition
    for line in ask("scontrol", "--all", "--oneliner", "show", "partition").splitlines():
        fields = {key: value for key, equals, value in (word.partition("=") for word in line.split()) if equals}
        if "PartitionName" in fields:
            longest_s = seconds(fields.get("MaxTime", ""))
            partitions[fields["PartitionName"]] = f"{longest_s / 3600:g}" if longest_s is not None else "no limit"
    words = map(str.strip, ask("srun", "--mpi=list").splitlines())
    return SlurmFacts(partitions, dict.fromkeys(filter(_MPI.fullmatch, words), THERE))


def _said(done: Completed) -> tuple[str, ...]:
    lines = [line for line in done.output.splitlines() if line.strip()]
    return tuple(one_line(line)[:_SAID] for line in lines[-_LINES:])
