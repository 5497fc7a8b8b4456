"""`lumiimg log`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lumiimg.cli.options import add_json
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

_EPILOG = """\
The log needs NCCL_DEBUG=INFO in the job's environment: without it RCCL says
almost nothing.

exit codes: 0 proved: a fast network carried the traffic, or nothing crossed one
            1 it did not: slow path, or the plugin failed
            2 no such file
            3 the log does not tell, or shows no traffic
"""
# A line longer than this is not one that NCCL printed; the rest of it is passed over, in constant memory.
_LINE_LIMIT_BYTES = 64 * 1024


def configure_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "log",
        help="which network did this job use, why not the fast one, what to do",
        description="Read what NCCL, RCCL, their OFI plugin and libfabric printed:\nwhich network carried the traffic.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a job's output; - for standard input")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Read the files as one job's log and answer by the exit code."""
    from lumiimg.nccl.reader import LogReader  # noqa: PLC0415
    from lumiimg.nccl.report import Confidence, Verdict, to_json  # noqa: PLC0415
    from lumiimg.report.console import print_json  # noqa: PLC0415
    from lumiimg.report.log import print_log  # noqa: PLC0415

    reader = LogReader()
    for name in arguments.files:
        _refuse_compressed(name)
        for number, line in enumerate(_lines(name), start=1):
            reader.feed(name, number, line)
    report = reader.report()
    if arguments.json:
        print_json(to_json(report))
    print_log(report, stderr=arguments.json)
    match report.verdict:
        case Verdict.NONE:
            return ExitCode.UNDECIDED
        case Verdict.OFI_OTHER if report.provider is None:
            return ExitCode.UNDECIDED  # cxi and tcp look the same where the provider is not named
        case Verdict.OFI_CXI | Verdict.OFI_EFA | Verdict.IB | Verdict.INTRA_NODE_ONLY:
            # A network that was selected is not yet one that carried traffic.
            return ExitCode.GOOD if report.confidence is Confidence.PROVED else ExitCode.UNDECIDED
        case _:
            return ExitCode.NO


def _refuse_compressed(name: str) -> None:
    """Raise BadInputError for a compressed file: its bytes would read as a log that tells nothing."""
    if name == "-" or not Path(name).is_file():
        return
    with Path(name).open("rb") as stream:
        head = stream.read(4)
    for magic, program in ((b"\x1f\x8b", "zcat"), (b"\x28\xb5\x2f\xfd", "zstdcat"), (b"\xfd7zX", "xzcat")):
        if head.startswith(magic):
            raise BadInputError("is compressed", where=name, hint=f"{program} FILE | lumiimg log -")


def _lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a file, or of standard input; an overlong one is cut.

    Raises BadInputError if the file cannot be read.
    """
    try:
        if not name:
            raise BadInputError("the name of the log is empty")
        if name == "-" and sys.stdin is None:
            raise BadInputError("there is no standard input to read")
        if name == "-":
            yield from _cut_lines(sys.stdin.buffer)
            return
        with Path(name).open("rb") as stream:
            yield from _cut_lines(stream)
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=name) from error


def _cut_lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(_LINE_LIMIT_BYTES):
        yield line
        while not line.endswith(b"\n"):
            line = stream.readline(_LINE_LIMIT_BYTES)
            if not line:
                return
