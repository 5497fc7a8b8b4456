"""Look at what this machine offers to a container."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lumiimg.cli.options import add_json, add_quiet, add_repeated, refuse_places
from lumiimg.errors import BadInputError, ExitCode, printable

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
    scan.add_argument(
        "--libfabric",
        metavar="FILE",
        type=Path,
        help="also pack this node's libfabric and its headers, for a build elsewhere that compiles the plugin "
        "against them: lumiimg build --source host-libfabric=FILE",
    )
    add_quiet(scan)
    add_json(scan)
    scan.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Scan, write, and answer by the exit code whether the fabric was found."""
    from lumiimg.host.scan import fabric_entry, scan_host
    from lumiimg.host.snapshot_file import to_text, write_snapshot
    from lumiimg.report.console import console, say
    from lumiimg.report.host import print_snapshot

    if arguments.libfabric is not None and str(arguments.libfabric) in {"-", arguments.output}:
        raise BadInputError("needs a file of its own", where="--libfabric", hint="--libfabric host-libfabric.tar")
    written = Path(arguments.output) if arguments.output not in (None, "-") else None
    refuse_places({"-o": written, "--libfabric": arguments.libfabric}, ())
    snapshot = scan_host(os.environ, include=arguments.include)
    to_stdout = arguments.json or arguments.output == "-"
    if written is not None:
        write_snapshot(snapshot, written)
    if to_stdout:
        sys.stdout.write(to_text(snapshot))
    print_snapshot(snapshot, written, quiet=arguments.quiet, stderr=to_stdout)
    found = fabric_entry(snapshot) is not None
    if arguments.libfabric is not None and not found:
        print(
            f"lumiimg: {printable(str(arguments.libfabric))}: not written, as no libfabric that loads with libcxi "
            "is here; load its module, or go to a compute node",
            file=sys.stderr,
        )
    if arguments.libfabric is not None and found:
        from lumiimg.host.devel_archive import fabric_of, write_archive

        version = write_archive(fabric_of(snapshot, "this machine").library, arguments.libfabric)
        out = console(stderr=True, quiet=arguments.quiet)
        say(out, f"libfabric {version} with its headers: {arguments.libfabric}")
    return ExitCode.GOOD if found else ExitCode.UNDECIDED
