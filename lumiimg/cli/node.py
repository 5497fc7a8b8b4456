"""Carry out a task on this node for `check --nodes` and `trial`."""

from __future__ import annotations

import argparse
import os

from lumiimg.catalog.sites import find_site
from lumiimg.cluster.nodes.node import take_part
from lumiimg.cluster.trial.node_facts import record_node
from lumiimg.core.errors import ExitCode


def execute(arguments: argparse.Namespace) -> int:
    """Carry out the task; the result of the probes is in the answer, not in the exit code."""
    if arguments.look:
        record_node(arguments.folder, find_site(arguments.look, os.environ), os.environ)
    else:
        take_part(arguments.folder, os.environ)
    return ExitCode.GOOD
