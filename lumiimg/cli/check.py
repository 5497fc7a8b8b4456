"""Check images on this machine, or one on the nodes of a job."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from lumiimg.check.pipeline import CheckReport, check_image
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.opened import opened
from lumiimg.cli.output import Output
from lumiimg.errors import BadInputError
from lumiimg.findings import Level
from lumiimg.report.views.check import check_document


def execute(arguments: argparse.Namespace) -> int:
    output = Output.of(arguments, (*arguments.images, arguments.host))
    if len(arguments.images) > 1:
        return _several(arguments, output)
    if arguments.nodes is not None:
        from lumiimg.cli import check_nodes  # a tenth of a second that one node need not wait

        return check_nodes.execute(arguments, output)
    inputs = Inputs.of(arguments)
    report = _checker(arguments, inputs)(arguments.images[0])
    return output.deliver(check_document(report, inputs.site), "check", report, report.answer.exit_code)


def _checker(arguments: argparse.Namespace, inputs: Inputs) -> Callable[[Path], CheckReport]:
    """Return what checks an image on this machine. Raises BadInputError."""
    if arguments.sbatch:
        raise BadInputError("is for the job that --nodes submits", where="--sbatch", hint="add --nodes N")
    level = Level(arguments.level) if arguments.level else None
    if arguments.simulate_gpu and level is Level.STATIC:
        raise BadInputError("--simulate-gpu runs programs, and --level static runs none", hint="leave one of them out")

    def check(image: Path) -> CheckReport:
        with opened(image, arguments, inputs) as context:
            return check_image(context, level, simulate=arguments.simulate_gpu)

    return check


def _several(arguments: argparse.Namespace, output: Output) -> int:
    given = {"--nodes": arguments.nodes, "--junit": arguments.junit}
    if option := next((option for option, value in given.items() if value is not None), None):
        raise BadInputError("is for one image", where=option, hint="leave it out, or name one image")
    return output.each("check", "check", arguments.images, _checker(arguments, Inputs.of(arguments)))
