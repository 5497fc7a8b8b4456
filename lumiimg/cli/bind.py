"""Print what must be bound from a machine for an image to use its fabric."""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.inputs import machine_options, site_of
from lumiimg.errors import ExitCode


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
