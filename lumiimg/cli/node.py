"""Carry out the task in FOLDER on this node: `lumiimg check --nodes` does."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.errors import ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path)


def execute(arguments: argparse.Namespace) -> int:
    """Take part; whatever the probes come to is in the answer, not in the exit code."""
    from lumiimg.cluster.nodes.node_task import take_part

    take_part(arguments.folder, os.environ)
    return ExitCode.GOOD
