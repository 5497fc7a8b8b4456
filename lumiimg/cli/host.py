"""Look at what this machine offers to a container."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lumiimg.cli.options import add_json, add_quiet, add_repeated, refuse_places
from lumiimg.errors import ExitCode

_EPILOG = """\
Take it where the jobs run, with the modules of the job loaded:
  srun -p small-g --gpus=1 lumiimg host scan -o host.json

exit codes: 0 a libfabric that loads, with libcxi, was found
            2 a path of --include offers nothing
            3 written, but no such libfabric was found here
            4 no glibc here to ask
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    scan = actions.add_parser(
        "scan",
        help="record the fabric libraries, NICs, driver and engine of this node",
        description="Record what this node offers: libfabric, libcxi and all that they need,\n"
        "NICs, GPU driver, container engine. `lumiimg bind` and `lumiimg explain` read\n"
        "the file on any machine.",
        epilog=_EPILOG,
    )
    scan.add_argument("-o", "--output", metavar="FILE", help="output: the snapshot; - for standard output")
    include = "library, or folder of libraries, that the scan would not find (may be repeated)"
    add_repeated(scan, "--include", "PATH", include, Path)
    add_quiet(scan)
    add_json(scan)
    scan.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Scan, write, and answer by the exit code whether the fabric was found."""
    from lumiimg.host.scan import fabric_entry, scan_host
    from lumiimg.host.snapshot_file import to_text, write_snapshot
    from lumiimg.report.host import print_snapshot

    written = Path(arguments.output) if arguments.output not in (None, "-") else None
    refuse_places({"-o": written}, ())
    snapshot = scan_host(os.environ, include=arguments.include)
    to_stdout = arguments.json or arguments.output == "-"
    if written is not None:
        write_snapshot(snapshot, written)
    if to_stdout:
        sys.stdout.write(to_text(snapshot))
    print_snapshot(snapshot, written, quiet=arguments.quiet, stderr=to_stdout)
    return ExitCode.GOOD if fabric_entry(snapshot) is not None else ExitCode.UNDECIDED
