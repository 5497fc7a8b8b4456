"""Check images on this machine, or one on the nodes of a job."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import inputs
from lumiimg.errors import BadInputError, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.check.answer import CheckReport
    from lumiimg.cli.output import Output
    from lumiimg.cluster.nodes.check import NodesReport
    from lumiimg.cluster.nodes.watch import Waiting

_SOON_S, _LATER_S = 5.0, 30.0
"""Between two lines that say how far a check is: where more nodes have answered, and where none has."""


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.cli.output import Output
    from lumiimg.report.views.check import check_document

    output = Output.of(arguments, (*arguments.images, arguments.host))
    if len(arguments.images) > 1:
        return _several(arguments, output)
    if arguments.nodes is not None:
        return _on_nodes(arguments, output)
    report = _checker(arguments)(arguments.images[0])
    return output.deliver(check_document(report, inputs.site_of(arguments)), "check", report, report.answer.exit_code)


def _checker(arguments: argparse.Namespace) -> Callable[[Path], CheckReport]:
    """Return what checks an image on this machine. Raises BadInputError."""
    from lumiimg.build.provenance import asked_for
    from lumiimg.check.context import open_for_check
    from lumiimg.check.pipeline import check_image
    from lumiimg.findings import Level

    if arguments.sbatch:
        raise BadInputError("is for the job that --nodes submits", where="--sbatch", hint="add --nodes N")
    level = Level(arguments.level) if arguments.level else None
    if arguments.simulate_gpu and level is Level.STATIC:
        raise BadInputError("--simulate-gpu runs programs, and --level static runs none", hint="leave one of them out")
    snapshot, site, venv = inputs.snapshot_of(arguments), inputs.site_of(arguments), inputs.venv_of(arguments)

    def check(image: Path) -> CheckReport:
        opened = open_for_check(
            image,
            os.environ,
            snapshot,
            site,
            program=arguments.starts,
            venv=venv,
            machine=inputs.machine_options(arguments, anywhere=False),
            built_with=asked_for(image),
        )
        with opened as context:
            return check_image(context, level, simulate=arguments.simulate_gpu)

    return check


def _several(arguments: argparse.Namespace, output: Output) -> int:
    from lumiimg.report.console import print_json_line
    from lumiimg.report.views.images import ImageAnswer, of_check

    given = {"--nodes": arguments.nodes, "--junit": arguments.junit}
    if option := next((option for option, value in given.items() if value is not None), None):
        raise BadInputError("is for one image", where=option, hint="leave it out, or name one image")
    check = _checker(arguments)

    def answer(image: Path) -> ImageAnswer:
        report = check(image)
        if arguments.json:
            print_json_line("check", report)
        return of_check(report)

    return output.each("check", arguments.images, answer)


def _on_nodes(arguments: argparse.Namespace, output: Output) -> int:
    """Check on the nodes of the job that this is in, else of one that is submitted for it."""
    from lumiimg.cluster.nodes.slurm import find_allocation
    from lumiimg.files import write_text
    from lumiimg.findings import Level
    from lumiimg.report.json_output import json_text
    from lumiimg.report.views.check import nodes_document

    if arguments.level == "static":
        raise BadInputError("the files of an image are the same on all nodes", where="--nodes", hint="leave it out")
    snapshot, site = inputs.snapshot_of(arguments), inputs.site_of(arguments)
    allocation = find_allocation(os.environ)
    if allocation is None:
        report = _by_job(arguments)
    else:
        if arguments.sbatch:
            raise BadInputError(f"this is job {allocation.job} already", where="--sbatch", hint="leave it out")
        from lumiimg.build.provenance import asked_for
        from lumiimg.check.context import open_for_check
        from lumiimg.cluster.nodes.check import check_nodes
        from lumiimg.cluster.nodes.request import NodesRequest

        level = Level(arguments.level) if arguments.level else None
        request = NodesRequest(arguments.nodes, level, arguments.simulate_gpu, arguments.leave_out)
        opened = open_for_check(
            arguments.images[0].absolute(),  # nodes may be asked from elsewhere
            os.environ,
            snapshot,
            site,
            program=arguments.starts,
            venv=inputs.venv_of(arguments),
            machine=inputs.machine_options(arguments, anywhere=False),
            built_with=asked_for(arguments.images[0]),
        )

        def keep(report: NodesReport) -> None:
            if arguments.so_far:
                write_text(arguments.so_far, json_text("check-nodes", report))

        with opened as context:
            report = check_nodes(context, request, allocation, _waiting_line(arguments.nodes), keep)
    return output.deliver(nodes_document(report, site), "check-nodes", report, report.answer.exit_code)


def _by_job(arguments: argparse.Namespace) -> NodesReport:
    from lumiimg.check.context import open_for_check
    from lumiimg.cluster.nodes.submit import check_by_job

    try:
        for_sbatch = shlex.split(arguments.sbatch)
    except ValueError as error:
        raise BadInputError(f"is not a valid list of options: {error}", where="--sbatch") from error
    inputs.venv_of(arguments)
    with open_for_check(arguments.images[0]):
        pass  # what is not an image is reported now, not when the job has waited for its nodes
    words = ["check", str(arguments.images[0].absolute()), "--nodes", str(arguments.nodes), "--json"]
    words += ["--program", arguments.starts] if arguments.starts else []
    words += ["--venv", str(arguments.venv.absolute())] if arguments.venv else []
    words += ["--simulate-gpu"] if arguments.simulate_gpu else []
    words += ["--level", arguments.level] if arguments.level else []
    words += inputs.machine_options(arguments)

    def submitted(job: str) -> None:
        print(f"job {printable(job)} is submitted; waiting for it (Ctrl-C cancels it)", file=sys.stderr, flush=True)

    return check_by_job(words, arguments.nodes, for_sbatch, os.environ, submitted)


def _waiting_line(nodes: int) -> Callable[[Waiting], None]:
    """Return what prints how far a check is: sooner where more nodes have answered."""
    from lumiimg.nccl.node_names import folded
    from lumiimg.report.console import console, cut, say

    out = console(stderr=True)
    told_at, answered = time.monotonic(), 0

    def tell(waiting: Waiting) -> None:
        nonlocal told_at, answered
        now = time.monotonic()
        if waiting.nodes and now - told_at >= (_SOON_S if waiting.answered > answered else _LATER_S):
            told_at, answered = now, waiting.answered
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + waiting.seconds))
            names = cut(out, folded(waiting.nodes), "  ")
            say(out, f"{answered} of {nodes} nodes have answered; waiting until {until} at the latest for {names}")

    return tell
