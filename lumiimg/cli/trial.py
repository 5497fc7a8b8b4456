"""Plan a trial, run it on nodes, and report it."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import replace

from lumiimg.build.build_host import host_for_builds
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.catalog.sites import sbatch_options, where_to_submit
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.cluster.nodes.slurm import find_allocation, sbatch_words
from lumiimg.cluster.trial.folder import TrialFolder
from lumiimg.cluster.trial.plan import plan_trial
from lumiimg.cluster.trial.table import report_of
from lumiimg.cluster.trial.turn import take_turn
from lumiimg.cluster.trial.values import TrialPlan
from lumiimg.core.errors import BadInputError, MissingHereError, one_safe_line, say
from lumiimg.core.files import write_text
from lumiimg.core.findings import Advice
from lumiimg.report.json_output import json_text
from lumiimg.report.views.trial import trial_document, trial_plan_document

_OWN_IMAGES = 3
"""Of the site, where none is named: the newest."""


def execute(arguments: argparse.Namespace) -> int:
    return {"plan": _plan, "run": _run, "report": _report}[arguments.action](arguments)


def _plan(arguments: argparse.Namespace) -> int:
    inputs = Inputs.of(arguments, site_to_make_for)
    site, name = inputs.target, inputs.site_name
    plan = plan_trial(
        arguments.images or open_catalogue(os.environ).images_here()[:_OWN_IMAGES],
        site,
        name or site.name,
        os.environ,
        nodes=arguments.nodes,
        node_minutes=arguments.node_minutes,
        build=arguments.build,
        builds=_doctor() if arguments.build else None,
    )
    folder = TrialFolder(arguments.output)
    folder.make(plan)
    options = " ".join(sbatch_options(site, os.environ)) if site.scheduler in {None, "Slurm"} else ""
    command = f"lumiimg trial run {shlex.quote(str(folder.path))} --sbatch={shlex.quote(options)}"
    advice = Advice(None, command, where_to_submit(os.environ))
    return Output.of(arguments).deliver(trial_plan_document(plan, advice), "trial-plan", plan)


def _doctor() -> bool | None:
    """Return whether images can be built here, as `lumiimg doctor` finds out; None where it cannot tell."""
    try:
        return host_for_builds(os.environ).builds
    except MissingHereError:
        return False


def _run(arguments: argparse.Namespace) -> int:
    folder = TrialFolder(arguments.folder)
    plan = folder.plan()
    folder.refuse_others()
    allocation = find_allocation(os.environ)
    if allocation is not None and arguments.sbatch:
        raise BadInputError(f"this is job {allocation.job} already", where="--sbatch", hint="leave it out")
    options, output = sbatch_words(arguments.sbatch), Output.of(arguments)
    on_step = _silent if output.quiet else say
    job = take_turn(folder, plan, allocation, options, os.environ, on_step, write_only=arguments.write_only)
    if job is None:
        return _answer(folder, plan, replace(output, quiet=output.quiet or allocation is not None))
    if not output.as_json("trial-job", job) and job.command is not None:
        print(one_safe_line(job.command))
    return job.exit_code


def _report(arguments: argparse.Namespace) -> int:
    folder = TrialFolder(arguments.folder)
    return _answer(folder, folder.plan(), Output.of(arguments))


def _answer(folder: TrialFolder, plan: TrialPlan, output: Output) -> int:
    """Write the file, print the table, and return its answer."""
    report = report_of(folder, plan, os.environ)
    write_text(folder.path / "trial.json", json_text("trial", report) + "\n")
    return output.deliver(trial_document(report, str(folder.path)), "trial", report, report.exit_code)


def _silent(_: str) -> None:
    """Say nothing."""
