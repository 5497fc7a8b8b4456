"""What `trial` prints."""

from __future__ import annotations

from lumiimg.cluster.trial.values import TrialPlan as Plan
from lumiimg.cluster.trial.values import TrialReport
from lumiimg.report.outputs.shape import Output


class Trial(Output):
    """What lumiimg claims of a machine and of images, beside what was measured."""

    printed_by = "lumiimg trial report FOLDER --json, and FOLDER/trial.json"
    made_of = TrialReport


class TrialJob(Output):
    """The job that does what is left of a trial."""

    printed_by = "lumiimg trial run FOLDER --json"

    job: str | None
    """Its number; null where it was not submitted."""
    state: str | None
    """`SUBMITTED` now, else as squeue says: `PENDING`, `RUNNING`; null where it was not submitted."""
    command: str | None
    """What submits it, with `--write-only`; null elsewhere."""


class TrialPlan(Output):
    """What a trial would do, and all that it predicts."""

    printed_by = "lumiimg trial plan IMAGE -o FOLDER --json, and FOLDER/plan.json"
    made_of = Plan
