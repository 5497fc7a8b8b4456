"""Plan a trial, run it on nodes, and report it."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import replace

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import find_site, sbatch_options, submit_conditions, target_site
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.cluster.nodes.slurm import find_allocation
from lumiimg.cluster.trial.folder import PLAN, TrialFolder, locked
from lumiimg.cluster.trial.model import TrialPlan
from lumiimg.cluster.trial.plan import plan_trial
from lumiimg.cluster.trial.report import report_of
from lumiimg.cluster.trial.run import run_in_job
from lumiimg.core.errors import BadInputError, say
from lumiimg.core.files import write_text
from lumiimg.core.findings import Advice
from lumiimg.report.json_output import json_text
from lumiimg.report.views.trial import trial_document, trial_plan_document

_OWN_IMAGES = 3
"""Number of the site's newest images that are used if none is named."""
_NODES = 2


def execute(arguments: argparse.Namespace) -> int:
    return {"run": _run, "report": _report}[arguments.action](arguments)


def _run(arguments: argparse.Namespace) -> int:
    folder, output = TrialFolder(arguments.folder), Output.from_arguments(arguments)
    plan = _plan(folder, arguments)
    folder.refuse_others()
    allocation = find_allocation(os.environ)
    with locked(folder.path):
        if allocation is not None:
            run_in_job(folder, plan, allocation, os.environ, _silent if output.quiet else say)
        elif any(folder.remaining_steps(plan)):
            script = shlex.quote(str(folder.write_job(plan)))
            site = find_site(plan.site_name, os.environ)
            options = sbatch_options(site, os.environ) if site.scheduler in {None, "Slurm"} else ()
            advice = Advice(None, " ".join(["sbatch", *options, script]), submit_conditions(os.environ))
            return output.deliver(trial_plan_document(plan, advice), "trial-plan", plan)
    return _answer(folder, plan, replace(output, quiet=output.quiet or allocation is not None))


def _plan(folder: TrialFolder, arguments: argparse.Namespace) -> TrialPlan:
    """Return the plan of a trial; if its folder is new, make it."""
    new = {"IMAGE": arguments.images, "--nodes": arguments.nodes, "--node-minutes": arguments.node_minutes}
    if not (folder.path / PLAN).exists():
        inputs = Inputs.from_arguments(arguments, target_site)
        plan = plan_trial(
            arguments.images or open_catalogue(os.environ).images_here()[:_OWN_IMAGES],
            inputs.target,
            inputs.site_name or inputs.target.name,
            os.environ,
            nodes=_NODES if arguments.nodes is None else arguments.nodes,
            node_minutes=arguments.node_minutes,
        )
        folder.make(plan)
    elif given := next((name for name, value in new.items() if value), None):
        hint = "leave it out to continue that trial, or name a new folder"
        raise BadInputError("already has the plan of a trial", where=f"{folder.path}, {given}", hint=hint)
    return folder.plan()


def _report(arguments: argparse.Namespace) -> int:
    folder = TrialFolder(arguments.folder)
    return _answer(folder, folder.plan(), Output.from_arguments(arguments))


def _answer(folder: TrialFolder, plan: TrialPlan, output: Output) -> int:
    """Write trial.json, print the table, and return its exit code."""
    report = report_of(folder, plan, os.environ)
    write_text(folder.path / "trial.json", json_text("trial", report) + "\n")
    return output.deliver(trial_document(report, str(folder.path)), "trial", report, report.exit_code)


def _silent(_: str) -> None:
    """Print nothing."""
