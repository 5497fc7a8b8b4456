"""Of an image: which library comes from where on the way from RCCL to the NIC,
which versions each side needs and has, and what margin is left; with --site,
whether the GPU there runs the image's code.
Of a request (--base, --add): what would be chosen, by which rule, from which
fact; what stands against it, and the nearest request that works.

examples:
  lumiimg explain image.sif --host host.json
  lumiimg explain image.sif --site lumi        # whether its GPU runs the code
  lumiimg explain *.sif --host host.json       # equal answers as one group
  lumiimg explain --base rocm-6.4.4 --add vllm --fabric bundled --site lumi
  lumiimg explain --add vllm --site lumi       # on which bases?

exit codes: 0 no obstacle found: everything on the path to the NIC loads, or the
              rules hold
            1 something stands against it; of a request, the nearest that works
            2 not an image, no snapshot, or a name that is not there
            3 a host snapshot would decide it, or something is not known here
            4 the base of a request cannot be had on this machine
            of several images, that of the worst: 1, 2, 4, 3, 0
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import options
from lumiimg.cli.request import add_request, ground_of, planned, read_request, sources_of
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.check.static.boundary import Boundary


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help=options.IMAGES)
    options.add_program(parser)
    add_request(parser, "of a request")
    parser.add_argument("--offline", action="store_true", help=options.OFFLINE)
    options.add_page(parser)
    options.add_quiet(parser)
    options.add_verbose(parser, "every need, source and pair of versions")
    options.add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    is_request = bool(arguments.base or arguments.recipe or arguments.add or arguments.requirements)
    if is_request and arguments.starts:
        raise BadInputError("--program is of an image", hint="leave it out")
    if bool(arguments.images) == is_request:
        raise BadInputError(
            "name either an image or a request, not both",
            hint="name one: IMAGE, or --base NAME --add LAYER",
        )
    options.refuse_places({"--html": arguments.html}, (*arguments.images, arguments.host))
    if arguments.images:
        _refuse_options_of_requests(arguments)
        return _several(arguments) if len(arguments.images) > 1 else _image(arguments)
    return _request(arguments) if arguments.base or arguments.recipe else _bases(arguments)


def _refuse_options_of_requests(arguments: argparse.Namespace) -> None:
    given = [f"--{name}" for name in ("arg", "source", "mirror", "layers") if getattr(arguments, name)]
    if given or arguments.fabric != "auto":
        hint = f"of an image: --host FILE; of a request on it: --base {arguments.images[0]}"
        raise BadInputError(f"{(given or ['--fabric'])[0]} says nothing about a finished image", hint=hint)


def _image(arguments: argparse.Namespace) -> int:
    from lumiimg.report.boundary import json_keys, print_boundary
    from lumiimg.report.console import print_json

    boundary = _studier(arguments)(arguments.images[0])
    if arguments.html:
        from lumiimg.check.steps import boundary_steps
        from lumiimg.files import write_text
        from lumiimg.report.html.explain import boundary_page

        write_text(arguments.html, boundary_page(boundary, boundary_steps(boundary)))
    if arguments.json:
        print_json("explain-image", boundary, **json_keys(boundary))
    print_boundary(boundary, verbose=arguments.verbose, quiet=arguments.quiet, stderr=arguments.json)
    return boundary.decision.exit_code


def _several(arguments: argparse.Namespace) -> int:
    from lumiimg.cli.output import Output
    from lumiimg.report.boundary import json_keys
    from lumiimg.report.console import print_json_line
    from lumiimg.report.views.images import ImageAnswer, of_boundary

    study = _studier(arguments)

    def answer(image: Path) -> ImageAnswer:
        boundary = study(image)
        if arguments.json:
            print_json_line("explain-image", boundary, **json_keys(boundary))
        return of_boundary(boundary)

    return Output.of(arguments).each("explain", arguments.images, answer)


def _studier(arguments: argparse.Namespace) -> Callable[[Path], Boundary]:
    """Return what looks at an image beside the machine that is named. Raises BadInputError."""
    from lumiimg.build.provenance import asked_for
    from lumiimg.check.static.boundary import study

    snapshot, site = options.snapshot_of(arguments), options.site_of(arguments)
    machine = options.machine_options(arguments, anywhere=False)

    def look(image: Path) -> Boundary:
        return study(image, os.environ, snapshot, site, arguments.starts, machine=machine, built_with=asked_for(image))

    return look


def _request(arguments: argparse.Namespace) -> int:
    from lumiimg.report.console import print_json
    from lumiimg.report.plan import json_keys, print_plan

    request, plan = planned(arguments)
    if plan.lock is not None and plan.lock.own is not None and not arguments.offline:
        from lumiimg.resolve.pin import with_taken

        plan = with_taken(plan, plan.lock, sources_of(arguments), request.until)
    if arguments.html:
        from lumiimg.files import write_text
        from lumiimg.report.html.request import request_page

        write_text(arguments.html, request_page(plan))
    if arguments.json:
        print_json("explain-request", plan, **json_keys(plan))
    print_plan(plan, verbose=arguments.verbose, quiet=arguments.quiet, stderr=arguments.json)
    if plan.refused:
        return ExitCode.NO
    return ExitCode.MISSING_HERE if plan.missing else ExitCode.GOOD


def _bases(arguments: argparse.Namespace) -> int:
    """Report on which bases of the catalogue the layers can be put that are asked for."""
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.report.console import print_json
    from lumiimg.report.plan import print_bases
    from lumiimg.resolve.decide import working
    from lumiimg.resolve.plan import outcome_of

    catalogue = open_catalogue(os.environ, arguments.layers)
    request = read_request(arguments, catalogue, needs_base=False)
    ground = ground_of(arguments, request, catalogue)
    plans, others = working(request, ground)
    free = [] if plans else working(replace(request.plainly(), add=request.unpinned), ground)[0]
    if arguments.html:
        from lumiimg.files import write_text
        from lumiimg.report.html.request import bases_page

        write_text(arguments.html, bases_page(plans, arguments.add, ground.site))
    if arguments.json:
        bases = [{"base": plan.base.name, "doubts": plan.is_doubtful, "answer": outcome_of(plan)} for plan in plans]
        print_json("explain-bases", bases=bases)
    shown = {"verbose": arguments.verbose, "quiet": arguments.quiet, "stderr": arguments.json}
    print_bases(plans, request, ground.site, others=others, free=free, **shown)
    return ExitCode.GOOD if plans else ExitCode.NO
