"""`lumiimg check`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_host, add_json
from lumiimg.errors import BadInputError

_EPILOG = """\
levels: static  from the files of the image, nothing run
        probe   programs run in the container, without a GPU
        run     a real collective on the GPUs of this node: the image's own
                rccl-tests, its torch, or a small program of lumiimg
Without --level: the highest that can be taken here. docs/check.md says what
each of them proves.

exit codes: 0 no obstacle found at this level
            1 no: RCCL would not use the fast network
            2 not an image
            3 cannot be decided from here
            4 no engine or no GPU for the level that was asked for
"""


def configure_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "check",
        help="will this image use the fast network? if not: what is missing, and what to do",
        description="Check whether RCCL in an image would use Slingshot: what its loader would\n"
        "load, and what its own plugin and RCCL do in the container.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "image", metavar="IMAGE", type=Path, help="a SIF, squashfs file, OCI or docker archive, or folder"
    )
    add_host(parser)
    parser.add_argument("--level", choices=("static", "probe", "run"), help="check as far as this")
    parser.add_argument("--site", metavar="NAME", help="compare a run's bandwidth with what a site should give: lumi")
    parser.add_argument(
        "--simulate-gpu",
        action="store_true",
        help="have RCCL choose its network on a stand-in for HIP: a simulation, for RCCL "
        "2.22 and later (ROCm 6.4), which looks for its plugin only when it has a GPU",
    )
    parser.add_argument("--verbose", action="store_true", help="show everything that was looked at")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Check, report, and answer by the exit code."""
    from lumiimg.catalog.sites import find_site  # noqa: PLC0415
    from lumiimg.check.checker import check_image  # noqa: PLC0415
    from lumiimg.findings import Level  # noqa: PLC0415
    from lumiimg.host.snapshot import read_snapshot  # noqa: PLC0415
    from lumiimg.report.check import print_check, to_json  # noqa: PLC0415
    from lumiimg.report.console import print_json  # noqa: PLC0415

    level = Level(arguments.level) if arguments.level else None
    if arguments.simulate_gpu and level is Level.STATIC:
        raise BadInputError("--simulate-gpu runs programs, and --level static runs none", hint="leave one of them out")
    snapshot = read_snapshot(arguments.host) if arguments.host else None
    site = find_site(arguments.site, os.environ) if arguments.site else None
    report = check_image(arguments.image, os.environ, level, snapshot, simulate=arguments.simulate_gpu, site=site)
    if arguments.json:
        print_json(to_json(report))
    print_check(report, verbose=arguments.verbose, stderr=arguments.json)
    return report.answer.exit_code
