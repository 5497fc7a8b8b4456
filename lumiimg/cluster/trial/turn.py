"""What one start of `trial run` does: the steps that can be done here, and the job of Slurm that does the rest."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.driver import is_over, run_here, run_in_job
from lumiimg.cluster.trial.folder import alone
from lumiimg.cluster.trial.submit import queued, submit, write_job
from lumiimg.core.errors import ExitCode, UndecidedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumiimg.cluster.nodes.slurm import Allocation
    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import TrialPlan

_SUBMITTED = "SUBMITTED"


@dataclass(frozen=True, slots=True)
class TrialJob:
    """The job that does what is left of a trial."""

    job: str | None
    """Its number; null where it was not submitted."""
    state: str | None
    """`SUBMITTED` now, else as squeue says: `PENDING`, `RUNNING`; null where it was not submitted."""
    command: str | None
    """What submits it, with `--write-only`; null elsewhere."""

    @property
    def exit_code(self) -> ExitCode:
        """Undecided where an earlier job is still there."""
        return ExitCode.GOOD if self.state in {None, _SUBMITTED} else ExitCode.UNDECIDED


def take_turn(
    folder: TrialFolder,
    plan: TrialPlan,
    allocation: Allocation | None,
    options: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    write_only: bool,
) -> TrialJob | None:
    """Go on with a trial; None where this is its job, or nothing is left. `options` are for sbatch.

    Raises UndecidedError where another process goes on with it; else as `run_in_job` and `submit` do.
    """
    with alone(folder.path, "here" if allocation is None else "job") as is_alone:
        if not is_alone:
            raise UndecidedError("another process does the steps of this trial")
        if allocation is not None:
            run_in_job(folder, plan, allocation, environment, say)
            return None
        run_here(folder, plan, environment, say, quick=True)
        if is_over(folder, plan):
            return None
        if write_only:
            command = shlex.join(map(str, ["sbatch", *write_job(folder, plan, options, environment)]))
            return TrialJob(None, None, command)
        if jobs := queued(plan, environment):
            job = jobs[0]
            say(f"job {job.number} is {job.state.lower()} {job.reason}: it does what is left")
            return TrialJob(job.number, job.state, None)
        number = submit(folder, plan, options, environment)
        say(f"job {number} is submitted; it takes what is left of {plan.node_minutes} node minutes at most")
        run_here(folder, plan, environment, say, quick=False)
    say(f"next:  lumiimg trial report {shlex.quote(str(folder.path))}")
    return TrialJob(number, _SUBMITTED, None)
