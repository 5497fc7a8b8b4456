"""Explain an image beside a machine, or a request."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import inputs
from lumiimg.cli.output import Output
from lumiimg.cli.request import ground_of, planned, read_request, sources_of
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.check.static.boundary import Boundary


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
        return _several(arguments, output) if len(arguments.images) > 1 else _image(arguments)
    return _request(arguments, output) if arguments.base or arguments.recipe else _bases(arguments, output)


def _refuse_options_of_requests(arguments: argparse.Namespace) -> None:
    given = [f"--{name}" for name in ("arg", "source", "mirror", "layers") if getattr(arguments, name)]
    if given or arguments.fabric != "auto":
        hint = f"of an image: --host FILE; of a request on it: --base {arguments.images[0]}"
        raise BadInputError(f"{(given or ['--fabric'])[0]} says nothing about a finished image", hint=hint)


def _image(arguments: argparse.Namespace) -> int:
    from lumiimg.cli.output import Output
    from lumiimg.report.json_images import ExplainedImage
    from lumiimg.report.views.compatibility import compatibility_document

    boundary = _studier(arguments)(arguments.images[0])
    document, code = compatibility_document(boundary), boundary.answer.exit_code
    return Output.of(arguments).deliver(document, "explain-image", ExplainedImage(boundary), code)


def _several(arguments: argparse.Namespace, output: Output) -> int:
    from lumiimg.report.console import print_json_line
    from lumiimg.report.views.images import ImageAnswer, of_boundary

    study = _studier(arguments)

    def answer(image: Path) -> ImageAnswer:
        boundary = study(image)
        if arguments.json:
            print_json_line("explain-image", of=boundary)
        return of_boundary(boundary)

    return output.each("explain", arguments.images, answer)


def _studier(arguments: argparse.Namespace) -> Callable[[Path], Boundary]:
    """Return what looks at an image beside the machine that is named. Raises BadInputError."""
    from lumiimg.build.provenance import asked_for
    from lumiimg.check.static.boundary import study

    snapshot, site = inputs.snapshot_of(arguments), inputs.site_of(arguments)
    machine = inputs.machine_options(arguments, anywhere=False)

    def look(image: Path) -> Boundary:
        return study(image, os.environ, snapshot, site, arguments.starts, machine=machine, built_with=asked_for(image))

    return look


def _request(arguments: argparse.Namespace, output: Output) -> int:
    from lumiimg.report.json_builds import ExplainedRequest
    from lumiimg.report.views.request import request_document

    request, plan = planned(arguments)
    if plan.lock is not None and plan.lock.own is not None and not arguments.offline:
        from lumiimg.resolve.pin import with_taken

        plan = with_taken(plan, plan.lock, sources_of(arguments), request.until)
    code = ExitCode.NO if plan.refused else ExitCode.MISSING_HERE if plan.missing else ExitCode.GOOD
    return output.deliver(request_document(plan), "explain-request", ExplainedRequest(plan), code)


def _bases(arguments: argparse.Namespace, output: Output) -> int:
    """Report on which bases of the catalogue the layers can be put that are asked for."""
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.report.json_builds import PossibleBase, PossibleBases
    from lumiimg.report.views.request import bases_document
    from lumiimg.resolve.decide import working
    from lumiimg.resolve.plan import outcome_of

    catalogue = open_catalogue(os.environ, arguments.layers)
    request = read_request(arguments, catalogue, needs_base=False)
    ground = ground_of(arguments, request, catalogue)
    plans, others = working(request, ground)
    free = [] if plans else working(replace(request.plainly(), add=request.unpinned), ground)[0]
    document = bases_document(plans, request, ground.site, others=others, free=free)
    bases = tuple(PossibleBase(plan.base.name, plan.is_doubtful, outcome_of(plan)) for plan in plans)
    code = ExitCode.GOOD if plans else ExitCode.NO
    return output.deliver(document, "explain-bases", PossibleBases(bases), code)
