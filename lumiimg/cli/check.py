"""Check images on this machine, or one on the nodes of a job."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.pipeline import CheckReport, check_image
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.core.errors import BadInputError, say
from lumiimg.core.findings import Level
from lumiimg.core.text import address_of, hostlist, shell_quote
from lumiimg.engine.engine import engine_word
from lumiimg.report.terminal import Terminal
from lumiimg.report.views.check import check_document, nodes_document

if TYPE_CHECKING:
    from lumiimg.cluster.nodes.check import Waiting
    from lumiimg.cluster.nodes.report import NodesReport

_SOON_S, _LATER_S = 5.0, 30.0
"""Intervals between progress lines: if more nodes have answered, and if none has."""


def execute(arguments: argparse.Namespace) -> int:
    output = Output.from_arguments(arguments, (*arguments.images, arguments.host, arguments.again))
    if len(arguments.images) > 1:
        return _check_each(arguments, output)
    inputs = Inputs.from_arguments(arguments)
    if arguments.nodes is not None or arguments.again is not None:
        nodes = _on_nodes(arguments, inputs)
        return output.deliver(nodes_document(nodes, inputs.site), "check-nodes", nodes, nodes.answer.exit_code)
    report = _checker(arguments, inputs)(arguments.images[0])
    return output.deliver(check_document(report, inputs.site), "check", report, report.answer.exit_code)


def _check_each(arguments: argparse.Namespace, output: Output) -> int:
    given = {"--nodes": arguments.nodes, "--again": arguments.again, "--junit": arguments.junit}
    if option := next((option for option, value in given.items() if value is not None), None):
        raise BadInputError("is for one image", where=option, hint="leave it out, or name one image")
    return output.each("check", "check", arguments.images, _checker(arguments, Inputs.from_arguments(arguments)))


def _checker(arguments: argparse.Namespace, inputs: Inputs) -> Callable[[Path], CheckReport]:
    """Return a function that checks an image on this machine. Raises BadInputError."""
    if arguments.sbatch:
        raise BadInputError("is for the job that --nodes submits", where="--sbatch", hint="add --nodes N")
    level = Level(arguments.level) if arguments.level else None
    if arguments.simulate_gpu and level is Level.STATIC:
        raise BadInputError("--simulate-gpu runs programs, but --level static runs none", hint="use only one of them")

    def check(image: Path) -> CheckReport:
        with inputs.open(image, arguments) as context:
            return check_image(context, level, simulate=arguments.simulate_gpu)

    return check


def _on_nodes(arguments: argparse.Namespace, inputs: Inputs) -> NodesReport:
    """Check on the nodes of this job, or of a job submitted for the check."""
    # imported here: it takes a tenth of a second, which a check on one node need not wait
    from lumiimg.cluster.nodes.check import check_by_job, check_nodes, files_for_nodes, report_to_complete
    from lumiimg.cluster.nodes.slurm import find_allocation, sbatch_words

    if address := address_of(str(arguments.images[0])):
        hint = f"{engine_word()} pull image.sif {shell_quote(address)}; then name image.sif"
        raise BadInputError("all nodes must see the image as a file", where="--nodes", hint=hint)
    if arguments.level == "static":
        raise BadInputError("the files of an image are the same on all nodes", where="--nodes", hint="leave it out")
    if arguments.again is not None and arguments.nodes is not None:
        raise BadInputError("--again says which nodes are checked", where="--nodes", hint="leave it out")
    earlier = report_to_complete(arguments.again, arguments.images[0]) if arguments.again is not None else None
    silent = earlier.silent_nodes if earlier is not None else ()
    nodes = arguments.nodes or len(silent)
    allocation = find_allocation(os.environ)
    if allocation is None:
        for_sbatch = [*([f"--nodelist={','.join(silent)}"] if silent else []), *sbatch_words(arguments.sbatch)]
        with inputs.open(arguments.images[0], arguments) as context:
            files_for_nodes(context)  # report an untestable image now, not after the job has queued
        return check_by_job(words_for_job(arguments, inputs), nodes, for_sbatch, os.environ, say)
    if arguments.sbatch:
        raise BadInputError(f"already inside job {allocation.job}", where="--sbatch", hint="leave it out")
    image = arguments.images[0].absolute()  # nodes may run in another folder
    with inputs.open(image, arguments) as context:
        return check_nodes(
            context,
            nodes,
            Level(arguments.level) if arguments.level else None,
            allocation.of(silent) if silent else allocation,
            _waiting_line(nodes),
            simulate=arguments.simulate_gpu,
            without=arguments.leave_out,
            earlier=earlier,
        )


def words_for_job(arguments: argparse.Namespace, inputs: Inputs) -> list[str]:
    """Return arguments of `lumiimg` that run the same check from any folder, with a JSON answer."""
    given = {
        "--nodes": arguments.nodes,
        "--again": arguments.again and arguments.again.absolute(),
        "--level": arguments.level,
        "--leave-out": arguments.leave_out,
        "--program": arguments.starts,
        "--venv": arguments.venv and arguments.venv.absolute(),
        "--site": inputs.site_name,
        "--host": inputs.host and inputs.host.absolute(),
    }
    options = [f"{option}={value}" for option, value in given.items() if value]
    simulated = ["--simulate-gpu"] if arguments.simulate_gpu else []
    return ["check", str(arguments.images[0].absolute()), *options, *simulated, "--json"]


def _waiting_line(nodes: int) -> Callable[[Waiting], None]:
    """Return a function that prints the progress of a check, more often if nodes keep answering."""
    terminal = Terminal(sys.stderr)
    printed_at, answered = time.monotonic(), 0

    def say_how_far(waiting: Waiting) -> None:
        nonlocal printed_at, answered
        now = time.monotonic()
        if waiting.nodes and now - printed_at >= (_SOON_S if waiting.answered > answered else _LATER_S):
            printed_at, answered = now, waiting.answered
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + waiting.seconds))
            names = hostlist(waiting.nodes)
            names = names if len(names) < terminal.width else f"{names[: terminal.width - 1]}…"  # a sign of life
            line = f"{answered} of {nodes} nodes have answered; waiting until {until} at the latest for {names}"
            terminal.write(terminal.wrapped(line))

    return say_how_far
