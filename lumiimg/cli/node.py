"""Carry out the task in FOLDER on this node: `lumiimg check --nodes` and `lumiimg trial` do."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from lumiimg.errors import ExitCode, printable


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--look", metavar="SITE", help="put there what this node shows of what the site's file says")
    parser.add_argument("--gpus-in", metavar="IMAGE", type=Path, help="print what the GPUs are for its runtime")


def execute(arguments: argparse.Namespace) -> int:
    """Take part; whatever the probes come to is in the answer, not in the exit code."""
    from lumiimg.catalog.sites import find_site
    from lumiimg.cluster.nodes.node_task import take_part
    from lumiimg.cluster.trial.look import look_here

    if image := arguments.gpus_in:
        from lumiimg.cluster.trial.gpu_targets import gpus_of
        from lumiimg.host.codec import encode

        facts = gpus_of(image.absolute(), find_site(arguments.look, os.environ), arguments.folder, os.environ)
        print(printable(json.dumps(encode(facts))))
    elif arguments.look:
        look_here(arguments.folder, find_site(arguments.look, os.environ), os.environ)
    else:
        take_part(arguments.folder, os.environ)
    return ExitCode.GOOD
