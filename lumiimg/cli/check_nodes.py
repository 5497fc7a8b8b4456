"""Check one image on the nodes of a job."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from lumiimg.check.context import open_for_check
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.opened import opened
from lumiimg.cli.output import Output
from lumiimg.cluster.nodes.check import NodesRequest, check_nodes
from lumiimg.cluster.nodes.report import NodesReport
from lumiimg.cluster.nodes.slurm import find_allocation, sbatch_words
from lumiimg.cluster.nodes.submit import check_by_job
from lumiimg.cluster.nodes.watch import Waiting
from lumiimg.errors import BadInputError, printable
from lumiimg.files import write_text
from lumiimg.findings import Level
from lumiimg.nccl.node_names import folded
from lumiimg.report import json_output
from lumiimg.report.terminal import Terminal
from lumiimg.report.views.check import nodes_document

_SOON_S, _LATER_S = 5.0, 30.0
"""Between two lines that say how far a check is: where more nodes have answered, and where none has."""


def execute(arguments: argparse.Namespace, output: Output) -> int:
    """Check on the nodes of the job that this is in, else of one that is submitted for it."""
    if arguments.level == "static":
        raise BadInputError("the files of an image are the same on all nodes", where="--nodes", hint="leave it out")
    inputs = Inputs.of(arguments)
    level = Level(arguments.level) if arguments.level else None
    request = NodesRequest(arguments.nodes, level, arguments.simulate_gpu, arguments.leave_out)
    allocation = find_allocation(os.environ)
    if allocation is None:
        words = request.words(arguments.images[0], arguments.starts, arguments.venv)
        report = _by_job(arguments, [*words, *inputs.words(anywhere=True)])
    else:
        if arguments.sbatch:
            raise BadInputError(f"this is job {allocation.job} already", where="--sbatch", hint="leave it out")

        def keep(report: NodesReport) -> None:
            if arguments.so_far:
                write_text(arguments.so_far, json_output.json_text("check-nodes", report))

        image = arguments.images[0].absolute()  # nodes may be asked from elsewhere
        with opened(image, arguments, inputs) as context:
            report = check_nodes(context, request, allocation, _waiting_line(arguments.nodes), keep)
    return output.deliver(nodes_document(report, inputs.site), "check-nodes", report, report.answer.exit_code)


def _by_job(arguments: argparse.Namespace, words: list[str]) -> NodesReport:
    for_sbatch = sbatch_words(arguments.sbatch)
    with open_for_check(arguments.images[0]):
        pass  # what is not an image is reported now, not when the job has waited for its nodes

    def submitted(job: str) -> None:
        print(f"job {printable(job)} is submitted; waiting for it (Ctrl-C cancels it)", file=sys.stderr, flush=True)

    return check_by_job(words, arguments.nodes, for_sbatch, os.environ, submitted)


def _waiting_line(nodes: int) -> Callable[[Waiting], None]:
    """Return what prints how far a check is: sooner where more nodes have answered."""
    terminal = Terminal(sys.stderr)
    said_at, answered = time.monotonic(), 0

    def say_how_far(waiting: Waiting) -> None:
        nonlocal said_at, answered
        now = time.monotonic()
        if waiting.nodes and now - said_at >= (_SOON_S if waiting.answered > answered else _LATER_S):
            said_at, answered = now, waiting.answered
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + waiting.seconds))
            names = folded(waiting.nodes)
            names = names if len(names) < terminal.width else f"{names[: terminal.width - 1]}…"  # it says that it lives
            line = f"{answered} of {nodes} nodes have answered; waiting until {until} at the latest for {names}"
            terminal.write(terminal.wrapped(line))

    return say_how_far
