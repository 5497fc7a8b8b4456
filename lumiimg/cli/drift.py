"""Compare a node with an earlier snapshot of one of its kind, and judge images by it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.catalog.site_choice import site_here
from lumiimg.check.answer import Answer
from lumiimg.check.drift import follow, judge
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.errors import ExitCode, LumiimgError
from lumiimg.host.drift import compare
from lumiimg.host.library_search import ASKED
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import Snapshot
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.report.views.drift import Words, drift_document, drift_result
from lumiimg.report.views.images import of_error


def execute(arguments: argparse.Namespace) -> int:
    output = Output.of(arguments, (*arguments.image, arguments.before, arguments.now))
    # two snapshots may be of another machine than this
    inputs = Inputs.of(arguments, None if arguments.now else site_here)
    before = read_snapshot(arguments.before)
    now = read_snapshot(arguments.now) if arguments.now else _this_machine(before)
    drift = compare(before, now)
    # of nodes of different kinds nothing follows for an image
    images, unread = [], []
    for path in () if drift.kinds else arguments.image:
        try:
            images.append(follow(path, os.environ, drift, inputs.site))
        except LumiimgError as error:
            if len(arguments.image) == 1:
                raise
            unread.append(of_error(path, error))  # it does not keep the others from an answer
    answer = judge(drift, images) if images or not unread else Answer.UNDECIDED
    words = Words(str(arguments.now) if arguments.now else None, inputs.site_name)
    code = ExitCode.BAD_INPUT if unread and answer is not Answer.NO else answer.exit_code
    result = drift_result(drift, images, answer, words, unread)
    return output.deliver(drift_document(result, words), "drift", result, code)


def _this_machine(before: Snapshot) -> Snapshot:
    """Scan, with what the earlier scan was given, as far as it is there."""
    asked = [Path(entry.path) for entry in before.entries if ASKED in entry.how.split(", ")]
    return scan_host(os.environ, include=[path for path in asked if path.exists()])
