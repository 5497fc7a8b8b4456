"""Explain an image beside a machine, or a request."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from lumiimg.build.provenance import asked_for
from lumiimg.check.static.boundary import Boundary, study
from lumiimg.cli import explain_request
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.errors import BadInputError
from lumiimg.report.console import print_json_line
from lumiimg.report.json_images import ExplainedImage
from lumiimg.report.views.compatibility import compatibility_document
from lumiimg.report.views.images import ImageAnswer, of_boundary


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
    boundary = _studier(arguments)(arguments.images[0])
    document, code = compatibility_document(boundary), boundary.answer.exit_code
    return output.deliver(document, "explain-image", ExplainedImage(boundary), code)


def _several(arguments: argparse.Namespace, output: Output) -> int:
    study = _studier(arguments)

    def answer(image: Path) -> ImageAnswer:
        boundary = study(image)
        if arguments.json:
            print_json_line("explain-image", of=boundary)
        return of_boundary(boundary)

    return output.each("explain", arguments.images, answer)


def _studier(arguments: argparse.Namespace) -> Callable[[Path], Boundary]:
    """Return what looks at an image beside the machine that is named. Raises BadInputError."""
    inputs = Inputs.of(arguments)
    machine, snapshot, site = inputs.words(), inputs.snapshot, inputs.site

    def look(image: Path) -> Boundary:
        return study(image, os.environ, snapshot, site, arguments.starts, machine=machine, built_with=asked_for(image))

    return look
