"""Record what this machine offers to a container."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from lumiimg.cli.output import Output
from lumiimg.core.errors import ExitCode
from lumiimg.core.files import refuse_places
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import HostFiles, snapshot_text, write_snapshot
from lumiimg.report.views.host import snapshot_document


def execute(arguments: argparse.Namespace) -> int:
    """Scan and write the snapshot; the exit code shows whether the fabric was found."""
    written = Path(arguments.output) if arguments.output not in (None, "-") else None
    refuse_places({"-o": written}, ())
    snapshot = scan_host(os.environ, include=arguments.include)
    to_stdout = arguments.json or arguments.output == "-"
    if written is not None:
        write_snapshot(snapshot, written)
    if to_stdout:
        sys.stdout.write(snapshot_text(snapshot))
    replace(Output.from_arguments(arguments), json=to_stdout).show(snapshot_document(snapshot, written))
    return ExitCode.GOOD if HostFiles(snapshot).fabric is not None else ExitCode.UNDECIDED
