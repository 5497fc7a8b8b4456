"""`lumiimg diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_json
from lumiimg.errors import ExitCode

if TYPE_CHECKING:
    import argparse


def configure_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "diff",
        help="what two locks differ in",
        description="Show what two locks differ in: base, layers, releases, sources, Python distributions.",
        allow_abbrev=False,
    )
    parser.add_argument("old", metavar="A.lock", type=Path, help="the one before")
    parser.add_argument("new", metavar="B.lock", type=Path, help="the one after")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Compare, print, and answer by the exit code: 1 where they differ, as diff(1) does."""
    from lumiimg.report.lock import print_changes  # noqa: PLC0415
    from lumiimg.resolve.changes import changes, entries  # noqa: PLC0415
    from lumiimg.resolve.lockfile import read_document  # noqa: PLC0415

    found = changes(*(entries(read_document(path), path) for path in (arguments.old, arguments.new)))
    print_changes(found, as_json=arguments.json)
    return ExitCode.NO if found else ExitCode.GOOD
