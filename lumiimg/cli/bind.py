"""Compute what must be bound from a machine for an image to use its fabric.
The binds are tried in a model of ld.so, with versions; they never include the
C library or /usr/lib64.

formats: shell        exports to source (the default), each line's reason above
         singularity  options, for eval "apptainer exec $(lumiimg bind …) …"
         json         everything, with what was tried

exit codes: 0 with these binds each library that is opened is found in a
              version that fits (anything that keeps RCCL from using them is on
              standard error, and in the exit codes of `explain` and
              `check --host`)
            1 no set of binds loads; the reasons are on standard error
            2 not an image, or no snapshot
            3 cannot be decided: no fabric in the snapshot, no glibc in image
"""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.options import JSON, add_host, add_image, add_machine, add_program, machine_options, site_of
from lumiimg.errors import ExitCode

_FORMATS = ("shell", "singularity", "json")


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_image(parser)
    add_host(parser, required=True)
    add_program(parser)
    add_machine(parser, "its own binds are added")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="shell",
        help="format: for a shell (default), the engine, a program",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help=JSON)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.build.provenance import asked_for
    from lumiimg.check.static.boundary import study
    from lumiimg.fabric.path import Fabric
    from lumiimg.host.snapshot_file import read_snapshot
    from lumiimg.report.bind import print_manifest
    from lumiimg.report.boundary import print_doubts, print_refusals

    site = site_of(arguments)
    snapshot = read_snapshot(arguments.host)
    names = {"machine": machine_options(arguments, anywhere=False), "built_with": asked_for(arguments.image)}
    boundary = study(arguments.image, os.environ, snapshot, site, arguments.starts, **names)
    print_manifest(boundary, snapshot, arguments.format)
    if boundary.fabric is Fabric.NONE:
        print_refusals(boundary)
        return boundary.decision.exit_code
    print_doubts(boundary)
    return ExitCode.GOOD
