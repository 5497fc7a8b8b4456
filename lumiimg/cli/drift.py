"""Compare a node with an earlier snapshot of one of its kind, and judge images by it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.catalog.sites import site_here
from lumiimg.check.drift import drift_of
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output, how_far
from lumiimg.host.drift import Drift
from lumiimg.host.scan import ASKED, scan_host
from lumiimg.host.snapshot import Snapshot, read_snapshot
from lumiimg.report.views.drift import drift_document


def execute(arguments: argparse.Namespace) -> int:
    output = Output.of(arguments, (*arguments.image, arguments.before, arguments.now))
    # two snapshots may be of another machine than this
    inputs = Inputs.of(arguments, None if arguments.now else site_here)
    before = read_snapshot(arguments.before)
    now = read_snapshot(arguments.now) if arguments.now else _this_machine(before)
    of_file = ("--host", str(arguments.now)) if arguments.now else ()
    machine = (*of_file, *inputs.words())
    result = drift_of(Drift(before, now), how_far(arguments.image), os.environ, inputs.site, machine)
    return output.deliver(drift_document(result), "drift", result, result.exit_code)


def _this_machine(before: Snapshot) -> Snapshot:
    """Scan, with those paths of the earlier scan that exist."""
    asked = [Path(entry.path) for entry in before.entries if ASKED in entry.how.split(", ")]
    return scan_host(os.environ, include=[path for path in asked if path.exists()])
