"""Compare a node with an earlier snapshot of its kind and judge images by the changes; or compare two node reports."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.catalog.sites import site_here
from lumiimg.check.drift import drift_of
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output, how_far
from lumiimg.cluster.nodes.drift import nodes_drift
from lumiimg.cluster.nodes.report import read_report
from lumiimg.core.errors import BadInputError
from lumiimg.host.drift import Drift
from lumiimg.host.scan import ASKED, scan_host
from lumiimg.host.snapshot import Snapshot, read_snapshot
from lumiimg.report.views.drift import drift_document, nodes_drift_document


def execute(arguments: argparse.Namespace) -> int:
    output = Output.from_arguments(arguments, (*(arguments.image or ()), arguments.before, arguments.now))
    if not arguments.image:
        return _nodes(arguments, output)
    # two snapshots may be from another machine
    inputs = Inputs.from_arguments(arguments, None if arguments.now else site_here)
    before = read_snapshot(arguments.before)
    now = read_snapshot(arguments.now) if arguments.now else _this_machine(before)
    of_file = ("--host", str(arguments.now)) if arguments.now else ()
    machine = (*of_file, *inputs.words())
    result = drift_of(Drift(before, now), arguments.image, os.environ, inputs.site, machine, how_far)
    return output.deliver(drift_document(result), "drift", result, result.exit_code)


def _nodes(arguments: argparse.Namespace, output: Output) -> int:
    """Compare two reports of nodes. Raises BadInputError."""
    if arguments.now is None or arguments.site is not None:
        hint = "name the images to judge; two reports of `check --nodes --json` are compared without it and --site"
        raise BadInputError("is missing", where="--image", hint=hint)
    result = nodes_drift(read_report(arguments.before), read_report(arguments.now))
    return output.deliver(nodes_drift_document(result), "drift-nodes", result, result.answer.exit_code)


def _this_machine(before: Snapshot) -> Snapshot:
    """Scan this machine, including the existing paths that the earlier scan was asked to include."""
    asked = [Path(entry.path) for entry in before.entries if ASKED in entry.how.split(", ")]
    return scan_host(os.environ, include=[path for path in asked if path.exists()])
