"""Compare a node with an earlier snapshot of one of its kind, and say which
images, and which binds made for them, still work.

examples:
  lumiimg drift host.json --image *.sif --site lumi     on a compute node
  lumiimg drift november.json today.json --image vllm.sif

exit codes: 0 no change breaks an image, or nothing changed
            1 an image breaks, or the binds made for it before; without
              images: something changed that can break one
            2 not a snapshot, or one of the images is not an image
            3 cannot be decided: nodes of different kinds, no fabric in the new
              snapshot, or an unknown driver
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import options
from lumiimg.errors import ExitCode, LumiimgError

if TYPE_CHECKING:
    import argparse

    from lumiimg.host.snapshot import Snapshot


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "before", metavar="BEFORE", type=Path, help="node snapshot that the images were checked with (`host scan`)"
    )
    parser.add_argument(
        "now", metavar="NOW", type=Path, nargs="?", help="node snapshot of today (default: this machine is scanned)"
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        help="image: one to judge (may be repeated)",
    )
    options.add_machine(parser, "its binds and driver window apply")
    options.add_page(parser)
    options.add_quiet(parser)
    options.add_verbose(parser, "every change")
    options.add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.check.drift import follow, judge
    from lumiimg.check.static.comparisons import Outcome
    from lumiimg.host.drift import compare
    from lumiimg.host.snapshot_file import read_snapshot
    from lumiimg.report.console import print_json
    from lumiimg.report.drift import Words, json_keys, print_drift
    from lumiimg.report.views.images import of_error

    options.refuse_places({"--html": arguments.html}, (*arguments.image, arguments.before, arguments.now))
    # two snapshots may be of another machine than this
    site = options.named_site(arguments) if arguments.now else options.site_of(arguments)
    before = read_snapshot(arguments.before)
    now = read_snapshot(arguments.now) if arguments.now else _this_machine(before)
    drift = compare(before, now)
    # of nodes of different kinds nothing follows for an image
    images, unread = [], []
    for path in () if drift.kinds else arguments.image:
        try:
            images.append(follow(path, os.environ, drift, site))
        except LumiimgError as error:
            if len(arguments.image) == 1:
                raise
            unread.append(of_error(path, error))  # it does not keep the others from an answer
    answer = judge(drift, images) if images or not unread else Outcome.UNKNOWN
    words = Words(str(arguments.now) if arguments.now else None, options.site_in_force(arguments))
    if arguments.html:
        from lumiimg.files import write_text
        from lumiimg.report.html.drift import drift_page

        write_text(arguments.html, drift_page(drift, images, answer, words, unread))
    if arguments.json:
        print_json("drift", drift, **json_keys(drift, images, answer, words, unread))
    shown = {"verbose": arguments.verbose, "quiet": arguments.quiet, "stderr": arguments.json}
    print_drift(drift, images, answer, words, unread, **shown)
    return ExitCode.BAD_INPUT if unread and answer is not Outcome.REFUSED else answer.exit_code


def _this_machine(before: Snapshot) -> Snapshot:
    """Scan, with what the earlier scan was given, as far as it is there."""
    from lumiimg.host.library_search import ASKED
    from lumiimg.host.scan import scan_host

    asked = [Path(entry.path) for entry in before.entries if ASKED in entry.how.split(", ")]
    return scan_host(os.environ, include=[path for path in asked if path.exists()])
