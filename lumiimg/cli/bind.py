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
    from lumiimg.report.text import show, show_items
    from lumiimg.report.views.compatibility import doubts, refusals_document

    site = site_of(arguments)
    snapshot = read_snapshot(arguments.host)
    names = {"machine": machine_options(arguments, anywhere=False), "built_with": asked_for(arguments.image)}
    boundary = study(arguments.image, os.environ, snapshot, site, arguments.starts, **names)
    print_manifest(boundary, snapshot, arguments.format)
    if boundary.fabric is Fabric.NONE:
        show(refusals_document(boundary, "bind"), stderr=True)
        return boundary.answer.exit_code
    show_items(doubts(boundary), stderr=True)
    return ExitCode.GOOD
