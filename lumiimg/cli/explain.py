"""Explain an image beside a machine, or a request."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from lumiimg.build.provenance import asked_for
from lumiimg.check.answer import CheckReport
from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import explain_image
from lumiimg.check.static.host_fit import HostFit, without_ours
from lumiimg.cli import explain_request
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.errors import BadInputError
from lumiimg.report.json_images import ExplainedImage
from lumiimg.report.json_output import print_json_line
from lumiimg.report.views.compatibility import advice, compatibility_document
from lumiimg.report.views.images import ImageAnswer, of_explanation


def execute(arguments: argparse.Namespace) -> int:
    is_request = bool(arguments.base or arguments.recipe or arguments.add or arguments.requirements)
    if is_request and arguments.starts:
        raise BadInputError("--program is of an image", hint="leave it out")
    if bool(arguments.images) == is_request:
        raise BadInputError(
            "name either an image or a request, not both",
            hint="name one: IMAGE, or --base NAME --add LAYER",
        )
    output = Output.of(arguments, (*arguments.images, arguments.host))
    if arguments.images:
        _refuse_options_of_requests(arguments)
        return _several(arguments, output) if len(arguments.images) > 1 else _image(arguments, output)
    return explain_request.execute(arguments, output)


def _refuse_options_of_requests(arguments: argparse.Namespace) -> None:
    given = [f"--{name}" for name in ("arg", "source", "mirror", "layers") if getattr(arguments, name)]
    if given or arguments.fabric != "auto":
        hint = f"of an image: --host FILE; of a request on it: --base {arguments.images[0]}"
        raise BadInputError(f"{(given or ['--fabric'])[0]} says nothing about a finished image", hint=hint)


def _image(arguments: argparse.Namespace, output: Output) -> int:
    report, fit = _explainer(arguments)(arguments.images[0])
    document, value = compatibility_document(report, fit), ExplainedImage(fit, advice(report))
    return output.deliver(document, "explain-image", value, report.answer.exit_code)


def _several(arguments: argparse.Namespace, output: Output) -> int:
    explain = _explainer(arguments)

    def answer(image: Path) -> ImageAnswer:
        report, fit = explain(image)
        if arguments.json:
            print_json_line("explain-image", ExplainedImage(fit, advice(report)))
        return of_explanation(report, fit)

    return output.each("explain", arguments.images, answer)


def _explainer(arguments: argparse.Namespace) -> Callable[[Path], tuple[CheckReport, HostFit]]:
    """Return what looks at an image beside the machine that is named. Raises BadInputError."""
    inputs = Inputs.of(arguments)
    machine = inputs.words()

    def look(image: Path) -> tuple[CheckReport, HostFit]:
        opened = open_for_check(
            image,
            without_ours(os.environ),
            inputs.snapshot,
            inputs.site,
            program=arguments.starts,
            machine=machine,
            built_with=asked_for(image),
        )
        with opened as context:
            return explain_image(context)

    return look
