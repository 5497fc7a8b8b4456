"""What a trial reads back: its folder, which other processes and other days have written, and what Slurm says."""

from __future__ import annotations

import shutil
from unittest import mock

from lumiimg.build import provenance
from lumiimg.cluster.trial import driver, plan, submit
from lumiimg.cluster.trial.folder import PLAN, TrialFolder
from lumiimg.cluster.trial.table import report_of
from lumiimg.cluster.trial.values import Claim, TrialPlan, TrialStep
from lumiimg.core.decode import parse_json
from lumiimg.core.errors import UndecidedError
from lumiimg.report.json_output import json_text
from tests.fuzz.target import target
from tests.fuzz.targets.scratch import answering, parts, scratch, written

_ENVIRONMENT = {"PATH": "/bin", "USER": "ada", "HOME": "/users/ada"}
_WORDS = {"image-1.gpus": ("node", "--gpus-in", "x")}
_CLAIMS = {
    "nodes": ("site.cores", "64"),
    "here": ("site.mpi:pmi2", "there"),
    "image-1.run": ("image-1.network", "x"),
    "nodes-near": ("site.near", "0:48 1:56"),
    "image-1.probe": ("image-1.rccl", "/x"),
    "image-1.gpus": ("image-1.target", "gfx90a"),
}
_PLAN = TrialPlan(
    schema=1,
    id="0123abcd",
    made="2026-11-26T10:00:00+00:00",
    tool="0.1.0",
    site="lumi",
    nodes=2,
    node_minutes=60,
    images=(),
    steps=tuple(
        TrialStep(name=name, about=name, words=_WORDS.get(name, ("check",)), nodes=2, minutes=1, limit=2)
        for name in _CLAIMS
    ),
    claims=tuple(
        Claim(id=key, about=key, predicted=told, source="x", step=step) for step, (key, told) in _CLAIMS.items()
    ),
)


@target(
    "trial-folder",
    "cluster.trial.folder.TrialFolder",
    "cluster.trial.case.read_case",
    "cluster.trial.look.looks_in",
    "cluster.trial.table.report_of",
    form="json",
    rounds=15,
)
def _folder(data: bytes) -> str:
    """A plan, a record, a look, and what a step printed."""
    made, record, look, output = parts(data, 4)
    folder = TrialFolder(scratch() / "trial")
    shutil.rmtree(folder.path, ignore_errors=True)
    written(made, f"trial/{PLAN}")
    written(look, "trial/looks/node-a.look.json")
    for step in _CLAIMS:
        written(record, f"trial/steps/{step}.json")
        written(output, f"trial/steps/{step}.out")
    return json_text("trial", report_of(folder, folder.plan(), _ENVIRONMENT))


@target("trial-slurm", "cluster.trial.driver._slurm", "cluster.trial.submit.queued", refuses=(UndecidedError,))
def _slurm(data: bytes) -> None:
    """What scontrol and srun, squeue, and sacct say."""
    partitions, queue, accounts = parts(data, 3)
    folder = TrialFolder(scratch() / "jobs-of-trial")
    folder.jobs.mkdir(parents=True, exist_ok=True)
    with mock.patch.object(driver, "which", return_value="/bin/slurm"), answering(driver, partitions):
        driver._slurm(_ENVIRONMENT)
    with mock.patch.object(submit, "slurm_program", return_value="/bin/squeue"), answering(submit, queue):
        submit.queued(_PLAN, _ENVIRONMENT)
    with mock.patch.object(submit, "which", return_value="/bin/sacct"), answering(submit, accounts):
        submit._settle(folder, _PLAN, _ENVIRONMENT)


@target("plan-of-image", "build.provenance.read_plan", "cluster.trial.plan.rows_in", form="json", rounds=15)
def _plan_of_image(data: bytes) -> str:
    """What an image says of itself, as every command reads it."""
    said = parse_json(data)
    with mock.patch.object(provenance, "read_document", return_value=said if isinstance(said, dict) else None):
        plan.rows_in(scratch() / "image.sif")
        provenance.asked_for(scratch() / "image.sif")
        return f"{provenance.read_plan(scratch() / 'image.sif')}"
