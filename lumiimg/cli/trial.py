"""Try on real nodes what lumiimg says of them and of images, and put claims and
facts side by side.

  lumiimg trial plan image.sif -o trial       writes down what it would do, what
                                              that costs, and every prediction
  lumiimg trial run trial --sbatch='-A …'     submits the job; again: goes on
  lumiimg trial report trial                  the table, as far as it is

Nothing is sent anywhere. The file of the report has no names of people,
projects, nodes and folders: read it before you share it.

exit codes: 0 planned, or submitted; of a report: all is as it was predicted
            1 something differs; the node minutes of the trial are used up
            2 not an image, or not the folder of a trial
            3 something is not measured yet; the job waits or runs
            4 no Slurm here
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli.options import (
    add_json,
    add_machine,
    add_output,
    add_page,
    add_quiet,
    add_verbose,
    number_to,
    site_in_force,
    site_to_make_for,
)
from lumiimg.errors import BadInputError, ExitCode, printable

if TYPE_CHECKING:
    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import TrialPlan

_NODES = 2
"""The least on which the network is used."""
_OWN_IMAGES = 3
"""Of the site, where none is named."""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    plan = actions.add_parser(
        "plan",
        help="write down what would be done, what it costs, and every prediction",
        description="Write the plan of a trial into a new folder, which all nodes must share.\n"
        "Nothing runs on nodes yet. Without an image, the site's own that lie on this machine\n"
        "are tried, of each ROCm the newest.",
    )
    plan.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help="image to try")
    add_output(plan, "the new folder", metavar="DIR", required=True)
    add_machine(plan, "whose claims are tried (default: settings, this machine, lumi)")
    plan.add_argument(
        "--nodes",
        metavar="N",
        type=number_to(64, "number of nodes"),
        default=_NODES,
        help="number of nodes: of each job (default: 2)",
    )
    plan.add_argument(
        "--node-minutes",
        metavar="N",
        type=number_to(100_000, "number of minutes"),
        help="that all jobs of the trial may take together, never more (default: twice what it takes as a rule)",
    )
    plan.add_argument("--build", action="store_true", help="also try a small build on the first image")
    add_quiet(plan)
    add_json(plan)
    plan.set_defaults(execute=execute)
    run = actions.add_parser(
        "run",
        help="submit the job that does what is left; inside a job, do it",
        description="Submit the job of a trial, or go on with it: steps that are done are not done\n"
        "again. The job is not waited for. Inside a job with enough nodes, the steps are done here.",
    )
    run.add_argument("folder", metavar="FOLDER", type=Path, help="of `trial plan`")
    run.add_argument("--sbatch", metavar="OPTIONS", default="", help="options for sbatch: partition, account, GPUs")
    run.add_argument("--write-only", action="store_true", help="write the job script, and submit nothing")
    add_quiet(run)
    add_json(run)
    run.set_defaults(execute=_run)
    report = actions.add_parser(
        "report",
        help="print claims beside facts, and write the file to share",
        description="Print what was predicted beside what was measured, the differences first, and\n"
        "write it to FOLDER/trial.json.",
    )
    report.add_argument("folder", metavar="FOLDER", type=Path, help="of `trial plan`")
    add_page(report)
    add_quiet(report)
    add_verbose(report, "every claim, with its source")
    add_json(report)
    report.set_defaults(execute=_report)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.catalog.sites import find_site
    from lumiimg.check.advice import sbatch_options
    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.plan import plan_trial
    from lumiimg.report.console import print_json
    from lumiimg.report.trial import print_plan

    site_to_make_for(arguments)
    site, name = find_site(arguments.site, os.environ), site_in_force(arguments)
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
    if arguments.json:
        print_json("trial-plan", plan)
    options = " ".join(sbatch_options(site, os.environ)) if site.scheduler in {None, "Slurm"} else ""
    command = f"lumiimg trial run {shlex.quote(str(folder.path))} --sbatch={shlex.quote(options)}"
    print_plan(plan, command, quiet=arguments.quiet, stderr=arguments.json)
    return ExitCode.GOOD


def _doctor() -> bool | None:
    """Return whether images can be built here, as `lumiimg doctor` finds out; None where it cannot tell."""
    from lumiimg.build.choice import builds_here, machine_for_builds
    from lumiimg.catalog.settings import read_settings
    from lumiimg.errors import MissingHereError

    try:
        return builds_here(machine_for_builds(os.environ, read_settings(os.environ).cache))
    except MissingHereError:
        return False


def _run(arguments: argparse.Namespace) -> int:
    from lumiimg.cluster.nodes.slurm import find_allocation
    from lumiimg.cluster.trial.driver import is_over, run_here, run_in_job
    from lumiimg.cluster.trial.folder import TrialFolder, alone
    from lumiimg.cluster.trial.submit import queued, submit, write_job

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
            return _told(folder, plan, as_json=arguments.json, quiet=True)
        run_here(folder, plan, os.environ, say, quick=True)
        if is_over(folder, plan):
            return _told(folder, plan, as_json=arguments.json, quiet=arguments.quiet)
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
    from lumiimg.report.console import print_json

    if arguments.json:
        print_json("trial-job", job=number, state=state, command=command)
    elif command is not None:
        print(printable(command))
    return ExitCode.GOOD if state in {None, "SUBMITTED"} else ExitCode.UNDECIDED


def _report(arguments: argparse.Namespace) -> int:
    from lumiimg.cluster.trial.folder import TrialFolder

    folder = TrialFolder(arguments.folder)
    plan = folder.plan()
    return _told(
        folder,
        plan,
        as_json=arguments.json,
        html=arguments.html,
        quiet=arguments.quiet,
        verbose=arguments.verbose,
    )


def _told(
    folder: TrialFolder,
    plan: TrialPlan,
    *,
    as_json: bool,
    quiet: bool,
    html: Path | None = None,
    verbose: bool = False,
) -> int:
    """Write the file, print the table, and return its answer."""
    from lumiimg.cluster.trial.table import answer_of, report_of
    from lumiimg.files import write_text
    from lumiimg.report.console import print_json
    from lumiimg.report.schema import json_text
    from lumiimg.report.trial import print_trial

    report = report_of(folder, plan, os.environ)
    write_text(folder.path / "trial.json", json_text("trial", report) + "\n")
    if html is not None:
        from lumiimg.report.html.trial import trial_page

        write_text(html, trial_page(report))
    if as_json:
        print_json("trial", report)
    print_trial(report, str(folder.path), verbose=verbose, quiet=quiet, stderr=as_json)
    return answer_of(report)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadInputError(f"is not a valid list of options: {error}", where="--sbatch") from error


def _silent(_: str) -> None:
    """Say nothing."""


def _say(what: str) -> None:
    print(printable(what), file=sys.stderr, flush=True)
