"""`lumiimg explain`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_host, add_json, add_layers, add_site
from lumiimg.errors import BadInputError, ExitCode

_EPILOG = """\
examples:
  lumiimg explain image.sif --host host.json
  lumiimg explain --base rocm-6.2.4 --add vllm --site lumi

exit codes: 0 no obstacle found: everything on the path to the NIC loads, or the
              rules hold
            1 something stands against it; of a request, the nearest that works
            2 not an image, no snapshot, or a name that is not there
            3 a host snapshot would decide it
"""


def configure_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="why an image fits a machine, or a request its site, and why not",
        description="Of an image: which library comes from where on the way from RCCL to the NIC,\n"
        "which versions each side needs and has, and what margin is left.\n"
        "Of a request (--base, --add): what would be chosen, by which rule, from which\n"
        "fact; what stands against it, and the nearest request that works.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "image", metavar="IMAGE", type=Path, nargs="?", help="a SIF, squashfs file, OCI image or folder"
    )
    add_host(parser)
    parser.add_argument("--base", metavar="NAME|IMAGE", help="of a request: what to start from (`lumiimg list`)")
    parser.add_argument(
        "--add",
        metavar="LAYER",
        action="append",
        default=[],
        help="of a request: a layer, with a version if need be: vllm==0.10.1 (may be repeated)",
    )
    parser.add_argument(
        "--mirror",
        metavar="FROM=TO",
        action="append",
        default=[],
        help="of a request: read a base out of TO instead: docker.io=HOST (may be repeated)",
    )
    add_site(parser)
    add_layers(parser)
    parser.add_argument("--verbose", action="store_true", help="every need, source and pair of versions")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Explain, and answer by the exit code."""
    if (arguments.image is None) == (arguments.base is None):
        raise BadInputError("what is to be explained?", hint="name an image, or a request: --base NAME --add LAYER")
    return _image(arguments) if arguments.base is None else _request(arguments)


def _image(arguments: argparse.Namespace) -> int:
    from lumiimg.check.boundary import study  # noqa: PLC0415
    from lumiimg.host.snapshot import read_snapshot  # noqa: PLC0415
    from lumiimg.report.boundary import print_boundary, to_json  # noqa: PLC0415
    from lumiimg.report.console import print_json  # noqa: PLC0415

    snapshot = read_snapshot(arguments.host) if arguments.host else None
    boundary = study(arguments.image, os.environ, snapshot)
    if arguments.json:
        print_json(to_json(boundary))
    print_boundary(boundary, verbose=arguments.verbose, stderr=arguments.json)
    return boundary.decision.exit_code


def _request(arguments: argparse.Namespace) -> int:
    from lumiimg.catalog.catalogue import open_catalogue  # noqa: PLC0415
    from lumiimg.cli.request import puller, read_site  # noqa: PLC0415
    from lumiimg.report.console import print_json  # noqa: PLC0415
    from lumiimg.report.plan import print_plan, to_json  # noqa: PLC0415
    from lumiimg.resolve.foreign import read_bases  # noqa: PLC0415
    from lumiimg.resolve.plan import Asked, Planner  # noqa: PLC0415
    from lumiimg.resolve.rules import Fabric  # noqa: PLC0415

    site, node = read_site(arguments.site, arguments.host)
    fabric = None if arguments.fabric == "auto" else Fabric(arguments.fabric)
    asked = Asked(arguments.base, tuple(arguments.add), fabric)
    catalogue = open_catalogue(os.environ, arguments.layers)
    foreign = read_bases(asked.base, catalogue, puller(arguments))
    has_headers = node is not None and node.no_headers is None
    planner = Planner(catalogue, site, foreign=foreign, has_headers=has_headers)
    plan = planner.with_changes(planner.plan(asked))
    if arguments.json:
        print_json(to_json(plan))
    print_plan(plan, site, verbose=arguments.verbose, stderr=arguments.json)
    return ExitCode.NO if plan.refused else ExitCode.GOOD
