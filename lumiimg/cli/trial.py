"""Plan a trial, run it on nodes, and report it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from lumiimg.build.choice import builds_here, machine_for_builds
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.check.advice import sbatch_options, where_to_submit
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.cluster.nodes.slurm import find_allocation
from lumiimg.cluster.trial.driver import is_over, run_here, run_in_job
from lumiimg.cluster.trial.folder import TrialFolder, alone
from lumiimg.cluster.trial.plan import plan_trial
from lumiimg.cluster.trial.submit import queued, submit, write_job
from lumiimg.cluster.trial.table import answer_of, report_of
from lumiimg.cluster.trial.values import TrialPlan
from lumiimg.errors import BadInputError, ExitCode, MissingHereError, printable
from lumiimg.files import write_text
from lumiimg.findings import Advice
from lumiimg.report import json_output
from lumiimg.report.json_images import TrialJob
from lumiimg.report.json_output import print_json
from lumiimg.report.views.trial import trial_document, trial_plan_document

_OWN_IMAGES = 3
"""Of the site, where none is named."""


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
    return Output.of(arguments).deliver(trial_plan_document(plan, advice), "trial-plan", plan, ExitCode.GOOD)


def _doctor() -> bool | None:
    """Return whether images can be built here, as `lumiimg doctor` finds out; None where it cannot tell."""
    try:
        return builds_here(machine_for_builds(os.environ, read_settings(os.environ).cache))
    except MissingHereError:
        return False


def _run(arguments: argparse.Namespace) -> int:
    folder = TrialFolder(arguments.folder)
    plan = folder.plan()
    folder.refuse_others()
    allocation = find_allocation(os.environ)
    if allocation is not None and arguments.sbatch:
        raise BadInputError(f"this is job {allocation.job} already", where="--sbatch", hint="leave it out")
    options = _words(arguments.sbatch)
    say = _silent if arguments.quiet else _say
    with alone(folder.path, "here" if allocation is None else "job") as is_alone:
        if not is_alone:
            _say("another process does the steps of this trial")
            return ExitCode.UNDECIDED
        if allocation is not None:
            run_in_job(folder, plan, allocation, os.environ, say)
            return _answer(folder, plan, Output(json=arguments.json, quiet=True))
        run_here(folder, plan, os.environ, say, quick=True)
        if is_over(folder, plan):
            return _answer(folder, plan, Output(json=arguments.json, quiet=arguments.quiet))
        if arguments.write_only:
            command = shlex.join(map(str, ["sbatch", *write_job(folder, plan, options, os.environ)]))
            return _job(arguments, None, None, command)
        if jobs := queued(plan, os.environ):
            job = jobs[0]
            say(f"job {job.number} is {job.state.lower()} {job.reason}: it does what is left")
            return _job(arguments, job.number, job.state, None)
        number = submit(folder, plan, options, os.environ)
        say(f"job {number} is submitted; it takes what is left of {plan.node_minutes} node minutes at most")
        run_here(folder, plan, os.environ, say, quick=False)
    say(f"next:  lumiimg trial report {shlex.quote(str(folder.path))}")
    return _job(arguments, number, "SUBMITTED", None)


def _job(arguments: argparse.Namespace, number: str | None, state: str | None, command: str | None) -> int:
    """Print the job that does what is left, for machines, or the command that submits it; return the exit code."""
    if arguments.json:
        print_json("trial-job", TrialJob(number, state, command))
    elif command is not None:
        print(printable(command))
    return ExitCode.GOOD if state in {None, "SUBMITTED"} else ExitCode.UNDECIDED


def _report(arguments: argparse.Namespace) -> int:
    folder = TrialFolder(arguments.folder)
    plan = folder.plan()
    return _answer(folder, plan, Output.of(arguments))


def _answer(folder: TrialFolder, plan: TrialPlan, output: Output) -> int:
    """Write the file, print the table, and return its answer."""
    report = report_of(folder, plan, os.environ)
    write_text(folder.path / "trial.json", json_output.json_text("trial", report) + "\n")
    return output.deliver(trial_document(report, str(folder.path)), "trial", report, answer_of(report))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadInputError(f"is not a valid list of options: {error}", where="--sbatch") from error


def _silent(_: str) -> None:
    """Say nothing."""


def _say(what: str) -> None:
    print(printable(what), file=sys.stderr, flush=True)
