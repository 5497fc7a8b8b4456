"""What a trial reads back: its folder, which other processes and other days have written, and what Slurm says."""

from __future__ import annotations

import shutil
from unittest import mock

from lumiimg.build import provenance
from lumiimg.cluster.trial import plan, run
from lumiimg.cluster.trial.folder import PLAN, TrialFolder
from lumiimg.cluster.trial.report import report_of
from lumiimg.core.decode import parse_json
from lumiimg.report.json_output import json_text
from tests.fuzz.target import target
from tests.fuzz.targets.scratch import answering, parts, scratch, written

_ENVIRONMENT = {"PATH": "/bin", "USER": "ada", "HOME": "/users/ada"}
_STEPS = ("nodes", "slurm", "image-1.run", "image-1.probe")


@target(
    "trial-folder",
    "cluster.trial.folder.TrialFolder",
    "cluster.trial.node_facts.recorded_nodes",
    "cluster.trial.report.report_of",
    form="json",
    rounds=15,
)
def _folder(data: bytes) -> str:
    """A plan, a result, what a node shows, and what a step printed."""
    made, result, facts, output = parts(data, 4)
    folder = TrialFolder(scratch() / "trial")
    shutil.rmtree(folder.path, ignore_errors=True)
    written(made, f"trial/{PLAN}")
    written(facts, "trial/nodes/node-a.facts.json")
    for step in _STEPS:
        written(result, f"trial/steps/{step}.json")
        written(output, f"trial/steps/{step}.out")
    return json_text("trial", report_of(folder, folder.plan(), _ENVIRONMENT))


@target("trial-slurm", "cluster.trial.run._slurm")
def _slurm(data: bytes) -> None:
    """What scontrol and srun say."""
    with mock.patch.object(run, "slurm_program", return_value="/bin/slurm"), answering(run, data):
        run._slurm(_ENVIRONMENT)


@target("plan-of-image", "build.provenance.read_plan", "cluster.trial.plan.rows_in", form="json", rounds=15)
def _plan_of_image(data: bytes) -> str:
    """What an image says of itself, as every command reads it."""
    report = parse_json(data)
    with mock.patch.object(provenance, "read_document", return_value=report if isinstance(report, dict) else None):
        plan.rows_in(scratch() / "image.sif")
        provenance.asked_for(scratch() / "image.sif")
        return f"{provenance.read_plan(scratch() / 'image.sif')}"
