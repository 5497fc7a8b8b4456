"""Explain an image on a machine, or a request."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.build.cost import ExplainedRequest, cost_of
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.settings import read_settings
from lumiimg.check.pipeline import CheckReport, explain_image
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output, output_of
from lumiimg.cli.request import context_with_servers, options_of, read_request, resolve_request
from lumiimg.core.errors import BadInputError
from lumiimg.core.text import address_of
from lumiimg.definition.writer import write_chain
from lumiimg.report.views.compatibility import compatibility_document
from lumiimg.report.views.request import bases_document, request_document
from lumiimg.resolve.planner import possible_bases


def execute(arguments: argparse.Namespace) -> int:
    is_request = options_of(arguments).given("base", "recipe", "add", "requirements") is not None
    if is_request and arguments.starts:
        raise BadInputError("--program needs an image", hint="leave it out")
    if bool(arguments.images) == is_request:
        raise BadInputError(
            "an image and a request cannot be explained together" if is_request else "no image and no request is named",
            hint="name one: IMAGE, or --base NAME --add LAYER",
        )
    output = Output.from_arguments(arguments, (*arguments.images, arguments.host))
    if arguments.images:
        _refuse_options_of_requests(arguments)
        return _explain_each(arguments, output) if len(arguments.images) > 1 else _image(arguments, output)
    return _request(arguments, output) if arguments.base or arguments.recipe else _bases(arguments, output)


def _refuse_options_of_requests(arguments: argparse.Namespace) -> None:
    of_files = () if any(address_of(f"{image}") for image in arguments.images) else ("mirror",)
    if given := options_of(arguments).given("arg", "source", "replace", "layers", "fabric", *of_files):
        hint = f"of an image: --host FILE; of a request on it: --base {arguments.images[0]}"
        raise BadInputError(f"{given} has no effect on a finished image", hint=hint)


def _image(arguments: argparse.Namespace, output: Output) -> int:
    found = explanation_of(arguments.images[0], arguments, Inputs.from_arguments(arguments))
    return output.deliver(compatibility_document(found), "explain-image", found, found.answer.exit_code)


def explanation_of(image: Path, arguments: argparse.Namespace, inputs: Inputs) -> CheckReport:
    """Explain an image on the named machine, ignoring a search path that `bind` has set in this shell."""
    with inputs.open(image, arguments, as_here=False) as context:
        return explain_image(context)


def _explain_each(arguments: argparse.Namespace, output: Output) -> int:
    inputs = Inputs.from_arguments(arguments)
    return output.each("explain", "explain-image", arguments.images, lambda one: explanation_of(one, arguments, inputs))


def _request(arguments: argparse.Namespace, output: Output) -> int:
    plan = resolve_request(arguments)
    cost = None
    if plan.lock is not None:
        chain = write_chain(plan.lock)  # a plan is not valid if its definitions cannot be written
        cost = cost_of(plan.lock, chain, read_settings(os.environ).cache, output_of(arguments))
    found = ExplainedRequest(plan, cost)
    return output.deliver(request_document(found), "explain-request", found, plan.exit_code)


def _bases(arguments: argparse.Namespace, output: Output) -> int:
    """Report the bases of the catalogue on which the requested layers can be built."""
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = read_request(arguments, catalogue, needs_base=False)
    found = possible_bases(request, context_with_servers(arguments, request, catalogue))
    return output.deliver(bases_document(found), "explain-bases", found, found.exit_code)
