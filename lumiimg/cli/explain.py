"""`lumiimg explain`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_host, add_json

_EPILOG = """\
exit codes: 0 everything on the path to the NIC loads
            1 something stands against it
            2 not an image, or no snapshot
            3 a host snapshot would decide it
"""


def configure_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="the boundary between an image and a machine: what comes from where, and why",
        description="Show which library comes from where on the way from RCCL to the NIC, which\n"
        "versions each side needs and has, and what margin is left.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("image", metavar="IMAGE", type=Path, help="a SIF, squashfs file, OCI image or folder")
    add_host(parser)
    parser.add_argument("--verbose", action="store_true", help="every pair of versions, not only the tightest")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Study, report, and answer by the exit code."""
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
